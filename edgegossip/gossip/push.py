"""Mixes by push-sum: on directed and time-varying graphs, with column-stochastic weights.

A node holds mass x and weight u; its model is z = x / u. Each round it makes p public and hands
over eta W_ki of p, and of u, to every out-neighbour k that is up, and takes exactly that off
itself: x_i <- x~_i + eta sum_j (W_ij - I_ij) p_j,  u_i <- u_i + eta sum_j (W_ij - I_ij) u_j
(columns of W sum to 1). Assran et al. 2019 (SGP, algorithm 1); Aketi et al. 2021 (algorithms 4 and
5). Their algorithm 5 weighs differences (p_j - p_i) at the receiver, which conserves mass only if
the rows of W sum to 1 too; this form always does.

Deviation: the local update of a node with little weight counts less (`full_weights`). Where others
are down, or dead and not known to be, a node hands over more than it gets, for good if they do not
come back; each update then moves z = x / u by update / u, and training at ever larger steps
diverges.

What is no gradient moves the model by itself whatever it weighs: statistics here, and an outer
optimiser's step, which asks for `weight`. Divided by a u below 1, variances turned negative, and
momentum fed on itself.

The sender weighs, so nobody has to agree on who takes part. What was handed over is kept as a
running total by both ends of an edge: whatever is lost, repeated, or rolled back with a checkpoint,
the difference of the two totals is what is still under way, and a full state brings it. Sums are
float64: float32 would lose mass with every round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.frame import Aux, Frame
from edgegossip.gossip import messages
from edgegossip.gossip.averaging import EtaOrDefault
from edgegossip.gossip.base import Audit, NodeView, Topology
from edgegossip.gossip.messages import MAX_ID, number_of
from edgegossip.gossip.publish import Compensated, Difference, Plain, Publisher, Publishing, moved
from edgegossip.gossip.requirements import require_column_stochastic
from edgegossip.gossip.scheme import Numbers, Published, RoundContext, Snapshot, Spread, fingerprint_of
from edgegossip.gossip.streams import incarnation_of
from edgegossip.gossip.traits import THEN, Traits
from edgegossip.types import LocalUpdate, PeerError, Vec, replace

Key: TypeAlias = tuple[int, int]  # (member index, phase)
Vec64: TypeAlias = NDArray[np.float64]

LIGHT = 1e-3  # weight under which z = x / u would amplify errors: the model stays as it is, and nothing is handed over
HEAVY = 16  # times what the whole fleet began with: a node hands out shares of at most that much weight
ROUNDED = 1 + 1e-6  # what a difference of two totals may be too much
FULL = 0.5  # of the weight that a node has in the long run: with less than that a local update counts less
SETTLED = 200  # periods, after which weights repeat
LEAST = 0.1  # weight from which on it counts less at any node: 1 / LEAST times itself is the most that z moves by it


@dataclass(frozen=True, slots=True, eq=False)
class Total:
    """Sums what went over an edge since both ends began: float64[n], and the weight."""

    mass: Vec64
    weight: float
    incarnation: int = 0  # of the sender, at the receiver's end; 0: not known yet


@dataclass(frozen=True, eq=False)
class Mass:
    """State of a push-sum scheme. Immutable; arrays in it are never written to once they are
    there."""

    x: Vec64  # float64[n]
    u: float
    z: Vec  # float32[n], the model
    incarnation: int
    memory: Any  # the publisher's
    start: Vec  # what replicas start from
    fingerprint: int  # of that
    eta: float  # of the own last message, where the rate follows them
    full: float  # weight under which a local update counts less
    incoming: Vec64 | None = None  # handed over to this node since its round began
    incoming_weight: float = 0.0
    sent: Mapping[Key, Total] = field(default_factory=dict)
    seen: Mapping[Key, Total] = field(default_factory=dict)
    copies: Mapping[Key, Vec] = field(default_factory=dict)
    first: Vec | None = None  # in round 0: x~, which neighbours' are held against, as z has learnt nothing
    squares: tuple[int, float] = (0, 0.0)  # models heard of in this round, and the sum of ||z_j - z_i||^2


@dataclass(frozen=True, slots=True)
class Push(Publishing[Mass]):
    """Hands shares of the published vector over to out-neighbours, and takes them off itself."""

    name: str
    traits: Traits
    publisher: Publisher[Any]
    eta: float  # averaging rate, (0, 1]; 0: by how much the codec keeps
    suits: Callable[[str, NodeView], None]
    zero_start: bool = False  # replicas start at zero rather than at the initial model

    streams = True
    totals = True

    @property
    @override
    def parts(self) -> int:
        return 3 if self.publisher.replicates else 2

    @override
    def check(self, view: NodeView) -> None:
        self.suits(self.name, view)

    @override
    def init(self, x: Vec, ctx: RoundContext) -> Mass:
        x = x.copy()
        start = np.zeros_like(x) if self.zero_start else x
        memory, incarnation = self.publisher.init(start, ctx), incarnation_of(ctx.view)
        eta = self.first_rate(ctx)
        full = full_weights(ctx.view.topology)[ctx.index]  # type: ignore[arg-type]
        return Mass(x.astype(np.float64), 1.0, x, incarnation, memory, start, fingerprint_of(start), eta, full)

    @override
    def fingerprint(self, m: Mass) -> int:
        """Return the same for all: without replicas nothing is shared at the start."""
        return m.fingerprint if self.publisher.replicates else 1

    @override
    def publish(self, m: Mass, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]) -> tuple[Mass, Published]:
        x, cut, u = m.x.copy(), ctx.view.layout.trainable_size, max(m.u, 0.0)
        x[:cut] += min(1.0, u / m.full) * local.delta[:cut]
        x[cut:] += u * local.delta[cut:]  # statistics are no sums of steps: the model has what was measured
        part = _part(m.u, ctx.view.topology.n)
        stepped = (x if part == 1.0 else part * x).astype(np.float32)
        memory, announced = self.publisher.publish(m.memory, stepped, local, ctx)
        m = replace(m, eta=self.rate_after(ctx, m.eta, announced.body), first=None if ctx.round else stepped)
        shares = self._shares(m, ctx, to)
        sent = dict(m.sent)
        numbers: dict[int, Numbers] = {}
        publics = {k: announced.own.get(k, (announced.body, announced.public))[1] for k in shares}
        u = m.u
        for k in ctx.neighbours.out:
            share, key = shares.get(k, 0.0), (k, ctx.phase)
            total = sent.get(key) or Total(np.zeros_like(x), 0.0)
            if share:
                mass = _raised(total.mass, share, publics[k])
                x -= mass - total.mass
                u -= share * part * m.u
                total = Total(mass, total.weight + share * part * m.u)
            sent[key] = total
            numbers[k] = {Aux.SHARE: share, Aux.PUSH_SUM_WEIGHT: total.weight, Aux.INCARNATION: m.incarnation}
        m = replace(m, x=x, u=u, memory=memory, sent=sent)
        return m, Published(announced.body, numbers, announced.relative_error, announced.bodies)

    @override
    def take(self, m: Mass, sender: int, frame: Frame, ctx: RoundContext) -> Mass:
        key, name = (sender, frame.round % ctx.view.topology.period), ctx.name(sender)
        seen = m.seen.get(key) or Total(np.zeros_like(m.x), 0.0, 0)
        share, weight, incarnation = _numbers(name, frame, seen, ctx.view.topology.n)
        copies = m.copies
        if self.publisher.replicates:
            public = moved(copies.get(key, m.start), frame.body, ctx)
            copies = {**copies, key: public}
        else:
            public = ctx.view.codec.decode(frame.body, ctx.view.layout)
        messages.require_proportion(name, public, m.z if m.first is None else m.first, ctx.view.layout)
        mass, gained = _raised(seen.mass, share, public), weight - seen.weight
        total = Total(mass, weight, incarnation)
        squares = _further(m, public, gained, share)
        return _gain(m, mass - seen.mass, gained, seen={**m.seen, key: total}, copies=copies, squares=squares)

    @override
    def mix(self, m: Mass, ctx: RoundContext, fresh: Sequence[int]) -> tuple[Mass, Spread]:
        """Add what was handed over; return the root mean square of ||z_j - z_i|| too."""
        count, squares = m.squares
        return _debiased(m), Spread(math.sqrt(squares / count) if count else math.nan)

    @override
    def abandon(self, m: Mass, model: Vec | None, ctx: RoundContext) -> Mass:
        m = _debiased(m)
        if model is None:
            return m
        x = m.u * model.astype(np.float64)
        start = x.astype(np.float32)
        memory, fingerprint = self.publisher.reset(m.memory, start), fingerprint_of(start)
        return replace(m, x=x, z=model, memory=memory, start=start, fingerprint=fingerprint)

    @override
    def public(self, m: Mass, phase: int) -> Vec | None:
        return self.publisher.public(m.memory, phase)

    @override
    def full(self, m: Mass, to: int, phase: int) -> Snapshot:
        """Return the total as two float32 vectors, whose sum it is; then the replica."""
        total = m.sent.get((to, phase)) or Total(np.zeros_like(m.x), 0.0)
        high, low = _halves(total.mass)
        public = self.public(m, phase)
        vectors = [high, low] if public is None else [high, low, public]
        return Snapshot(vectors, {Aux.PUSH_SUM_WEIGHT: total.weight, Aux.INCARNATION: m.incarnation})

    @override
    def adopt(self, m: Mass, sender: int, phase: int, full: Snapshot, ctx: RoundContext) -> Mass:
        """Take in what is new in the total. A sender that has lost its disk begins with a total of
        zero."""
        key, name = (sender, phase), ctx.name(sender)
        weight, incarnation = full.numbers.get(Aux.PUSH_SUM_WEIGHT, -1.0), int(full.numbers[Aux.INCARNATION])
        total = full.vectors[0].astype(np.float64) + full.vectors[1]
        seen = m.seen.get(key)
        if seen is None or seen.incarnation not in (0, incarnation):
            seen = Total(np.zeros_like(total), 0.0)
        # As much as its messages may have handed over in the rounds of which nothing has come.
        share = float(ctx.view.topology.matrix(phase)[ctx.index, sender])
        most = HEAVY * ctx.view.topology.n * share * max(1, full.round - full.since)
        if not 0.0 <= weight <= seen.weight + most or (weight == 0.0 and total.any()):
            raise PeerError(
                f"{name} sent a push-sum weight of {weight:g} after {seen.weight:g}, as of round {full.round}"
            )
        part = total - seen.mass
        times = ctx.ahead(full.round)
        messages.require_proportion(name, part, m.z, ctx.view.layout, times)
        copies = m.copies
        if self.publisher.replicates:
            messages.require_proportion(name, full.vectors[2], m.z, ctx.view.layout, times)
            copies = {**copies, key: full.vectors[2]}
        return _gain(
            m, part, weight - seen.weight, seen={**m.seen, key: Total(total, weight, incarnation)}, copies=copies
        )

    @override
    def forget(self, m: Mass, to: int, phase: int) -> Mass:
        return replace(m, sent={k: t for k, t in m.sent.items() if k != (to, phase)})

    @override
    def model(self, m: Mass) -> Vec:
        return m.z

    @override
    def weight(self, m: Mass) -> float:
        return max(m.u, m.full)

    @override
    def audit(self, m: Mass, ctx: RoundContext) -> Audit:
        mass = m.x if m.incoming is None else m.x + m.incoming
        public = {r: self.public(m, r) for r in range(ctx.view.topology.period)}
        return Audit(
            mass=mass,
            weight=m.u + m.incoming_weight,
            mixed=m.u,
            sent={k: (t.mass, t.weight) for k, t in m.sent.items()},
            seen={k: (t.mass, t.weight) for k, t in m.seen.items()},
            public={r: (0, vec) for r, vec in public.items() if vec is not None},
            replicas={key: (0, vec) for key, vec in m.copies.items()},
        )

    def _shares(self, m: Mass, ctx: RoundContext, to: Sequence[int]) -> Mapping[int, float]:
        """Return eta W_ki of those out-neighbours that are up: the others' stay here.

        Nothing goes out of a weight that is next to nothing or below zero, as it can be for a while
        after a rollback; and nothing to whom it cannot come back from while others are down: nodes
        before a gap in a directed ring would give away all their weight, and 1 / u would blow up
        what they learn."""
        if m.u <= LIGHT:
            return {}
        w = ctx.view.topology.matrix(ctx.round)
        return {k: m.eta * float(w[k, ctx.index]) for k in _with_way_back(ctx.view, ctx.index, to)}


@lru_cache(maxsize=64)
def full_weights(topology: Topology) -> tuple[float, ...]:
    """Return the weight under which a local update counts less, by node: a share of what it has in
    the long run where nothing is lost, 1 on most graphs, at the round of the period where that is
    the least."""
    u = least = np.full(topology.n, 1.0)
    for round in range(SETTLED * topology.period):
        u = topology.matrix(round) @ u
        if round >= (SETTLED - 1) * topology.period:
            least = np.minimum(least, u)
    return tuple(np.maximum(LEAST, FULL * least).round(6).tolist())  # the same on every processor


def _raised(total: Vec64, share: float, public: Vec) -> Vec64:
    """Return total + share * public, float64[n], as a full state can say it. By how much it is more
    than `total` is what is handed over: the same to the bit by a message and by a full state."""
    high, low = _halves(total + share * public.astype(np.float64))
    return low.astype(np.float64) + high


def _halves(total: Vec64) -> tuple[Vec, Vec]:
    """Return float32[n] of a float64[n] and of what that leaves."""
    high = total.astype(np.float32)
    return high, (total - high).astype(np.float32)


def _with_way_back(view: NodeView, index: int, nodes: Iterable[int]) -> tuple[int, ...]:
    """Return those of `nodes` from which something gets back to this node, over boards that are up
    and any round of the period. All of them while everybody is up: topologies are strongly
    connected."""
    if not view.down:
        return tuple(nodes)
    found, todo = {index}, [index]
    while todo:
        i = todo.pop()
        senders = {j for r in range(view.topology.period) for j in view.topology.neighbours(i, r).in_}
        new = set(view.up(senders)) - found
        found |= new
        todo += new
    return tuple(k for k in nodes if k in found)


def _numbers(name: str, frame: Frame, seen: Total, nodes: int) -> tuple[float, float, int]:
    """Return share, total weight and incarnation beside a message. Raises PeerError when they
    cannot be: a share outside of [0, 1], a total that shrinks, mass without weight, or a share of
    more weight than anybody hands over of (`_part`)."""
    share = frame.aux.get(Aux.SHARE, -1.0)
    weight = frame.aux.get(Aux.PUSH_SUM_WEIGHT, -1.0)
    incarnation = number_of(frame, Aux.INCARNATION, 1, MAX_ID)
    if not 0.0 <= share <= 1.0:
        raise PeerError(f"{name} sent a push-sum share of {share:g}; 0 to 1 is expected")
    gained = weight - seen.weight
    if not 0.5 * LIGHT * share <= gained <= ROUNDED * HEAVY * nodes * share:
        raise PeerError(f"{name} sent a push-sum weight of {weight:g} after {seen.weight:g} with a share of {share:g}")
    if seen.incarnation not in (0, incarnation):
        raise PeerError(f"{name} began a new incarnation in the middle of a session")
    return share, weight, incarnation


def _part(u: float, nodes: int) -> float:
    """Return of what part of its mass and weight a node hands out shares: of all, up to HEAVY times
    what the whole fleet began with.

    A node has more than all others only while others are below zero: what a restart from an older
    checkpoint counts twice is taken back later. Or a liar gave it to it. Either way its neighbours
    could tell no more than that it is too much; so it goes to them little by little."""
    return min(1.0, HEAVY * nodes / u) if u > 0.0 else 1.0


def _gain(m: Mass, part: Vec64, weight: float, **changes: Any) -> Mass:
    """Return the mass with what was handed over; `changes` go with it."""
    incoming = part if m.incoming is None else m.incoming + part
    return replace(m, incoming=incoming, incoming_weight=m.incoming_weight + weight, **changes)


def _further(m: Mass, public: Vec, gained: float, share: float) -> tuple[int, float]:
    """Count the sender's model, p / u, in the consensus distance."""
    if not share or gained < LIGHT * share:
        return m.squares
    away = public * np.float32(share / gained)
    away -= m.z
    return m.squares[0] + 1, m.squares[1] + messages.squares_of(away)


def _debiased(m: Mass) -> Mass:
    """Return the next round's mass, weight and model."""
    x = m.x if m.incoming is None else m.x + m.incoming
    u = m.u + m.incoming_weight
    z = (x / u).astype(np.float32) if u > LIGHT else m.z
    return replace(m, x=x, u=u, z=z, incoming=None, incoming_weight=0.0, first=None, squares=(0, 0.0))


# -- The algorithms: three ways to publish
#
# Deviations of all three: gradients are added at x, taken at z, as in the papers; the public copies
# of quant-sgp start at the initial model unless `zero_start`; on a time-varying graph every phase
# of the period has copies of its own, since receivers change.


def _traits(in_differences: str = "") -> Traits:
    return Traits(
        orders=(THEN,),
        one_order="the mass that it hands over has the step in it",
        unbounded="it hands over mass, and what is left out of that would be lost to all",
        in_differences=in_differences,
    )


def sgp(eta: EtaOrDefault = 1.0) -> Push:
    """Return stochastic gradient push with whole models, Assran et al. (2019), algorithm 1. What
    compression loses is lost to the receivers only: mass is conserved for any codec."""
    return Push("sgp", _traits("quant-sgp"), Plain(), eta, require_column_stochastic)


def sparse_push(eta: EtaOrDefault = 0.0) -> Push:
    """Return push-sum with error compensation, Aketi et al. (2021), algorithm 4."""
    return Push("sparse-push", _traits("quant-sgp"), Compensated(), eta, require_column_stochastic)


def quant_sgp(eta: EtaOrDefault = 0.0, zero_start: bool = False) -> Push:
    """Return push-sum with differences to public copies, Taheri et al. (2020); Aketi et al. (2021),
    algorithm 5, in the form that conserves mass on every graph."""
    return Push("quant-sgp", _traits(), Difference(), eta, require_column_stochastic, zero_start)
