"""ElastiCL's rule where the paper has it, at the server: the boards' losses and learning rate in, the levels of all boards out
(Sudharsan et al. 2021, equations 3 and 4). Knows nothing of Flower.

One board that claims a wild loss must not decide for all. So the mean is of losses that are taken as at most `SPREAD` times as
large or small as their median; with fewer than three boards the smoothed loss so far stands in for those that are missing.
Whatever a single board says of its loss and examples, f_k is within SPREAD of what the others say (of two: said before), and
the levels within its square root. The learning rate is the median too: boards of one recipe have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high, median_low
from typing import Any

from edgegossip.codecs.base import Codec
from edgegossip.codecs.elasticl import ElastiCl
from edgegossip.codecs.levels import LevelRule, levels_for, smooth_loss
from edgegossip.frame import Aux, Frame

SPREAD = 10.0


@dataclass(frozen=True, slots=True)
class ServerLevels:
    """The rule's state: `loss` f_k, and (f_0, eta_0) from the first round. Goes into checkpoints."""

    s0: int
    smoothing: float
    loss: float | None = None
    first: tuple[float, float] | None = None
    levels: int = 0  # for the next round; 0: s0

    @classmethod
    def of(cls, codec: Codec[Any]) -> ServerLevels | None:
        """None for a codec without such a rule."""
        return cls(codec.s0, codec.smoothing) if isinstance(codec, ElastiCl) else None

    def aux(self) -> dict[int, float]:
        """What goes down with the model."""
        return {Aux.LEVELS: float(self.levels or self.s0)}

    def after(self, frames: Sequence[Frame]) -> ServerLevels:
        """With one round's updates, which say sensible things (`reported.py`): the mean of their losses by examples, and their
        learning rate."""
        rates = [rate for f in frames if (rate := f.aux.get(Aux.LEARNING_RATE, 0.0)) > 0.0]
        total = sum(f.aux[Aux.EXAMPLES] for f in frames)
        if not rates or total <= 0.0:
            return self
        losses = self._believed([f.aux[Aux.LOSS] for f in frames])
        mean = sum(f.aux[Aux.EXAMPLES] / total * loss for f, loss in zip(frames, losses, strict=True))
        lr = median_high(rates)
        if mean < 0.0 or (self.first is None and mean == 0.0):
            return self
        loss = smooth_loss(self.loss, mean, self.smoothing)
        f0, eta0 = first = self.first or (loss, lr)
        return ServerLevels(self.s0, self.smoothing, loss, first, levels_for(LevelRule(self.s0, eta0, f0), loss, lr))

    def _believed(self, losses: Sequence[float]) -> list[float]:
        """The same, none far from the others."""
        known = [] if self.loss is None else [self.loss] * (3 - len(losses))
        typical = median_low([*losses, *known]) or self.loss or 0.0
        return (
            [min(max(loss, typical / SPREAD), typical * SPREAD) for loss in losses] if typical > 0.0 else list(losses)
        )
