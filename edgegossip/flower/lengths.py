"""Which updates of a round are out of all proportion: finite, and so long (L2) that one of them would spoil the model for all.
Knows nothing of Flower; FedAvg's mean, every other strategy and the drop-in ask the same question here.

An update is refused when it is more than `ratio` times as long as the typical one. That is the lower median of the round's. With
fewer than three to compare there is no median to trust - of two boards one may be nearly done, and the other as honest - so they
are held against the lower median of what each board sent last. In a fleet of two that is no help either: they are held against
the longest update that both have come up to, or one of them in its first round, when the model is as long. A first update that is
alone is taken.

A liar just below the ratio moves the model, the others' next updates lead back and are longer for it, and so would be what it is
held against. Therefore that grows slowly (`GROWTH`). Where most updates are longer still, training itself has
changed, and the round's own typical one is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from edgegossip.codecs.checks import chunks
from edgegossip.types import NodeId, Vec

RATIO = 100.0  # honest updates of one round differ by less than a tenth of it, lr warm-up included
EARLY, EARLY_GROWTH = 10, 2.0  # by no more than this the first rounds move what later ones are held against: lr warm-up
GROWTH = 1.1  # and by no more than this later ones
REACH = 10.0  # by no more than this altogether rounds in a row that nobody measured
ENOUGH = 3  # updates of which the median cannot be one liar's

_OF = "of/"  # in `memory`: what a board sent last
_PAST = " of the run so far"


class Proportion:
    """Judges round after round."""

    def __init__(self, ratio: float = RATIO) -> None:
        self._ratio = ratio
        self._longest = 0.0  # that both of two have come up to; 0: no update yet
        self._typical = 0.0  # of three or more boards, growing slowly; 0: not yet
        self._rounds = 0
        self._reach = EARLY_GROWTH  # what later updates are held against times that is the most for the next round
        self._last: dict[NodeId, float] = {}  # lengths of updates that were used

    @property
    def memory(self) -> dict[str, float]:
        """What has to outlive this process."""
        last = {_OF + name: value for name, value in self._last.items()}
        now = {"longest": self._longest, "typical": self._typical, "reach": self._reach, "rounds": float(self._rounds)}
        return {**now, **last}

    def restore(self, memory: Mapping[str, float]) -> None:
        """What `memory` gave, of an earlier version, too."""
        self._longest, self._typical = memory.get("longest", 0.0), memory.get("typical", 0.0)
        self._reach, self._rounds = memory.get("reach", EARLY_GROWTH), int(memory.get("rounds", 0))
        self._last = {key.removeprefix(_OF): value for key, value in memory.items() if key.startswith(_OF)}

    def refused(self, lengths: Mapping[NodeId, float], x: Vec) -> dict[NodeId, str]:
        """Whose update of those with these lengths is refused, and why. x float32[n]: the model that they change."""
        moved = sorted(length for length in lengths.values() if length > 0.0)
        typical, of = self._compared(moved, x)
        return {
            key: f"the update is {value / typical:.3g} times as long as the typical one{of}"
            for key, value in lengths.items()
            if typical > 0.0 and value > self._ratio * typical
        }

    def used(self, lengths: Mapping[NodeId, float], x: Vec) -> None:
        """A round whose model is made of x float32[n] and updates of these lengths."""
        moved = sorted(length for length in lengths.values() if length > 0.0)
        if not moved:
            return
        self._last.update((name, value) for name, value in lengths.items() if value > 0.0)
        known = sorted(self._last.values())
        typical = _middle(moved if len(moved) >= ENOUGH else known)
        if len(known) >= ENOUGH:
            slow = min(max(typical, self._typical / self._growth), self._reach * self._typical)
            self._typical = slow if self._typical else typical
        if self._longest:
            self._longest = max(self._longest, min(typical, self._reach * self._longest))
        else:
            self._longest = max(typical, min(known[-1], length(x) or math.inf)) if len(known) < ENOUGH else typical
        self._rounds += 1
        self._reach = self._growth

    def unmeasured(self) -> None:
        """A round whose updates nobody measured."""
        self._rounds += 1
        self._reach = min(self._growth * self._reach, REACH)

    @property
    def _growth(self) -> float:
        return EARLY_GROWTH if self._rounds < EARLY else GROWTH

    def _compared(self, moved: Sequence[float], x: Vec) -> tuple[float, str]:
        """The length to compare with, 0 where nothing is known, and words for what it is of."""
        if len(moved) >= ENOUGH:
            return self._slow(_middle(moved), _middle(moved), "")
        least = moved[0] if len(moved) > 1 else 0.0
        if len(self._last) >= ENOUGH:
            return self._slow(_middle(sorted(self._last.values())), least, _PAST)
        if self._longest:
            return self._unless_all(self._longest, least, _PAST)
        if len(moved) > 1 and (model := length(x)):
            return max(least, model), ""
        return 0.0, ""

    def _slow(self, typical: float, least: float, of: str) -> tuple[float, str]:
        held = min(typical, self._reach * self._typical) if self._typical else typical
        return self._unless_all(held, least, of if held == typical else _PAST)

    def _unless_all(self, typical: float, least: float, of: str) -> tuple[float, str]:
        """That, unless `least`, as long as which most are, is too long: then training runs away, which boards say better."""
        return (least, "") if least > self._ratio * typical else (typical, of)


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
