"""ElastiCL's rule where the paper has it, at the server: the boards' losses and learning rate in, the levels of all boards out
(Sudharsan et al. 2021, equations 3 and 4). Knows nothing of Flower.

One board that claims a wild loss must not decide for all. So the mean is of losses that are taken as at most `SPREAD` times as
large or small as their median; with fewer than three boards the smoothed loss so far stands in for those that are missing.
Whatever a single board says of its loss and examples, f_k is within SPREAD of what the others say (of two: said before), and
the levels within its square root. The learning rate is the median too: boards of one recipe have the same. Of fewer than three
it is the one nearest to the recipe's, or where that is not known, of two, the median of them and the one before.

What the first round says counts for ever. So where fewer than three boards have said it, (f_0, eta_0) and f_k are held against
what the boards say until three do in one round, or `FIRST` have in all: more than `SPREAD` (of the latter, its square) beside
that, they are replaced by it. In a fleet of two nobody can tell which of both lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_high, median_low
from typing import Any

from edgegossip.codecs.base import Codec
from edgegossip.codecs.elasticl import ElastiCl
from edgegossip.codecs.levels import LevelRule, levels_for, smooth_loss
from edgegossip.flower.examples import RATIO
from edgegossip.frame import Aux, Frame

SPREAD = 10.0
ENOUGH = 3  # boards of which the median cannot be one liar's
FIRST = 8


@dataclass(frozen=True, slots=True)
class ServerLevels:
    """The rule's state: `loss` f_k, and (f_0, eta_0) from the first round. Goes into checkpoints."""

    s0: int
    smoothing: float
    loss: float | None = None
    first: tuple[float, float] | None = None
    levels: int = 0  # for the next round; 0: s0
    lr: float | None = None  # eta_k
    early: (
        tuple[tuple[float, float], ...] | None
    ) = ()  # losses and rates of the first rounds; None: f_0 and eta_0 are settled

    @classmethod
    def of(cls, codec: Codec[Any]) -> ServerLevels | None:
        """None for a codec without such a rule."""
        return cls(codec.s0, codec.smoothing) if isinstance(codec, ElastiCl) else None

    def aux(self) -> dict[int, float]:
        """What goes down with the model."""
        return {Aux.LEVELS: float(self.levels or self.s0)}

    def after(self, frames: Sequence[Frame], planned: float | None = None) -> ServerLevels:
        """With one round's updates, which say sensible things (`reported.py`): the mean of their losses by examples, and their
        learning rate. `planned`: the recipe's rate of this round, above 0."""
        rates = [rate for f in frames if (rate := f.aux.get(Aux.LEARNING_RATE, 0.0)) > 0.0]
        weights = _weights(frames)
        total = sum(weights)
        if not rates or total <= 0.0:
            return self
        losses = self._believed([f.aux[Aux.LOSS] for f in frames])
        mean = sum(weight / total * loss for weight, loss in zip(weights, losses, strict=True))
        lr = self._rate(rates, planned)
        if mean < 0.0 or (self.first is None and mean == 0.0):
            return self
        loss = smooth_loss(self.loss, mean, self.smoothing)
        told = replace(self, loss=loss, first=self.first or (loss, lr), lr=lr)._settled(frames)
        assert told.loss is not None and told.first is not None
        f0, eta0 = told.first
        return replace(told, levels=levels_for(LevelRule(self.s0, eta0, f0), told.loss, lr))

    def _rate(self, rates: Sequence[float], planned: float | None) -> float:
        if len(rates) >= ENOUGH:
            return median_high(rates)
        if planned:
            return min(rates, key=lambda rate: abs(math.log(rate / planned)))
        return median_high([*rates, self.lr] if len(rates) > 1 and self.lr else rates)

    def _settled(self, frames: Sequence[Frame]) -> ServerLevels:
        """With f_0, eta_0 and f_k that are not one liar's alone."""
        if self.early is None or self.first is None or self.loss is None:
            return self
        now = tuple((f.aux[Aux.LOSS], self.lr or 0.0) for f in frames)
        told = now if len(now) >= ENOUGH else (*self.early, *now)
        if len(now) < ENOUGH and len(told) < FIRST:
            return replace(self, early=told)
        loss, lr = median_low(sorted(f for f, _ in told)), median_high(sorted(eta for _, eta in told))
        spread = SPREAD if len(now) >= ENOUGH else SPREAD**2
        (f0, eta0), fk = self.first, self.loss
        first = (_unless_far(f0, loss, spread), _unless_far(eta0, lr, spread))
        return replace(self, early=None, first=first, loss=_unless_far(fk, loss, spread))

    def _believed(self, losses: Sequence[float]) -> list[float]:
        """The same, none far from the others."""
        known = [] if self.loss is None else [self.loss] * (3 - len(losses))
        typical = (
            median_low([*losses, *known]) or self.loss or min((loss for loss in losses if loss > 0.0), default=0.0)
        )
        return (
            [min(max(loss, typical / SPREAD), typical * SPREAD) for loss in losses] if typical > 0.0 else list(losses)
        )


def _weights(frames: Sequence[Frame]) -> list[float]:
    """The examples of each, none more than an update may claim (`examples.py`)."""
    examples = [f.aux[Aux.EXAMPLES] for f in frames]
    return [min(count, RATIO * median_low(examples)) for count in examples]


def _unless_far(value: float, typical: float, spread: float) -> float:
    far = typical > 0.0 and not typical / spread <= value <= typical * spread
    return typical if far else value
