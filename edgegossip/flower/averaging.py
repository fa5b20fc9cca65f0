"""The weighted mean of encoded updates (McMahan et al. 2017, algorithm 1), each decoded straight into the sum. Knows nothing of
Flower, so that a study averages in the very same way.

x' = x + sum_i n_i / n * Q(delta_i). Flower's FedAvg averages the models x + delta_i, which is the same number up to rounding
and needs a copy of the model for every board.

An update out of all proportion is refused (`lengths.py`). Lengths of single updates are only measured when the mean itself is
longer than usual, or nothing is known yet: what goes unnoticed so cannot move the model further than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgegossip.codecs.checks import all_finite
from edgegossip.flower.channel import Channel
from edgegossip.flower.lengths import RATIO, Proportion, length
from edgegossip.frame import Frame
from edgegossip.types import NodeId, PeerError, Vec

_SUSPICIOUS = 4.0  # a mean so many times as long as the shortest since we looked makes us look at each update again


@dataclass(frozen=True, slots=True)
class Share:
    """One board's part in the mean: a frame that has been checked, not decoded."""

    name: NodeId
    frame: Frame
    weight: float  # above 0: examples that the update is from


@dataclass(frozen=True, slots=True)
class Averaged:
    """The new model, float32[n] (None: no update could be used), and who was refused, with the reason. `why`: there is no model,
    where no board is to blame."""

    model: Vec | None
    refused: dict[NodeId, str]
    why: str = ""


class Averager:
    """Averages round after round and remembers how long updates usually are. `uniform`: every board counts the same."""

    def __init__(self, channel: Channel, ratio: float = RATIO, *, uniform: bool = False) -> None:
        self._channel, self._uniform = channel, uniform
        self._proportion = Proportion(ratio)
        self._usual: float | None = None  # the shortest mean since each update was measured; None: that never was

    def __call__(self, base: Vec, shares: Sequence[Share]) -> Averaged:
        """One round's mean, added to float32[n] `base`, which is not changed."""
        refused: dict[NodeId, str] = {}
        lengths: dict[NodeId, float] = {}
        mean = self._mean(shares, refused)
        moved = length(mean)
        if self._usual is None or not moved <= _SUSPICIOUS * self._usual:
            lengths = self._inspect(base, [s for s in shares if s.name not in refused], refused)
            mean = self._mean([s for s in shares if s.name not in refused], refused)
            moved = length(mean)
        if len(refused) == len(shares):
            return Averaged(None, refused)
        with np.errstate(over="ignore"):
            mean += base
        if not all_finite(mean):
            why = "the update is so large that the model would not be finite"
            return Averaged(None, {s.name: refused.get(s.name, why) for s in shares})
        self._usual = moved if lengths or self._usual is None else min(moved, self._usual)
        if lengths:
            self._proportion.used({name: v for name, v in lengths.items() if name not in refused}, base)
        else:
            self._proportion.unmeasured()
        return Averaged(mean, refused)

    @property
    def memory(self) -> dict[str, float]:
        """What has to outlive this process: how long updates of the run are, and its means (-1: none yet)."""
        return {**self._proportion.memory, "usual": -1.0 if self._usual is None else self._usual}

    def restore(self, memory: Mapping[str, float]) -> None:
        """What `memory` gave."""
        self._proportion.restore(memory)
        usual = memory.get("usual", -1.0)
        self._usual = None if usual < 0.0 else usual

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

    def _inspect(self, base: Vec, shares: Sequence[Share], refused: dict[NodeId, str]) -> dict[NodeId, float]:
        """Measure every update, and refuse those out of all proportion."""
        scratch = np.empty(self._channel.layout.size, np.float32)
        lengths = {}
        for share in shares:
            try:
                lengths[share.name] = length(
                    self._channel.codec.decode(share.frame.body, self._channel.layout, scratch)
                )
            except PeerError as error:
                refused[share.name] = str(error)
        refused.update(self._proportion.refused(lengths, base))
        return lengths
