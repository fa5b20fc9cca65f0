"""Learning-rate schedules. Without torch: the coordinator knows a round's rate, too."""

from __future__ import annotations

import math

from edgegossip.recipe import TrainingSection


def learning_rate(section: TrainingSection, round: int, rounds: int) -> float:
    """Learning rate of a round, 0-based, out of `rounds`.

    step: times step_factor after each milestone (a share of the rounds); cosine: lr (1 + cos(pi round / rounds)) / 2
    (Loshchilov, Hutter 2017, equation 5 with one period)."""
    if section.schedule == "step":
        passed = sum(round >= share * rounds for share in section.milestones)
        return section.lr * section.step_factor**passed
    if section.schedule == "cosine":
        return section.lr * 0.5 * (1.0 + math.cos(math.pi * min(round / rounds, 1.0)))
    return section.lr
