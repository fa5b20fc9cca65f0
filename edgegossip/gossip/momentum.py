"""Puts momentum around any gossip algorithm: an algorithm itself, which changes the local update
before the inner `step`.

g is the local gradient, f the factor, m the momentum, float32, zero at first, in units of the
gradient:

- heavy-ball (Polyak 1964):  m <- f m + g;  step -lr m
- nesterov (Sutskever et al. 2013, in torch's form):  m <- f m + g;  step -lr (g + f m)
- quasi-global (Lin et al., "Quasi-global momentum", 2021, algorithm 1; mu = beta = f): step -lr (f
  m + g), and after the exchange m <- f m + (1 - f)(x_t - x_(t+1)) / lr, where x is the model as the
  inner algorithm shows it (de-biased under push-sum): the momentum follows the model that
  everybody's updates went into, not the node's own data.
- quasi-global-nesterov (the same paper's Nesterov form): step -lr (g + f (f m + g)), m as in
  quasi-global.

Deviations. (1) g is -delta / lr of the whole round. With several local steps that is the sum of
their gradients, each at the model that the steps before it led to; the momentum acts once a round
and not in each step. The local optimiser should have none of its own. (2) x_t is the model at the
end of the round before. Where others change a node's model while it computes (ad-psgd), the
gradient may be of a slightly different one; the exchanges still count in m. (3) A round that was
not gone through (the node caught up, or adopted another's model) ends with m = 0 for every kind:
x_t - x_(t+1) is then the way to somebody else's model, which over lr would throw the node off, and
gradients from the old place say nothing about the new one. (4) A round with lr = 0 leaves m as it
is, and so does one with an lr so small that m would overflow. (5) Values that are not trained
(statistics of batch norm) have no momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from typing_extensions import override

from edgegossip.choices import Range, choose
from edgegossip.codecs.checks import all_finite
from edgegossip.gossip.around import Around
from edgegossip.gossip.base import Action, GossipAlgorithm, NodeView
from edgegossip.layout import Layout
from edgegossip.types import LocalUpdate, Vec, replace

MAX_FACTOR = 0.9999


@dataclass(frozen=True, slots=True)
class Form:
    """Holds what tells the kinds of momentum apart."""

    nesterov: bool
    quasi_global: bool


_FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "heavy-ball": Form(nesterov=False, quasi_global=False),
        "nesterov": Form(nesterov=True, quasi_global=False),
        "quasi-global": Form(nesterov=False, quasi_global=True),
        "quasi-global-nesterov": Form(nesterov=True, quasi_global=True),
    }
)
KINDS = ("none", *_FORMS)


def with_momentum(algorithm: GossipAlgorithm[Any], kind: str, factor: float = 0.9) -> GossipAlgorithm[Any]:
    """Return `algorithm` with momentum of one of KINDS; the algorithm itself for "none". Raises
    ConfigError on an unknown kind or a factor outside 0..MAX_FACTOR.

    Example:
        algorithm = with_momentum(gossip.get("dpsgd"), "quasi-global", 0.9)
    """
    if kind == "none":
        return algorithm
    choose("momentum", kind, dict.fromkeys(KINDS))
    return WithMomentum(algorithm, kind, factor)


@dataclass(frozen=True, eq=False)
class State:
    """Holds one node's state. Immutable; arrays in it are never written to once they are there."""

    inner: Any  # of the algorithm inside
    layout: Layout
    momentum: Vec  # m, float32[trainable_size]
    before: Vec  # x_t, float32[n], the model at the start of the round
    lr: float = 0.0  # of the step of the round in progress; 0 before `step`
    local: Vec | None = None  # f m + g of that step: m, once the round is done. Until then the step may be taken again


@dataclass(frozen=True, slots=True)
class WithMomentum(Around[State]):
    """Adds momentum to the local updates of `algorithm`. Made by `with_momentum`."""

    kind: str
    factor: float = 0.9

    def __post_init__(self) -> None:
        choose("momentum", self.kind, _FORMS)
        Range(0, MAX_FACTOR).check("momentum factor", self.factor, float)

    @property
    @override
    def name(self) -> str:
        return f"{self.algorithm.name}+{self.kind}"

    @override
    def resume(self, s: State, view: NodeView) -> State:
        """Go on with the momentum: it was kept with the model that it belongs to. A round that was
        not over is not in it."""
        inner = self.algorithm.resume(s.inner, view)
        return State(inner, s.layout, s.momentum, self.algorithm.model(inner))

    @override
    def step(self, s: State, local: LocalUpdate) -> tuple[State, list[Action]]:
        """Change the update, and do the inner `step`. Raises what that raises."""
        s.layout.check(local.delta)
        inner, actions = self.algorithm.step(s.inner, self._with_momentum(s, local))
        way = local.delta[: s.momentum.size]
        ahead = None if _FORMS[self.kind].quasi_global else _quotient(s.momentum, self.factor, way, -1.0, local.lr)
        return self.follow(replace(s, local=ahead, lr=local.lr), inner, actions)

    @override
    def begin(self, inner: Any, layout: Layout) -> State:
        return State(inner, layout, np.zeros(layout.trainable_size, np.float32), self.algorithm.model(inner))

    @override
    def done(self, s: State, inner: Any) -> State:
        x, momentum = self.algorithm.model(inner), s.local
        if momentum is None:
            way = (s.before - x)[: s.momentum.size]
            momentum = _quotient(s.momentum, self.factor, way, 1.0 - self.factor, s.lr)
        return State(inner, s.layout, momentum, x)

    def _with_momentum(self, s: State, local: LocalUpdate) -> LocalUpdate:
        """Return the update with the step in place of its delta; itself where that is the same."""
        if not local.lr and not (_FORMS[self.kind].nesterov and local.delta.any()):
            return local
        with np.errstate(over="ignore", invalid="ignore"):  # the inner `step` says what is not finite
            delta = self._delta(s, local)
        return replace(local, delta=delta)

    def _delta(self, s: State, local: LocalUpdate) -> Vec:
        """Return the step, float32[n]. -lr times g stays delta itself, so nothing is divided by a
        small lr and multiplied again."""
        f, delta = self.factor, local.delta.copy()
        trained = delta[: s.momentum.size]
        if _FORMS[self.kind].nesterov:  # -lr (g + f (f m + g)) = (1 + f) delta - lr f^2 m
            trained *= np.float32(1.0 + f)
            f *= f
        trained -= np.float32(local.lr * f) * s.momentum
        return delta


def _quotient(momentum: Vec, factor: float, way: Vec, share: float, lr: float) -> Vec:
    """Return factor * momentum + share * way / lr; the momentum as it is where that has no finite
    value."""
    if not lr:
        return momentum
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        moved: Vec = way / np.float32(lr)
        moved *= np.float32(share)
        moved += np.float32(factor) * momentum
    return moved if all_finite(moved) else momentum
