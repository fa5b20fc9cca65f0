"""Which of the losses that boards claim are believed. A loss changes no model; but one claim of -1e25 would be the whole curve.
Knows nothing of Flower.

A loss is believed that is no more than `RATIO` times as large, either sign, as the typical one: the lower median of the round's
absolute losses. With fewer than three that is the typical one of the rounds before, or else the smaller. Losses up to `RATIO` are
believed whatever the others say, for a board may be nearly done.
"""

from __future__ import annotations

from collections.abc import Sequence

RATIO = 1e4
EVALUATED = 1e6  # the same for evaluations against training: one may fail badly on data that it has not seen
STEP = 100.0  # by no more than this a round one board alone moves what later losses are held against
ENOUGH = 3  # losses of which the median cannot be one liar's


class Losses:
    """Judges round after round. `typical`: of the last round, absolute; None before the first."""

    def __init__(self) -> None:
        self.typical: float | None = None

    def believed(self, losses: Sequence[float]) -> list[bool]:
        """One round's, in their order."""
        if not losses:
            return []
        sizes = sorted(map(abs, losses))
        least = sizes[(len(sizes) - 1) // 2]
        typical = least if self.typical is None or len(sizes) >= ENOUGH else max(self.typical, *sizes[:-1], 0.0)
        found = [abs(loss) <= RATIO * max(typical, 1.0) for loss in losses]
        if len(sizes) > 1 or self.typical is None:
            self.typical = least
        elif found[0]:
            self.typical = min(least, STEP * self.typical)
        return found

    def makes_sense(self, evaluated: float) -> bool:
        """Whether a model of this training may have that loss on test data."""
        return self.typical is None or abs(evaluated) <= EVALUATED * max(self.typical, 1.0)
