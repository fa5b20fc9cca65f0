"""The version 1 wire frame: one message between two boards, or between a board and the coordinator. Pure.

docs/wire-format.md describes it byte by byte. `build` makes the pieces, `parse` checks every field before it believes any.
Peer identity is not in the frame: it comes from the transport.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from collections.abc import Mapping


class Kind(IntEnum):
    """What the body is."""

    MODEL = 1  # a whole model
    DIFFERENCE = 2  # to be added to a replica that both ends hold
    GRADIENT = 3
    UPDATE = 4  # a board's change of the coordinator's model
    STATE = 5  # a full replica, after a gap


@dataclass(frozen=True, slots=True)
class Frame:
    """One message. `body` is what the codec made of the vector; `aux` holds small numbers by tag (see Aux)."""

    kind: Kind
    codec_id: int  # uint16, 0 is invalid
    codec_params: bytes  # at most codecs.base.MAX_PARAMS_BYTES
    layout_hash: int  # uint64
    run_id: bytes  # 16 bytes
    round: int  # uint32
    sequence: int  # uint64, counts this sender's frames on this edge from 1
    key: int  # uint64, of the codec's generator
    body: bytes | memoryview
    aux: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
