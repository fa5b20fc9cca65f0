"""Which updates of a round are out of all proportion: finite, and so long (L2) that one of them would spoil the model for all.
Knows nothing of Flower; FedAvg's mean, every other strategy and the drop-in ask the same question here.

An update is refused when it is more than `ratio` times as long as the typical one. That is the lower median of the round's. With
fewer than three to compare there is no median to trust - of two boards one may be nearly done, and the other as honest - so they
are held against the longest typical update of the run so far, or the shorter of two where that is longer still; with two in its
first round, against the model that they start from where that is longer than the shorter of them. A first update that is alone
is taken.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from edgegossip.codecs.checks import chunks
from edgegossip.types import Vec

RATIO = 100.0  # honest updates of one round differ by less than a tenth of it, lr warm-up included
GROWTH = 10.0  # by no more than this a round moves what later ones are held against
ENOUGH = 3  # updates of which the median cannot be one liar's

Key = TypeVar("Key", bound=Hashable)


class Proportion:
    """Judges round after round. `longest`: the longest typical length of the run so far, 0 before the first; it belongs into
    checkpoints."""

    def __init__(self, ratio: float = RATIO) -> None:
        self._ratio = ratio
        self.longest = 0.0

    def refused(self, lengths: Mapping[Key, float], x: Vec) -> dict[Key, str]:
        """Whose update of those with these lengths is refused, and why. x float32[n]: the model that they change."""
        moved = sorted(length for length in lengths.values() if length > 0.0)
        typical, of = self._typical(moved, x)
        return {
            key: f"the update is {value / typical:.3g} times as long as the typical one{of}"
            for key, value in lengths.items()
            if typical > 0.0 and value > self._ratio * typical
        }

    def used(self, lengths: Iterable[float]) -> None:
        """A round whose model is made of updates of these lengths."""
        moved = sorted(length for length in lengths if length > 0.0)
        if not moved:
            return
        typical = _middle(moved) if len(moved) >= ENOUGH else moved[-1]
        most = GROWTH * self.longest or math.inf
        self.longest = max(self.longest, min(typical, most))

    def _typical(self, moved: Sequence[float], x: Vec) -> tuple[float, str]:
        """The length to compare with, 0 where nothing is known, and words for what it is of."""
        if len(moved) >= ENOUGH:
            return _middle(moved), ""
        if self.longest:  # where both of two are longer, training runs away, which they say themselves better than this
            both = moved[0] if len(moved) == 2 else 0.0
            return max(self.longest, both), " of the run so far" if both < GROWTH * self.longest else ""
        if len(moved) == 2 and (model := length(x)):
            return max(moved[0], model), ""
        return 0.0, ""


def length(x: Vec) -> float:
    """L2 of float32[n], finite for finite x."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = 0.0
        for part in chunks(x.size):
            squares += float(np.einsum("i,i->", x[part], x[part]))  # not by BLAS: its threads would spin
        if not math.isfinite(squares):  # the sums of single parts are float32
            parts = (x[part].astype(np.float64) for part in chunks(x.size))
            squares = sum(float(np.einsum("i,i->", p, p)) for p in parts)
    return math.sqrt(squares) if math.isfinite(squares) else math.inf


def _middle(values: Sequence[float]) -> float:
    return values[(len(values) - 1) // 2]
