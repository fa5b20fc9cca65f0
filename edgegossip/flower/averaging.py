"""The weighted mean of encoded updates (McMahan et al. 2017, algorithm 1), each decoded straight into the sum. Knows nothing of
Flower, so that a study averages in the very same way.

x' = x + sum_i n_i / n * Q(delta_i). Flower's FedAvg averages the models x + delta_i, which is the same number up to rounding
and needs a copy of the model for every board.

One board that sends finite nonsense would spoil the model for all. So an update is refused when it is more than `ratio` times as
long (L2) as the typical one: the median of the round's, with two boards the shorter, with one the last round's. Lengths
of single updates are only measured when the mean itself is suspiciously long, or nothing is known yet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgegossip.codecs.checks import all_finite, chunks
from edgegossip.flower.channel import Channel
from edgegossip.frame import Frame
from edgegossip.types import NodeId, PeerError, Vec

RATIO = 100.0  # honest updates of one round differ by less than a tenth of it, lr warm-up included
_SUSPICIOUS = 10.0  # a mean so many times as long as the recent ones makes us look at each update
_MEMORY = 5  # recent means


@dataclass(frozen=True, slots=True)
class Share:
    """One board's part in the mean: a frame that has been checked, not decoded."""

    name: NodeId
    frame: Frame
    weight: float  # above 0: examples that the update is from


@dataclass(frozen=True, slots=True)
class Averaged:
    """The new model, float32[n] (None: no update could be used), and who was refused, with the reason."""

    model: Vec | None
    refused: dict[NodeId, str]


class Averager:
    """Averages round after round and remembers how long updates usually are. `uniform`: every board counts the same."""

    def __init__(self, channel: Channel, ratio: float = RATIO, *, uniform: bool = False) -> None:
        self._channel, self._ratio, self._uniform = channel, ratio, uniform
        self._recent: deque[float] = deque(maxlen=_MEMORY)  # lengths of means
        self._typical: float | None = None  # length of one update

    def __call__(self, base: Vec, shares: Sequence[Share]) -> Averaged:
        """One round's mean, added to float32[n] `base`, which is not changed."""
        refused: dict[NodeId, str] = {}
        mean = self._mean(shares, refused)
        length = _length(mean)
        if not self._recent or not length <= _SUSPICIOUS * max(self._recent):
            self._inspect([s for s in shares if s.name not in refused], refused)
            mean = self._mean([s for s in shares if s.name not in refused], refused)
            length = _length(mean)
        if len(refused) == len(shares):
            return Averaged(None, refused)
        with np.errstate(over="ignore"):
            mean += base
        if not all_finite(mean):
            why = "the update is so large that the model would not be finite"
            return Averaged(None, {s.name: refused.get(s.name, why) for s in shares})
        self._recent.append(length)
        return Averaged(mean, refused)

    def _mean(self, shares: Sequence[Share], refused: dict[NodeId, str]) -> Vec:
        """Of all that can be decoded. Those that cannot go to `refused`; they leave the sum as it was."""
        mean = np.zeros(self._channel.layout.size, np.float32)
        weights = [1.0 if self._uniform else s.weight for s in shares]
        total, used = sum(weights), 0.0
        for share, weight in zip(shares, weights, strict=True):
            try:
                self._channel.codec.decode(share.frame.body, self._channel.layout, mean, weight / total)
                used += weight
            except PeerError as error:
                refused[share.name] = str(error)
        if 0.0 < used < total:
            mean *= np.float32(total / used)
        return mean

    def _inspect(self, shares: Sequence[Share], refused: dict[NodeId, str]) -> None:
        """Measure every update and refuse those out of all proportion."""
        scratch = np.empty(self._channel.layout.size, np.float32)
        lengths = {}
        for share in shares:
            try:
                lengths[share.name] = _length(
                    self._channel.codec.decode(share.frame.body, self._channel.layout, scratch)
                )
            except PeerError as error:
                refused[share.name] = str(error)
        typical = self._typical_of([length for length in lengths.values() if length > 0.0])
        for name, length in lengths.items():
            if typical and length > self._ratio * typical:
                refused[name] = f"the update is {length / typical:.3g} times as long as the typical one"
        self._typical = self._typical_of([v for k, v in lengths.items() if k not in refused and v > 0.0])

    def _typical_of(self, lengths: Sequence[float]) -> float | None:
        if len(lengths) < 2:
            return self._typical if self._typical is not None else next(iter(lengths), None)
        return sorted(lengths)[(len(lengths) - 1) // 2]  # the lower median: of two, the shorter


def _length(x: Vec) -> float:
    """L2, summed in double over parts; infinite values give infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = 0.0
        for part in chunks(x.size):
            squares += float(np.einsum("i,i->", x[part], x[part]))  # not by BLAS: its threads would spin
    return math.sqrt(squares) if math.isfinite(squares) else math.inf
