"""Mixes with symmetric weights: x_i <- x~_i + eta sum_j W_ij (p_j - p_i), p what the nodes made
public (publish.py). The algorithms are at the end, `deep_squeeze`, `choco_sgd`, `bagua_lp` and
`d2`; dpsgd.py has `dpsgd`.

The receiver weighs. A neighbour of whom there is no news is left out and its weight stays with the
node itself: the row still sums to 1. What i adds of the pair (i, j), j takes off, so the mean of
the models moves by local updates only, except in a round in which one of the two leaves the other
out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from edgegossip import codecs
from edgegossip.codecs.base import Body
from edgegossip.frame import Frame
from edgegossip.gossip import messages
from edgegossip.gossip.averaging import EtaOrDefault
from edgegossip.gossip.base import Audit, NodeView
from edgegossip.gossip.fragments import cut
from edgegossip.gossip.publish import (
    Compensated,
    Difference,
    Plain,
    Publisher,
    Publishing,
    moved,
    unmoved,
)
from edgegossip.gossip.requirements import require_doubly_stochastic, require_honest_majority, require_symmetric
from edgegossip.gossip.robust import bounded
from edgegossip.gossip.scheme import Published, RoundContext, Snapshot, Spread, fingerprint_of
from edgegossip.gossip.traits import THEN, WITH, Traits
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, LocalUpdate, Round, Vec, replace

D2_MARGIN = 1e-6  # of d2's averaging rate below what the graph allows


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Sums W_ij (xhat_j - x_i) over the senders so far. Immutable: `add` leaves the old sum as it
    was.

    Differences are summed rather than models, so float32 rounding is relative to the nodes'
    distance."""

    count: int = 0  # messages summed
    weight: float = 0.0  # sum of their W_ij
    squares: float = 0.0  # sum of ||xhat_j - x_i||^2
    total: Vec | None = None  # float32[n], zero where nothing is exchanged; None: zero
    distances: Mapping[int, float] | None = None  # ||xhat_j - x_i|| by sender; None: of nobody

    def add(self, ctx: RoundContext, sender: int, body: bytes | memoryview, weight: float, m: Mixing) -> Gathered:
        """Return the sum with one more message. Raises DecodeError on a bad body, PeerError when
        the values are too large to average."""
        fragment, x = ctx.fragment, m.x
        layout, own = fragment.layout, fragment.of(m.latest)
        part = ctx.view.codec.decode(body, layout, out=np.empty(layout.size, np.float32))
        messages.require_proportion(ctx.name(sender), part, own, layout)
        part -= fragment.of(x)
        squares = messages.squares_of(part)
        part *= np.float32(weight)
        if self.total is not None:
            part += fragment.of(self.total)
        distances = {**(self.distances or {}), sender: math.sqrt(squares)}
        total = part if fragment.is_whole else fragment.within(part, np.zeros_like(x))
        return Gathered(self.count + 1, self.weight + weight, self.squares + squares, total, distances)

    def pull(self, x: Vec, public: Vec, of: Callable[[Vec], Vec]) -> Vec:
        """Return sum_j W_ij (p_j - p_i) = sum_j W_ij (p_j - x) + (sum_j W_ij) (x - p_i)."""
        pull = x - public
        pull *= np.float32(self.weight)
        if self.total is not None:
            pull += of(self.total)
        return pull

    @property
    def spread(self) -> Spread:
        """How far the senders' models lay."""
        return Spread(math.sqrt(self.squares / self.count), self.distances or {}) if self.count else Spread()


@dataclass(frozen=True, eq=False)
class Mixing:
    """State of a symmetric scheme. Immutable; arrays in it are never written to once they are
    there."""

    x: Vec  # float32[n], the model at the start of the round
    memory: Any  # the publisher's
    start: Vec  # what replicas start from
    fingerprint: int  # of that
    eta: float  # of the own last message, where the rate follows them
    base: Vec | None = None  # x~, from the local update until the round ends
    public: Vec | None = None  # p of this round
    own: Mapping[int, Vec] | None = None  # p, for neighbours that got another message
    past: Any = None  # what the algorithm remembers of earlier rounds
    gathered: Gathered = field(default_factory=Gathered)
    copies: Mapping[tuple[int, int], Vec] = field(default_factory=dict)  # p_j, where they are kept
    rates: Mapping[int, float] = field(default_factory=dict)  # of neighbours' last messages, where rates follow them
    row: Mapping[int, float] = field(default_factory=dict)  # weights of the last round
    body: Body | None = None  # own message of this round, where it is needed
    early: Body | None = None  # the one neighbour's message, until there is an update to mix it into

    @property
    def latest(self) -> Vec:
        """What neighbours' models are held against, float32[n]: x~ once it is there."""
        return self.x if self.base is None else self.base


Rule = Callable[[Mixing, LocalUpdate, Layout], tuple[Vec, Vec]]  # -> what to publish, x~


def before(m: Mixing, local: LocalUpdate, layout: Layout) -> tuple[Vec, Vec]:
    """Publish the model as it was before the local update (D-PSGD)."""
    base = local.moved(m.x)
    return unmoved(m.x, base, layout), base


def after(m: Mixing, local: LocalUpdate, layout: Layout) -> tuple[Vec, Vec]:
    """Publish the model after the local update: x~ = x - gamma g."""
    base = local.moved(m.x)
    return base, base


@dataclass(frozen=True, slots=True)
class Symmetric(Publishing[Mixing]):
    """Mixes what the publisher makes public of the vector that the local rule chooses."""

    name: str
    traits: Traits
    publisher: Publisher[Any]
    rule: Rule
    eta: float  # averaging rate, (0, 1]; 0: by how much the codec keeps
    suits: Callable[[str, NodeView], None]  # raises ConfigError for a topology that does not do
    keeps: bool = False  # whether news of earlier rounds may be used again
    zero_start: bool = False  # replicas start at zero rather than at the initial model
    malicious: int = 0  # neighbours that may lie: what each adds is bounded (robust.py)
    malicious_rule: str = "nearest"
    fragments: int = 1  # of the model, of which a round exchanges one
    ordered: bool = False  # whether `rule` was asked for (order.py)

    @property
    @override
    def parts(self) -> int:
        return int(self.publisher.replicates)

    @override
    def check(self, view: NodeView) -> None:
        self.suits(self.name, view)
        if self.fragments > 1:
            cut(view.layout, self.fragments)
        if self.malicious:
            require_honest_majority(self.name, view, self.malicious)

    @override
    def init(self, x: Vec, ctx: RoundContext) -> Mixing:
        x = x.copy()
        start = np.zeros_like(x) if self.zero_start else x
        return Mixing(x, self.publisher.init(start, ctx), start, fingerprint_of(start), self.first_rate(ctx))

    @override
    def fingerprint(self, m: Mixing) -> int:
        return m.fingerprint

    @override
    def publish(self, m: Mixing, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]) -> tuple[Mixing, Published]:
        v, base = self.rule(m, local, ctx.view.layout)
        memory, announced = self.publisher.publish(m.memory, v, local, ctx)
        own = {k: public for k, (_, public) in announced.own.items()} or None
        eta = self.rate_after(ctx, m.eta, announced.body)
        m = replace(m, memory=memory, base=base, public=announced.public, own=own, eta=eta)
        return m, Published(announced.body, {}, announced.relative_error, announced.bodies)

    @override
    def take(self, m: Mixing, sender: int, frame: Frame, ctx: RoundContext) -> Mixing:
        key, name = (sender, self._phase(ctx.view, frame.round)), ctx.name(sender)
        if self.publisher.replicates:
            copy = moved(m.copies.get(key, m.start), frame.body, ctx, ctx.fragment_of(frame))
        elif self.keeps or self.follows(ctx):
            fragment = ctx.fragment_of(frame)
            copy = fragment.within(ctx.view.codec.decode(frame.body, fragment.layout), m.latest)
        else:
            weight = ctx.neighbours.weights[sender]
            return replace(m, gathered=m.gathered.add(ctx, sender, frame.body, weight, m))
        messages.require_proportion(name, copy, m.latest, ctx.view.layout)
        if self.follows(ctx):
            rate = self.rate_after(ctx, m.rates.get(sender) or self.first_rate(ctx), frame.body)
            m = replace(m, rates={**m.rates, sender: rate})
        return replace(m, copies={**m.copies, key: copy})

    @override
    def mix(self, m: Mixing, ctx: RoundContext, fresh: Sequence[int]) -> tuple[Mixing, Spread]:
        """Return x~ + eta sum_j W_ij (p_j - p_i) over the fresh neighbours j, and how far they
        lay: ||p_j - x_i||. Where rates follow messages, eta is the smaller one of an edge's two.
        Statistics that arrive exact are mixed in full: eta is for what messages get wrong, and
        training sets statistics anew before they have come together at less."""
        assert m.public is not None
        of = ctx.fragment.of
        x, public, cut = of(m.x), of(m.public), self._exact_from(ctx)
        if self.publisher.replicates or self.keeps or self.follows(ctx):
            phase = self._phase(ctx.view, ctx.round)
            copies = {j: of(m.copies.get((j, phase), m.start)) for j in fresh}
            row, spread = self._row(copies, public, ctx), _spread(copies, x)
            pull = _summed(row, copies, public)
            if m.rates:
                rates = {j: w * min(1.0, m.rates.get(j, m.eta) / m.eta) for j, w in row.items()}
                pull[:cut] = _summed(rates, {j: copy[:cut] for j, copy in copies.items()}, public[:cut])
        else:
            row, spread = {j: ctx.neighbours.weights[j] for j in fresh}, m.gathered.spread
            pull = m.gathered.pull(x, public, of)
        for j, own in (m.own or {}).items():
            if j in row:
                pull += np.float32(row[j]) * (public - of(own))
        pull[:cut] *= np.float32(m.eta)
        return self.pulled(m, pull, ctx, row), spread

    def pulled(self, m: Mixing, pull: Vec, ctx: RoundContext, row: Mapping[int, float]) -> Mixing:
        """Return the state at the end of the round: eta sum_j W_ij (p_j - p_i), of what the round
        exchanges, is `pull`, and W_ij, bounded if so, `row`."""
        assert m.base is not None
        row = {**row, ctx.index: 1.0 - sum(row.values())}
        x = ctx.fragment.within(ctx.fragment.of(m.base) + pull, m.base)
        # Where nobody replicates the model, what it was at first need not stay in memory.
        start = m.start if self.publisher.replicates or self.keeps else x
        return replace(self._clean(m), x=x, start=start, row=row)

    @override
    def abandon(self, m: Mixing, model: Vec | None, ctx: RoundContext) -> Mixing:
        if model is None:
            return replace(self._clean(m), x=m.x if m.base is None else m.base)
        memory, fingerprint = self.publisher.reset(m.memory, model), fingerprint_of(model)
        return replace(self._clean(m), x=model, memory=memory, start=model, fingerprint=fingerprint, past=None)

    @override
    def public(self, m: Mixing, phase: int) -> Vec | None:
        return self.publisher.public(m.memory, phase)

    @override
    def full(self, m: Mixing, to: int, phase: int) -> Snapshot:
        vec = self.public(m, phase)
        return Snapshot([] if vec is None else [vec], {})

    @override
    def adopt(self, m: Mixing, sender: int, phase: int, full: Snapshot, ctx: RoundContext) -> Mixing:
        times = ctx.ahead(full.round)
        messages.require_proportion(ctx.name(sender), full.vectors[0], m.latest, ctx.view.layout, times)
        return replace(m, copies={**m.copies, (sender, phase): full.vectors[0]})

    @override
    def model(self, m: Mixing) -> Vec:
        return m.x

    @override
    def audit(self, m: Mixing, ctx: RoundContext) -> Audit:
        if not self.publisher.replicates:
            return Audit(row=m.row)
        public = {r: self.public(m, r) for r in range(ctx.view.topology.period)}
        return Audit(
            public={r: (0, vec) for r, vec in public.items() if vec is not None},
            replicas={key: (0, vec) for key, vec in m.copies.items()},
            row=m.row,
        )

    def _clean(self, m: Mixing) -> Mixing:
        return replace(m, base=None, public=None, own=None, gathered=Gathered(), body=None, early=None)

    def _exact_from(self, ctx: RoundContext) -> int:
        """Return from which value of what the round exchanges on eta is 1."""
        return codecs.exact_from(ctx.view.codec, ctx.fragment.layout)

    def _phase(self, view: NodeView, round: Round) -> int:
        """Return the phase that news is kept under: 0 for what stands for itself, whatever phase it
        came in."""
        return round % view.topology.period if self.publisher.replicates else 0

    def _row(self, copies: Mapping[int, Vec], own: Vec, ctx: RoundContext) -> dict[int, float]:
        """Return the weights of what these neighbours made public, by how far each is from the
        own, float32[n], where there may be liars."""
        row = {j: ctx.neighbours.weights[j] for j in copies}
        if not self.malicious:
            return row
        return bounded(row, _spread(copies, own).by_neighbour, self.malicious, self.malicious_rule)


def _spread(copies: Mapping[int, Vec], x: Vec) -> Spread:
    """Return how far the copies are from x."""
    away = np.empty_like(x)
    return Spread.of({j: messages.squares_of(np.subtract(copy, x, out=away)) for j, copy in copies.items()})


def _summed(row: Mapping[int, float], copies: Mapping[int, Vec], own: Vec) -> Vec:
    """Return sum_j W_ij (p_j - p_i), float32[n]."""
    total = np.zeros_like(own)
    for j, copy in copies.items():
        away = copy - own
        away *= row[j]
        total += away
    return total


# -- The algorithms


def deep_squeeze(eta: EtaOrDefault = 0.0, keeps: bool = False) -> Symmetric:
    """Return DeepSqueeze: what compression loses of the model is sent later.

    Tang et al., "DeepSqueeze: decentralization meets error-compensated compression" (2019),
    algorithm 1; Aketi et al. (2021), algorithm 2: x~ = x - gamma g; v = x~ + e; send C[v]; e <- v -
    C[v]; x <- x~ + eta sum_j (W_ij - I_ij) C[v_j]."""
    traits = Traits(
        orders=(THEN,),
        one_order="what its memory owes is of models after the step",
        in_differences="choco-sgd",
        plain=True,
    )
    return Symmetric("deep-squeeze", traits, Compensated(), after, eta, require_doubly_stochastic, keeps)


def choco_sgd(eta: EtaOrDefault = 0.0, zero_start: bool = False, keeps: bool = False) -> Symmetric:
    """Return CHOCO-SGD: compressed differences to public copies that all neighbours hold.

    Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with
    compressed communication" (2019), algorithm 2; Aketi et al. (2021), algorithm 3: x~ = x - gamma
    g; q = C[x~ - xhat]; everybody: xhat <- xhat + q; x <- x~ + eta sum_j W_ij (xhat_j - xhat_i).

    Deviation: the public copies start at the initial model rather than at zero, which every node
    knows and which spares the first rounds from sending it; `zero_start` gives the paper's. Nodes
    that start from different models notice that."""
    traits = Traits(orders=(THEN, WITH), plain=True)
    return Symmetric("choco-sgd", traits, Difference(), after, eta, require_symmetric, keeps, zero_start)


@dataclass(frozen=True, slots=True)
class Bagua(Symmetric):
    """Mixes before it publishes, with the replicas as they were when the round began
    (`Mixing.past`): a neighbour's message of this round may be here already, and must not count in
    it."""

    @override
    def init(self, x: Vec, ctx: RoundContext) -> Mixing:
        m = Symmetric.init(self, x, ctx)
        return replace(m, past=m.copies)

    @override
    def publish(self, m: Mixing, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]) -> tuple[Mixing, Published]:
        v = local.moved(m.x)
        # Who is up; W is symmetric, so these are the in-neighbours too.
        copies = {j: m.past.get((j, ctx.phase), m.start) for j in to}
        for j, weight in self._row(copies, m.x, ctx).items():
            v += np.float32(m.eta * weight) * (copies[j] - m.x)
        memory, announced = self.publisher.publish(m.memory, v, local, ctx)
        m = replace(m, memory=memory, base=announced.public, public=announced.public)
        return m, Published(announced.body, {}, announced.relative_error)

    @override
    def pulled(self, m: Mixing, pull: Vec, ctx: RoundContext, row: Mapping[int, float]) -> Mixing:
        """Take what was published as the model; the neighbours' news counts from the next round
        on."""
        assert m.base is not None
        return replace(Symmetric.pulled(self, m, pull, ctx, row), x=m.base, past=m.copies)

    @override
    def abandon(self, m: Mixing, model: Vec | None, ctx: RoundContext) -> Mixing:
        return replace(Symmetric.abandon(self, m, model, ctx), past=m.copies)

    @override
    def adopt(self, m: Mixing, sender: int, phase: int, full: Snapshot, ctx: RoundContext) -> Mixing:
        """Take the replica for the next mixing, too, unless this round's message is in it already
        and an earlier replica is here: a restart is then as if the message had come."""
        past, key = m.past, (sender, phase)
        m = Symmetric.adopt(self, m, sender, phase, full, ctx)
        return m if full.round > ctx.round and key in past else replace(m, past={**past, key: full.vectors[0]})


def bagua_lp(eta: EtaOrDefault = 1.0) -> Bagua:
    """Return low-precision decentralised SGD, as Bagua's. The codec must be fine, as Bagua's
    minmax8: what it loses is lost until a later difference makes up for it.

    Bagua, "Low precision decentralized SGD"; Tang et al. (2018), "Communication compression for
    decentralized training", algorithm 1 (DCD-PSGD): every node and all of its neighbours hold the
    same replica of its model. With L and R the replicas of the two neighbours on a ring: z =
    x_after_step + (L + R) / 3 - (5/3) x; x <- x + Q(z), and the same at both neighbours.

    Here for any symmetric W: z = delta + eta sum_j W_ij (x_j - x_i), which on a ring with weights
    1/3 is the same. The model moves by what was sent only, so it is its own replica."""
    traits = Traits(
        orders=(WITH,),
        one_order="step and mixing travel in one difference",
        no_outer="it mixes models from before the local steps, by which momentum drives boards apart",
    )
    return Bagua("bagua-lp", traits, Difference(), after, eta, require_symmetric)


def extrapolate(m: Mixing, local: LocalUpdate, layout: Layout) -> tuple[Vec, Vec]:
    """Publish and mix x_t + delta_t + c_t."""
    y = m.x + (local.delta if m.past is None else local.delta + m.past)
    return y, y


@dataclass(frozen=True, slots=True)
class D2(Symmetric):
    """The symmetric scheme with an averaging rate that the graph allows, whatever is mixed."""

    @override
    def init(self, x: Vec, ctx: RoundContext) -> Mixing:
        """Raises ConfigError when eta is too large for the graph."""
        smallest = float(np.linalg.eigvalsh(ctx.view.topology.matrix(0))[0])
        largest = (4.0 / 3.0) / (1.0 - smallest) if smallest < 1.0 else 1.0
        if self.eta >= largest - D2_MARGIN and self.eta:
            raise ConfigError(
                f"eta of d2 = {self.eta:g} must be below {largest:.3g} on topology {ctx.view.topology.name!r}, whose "
                f"smallest eigenvalue is {smallest:.3g}; 0 chooses one"
            )
        m = Symmetric.init(self, x, ctx)
        return m if self.eta or m.eta < largest - D2_MARGIN else replace(m, eta=0.5)

    @override
    def _exact_from(self, ctx: RoundContext) -> int:
        return ctx.fragment.layout.size

    @override
    def pulled(self, m: Mixing, pull: Vec, ctx: RoundContext, row: Mapping[int, float]) -> Mixing:
        past = pull if m.past is None else m.past + pull
        return replace(Symmetric.pulled(self, m, pull, ctx, row), past=past)


def d2(eta: EtaOrDefault = 0.0, keeps: bool = False) -> D2:
    """Return decentralised SGD that does not mind how different the boards' data are. eta
    = 0 is the largest of 1 and 1/2 that the graph allows, less where the codec keeps little. Raises
    ConfigError with bounded staleness, with which it diverges.

    Tang et al., "D2: decentralized training over decentralized data" (2018), algorithm 1: x_(t+1) =
    W (2 x_t - x_(t-1) - gamma g_t + gamma g_(t-1)), first step x_1 = W (x_0 - gamma g_0).

    It needs a smallest eigenvalue of W above -1/3, where a ring of an even number of nodes with
    weights 1/3 is not: mixing with (1 - eta) I + eta W, eta = 1/2, always does.

    Kept of the rounds before is c_t = x_t - x_(t-1) + gamma g_(t-1), what mixing has added so far:
    c_(t+1) = c_t + what mixing adds now. That is one vector instead of two, and small: as a
    difference of models it would be rounded like a model, and D2 repeats in every later round what
    one round got wrong. Deviations: gamma g is the local update that was made, so the learning rate
    may change; a round without mixing goes on from there, and a new model begins anew."""
    if keeps:
        raise ConfigError("staleness of d2 must be 0: with old news its differences grow from round to round")
    traits = Traits(
        orders=(THEN,),
        one_order="it takes off what mixing made of the last step",
        unbounded="it repeats in every round what mixing did in those before, a lie too",
        no_outer="it takes off in every round what it takes for the gradient of the one before, which an outer step is not",
        in_differences="choco-sgd",
        takes_gradients=True,
        repeats=True,
    )
    return D2("d2", traits, Plain(), extrapolate, eta, require_symmetric, keeps)
