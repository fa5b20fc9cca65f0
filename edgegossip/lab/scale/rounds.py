"""What a board does in a round, what it sends, and where the round's time went: inputs and outcome
of the models of a round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BoardWork:
    """What one board does in a round, in seconds on its own, beside sending."""

    compute_s: float
    encode_s: float
    decode_s: float  # of one message
    link_bits_per_s: float  # of its own interface, each way
    other_s: float = 0.0  # evaluation, records, the machinery around a round
    spread: float = 0.0  # of compute_s from round to round: its standard deviation by its mean


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a round, between boards by index."""

    sender: int
    receiver: int
    size_bytes: int  # on the wire: payload and overhead


@dataclass(frozen=True, slots=True)
class RoundParts:
    """Where a round's wall time goes on one board; the parts add up to `round_s`."""

    compute_s: float
    encode_s: float
    transmit_s: float
    decode_s: float
    wait_s: float
    other_s: float
    round_s: float
