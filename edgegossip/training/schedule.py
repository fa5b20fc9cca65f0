"""Learning-rate schedules, one rate a round. Without torch: the coordinator knows a round's rate,
too, except where it depends on a board's own losses (`Plateau`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.recipe import TrainingSection
from edgegossip.types import UsageError

# torch's OneCycleLR: the share of the rounds in which the rate rises; what lr is divided by at its
# beginning and at its end.
_RISE, _BEGIN, _END = 0.3, 25.0, 25.0 * 1e4


def learning_rate(section: TrainingSection, round: int, rounds: int) -> float:
    """Return the learning rate of a round, 0-based, out of `rounds`.

    Schedules, of which `done` is the share of the rounds before this one:
        constant    lr
        step        lr step_factor^(milestones passed); a milestone is a share of the rounds, or
                    each `step_rounds` rounds are one
        cosine      lr (1 + cos(pi done)) / 2; Loshchilov, Hutter 2017, equation 5 with one period
        one-cycle   along a cosine from lr / 25 up to lr where done < 0.3, then along another down
                    to lr / 250,000; Smith, Topin 2018
        plateau     lr, which `Plateau` lowers by the losses of a board

    In the first `warmup` rounds the rate rises in equal steps, lr (round + 1) / (warmup + 1); the
    schedule is played in the rounds after them.

    Example:
        section = TrainingSection(lr=0.1, schedule="cosine")
        [learning_rate(section, round, 4) for round in range(4)]  # 0.1, 0.0854, 0.05, 0.0146
    """
    if round < section.warmup:
        return section.lr * (round + 1) / (section.warmup + 1)
    round, rounds = round - section.warmup, max(1, rounds - section.warmup)
    if section.schedule == "step":
        every = section.step_rounds
        passed = round // every if every else sum(round >= share * rounds for share in section.milestones)
        return section.lr * section.step_factor**passed
    if section.schedule == "cosine":
        return _cosine(section.lr, 0.0, round / rounds)
    if section.schedule == "one-cycle":
        done = round / rounds
        if done < _RISE:
            return _cosine(section.lr / _BEGIN, section.lr, done / _RISE)
        return _cosine(section.lr, section.lr / _END, (done - _RISE) / (1 - _RISE))
    return section.lr


def _cosine(first: float, last: float, done: float) -> float:
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))


@dataclass(slots=True)
class Plateau:
    """Lowers the rate where a board's losses stand still (torch's `ReduceLROnPlateau`): rounds are
    taken `window` at a time, and when their mean loss is no better than the best before, the rate
    drops by `factor`."""

    window: int
    factor: float
    scale: float = 1.0  # of the rate in force
    best: float = math.inf
    losses: list[float] = field(default_factory=list)  # of the window so far

    @classmethod
    def of(cls, section: TrainingSection, rounds: int) -> Plateau | None:
        """Return the recipe's, or None for other schedules."""
        if section.schedule != "plateau":
            return None
        return cls(section.plateau_rounds or max(1, rounds // 20), section.step_factor)

    def take(self, loss: float) -> None:
        """Take in the loss of a round. An improvement counts from a ten thousandth on, as
        torch's."""
        self.losses.append(loss)
        if len(self.losses) < self.window:
            return
        mean = math.fsum(self.losses) / len(self.losses)
        self.losses.clear()
        if mean < self.best - 1e-4 * abs(self.best) if math.isfinite(self.best) else True:
            self.best = mean
        else:
            self.scale *= self.factor

    def snapshot(self) -> NDArray[np.float64]:
        """Return what `restore` goes on from."""
        return np.array([self.scale, self.best, *self.losses])

    def restore(self, kept: Any) -> None:
        """Go on from what `snapshot` gave. Raises UsageError for what it could not have given."""
        if not isinstance(kept, np.ndarray) or kept.dtype != np.float64 or not 2 <= kept.size < 2 + self.window:
            raise UsageError("the snapshot is not one of this workload: its plateau is of another size")
        self.scale, self.best, *self.losses = kept.tolist()
