"""Puts an outer optimiser around any gossip algorithm, and around a coordinator's rounds
(`engine/combine.py`): it takes how far a round moved the model, local steps and exchange together,
for a step of an optimiser of its own. With many local steps a round, that is what keeps rounds few.

d = x' - x is that way, from the model x that the round began with to x' that it came to; the next
round begins with x + s, and mu = `momentum`, b1, b2 = `betas`, e = `epsilon`:

- heavy-ball (SlowMo: Wang, Tantia, Ballas, Rabbat 2020):  v <- mu v + d;  s = lr v
- nesterov (DiLoCo: Douillard et al. 2023, torch's form):  v <- mu v + d;  s = lr (d + mu v)
- adam (FedOpt: Reddi et al. 2021, algorithm 2):  m <- b1 m + (1 - b1) d;  v <- b2 v + (1 - b2) d^2;
  s = lr m / (sqrt(v) + e)

Where everybody hears everybody and the model travels as it is after the local steps (deep-squeeze
or choco-sgd with fp32, parallel-sgd), d is the mean of the boards' updates and the whole is DiLoCo,
or FedOpt, to rounding. Elsewhere d has the exchange in it: x + d = sum_j W_ij (x_j + delta_j). With
pairs drawn at random and heavy-ball that is NoLoCo (Kolehmainen et al. 2025), whose equation

    s <- alpha s + beta mean_j delta_j - gamma (x - mean_j x_j),   mean over the board and its peer

needs nothing but mean_j (x_j + beta / gamma delta_j) of the peer: `consensus` is gamma, and local
updates travel beta / gamma times as long; left out it is beta, as in the authors' code.

The algorithm inside never hears of it. It shows x', and s - d, what the model shown to training is
ahead of that, goes into it with the next local update. So a restart, a lost message or a message
that is encoded are the algorithm's own matter, and with lr = 1 and momentum = 0 nothing is changed
by a bit.

Deviations. (1) FedOpt's v starts at epsilon^2 or more, here at 0. (2) A round that was not gone
through (the board caught up, or adopted another's model) begins with an empty memory: the way to
somebody else's model is no update. (3) Values that are not trained (statistics of batch norm) are
as the algorithm left them. (4) dpsgd shows its neighbours the model from before the local steps, so
that mean and outer step come a round later; bagua-lp likewise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from typing_extensions import override

from edgegossip.choices import choose
from edgegossip.gossip.around import Around
from edgegossip.gossip.base import Action, GossipAlgorithm, NodeView
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, LocalUpdate, Vec

MAX_MOMENTUM = 0.9999
Memory: TypeAlias = tuple[Vec, ...]  # what an optimiser keeps, float32[trainable_size] each; empty: zeros


@dataclass(frozen=True, slots=True)
class OuterOptimizer:
    """An optimiser whose gradient is how far a round moved the model.

    Example:
        optimizer = OuterOptimizer("nesterov", lr=0.7, momentum=0.9)
        memory, lead = optimizer.lead(memory, moved)  # the next round begins with x + moved + lead
    """

    kind: str
    lr: float
    momentum: float = 0.9  # heavy-ball, nesterov
    betas: tuple[float, ...] = (0.9, 0.99)  # adam
    epsilon: float = 1e-3  # adam
    consensus: float = 0.0  # heavy-ball, nesterov: how far a board goes towards its neighbours; 0: as lr

    def __post_init__(self) -> None:
        """Raises ConfigError on an unknown kind or a value out of range."""
        choose("outer.optimizer", self.kind, KINDS)
        if len(self.betas) != 2:
            raise ConfigError(f"outer.betas = {list(self.betas)} must be two numbers, such as [0.9, 0.99]")
        if self.consensus and self.kind == "adam":
            raise ConfigError(
                "outer.consensus is for heavy-ball and nesterov: how far adam goes does not depend on the way"
            )
        within = {"momentum": self.momentum, "betas[0]": self.betas[0], "betas[1]": self.betas[1]}
        for key, value in within.items():
            if not 0.0 <= value <= MAX_MOMENTUM:
                raise ConfigError(f"outer.{key} = {value!r} must be a number from 0 to {MAX_MOMENTUM}")
        for key, value in {"lr": self.lr, "epsilon": self.epsilon, "consensus": self.consensus or self.lr}.items():
            if not (math.isfinite(value) and value > 0.0):
                raise ConfigError(f"outer.{key} = {value!r} must be a number above 0")

    def lead(self, memory: Memory, moved: Vec) -> tuple[Memory, Vec]:
        """Return the memory after a round that moved the model by `moved`, and how much farther the
        step goes than that, both float32[trainable_size]. Neither argument is changed."""
        with np.errstate(over="ignore", invalid="ignore"):  # whoever trains from it says what is not finite
            return KINDS[self.kind](self, memory, moved)


def _momentum(o: OuterOptimizer, memory: Memory, d: Vec) -> tuple[Memory, Vec]:
    """Nesterov's step is lr (d + mu v), heavy-ball's lr v = lr (d + mu v of before)."""
    before = np.float32(o.momentum) * memory[0] if memory else np.zeros_like(d)
    v = before + d
    more = np.float32(o.momentum) * v if o.kind == "nesterov" else before
    return (v,), np.float32(o.lr - 1.0) * d + np.float32(o.lr) * more


def _adam(o: OuterOptimizer, memory: Memory, d: Vec) -> tuple[Memory, Vec]:
    m, v = memory or (np.zeros_like(d), np.zeros_like(d))
    b1, b2 = o.betas
    m = np.float32(b1) * m + np.float32(1.0 - b1) * d
    v = np.float32(b2) * v + np.float32(1.0 - b2) * (d * d)
    root: Vec = np.sqrt(v)
    return (m, v), np.float32(o.lr) * m / (root + np.float32(o.epsilon)) - d


KINDS: Mapping[str, Callable[[OuterOptimizer, Memory, Vec], tuple[Memory, Vec]]] = MappingProxyType(
    {"heavy-ball": _momentum, "nesterov": _momentum, "adam": _adam}
)
USUAL_LR: Mapping[str, float] = MappingProxyType({"heavy-ball": 0.7, "nesterov": 0.7, "adam": 0.01})


def make(optimizer: str, lr: float = 0.0, **values: Any) -> OuterOptimizer | None:
    """Return an outer optimiser by the values of a recipe's section; None for "none". lr = 0: that
    of USUAL_LR. Raises ConfigError.

    Example:
        outer.make(**asdict(recipe.outer))
    """
    if optimizer == "none":
        return None
    choose("outer.optimizer", optimizer, KINDS)
    return OuterOptimizer(optimizer, lr or USUAL_LR[optimizer], **values)


def with_outer(algorithm: GossipAlgorithm[Any], optimizer: OuterOptimizer | None) -> GossipAlgorithm[Any]:
    """Return `algorithm` with an outer optimiser around its rounds; itself for None. Raises
    ConfigError around d2.

    Example:
        diloco = with_outer(gossip.get("deep-squeeze"), OuterOptimizer("nesterov", lr=0.7))
    """
    if optimizer is None:
        return algorithm
    if algorithm.name == "d2":
        raise ConfigError(
            "gossip.algorithm = d2 with outer.optimizer: d2 takes off in every round what it takes for the gradient of the "
            "one before, which an outer step is not; say gossip.algorithm = choco-sgd, or outer.optimizer = none"
        )
    gamma = optimizer.consensus or optimizer.lr
    return WithOuter(algorithm, replace(optimizer, lr=gamma), optimizer.lr / gamma)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Holds one node's state. Immutable; arrays in it are never written to once they are there."""

    inner: Any  # of the algorithm inside
    layout: Layout
    x: Vec  # float32[n], the model at the start of the round, as training is shown it
    memory: Memory = ()
    # float32[trainable_size]: what x is ahead of the model that the algorithm inside has; None: by
    # nothing, or it went into its local update of this round.
    lead: Vec | None = None


@dataclass(frozen=True, slots=True)
class WithOuter(Around[State]):
    """Takes the rounds of `algorithm` for steps of `optimizer`. Made by `with_outer`."""

    optimizer: OuterOptimizer
    scale: float = 1.0  # of local updates

    @property
    @override
    def name(self) -> str:
        return f"{self.algorithm.name}+outer-{self.optimizer.kind}"

    @override
    def resume(self, s: State, view: NodeView) -> State:
        """Go on with the memory: it was kept with the model that it belongs to. A round that was
        not over is not in it."""
        s = replace(s, inner=self.algorithm.resume(s.inner, view))
        return replace(s, x=self.model(s))

    @override
    def step(self, s: State, local: LocalUpdate) -> tuple[State, list[Action]]:
        """Do the inner `step` with the update, from the model that was shown. Raises what that
        raises."""
        s.layout.check(local.delta)
        inner, actions = self.algorithm.step(s.inner, self._from_inside(s, local))
        return self.follow(replace(s, lead=None), inner, actions)

    @override
    def model(self, s: State) -> Vec:
        x = self.algorithm.model(s.inner)
        if s.lead is not None:
            x = x.copy()
            x[: s.lead.size] += s.lead
        return x

    @override
    def begin(self, inner: Any, layout: Layout) -> State:
        return State(inner, layout, self.algorithm.model(inner))

    @override
    def done(self, s: State, inner: Any) -> State:
        trained = s.layout.trainable_size
        moved = self.algorithm.model(inner)[:trained] - s.x[:trained]
        memory, lead = self.optimizer.lead(s.memory, moved)
        s = State(inner, s.layout, s.x, memory, lead if lead.any() else None)
        return replace(s, x=self.model(s))

    def _from_inside(self, s: State, local: LocalUpdate) -> LocalUpdate:
        """Return the update as one of the model that the algorithm inside has."""
        if s.lead is None and self.scale == 1.0:
            return local
        trained, delta = s.layout.trainable_size, local.delta.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # the inner `step` says what is not finite
            delta[:trained] *= np.float32(self.scale)
            if s.lead is not None:
                delta[:trained] += s.lead
        return replace(local, delta=delta)
