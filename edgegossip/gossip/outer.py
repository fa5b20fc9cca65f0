"""Puts an outer optimiser around any gossip algorithm, and around a coordinator's rounds
(`engine/combine.py`): it takes how far a round moved the model, local steps and exchange together,
for a step of an optimiser of its own. With many local steps a round, that is what keeps rounds few.

d = x' - x is that way, from the model x that the round began with to x' that it came to; the next
round begins with x + s, and mu = `momentum`, b1, b2 = `betas`, e = `epsilon`:

- heavy-ball (SlowMo: Wang, Tantia, Ballas, Rabbat 2020):  v <- mu v + d;  s = lr v
- nesterov (DiLoCo: Douillard et al. 2023, torch's form):  v <- mu v + d;  s = lr (d + mu v)
- adam (FedOpt: Reddi et al. 2021, algorithm 2):  m <- b1 m + (1 - b1) d;  v <- b2 v + (1 - b2) d^2;
  s = lr m / (sqrt(v) + e)

Where everybody hears everybody, with fp32, d is the mean of the boards' updates and the whole is
DiLoCo, or FedOpt, to rounding. Elsewhere d has the exchange in it: x + d = sum_j W_ij (x_j +
delta_j). With pairs drawn at random and heavy-ball that is NoLoCo (Kolehmainen et al. 2025), whose
equation

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
as the algorithm left them. (4) dpsgd shows its neighbours the model from after the local steps, not
before: that is what DiLoCo averages, and momentum would drive boards apart by what is a round
old. (5) SlowMo's v is of d over the local learning rate, times that of the next round: the same as
here while the rate is constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.choices import Range, choose, either
from edgegossip.gossip.around import Around
from edgegossip.gossip.base import Action, GossipAlgorithm, NodeView, Says, Topology
from edgegossip.gossip.fragments import turn
from edgegossip.gossip.order import with_order
from edgegossip.gossip.registry import having
from edgegossip.gossip.traits import THEN, WITH
from edgegossip.gossip.weights import Matrix, is_symmetric
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, LocalUpdate, Vec, replace

MAX_MOMENTUM = 0.9999
MAX_MERGE = 0.95  # at 1 boards would never meet
MAX_FRAGMENTS = 64
MAX_STEP = 1e38
Memory: TypeAlias = tuple[Vec, ...]  # what an optimiser keeps, float32[trainable_size] each


@dataclass(frozen=True, slots=True)
class OuterOptimizer:
    """Takes how far a round moved the model for its gradient.

    Example:
        optimizer = OuterOptimizer("nesterov", lr=0.7, momentum=0.9)
        memory = optimizer.init(layout.trainable_size)
        memory, lead = optimizer.lead(memory, moved)  # the next round begins with x + moved + lead
    """

    kind: str
    lr: float
    momentum: float = 0.9  # heavy-ball, nesterov
    betas: Sequence[float] = (0.9, 0.99)  # adam
    epsilon: float = 1e-3  # adam
    consensus: float = 0.0  # heavy-ball, nesterov: how far a board goes towards its neighbours; 0: as lr
    fragments: int = 1  # groups of layers, of which a round exchanges one (fragments.py)
    overlap: bool = False  # a round's exchange goes on while the next round is computed (overlap.py)
    merge: float = 0.5  # overlap: the weight of a board's own values where they meet those of the exchange

    def __post_init__(self) -> None:
        """Raises ConfigError on an unknown kind or a value out of range."""
        choose("outer.optimizer", self.kind, KINDS)
        object.__setattr__(self, "betas", tuple(self.betas))  # a recipe's is a list
        if len(self.betas) != 2:
            raise ConfigError(f"outer.betas = {list(self.betas)} must be two numbers, such as [0.9, 0.99]")
        if self.consensus and self.kind == "adam":
            raise ConfigError(
                "outer.consensus is for heavy-ball and nesterov: how far adam goes does not depend on the way"
            )
        if self.streams and self.consensus not in (0.0, self.lr):
            raise ConfigError(
                f"outer.consensus = {self.consensus:g} does not go with outer.{self.streams}: a board trains on from its "
                "own model, which is not scaled; say 0"
            )
        share, step = Range(0, MAX_MOMENTUM), Range(0.0, MAX_STEP, above=True)
        limits = {
            "momentum": (self.momentum, float, share),
            "betas[0]": (self.betas[0], float, share),
            "betas[1]": (self.betas[1], float, share),
            "lr": (self.lr, float, step),
            "epsilon": (self.epsilon, float, step),
            "consensus": (self.consensus or self.lr, float, step),
            "fragments": (self.fragments, int, Range(1, MAX_FRAGMENTS)),
            # At 0 all that a board computes during an exchange would be given up.
            "merge": (self.merge, float, Range(0, MAX_MERGE, above=self.overlap)),
        }
        for key, (value, kind, allowed) in limits.items():
            allowed.check(f"outer.{key}", value, kind)

    @property
    def streams(self) -> str:
        """Its key, beside "optimizer", that lets boards train on from models that were not mixed in
        whole; empty if none does."""
        return "overlap" if self.overlap else "fragments" if self.fragments > 1 else ""

    def init(self, size: int) -> Memory:
        """Return the memory before the first round."""
        return tuple(np.zeros(size, np.float32) for _ in range(1 + (self.kind == "adam")))

    def lead(self, memory: Memory, moved: Vec) -> tuple[Memory, Vec]:
        """Return the memory after a round that moved the model by `moved`, and how much farther the
        step goes than that, both float32[trainable_size]. Neither argument is changed."""
        with np.errstate(over="ignore", invalid="ignore"):  # whoever trains from it says what is not finite
            return KINDS[self.kind](self, memory, moved)


def _momentum(o: OuterOptimizer, memory: Memory, d: Vec) -> tuple[Memory, Vec]:
    """Nesterov's step is lr (d + mu v), heavy-ball's lr v = lr (d + mu v of before)."""
    before = np.float32(o.momentum) * memory[0]
    v = before + d
    more = np.float32(o.momentum) * v if o.kind == "nesterov" else before
    return (v,), np.float32(o.lr - 1.0) * d + np.float32(o.lr) * more


def _adam(o: OuterOptimizer, memory: Memory, d: Vec) -> tuple[Memory, Vec]:
    (m, v), (b1, b2) = memory, o.betas
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
        if key := "overlap" if values.get("overlap") else "fragments" if values.get("fragments", 1) != 1 else "":
            raise ConfigError(f"outer.{key} goes with an outer optimiser: say outer.optimizer = nesterov or heavy-ball")
        return None
    choose("outer.optimizer", optimizer, KINDS)
    return OuterOptimizer(optimizer, lr or USUAL_LR[optimizer], **values)


def with_outer(algorithm: GossipAlgorithm[Any], optimizer: OuterOptimizer | None) -> GossipAlgorithm[Any]:
    """Return `algorithm` with an outer optimiser around its rounds; itself for None. Raises
    ConfigError where the two do not go together; `init` does for a topology on which boards would
    be driven apart.

    Example:
        diloco = with_outer(gossip.get("dpsgd"), OuterOptimizer("nesterov", lr=0.7))
    """
    if optimizer is None:
        return algorithm
    traits = algorithm.traits
    if traits.no_outer:
        pairs = " with gossip.topology = random-pairs" if algorithm.asynchronous else " or choco-sgd"
        raise ConfigError(
            f"outer.optimizer = {optimizer.kind} cannot be around {algorithm.name}: {traits.no_outer}; use "
            f"gossip.algorithm = dpsgd{pairs}"
        )
    if getattr(algorithm, "staleness", 0):
        raise ConfigError(
            f"gossip.params.staleness of {algorithm.name} must be 0 with outer.optimizer = {optimizer.kind}: momentum of old "
            "news grows from round to round"
        )
    if optimizer.kind == "adam" and algorithm.says is not Says.UPDATES:
        raise ConfigError(
            f"outer.optimizer = adam cannot be around {algorithm.name}: its steps do not shrink with the way between boards, "
            "which would never agree; use gossip.algorithm = parallel-sgd, run.mode = server, or outer.optimizer = nesterov"
        )
    if optimizer.streams and not traits.plain:
        raise ConfigError(
            f"outer.{optimizer.streams} cannot be around {algorithm.name}: what it mixes are no plain models; use "
            f"gossip.algorithm = {either(having(lambda of: of.traits.plain))}"
        )
    if len(traits.orders) > 1:
        from edgegossip.gossip.symmetric import before

        scheme = cast("Any", algorithm).scheme
        if scheme.ordered and scheme.rule is before:
            raise ConfigError(
                f"gossip.order = {WITH} does not go with outer.optimizer = {optimizer.kind}: momentum would drive boards "
                f"apart by what is a round old; say gossip.order = {THEN}"
            )
        algorithm = with_order(algorithm, THEN)
    if optimizer.fragments > 1:
        rounds = cast("Any", algorithm)
        algorithm = replace(rounds, scheme=replace(rounds.scheme, fragments=optimizer.fragments))
    gamma = optimizer.consensus or optimizer.lr
    around = WithOuter(algorithm, replace(optimizer, lr=gamma), optimizer.lr / gamma)
    if not optimizer.overlap:
        return around
    from edgegossip.gossip.overlap import Overlapped

    return Overlapped(around, optimizer.merge)


def require_agreement(optimizer: OuterOptimizer, topology: Topology) -> None:
    """Raise ConfigError where boards that do not train would be driven apart by their momentum:
    where what they differ by grows over a period of the topology, from round to round

        v <- mu v + (W - I) x,   x <- x + s

    Pairs that are drawn anew do it, and links that go one way: the way that a board went last is
    then not the one that leads to its next neighbour."""

    def holds(momentum: float) -> bool:
        return _growth(replace(optimizer, momentum=momentum), topology) <= 1.0  # type: ignore[arg-type]

    if holds(optimizer.momentum):
        return
    tenth = next((m for m in range(int(10 * optimizer.momentum), -1, -1) if holds(m / 10)), None)
    if tenth is None:
        cure = "outer.lr must be lower there"
    else:
        best = next(m for m in range(10 * tenth + 9, 10 * tenth - 1, -1) if holds(m / 100))
        cure = f"at most {best / 100:g} holds there"
    raise ConfigError(
        f"outer.momentum = {optimizer.momentum:g} of {optimizer.kind} drives boards apart on topology {topology.name!r}: {cure}"
    )


@lru_cache(maxsize=4096)
def _growth(o: OuterOptimizer, topology: Any) -> float:
    """Return by how much at most a difference between boards grows in a period. Where exchanges
    overlap, y is the board's own model, and the way of a round

        d = W y - x,   y <- a y + (1 - a) x

    Symmetric weights: the second largest eigenvalue of the period, of all boards and of all but any
    one. (The largest is 1: what all have in common stays.) Others: as if any eigenvalue were there
    that rows or columns of sum 1 allow (Gershgorin), since boards and links that are lost make
    others of them."""
    count = o.fragments if topology.period > 1 else 1  # else all go over the same edges
    rounds = range(count * topology.period)
    return max(
        _growth_over(o, [topology.matrix(r) for r in rounds if turn(r, count, topology.period) == k], topology.n)
        for k in range(count)
    )


def _growth_over(o: OuterOptimizer, period: Sequence[Matrix], nodes: int) -> float:
    if all(is_symmetric(w) for w in period):
        graphs: list[Sequence[Any]] = [period, *([_without(w, k) for w in period] for k in range(nodes))]
        if len(period) == 1:  # each of its eigenvalues goes on for itself
            graphs = [[np.linalg.eigvalsh(w)[:, None, None]] for (w,) in graphs]
        return max(_largest(o, graph, but=1) for graph in graphs)
    own = min(float(w.diagonal().min()) for w in period)
    circle = own + (1.0 - own) * np.exp(1j * np.pi * np.arange(1, 65) / 64)
    return _largest(o, [circle[:, None, None]])


def _without(w: Matrix, k: int) -> Matrix:
    """Return W where node k is down: its weights stay with the others."""
    left = np.delete(np.delete(w, k, axis=0), k, axis=1)
    return left + np.diag(np.delete(w[:, k], k))


def _largest(o: OuterOptimizer, period: Sequence[Any], but: int = 0) -> float:
    """Return the largest eigenvalue of a period, but for so many that are next to 1. Its rounds are
    matrices, or stacks of them."""
    eye, lr, mu = _eye(period), o.lr, o.momentum
    if o.overlap:
        return _eigenvalue(_overlapping(o, period), but)
    whole = np.eye(2 * eye.shape[-1])
    for w in period:
        way = w - eye
        step, past = ((1.0 + mu) * way, mu * mu) if o.kind == "nesterov" else (way, mu)
        whole = np.block([[eye + lr * step, lr * past * eye], [way, mu * eye]]) @ whole
    return _eigenvalue(whole, but)


def _overlapping(o: OuterOptimizer, period: Sequence[Any]) -> NDArray[np.float64]:
    """Return what a period makes of (x, v, y), one below the other."""
    eye, lr, mu, own = _eye(period), o.lr, o.momentum, o.merge
    near, past = (1.0 + mu, mu * mu) if o.kind == "nesterov" else (1.0, mu)  # s = lr (near d + past v)
    whole = np.eye(3 * eye.shape[-1])
    for w in period:
        x = [(1.0 - lr * near) * eye, lr * past * eye, lr * near * w]
        y = [(1.0 - own) * part for part in x]
        y[2] = y[2] + own * eye
        whole = np.block([x, [-eye, mu * eye, np.asarray(w)], y]) @ whole
    return whole


def _eye(period: Sequence[Any]) -> NDArray[np.float64]:
    return np.broadcast_to(np.eye(period[0].shape[-1]), period[0].shape)


def _eigenvalue(whole: NDArray[np.float64], but: int) -> float:
    """Return the largest eigenvalue but for so many that are next to 1."""
    values = np.linalg.eigvals(whole).ravel()
    others = values[np.argsort(np.abs(values - 1.0))[but:]]
    return float(np.round(np.abs(others).max(initial=0.0), 9))


@dataclass(frozen=True, eq=False)
class State:
    """Holds one node's state. Immutable; arrays in it are never written to once they are there."""

    inner: Any  # of the algorithm inside
    layout: Layout
    memory: Memory  # the optimiser's
    # float32[n], the model as training was shown it when each value had been exchanged last: at the
    # start of the round, without fragments.
    x: Vec
    # float32[n]: what x is ahead of the model that the algorithm inside has; None: by nothing, or
    # it went into its local update of this round.
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
        round, span = self.algorithm.round, self.algorithm.exchanged(s.inner)
        before, s = round(s.inner), replace(s, inner=self.algorithm.resume(s.inner, view))
        if round(s.inner) == before:
            return s
        return replace(s, x=_with(s.x, span, self.model(s)[span]))

    @override
    def step(self, s: State, local: LocalUpdate) -> tuple[State, list[Action]]:
        """Do the inner `step` with the update, from the model that was shown. Raises what that
        raises."""
        s.layout.check(local.delta)
        inner, actions = self.algorithm.step(s.inner, self._from_inside(s, local))
        return self.follow(replace(s, lead=None), inner, actions)

    @override
    def model(self, s: State) -> Vec:
        return self._ahead(s.inner, s.lead)

    @override
    def init(self, x: Vec, view: NodeView) -> State:
        if self.algorithm.says is not Says.UPDATES:  # these are summed, and mixed by no matrix
            require_agreement(self.optimizer, view.topology)
        return Around.init(self, x, view)

    @override
    def begin(self, inner: Any, layout: Layout) -> State:
        return State(inner, layout, self.optimizer.init(layout.trainable_size), self.algorithm.model(inner))

    @override
    def done(self, s: State, inner: Any) -> State:
        lead, span = np.zeros_like(s.x), self.algorithm.exchanged(s.inner)
        trained = slice(span.start, min(span.stop, s.layout.trainable_size))
        moved = self.algorithm.model(inner)[trained] - s.x[trained]
        parts, lead[trained] = self.optimizer.lead(tuple(part[trained] for part in s.memory), moved)
        memory = tuple(_with(part, trained, new) for part, new in zip(s.memory, parts, strict=True))
        ahead = lead if lead.any() else None
        return State(inner, s.layout, memory, _with(s.x, span, self._ahead(inner, ahead)[span]), ahead)

    def _ahead(self, inner: Any, lead: Vec | None) -> Vec:
        x = self.algorithm.model(inner)
        return x if lead is None else x + lead

    def _from_inside(self, s: State, local: LocalUpdate) -> LocalUpdate:
        """Return the update as one of the model that the algorithm inside has."""
        if s.lead is None and self.scale == 1.0:
            return local
        delta = local.delta.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # the inner `step` says what is not finite
            delta[: s.layout.trainable_size] *= np.float32(self.scale)
            if s.lead is not None:
                delta += s.lead * np.float32(self.algorithm.weight(s.inner))  # it moves the model by s.lead
        return replace(local, delta=delta)


def _with(vec: Vec, span: slice, part: Vec) -> Vec:
    """Return the vector with these values in it: `part` itself where it is all of them."""
    if part.size == vec.size:
        return part
    whole = vec.copy()
    whole[span] = part
    return whole
