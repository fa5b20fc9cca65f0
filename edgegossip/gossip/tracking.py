"""Follows the gradient of all boards: each board adds to its own gradient a *correction* c_i, by
which the boards' gradients differ, so that boards whose data have little in common step alike. Two
vectors travel a round, the model and the direction z_i that the board took. The algorithms are at
the end: `gt_dsgd`, `k_gt`, `motef`.

Per optimiser step, gamma the learning rate, K the steps of a round, g_i the mean of their gradients
and p, q what the boards made public of x and z (publish.py has the ways to do that):

    z_i = g_i + c_i;   x_i <- x_i - gamma K z_i + eta sum_j W_ij (p_j - p_i)
    c_i <- c_i + eta sum_j W_ij (q_j - q_i)

With p = x - gamma K z and q = z this is x <- W (x - gamma z), z <- W z + g' - g: gradient tracking
in its usual form, z for y. What i adds to c_i, j takes off c_j, so corrections sum to zero whatever
the codec loses, and the mean of the models moves by the mean gradient.

A sum of all rounds would keep for ever what one one-sided round did to it. So c_i is kept edge by
edge, c_i = sum_j c_ij with c_ij = -c_ji, and each message has the edge's *stamp*: which rounds c_ij
sums up. Where the stamps of the two ends differ (one left the other out, began anew or went back to
a checkpoint), both see it in the same round and begin that edge at zero; that of a board that is
down goes at once. Nothing else of the network is disturbed, and no correction outlives its
board."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np
from typing_extensions import override

from edgegossip import codecs
from edgegossip.choices import Range
from edgegossip.codecs.checks import all_finite
from edgegossip.codecs.keys import derive_key
from edgegossip.frame import Aux, Frame
from edgegossip.gossip import messages
from edgegossip.gossip.averaging import EtaOrDefault, follows
from edgegossip.gossip.base import Audit, NodeView
from edgegossip.gossip.messages import MAX_ID, number_of
from edgegossip.gossip.publish import Difference, Plain, Publisher, Publishing, moved, unmoved
from edgegossip.gossip.requirements import require_symmetric
from edgegossip.gossip.scheme import Numbers, Published, RoundContext, Snapshot, Spread, fingerprint_of
from edgegossip.gossip.traits import THEN, WITH, Traits
from edgegossip.types import ConfigError, LocalUpdate, Vec, replace


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """Holds a board's correction towards one neighbour, and which rounds it sums up."""

    correction: Vec  # c_ij, float32[n]
    stamp: int  # 1..2^48 - 1, the same at both ends for the same rounds


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """Holds what a neighbour made public: for good where it says differences, else of the round."""

    model: Vec  # p_j, float32[n]
    direction: Vec  # q_j, float32[n]
    stamp: int  # of its end of the edge; 0: it has no correction
    rate: float = 0.0  # that its message allows, where rates follow messages; 0: not known


@dataclass(frozen=True, eq=False)
class Tracked:
    """State of a tracking scheme. Immutable; arrays in it are never written to once they are
    there."""

    x: Vec  # float32[n], the model at the start of the round
    model: Any  # the publisher's memory of what it said of the model
    direction: Any  # and of the direction
    start: Vec  # what replicas of the model start from
    fingerprint: int  # of that
    eta: float  # of the own last message, where the rate follows them
    edges: Mapping[int, Edge] = field(default_factory=dict)
    heard: Mapping[int, Heard] = field(default_factory=dict)
    momentum: Vec | None = None  # the mean of the gradients, where one is kept, float32[n]
    base: Vec | None = None  # x - gamma K z, from the local update until the round ends
    public: tuple[Vec, Vec] | None = None  # p and q of this round
    row: Mapping[int, float] = field(default_factory=dict)  # weights of the last round
    said: Mapping[int, int] = field(default_factory=dict)  # the stamps that went with p and q


@dataclass(frozen=True, slots=True)
class Tracking(Publishing[Tracked]):
    """Mixes models and directions with symmetric weights."""

    name: str
    traits: Traits
    publisher: Publisher[Any]
    eta: float  # averaging rate, (0, 1]; 0: by how much the codec keeps
    momentum: float = 0.0  # of the mean of the gradients
    steps_corrected: bool = False  # each local step is asked to follow the correction
    before: bool = False  # the model is made public as it was before the local update

    bodies = 2

    @property
    @override
    def parts(self) -> int:
        return 2 if self.publisher.replicates else 0

    @override
    def check(self, view: NodeView) -> None:
        require_symmetric(self.name, view)

    @override
    def init(self, x: Vec, ctx: RoundContext) -> Tracked:
        x = x.copy()
        memories = self.publisher.init(x, ctx), self.publisher.init(np.zeros_like(x), ctx)
        return Tracked(x, *memories, x, fingerprint_of(x), self.first_rate(ctx))

    @override
    def fingerprint(self, m: Tracked) -> int:
        return m.fingerprint

    @override
    def correction(self, m: Tracked) -> Vec | None:
        """Return c_i where local steps follow it; None: nothing yet, or they do not."""
        return _sum(m.edges) if self.steps_corrected else None

    @override
    def publish(
        self, m: Tracked, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]
    ) -> tuple[Tracked, Published]:
        base, direction, momentum = self._step(m, local, ctx.view.layout.trainable_size)
        v = unmoved(m.x, base, ctx.view.layout) if self.before else base
        model, said = self.publisher.publish(m.model, v, local, ctx)
        memory, led = self.publisher.publish(m.direction, direction, local, replace(ctx, part=1))
        first, second = memoryview(said.body).cast("B"), memoryview(led.body).cast("B")
        stamps = {k: _stamp(m, k) for k in ctx.neighbours.out}
        numbers: dict[int, Numbers] = {k: {Aux.SPLIT: len(first), Aux.STAMP: stamp} for k, stamp in stamps.items()}
        m = replace(
            m,
            said=stamps,
            eta=self.rate_after(ctx, m.eta, said.body, led.body),
            model=model,
            direction=memory,
            momentum=momentum,
            base=base,
            public=(said.public, led.public),
        )
        return m, Published(b"".join((first, second)), numbers, max(said.relative_error, led.relative_error))

    @override
    def take(self, m: Tracked, sender: int, frame: Frame, ctx: RoundContext) -> Tracked:
        first, second = messages.bodies(frame, self.bodies)
        stamp = number_of(frame, Aux.STAMP, 0, MAX_ID)
        if self.publisher.replicates:
            known = m.heard.get(sender) or Heard(m.start, np.zeros_like(m.start), 0)
            rate = self.rate_after(ctx, known.rate or self.first_rate(ctx), first, second)
            heard = Heard(moved(known.model, first, ctx), moved(known.direction, second, ctx), stamp, rate)
        else:
            codec, layout = ctx.view.codec, ctx.view.layout
            heard = Heard(codec.decode(first, layout), codec.decode(second, layout), stamp)
        return self._hears(m, sender, ctx, heard)

    @override
    def mix(self, m: Tracked, ctx: RoundContext, fresh: Sequence[int]) -> tuple[Tracked, Spread]:
        """Return x + eta sum_j W_ij (p_j - p_i) and the edges' corrections, over the neighbours j
        that are fresh, and how far these lay."""
        assert m.base is not None and m.public is not None
        x, (model, direction) = m.base.copy(), m.public
        cut, squares, row = ctx.view.layout.trainable_size, {}, {}
        # As coarse as each sender's links make them they differ in length, with nobody lying.
        judged = not follows(ctx.view.codec)
        lengths = {ctx.index: math.sqrt(messages.squares_of(direction))} if judged else {}
        exact = codecs.exact_from(ctx.view.codec, ctx.view.layout)
        edges = {j: edge for j, edge in m.edges.items() if ctx.name(j) not in ctx.view.down}
        for j in fresh:
            heard, row[j] = m.heard[j], ctx.neighbours.weights[j]
            weight = np.float32(min(m.eta, heard.rate or m.eta) * row[j])
            away = heard.model - m.x
            squares[j] = messages.squares_of(away)
            if judged:
                lengths[j] = math.sqrt(messages.squares_of(heard.direction))
            pull = heard.model - model
            pull[:exact] *= weight
            pull[exact:] *= np.float32(row[j])  # as `symmetric.Symmetric.mix` does
            x += pull
            pull = weight * (heard.direction - direction)
            pull[cut:] = 0.0
            stamp = _stamp(m, j)
            if stamp and stamp == heard.stamp:
                pull += m.edges[j].correction
            else:
                stamp = 0
            edges[j] = Edge(pull, derive_key(stamp, ctx.round) % MAX_ID + 1)
        row[ctx.index] = 1.0 - sum(row.values())
        return replace(self._clean(m), x=x, edges=edges, row=row), replace(Spread.of(squares), directions=lengths)

    @override
    def abandon(self, m: Tracked, model: Vec | None, ctx: RoundContext) -> Tracked:
        if model is None:
            return replace(self._clean(m), x=m.x if m.base is None else m.base)
        said, led = self.publisher.reset(m.model, model), self.publisher.reset(m.direction, np.zeros_like(model))
        m = replace(self._clean(m), x=model, model=said, direction=led, start=model, fingerprint=fingerprint_of(model))
        return replace(m, edges={}, momentum=None, said={})

    @override
    def public(self, m: Tracked, phase: int) -> Vec | None:
        return self.publisher.public(m.model, phase)

    @override
    def full(self, m: Tracked, to: int, phase: int) -> Snapshot:
        """Return p and q, and the stamp that went with them: where the round is over, the edge sums
        up more by now."""
        model, direction = self.publisher.public(m.model, phase), self.publisher.public(m.direction, phase)
        return Snapshot([v for v in (model, direction) if v is not None], {Aux.STAMP: m.said.get(to, 0)})

    @override
    def adopt(self, m: Tracked, sender: int, phase: int, full: Snapshot, ctx: RoundContext) -> Tracked:
        stamp = full.numbers.get(Aux.STAMP, 0)
        rate = m.heard[sender].rate if sender in m.heard else 0.0
        heard = Heard(full.vectors[0], full.vectors[1], int(stamp), rate)
        return self._hears(m, sender, ctx, heard, ctx.ahead(full.round))

    @override
    def model(self, m: Tracked) -> Vec:
        return m.x

    @override
    def audit(self, m: Tracked, ctx: RoundContext) -> Audit:
        """Return both public vectors as one, float32[2 n]."""
        vectors = self.full(m, ctx.index, 0).vectors
        if not vectors:
            return Audit(row=m.row)
        heard = {(j, 0): (0, np.concatenate((h.model, h.direction))) for j, h in m.heard.items()}
        return Audit(public={0: (0, np.concatenate(vectors))}, replicas=heard, row=m.row)

    def _step(self, m: Tracked, local: LocalUpdate, cut: int) -> tuple[Vec, Vec, Vec | None]:
        """Return x - gamma K z, z, and the mean of the gradients where one is kept; float32[n]."""
        rate, correction = local.lr * local.steps, _sum(m.edges)
        direction = np.zeros_like(m.x)
        if rate:
            with np.errstate(over="ignore", invalid="ignore"):
                np.divide(local.delta[:cut], np.float32(-rate), out=direction[:cut])
            if not all_finite(direction):  # a rate so small that there is no step either
                direction[:] = 0.0
        momentum = None
        if self.momentum:
            kept = direction if m.momentum is None else m.momentum
            momentum = np.float32(self.momentum) * kept + np.float32(1.0 - self.momentum) * direction
            base = local.moved(m.x) if cut < len(m.x) else m.x.copy()
            np.add(m.x[:cut], np.float32(-rate) * momentum[:cut], out=base[:cut])
            direction = momentum
        else:
            base = local.moved(m.x)
        if correction is not None and not local.corrected:
            base = base - np.float32(rate) * correction
            direction = direction + correction
        return base, direction, momentum

    def _hears(self, m: Tracked, sender: int, ctx: RoundContext, heard: Heard, times: float = 1.0) -> Tracked:
        name, layout = ctx.name(sender), ctx.view.layout
        own = (m.x, m.x) if m.public is None or m.base is None else (m.base, m.public[1])
        for vec, mine in zip((heard.model, heard.direction), own, strict=True):
            messages.require_proportion(name, vec, mine, layout, times)
        return replace(m, heard={**m.heard, sender: heard})

    def _clean(self, m: Tracked) -> Tracked:
        return replace(m, base=None, public=None, heard=m.heard if self.publisher.replicates else {})


def _sum(edges: Mapping[int, Edge]) -> Vec | None:
    """Return c_i, float32[n]; None without an edge."""
    corrections = [edges[j].correction for j in sorted(edges)]
    return np.add.reduce(corrections) if corrections else None


def _stamp(m: Tracked, j: int) -> int:
    return m.edges[j].stamp if j in m.edges else 0


# -- The algorithms


def gt_dsgd(eta: EtaOrDefault = 1.0, keeps: bool = False) -> Tracking:
    """Return gradient tracking for SGD: whole models and directions travel. Raises ConfigError with
    bounded staleness, as all of this family do.

    Pu, Nedic, "Distributed stochastic gradient tracking methods" (2018), equations 4 and 5;
    Koloskova, Lin, Stich, "An improved analysis of gradient tracking for decentralized machine
    learning" (2021), algorithm 1: x <- W (x - gamma y), y <- W y + g' - g, first y = g.

    Deviations. (1) A round may have several local steps: g is then their mean, whatever the
    optimiser makes of a gradient included, and the correction is added once, at their end. (2) An
    averaging rate: (1 - eta) I + eta W stands for W, for the model and for y."""
    return _made("gt-dsgd", Plain(), eta, keeps)


def k_gt(eta: EtaOrDefault = 1.0, keeps: bool = False) -> Tracking:
    """Return gradient tracking whose correction every local step follows.

    Liu, Lin, Koloskova, Stich, "Decentralized gradient tracking with local steps" (2023), algorithm
    1: K times x <- x - gamma (g + c); z = (x_t - x) / (K gamma); c <- c - z + W z; x_t <- W (x_t -
    gamma_s K gamma z), first c = 0. With one local step it is `gt_dsgd`.

    Deviation: the server's step gamma_s is 1; there is an averaging rate instead, as in
    `gt_dsgd`."""
    return _made("k-gt", Plain(), eta, keeps, steps_corrected=True)


Momentum: TypeAlias = Annotated[float, Range(0, 0.9999, "1 - lambda, of the mean of the gradients; 0: BEER")]


def motef(eta: EtaOrDefault = 0.0, momentum: Momentum = 0.9, keeps: bool = False) -> Tracking:
    """Return compressed gradient tracking: differences to public copies of the model and of the
    direction.

    Islamov, Gao, Stich, "Towards faster decentralized stochastic optimization with communication
    compression" (2024), algorithm 1 (MoTEF), with lambda = 1 - momentum, gamma = eta, and their eta
    the learning rate: X' = X + gamma (W - I) H - eta V; H' = H + C[X' - H]; M' = (1 - lambda) M +
    lambda g'; V' = V + gamma (W - I) G + M' - M; G' = G + C[V' - G]. With momentum = 0 it is BEER
    (Zhao et al. 2022), which asks for large batches: its directions carry the noise of a single
    gradient, and a coarse codec never catches up with that.

    Deviations. (1) H starts at the initial model, as the public copies of `choco_sgd` do, and G at
    zero; both are said once before the first step. (2) As in `gt_dsgd`, a round may have several
    local steps."""
    return _made("motef", Difference(), eta, keeps, momentum=float(momentum), before=True)


def _made(
    name: str,
    publisher: Publisher[Any],
    eta: float,
    keeps: bool,
    momentum: float = 0.0,
    steps_corrected: bool = False,
    before: bool = False,
) -> Tracking:
    if keeps:
        raise ConfigError(f"staleness of {name} must be 0: a correction is of the round in which both ends heard it")
    traits = Traits(
        orders=(WITH,) if before else (THEN,),
        one_order="its direction is of the models that were said before the step"
        if before
        else "its correction is for models that travel after the step",
        unbounded="it sums up what all rounds said, a lie too",
        no_outer="it takes what a round did for the gradient, which an outer step is not",
        in_differences="" if publisher.replicates else "motef",
        corrects_steps=steps_corrected,
        takes_gradients=True,
    )
    return Tracking(name, traits, publisher, eta, momentum, steps_corrected, before)
