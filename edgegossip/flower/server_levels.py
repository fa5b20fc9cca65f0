"""ElastiCL's rule where the paper has it, at the server: the boards' losses and learning rate in, the levels of all boards out
(Sudharsan et al. 2021, equations 3 and 4). Knows nothing of Flower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgegossip.codecs.base import Codec
from edgegossip.codecs.elasticl import ElastiCl
from edgegossip.codecs.levels import LevelRule, levels_for, smooth_loss
from edgegossip.frame import Aux, Frame


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
        """With one round's updates: their mean loss by examples, and the largest learning rate."""
        weights = [f.aux[Aux.EXAMPLES] for f in frames]
        lr = max((f.aux.get(Aux.LEARNING_RATE, 0.0) for f in frames), default=0.0)
        if not frames or lr <= 0.0:
            return self
        mean = sum(w * f.aux[Aux.LOSS] for w, f in zip(weights, frames, strict=True)) / sum(weights)
        if mean < 0.0 or (self.first is None and mean == 0.0):
            return self
        loss = smooth_loss(self.loss, mean, self.smoothing)
        f0, eta0 = first = self.first or (loss, lr)
        return ServerLevels(self.s0, self.smoothing, loss, first, levels_for(LevelRule(self.s0, eta0, f0), loss, lr))
