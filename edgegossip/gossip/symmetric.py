"""Mixes with symmetric weights: x_i <- x~_i + eta sum_j W_ij (p_j - p_i), p what the nodes made
public: plain, compensated or as a difference (`Publisher`). The algorithms are at the end: `dpsgd`,
`deep_squeeze`, `choco_sgd`, `bagua_lp`, `d2`.

The receiver weighs. A neighbour of whom there is no news is left out and its weight stays with the
node itself: the row still sums to 1. What i adds of the pair (i, j), j takes off, so the mean of
the models moves by local updates only, except in a round in which one of the two leaves the other
out."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from typing_extensions import override

from edgegossip import codecs
from edgegossip.codecs.base import Body, Codec
from edgegossip.codecs.checks import nonfinite, require_body_bytes
from edgegossip.codecs.floats import Float, Fp32
from edgegossip.frame import Frame, Kind
from edgegossip.gossip import messages
from edgegossip.gossip.averaging import (
    Eta,
    EtaOrDefault,
    default_eta,
    difference_eta,
    follows,
    memory_eta,
    on_probe,
    rate_of,
)
from edgegossip.gossip.base import Audit, NodeView, Says
from edgegossip.gossip.fragments import Fragment, cut
from edgegossip.gossip.requirements import require_doubly_stochastic, require_honest_majority, require_symmetric
from edgegossip.gossip.robust import bounded
from edgegossip.gossip.scheme import Published, RoundContext, Scheme, Snapshot, Spread
from edgegossip.layout import Layout
from edgegossip.native import half
from edgegossip.types import ConfigError, LocalUpdate, Round, Vec

M = TypeVar("M")
P = TypeVar("P")

D2_MARGIN = 1e-6  # of d2's averaging rate below what the graph allows

_NONE: Mapping[tuple[int, int], Vec] = {}


# -- What is published of a vector v: the three ways in which compressed gossip differs
#
# plain: C[v]. compensated: C[v + e], what was lost is kept in e and sent later (Tang et al. 2019,
# DeepSqueeze, algorithm 1). difference: the public copy xhat moves by C[v - xhat], which vanishes
# as v converges (Koloskova et al. 2019, CHOCO-SGD, algorithm 2). Push-sum has the same three.


@dataclass(frozen=True, slots=True, eq=False)
class Announced:
    """Holds one message and what receivers know after it."""

    body: Body
    public: Vec  # float32[n]
    relative_error: float  # ||decoded - meant|| / ||meant||, 0 when both vanish
    own: Mapping[int, tuple[Body, Vec]] = field(default_factory=dict)  # instead, for receivers that get a finer one

    @property
    def bodies(self) -> dict[int, Body] | None:
        """The messages of these receivers; None without any."""
        return {k: body for k, (body, _) in self.own.items()} or None


class Publisher(Protocol[P]):
    """Publishes a vector in few bits, by the memory of what was published before."""

    @property
    def replicates(self) -> bool:
        """Whether receivers keep the public vector and messages move it on."""

    @property
    def says(self) -> Says:
        """Whether later messages make up for what one loses."""

    def init(self, start: Vec, ctx: RoundContext) -> P:
        """Return the memory before the first message. `start`, float32[n]: what replicas start
        from; kept, not copied."""

    def publish(self, memory: P, v: Vec, local: LocalUpdate, ctx: RoundContext) -> tuple[P, Announced]:
        """Encode v, float32[n], by the memory of what was published before."""

    def reset(self, memory: P, v: Vec) -> P:
        """Return the memory of a node that has another vector, which has nothing to do with what it
        published before."""

    def public(self, memory: P, phase: int) -> Vec | None:
        """Return what receivers hold now, float32[n], if they hold anything."""

    def rate(self, codec: Codec[Any]) -> float:
        """Return the averaging rate with this codec where none is given."""

    def followed(self, codec: Codec[Any]) -> float:
        """Return the same of a message where each has bytes of its own (`averaging.rate_of`)."""
        return self.rate(codec)


@dataclass(frozen=True, slots=True)
class Plain(Publisher[Any]):
    """Publishes C[v], to each neighbour with as many bytes as its link is allowed. Its memory is
    the codec's state."""

    replicates = False
    says = Says.MODELS

    @override
    def init(self, start: Vec, ctx: RoundContext) -> Any:
        return ctx.codec_start()

    @override
    def publish(self, memory: Any, v: Vec, local: LocalUpdate, ctx: RoundContext) -> tuple[Any, Announced]:
        fragment, coarsest = ctx.fragment, ctx.for_codec(local)
        part = fragment.of(v)
        if isinstance(ctx.view.codec, Fp32):  # exact: neither body nor public vector is a copy
            return memory, Announced(ctx.view.codec.lend(part, fragment.layout), v, 0.0)
        body, memory = ctx.encode(part, memory, coarsest)
        public = ctx.decode(body)
        allowed, finer = self._allowed(local, ctx), dict[int, tuple[Body, Vec]]()
        for size in {*allowed.values()} - {coarsest.bytes}:
            message, memory = ctx.encode(part, memory, replace(coarsest, bytes=size))
            finer[size] = message, fragment.within(ctx.decode(message), v)
        own = {k: finer[size] for k, size in allowed.items() if size in finer}
        lost = messages.relative_error(public - part, part)
        return memory, Announced(body, fragment.within(public, v), lost, own)

    def _allowed(self, local: LocalUpdate, ctx: RoundContext) -> dict[int, int]:
        """What each neighbour's message may take. Where edges have one direction all get the
        same: who adds what i says is not who is taken off for it."""
        both_ways = {*ctx.neighbours.in_} == {*ctx.neighbours.out}
        return ctx.allowed(local) if both_ways else {}

    @override
    def reset(self, memory: Any, v: Vec) -> Any:
        return memory

    @override
    def public(self, memory: Any, phase: int) -> None:
        return None

    @override
    def rate(self, codec: Codec[Any]) -> float:
        return default_eta(codec)


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMemory:
    """Holds the memory of `Compensated`."""

    codec: Any
    error: Vec | None  # e, float32[n]; None: zero


@dataclass(frozen=True, slots=True)
class Compensated(Publisher[ErrorMemory]):
    """Publishes C[v + e]; what was lost is kept in e and sent later."""

    replicates = False
    says = Says.REPAIRED

    @override
    def init(self, start: Vec, ctx: RoundContext) -> ErrorMemory:
        return ErrorMemory(ctx.codec_start(), None)

    @override
    def publish(
        self, memory: ErrorMemory, v: Vec, local: LocalUpdate, ctx: RoundContext
    ) -> tuple[ErrorMemory, Announced]:
        fragment = ctx.fragment
        part = fragment.of(v)
        meant = part if memory.error is None else part + fragment.of(memory.error)
        body, codec = ctx.encode(meant, memory.codec, ctx.for_codec(local))
        public = ctx.decode(body)
        error = meant - public
        lost, rest = messages.relative_error(error, meant), np.zeros_like(v) if memory.error is None else memory.error
        return ErrorMemory(codec, fragment.within(error, rest)), Announced(body, fragment.within(public, v), lost)

    @override
    def reset(self, memory: ErrorMemory, v: Vec) -> ErrorMemory:
        return ErrorMemory(memory.codec, None)

    @override
    def public(self, memory: ErrorMemory, phase: int) -> None:
        return None

    @override
    def rate(self, codec: Codec[Any]) -> float:
        return memory_eta(codec)


@dataclass(frozen=True, slots=True, eq=False)
class PublicCopies:
    """Holds the memory of `Difference`."""

    codec: Any
    start: Vec  # what the public copies were before the first message
    # xhat by phase of the topology; where the receivers change, so does what they know
    copies: Mapping[int, Vec]


@dataclass(frozen=True, slots=True)
class Difference(Publisher[PublicCopies]):
    """Publishes C[v - xhat], by which the public copy xhat moves on."""

    replicates = True
    says = Says.REPAIRED

    @override
    def init(self, start: Vec, ctx: RoundContext) -> PublicCopies:
        return PublicCopies(ctx.codec_start(), start, {})

    @override
    def publish(
        self, memory: PublicCopies, v: Vec, local: LocalUpdate, ctx: RoundContext
    ) -> tuple[PublicCopies, Announced]:
        copy, fragment = memory.copies.get(ctx.phase, memory.start), ctx.fragment
        part = fragment.of(v)
        meant = part - fragment.of(copy)
        body, codec = ctx.encode(meant, memory.codec, ctx.for_codec(local))
        public = moved(copy, body, ctx)
        np.subtract(part, fragment.of(public), out=(left := np.empty_like(part)))
        copies = {**memory.copies, ctx.phase: public}
        lost = messages.relative_error(left, meant)
        return replace(memory, codec=codec, copies=copies), Announced(body, public, lost)

    @override
    def reset(self, memory: PublicCopies, v: Vec) -> PublicCopies:
        return PublicCopies(memory.codec, v, {})

    @override
    def public(self, memory: PublicCopies, phase: int) -> Vec:
        return memory.copies.get(phase, memory.start)

    @override
    def rate(self, codec: Codec[Any]) -> float:
        return default_eta(codec)

    @override
    def followed(self, codec: Codec[Any]) -> float:
        return difference_eta(codec)


def moved(copy: Vec, body: Body, ctx: RoundContext, fragment: Fragment | None = None) -> Vec:
    """Return copy + decode(body), float32[n], for a body of what this round exchanges, or of this
    fragment. Sender and receivers compute it alike, so their copies stay equal to the bit. Raises
    DecodeError."""
    copy, fragment = copy.copy(), fragment or ctx.fragment
    ctx.view.codec.decode(body, fragment.layout, out=fragment.of(copy), weight=1.0)
    return copy


# -- The scheme


class Publishing(Scheme[M]):
    """Is what schemes have alike that go by what a `Publisher` makes of a vector: what they send,
    and how far they step with it."""

    publisher: Publisher[Any]
    eta: float  # averaging rate, (0, 1]; 0: by how much the codec keeps

    @property
    @override
    def kind(self) -> Kind:
        return Kind.DIFFERENCE if self.publisher.replicates else Kind.MODEL

    @property
    @override
    def says(self) -> Says:
        return self.publisher.says

    @property
    @override
    def streams(self) -> bool:
        return self.publisher.replicates

    @property
    @override
    def replicates(self) -> bool:
        return self.publisher.replicates

    def first_rate(self, ctx: RoundContext) -> float:
        """Return the averaging rate before the first message."""
        return self.eta or self.publisher.rate(on_probe(ctx.view.codec, ctx.view.layout.size // self.fragments))

    def follows(self, ctx: RoundContext) -> bool:
        """Tell whether the averaging rate goes by the messages."""
        return not self.eta and self.says is Says.REPAIRED and follows(ctx.view.codec)

    def rate_after(self, ctx: RoundContext, before: float, *bodies: Body) -> float:
        """Return the averaging rate of a message with these bodies, `before` that of its sender's
        last one, which stays where rates do not follow messages. Raises DecodeError."""
        if not self.follows(ctx):
            return before
        codec, layout = ctx.view.codec, ctx.view.layout
        return min(rate_of(self.publisher.followed, before, codec, body, layout) for body in bodies)


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

    @property
    def spread(self) -> Spread:
        """How far the senders' models lay."""
        return Spread(math.sqrt(self.squares / self.count), self.distances or {}) if self.count else Spread()


@dataclass(frozen=True, slots=True, eq=False)
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
    past: Any = None  # what the local rule remembers
    gathered: Gathered = field(default_factory=Gathered)
    copies: Mapping[tuple[int, int], Vec] = field(default_factory=lambda: _NONE)  # p_j, where they are kept
    rates: Mapping[int, float] = field(default_factory=dict)  # of neighbours' last messages, where rates follow them
    row: Mapping[int, float] = field(default_factory=dict)  # weights of the last round
    body: Body | None = None  # own message of this round, where it is needed
    early: Body | None = None  # the one neighbour's message, until there is an update to mix it into

    @property
    def latest(self) -> Vec:
        """What neighbours' models are held against, float32[n]: x~ once it is there."""
        return self.x if self.base is None else self.base


# -> what to publish, x~, what to remember
Rule = Callable[[Mixing, LocalUpdate, Layout], tuple[Vec, Vec, Any]]


def before(m: Mixing, local: LocalUpdate, layout: Layout) -> tuple[Vec, Vec, Any]:
    """Publish the model as it was before the local update (D-PSGD), with its statistics as they are
    after it.

    Training moves a parameter, but it overwrites a statistic of batch norm: s replaces x_i, so that
    mixing what was there before, W x + s - x, feeds W - I back. On a ring of 4 boards that has the
    eigenvalue -4/3, and the statistics run away; W s averages them."""
    base = local.moved(m.x)
    if layout.trainable_size == layout.size:
        return m.x, base, None
    published = m.x.copy()
    published[layout.trainable_size :] = base[layout.trainable_size :]
    return published, base, None


def after(m: Mixing, local: LocalUpdate, layout: Layout) -> tuple[Vec, Vec, Any]:
    """Publish the model after the local update: x~ = x - gamma g."""
    moved_ = local.moved(m.x)
    return moved_, moved_, None


@dataclass(frozen=True, slots=True)
class Symmetric(Publishing[Mixing]):
    """Mixes what the publisher makes public of the vector that the local rule chooses."""

    name: str
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

    totals = False

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
        return Mixing(x, self.publisher.init(start, ctx), start, zlib.crc32(start.data) + 1, self.first_rate(ctx))

    @override
    def fingerprint(self, m: Mixing) -> int:
        return m.fingerprint

    @override
    def publish(self, m: Mixing, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]) -> tuple[Mixing, Published]:
        v, base, past = self.rule(m, local, ctx.view.layout)
        memory, announced = self.publisher.publish(m.memory, v, local, ctx)
        own = {k: public for k, (_, public) in announced.own.items()} or None
        eta = self.rate_after(ctx, m.eta, announced.body)
        m = replace(m, memory=memory, base=base, public=announced.public, own=own, past=past, eta=eta)
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
            row = {j: ctx.neighbours.weights[j] for j in fresh}
            total = m.gathered.total
            pull, spread = (
                _gathered(m.gathered.weight, None if total is None else of(total), x, public),
                m.gathered.spread,
            )
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
        fingerprint = zlib.crc32(model.data) + 1  # what neighbours are taken to be at until they are heard of
        memory = self.publisher.reset(m.memory, model)
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
    squares, away = {}, np.empty_like(x)
    for j, copy in copies.items():
        np.subtract(copy, x, out=away)
        squares[j] = messages.squares_of(away)
    if not squares:
        return Spread()
    distances = {j: math.sqrt(square) for j, square in squares.items()}
    return Spread(math.sqrt(sum(squares.values()) / len(squares)), distances)


def _summed(row: Mapping[int, float], copies: Mapping[int, Vec], own: Vec) -> Vec:
    """Return sum_j W_ij (p_j - p_i), float32[n]."""
    total = np.zeros_like(own)
    for j, copy in copies.items():
        away = copy - own
        away *= row[j]
        total += away
    return total


def _gathered(weight: float, gathered: Vec | None, x: Vec, public: Vec) -> Vec:
    """Return sum_j W_ij (p_j - p_i) from what was gathered relative to x: sum_j W_ij (p_j - x) +
    (sum_j W_ij) (x - p_i)."""
    total = x - public
    total *= np.float32(weight)
    if gathered is not None:
        total += gathered
    return total


# -- The algorithms


@dataclass(frozen=True, slots=True)
class DPsgd(Symmetric):
    """D-PSGD that needs little memory where a model is large.

    With one neighbour and a codec that encodes each number by itself (fp32, fp16, bf16), the pull
    is added block by block to the vector that becomes the next model: beside it there are only the
    two messages. A state of the middle of a round is then not to be used again, once the next one
    was made of it. With several neighbours the pull is summed up first: a sum of two numbers does
    not depend on who came first, and so neither do models on a ring."""

    @override
    def publish(self, m: Mixing, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]) -> tuple[Mixing, Published]:
        if not self._lean(ctx):
            return Symmetric.publish(self, m, local, ctx, to)
        codec: Float = ctx.view.codec  # type: ignore[assignment]
        base = local.moved(m.x)
        body = _encode_dpsgd(codec, m.x, base, ctx.view)
        error = 0.0 if isinstance(codec, Fp32) else _encoding_error(codec, body, m.x, base, ctx.view.layout)
        early = m.early
        m = replace(m, x=base, start=base, base=base, early=None, body=body)
        if early is not None:
            m = self._add(m, early, ctx)
        return m, Published(body, {}, error)

    @override
    def take(self, m: Mixing, sender: int, frame: Frame, ctx: RoundContext) -> Mixing:
        if not self._lean(ctx):
            return Symmetric.take(self, m, sender, frame, ctx)
        # All that may be wrong with it is looked for before a number is added.
        codec: Float = ctx.view.codec  # type: ignore[assignment]
        require_body_bytes(frame.body, half.BYTES[codec.name] * ctx.view.layout.size, codec.name)

        def squares(part: slice) -> float:
            return sum(messages.squares_of(block) for _, block in _parts(codec, frame.body, part))

        if tensor := messages.disproportion(squares, m.latest, ctx.view.layout):
            raise messages.too_large(ctx.name(sender), tensor)
        return self._add(m, frame.body, ctx) if m.base is not None else replace(m, early=frame.body)

    @override
    def mix(self, m: Mixing, ctx: RoundContext, fresh: Sequence[int]) -> tuple[Mixing, Spread]:
        if not self._lean(ctx):
            return Symmetric.mix(self, m, ctx, fresh)
        assert m.base is not None
        row = {j: ctx.neighbours.weights[j] for j in fresh}
        row[ctx.index] = 1.0 - sum(row.values())
        return replace(self._clean(m), x=m.base, row=row), m.gathered.spread

    def _lean(self, ctx: RoundContext) -> bool:
        lean = self.rule is before and not self.keeps and isinstance(ctx.view.codec, Float)
        return lean and len(ctx.neighbours.in_) == 1

    def _add(self, m: Mixing, body: Body, ctx: RoundContext) -> Mixing:
        """Add eta W (p_j - p_i) to base, in place; of statistics W (p_j - p_i), as `mix`."""
        assert m.base is not None and m.body is not None
        [sender] = ctx.neighbours.in_
        codec: Float = ctx.view.codec  # type: ignore[assignment]
        weight, eta, squares = np.float32(ctx.neighbours.weights[sender]), np.float32(m.eta), 0.0
        exact = self._exact_from(ctx)
        whole = slice(0, m.base.size)
        for (start, theirs), (_, mine) in zip(_parts(codec, body, whole), _parts(codec, m.body, whole), strict=True):
            theirs -= mine
            squares += messages.squares_of(theirs)
            theirs *= weight
            theirs[: max(0, exact - start)] *= eta
            m.base[start : start + theirs.size] += theirs
        return replace(m, gathered=Gathered(1, float(weight), squares, distances={sender: math.sqrt(squares)}))


_BLOCK_VALUES = 1 << 20


def _parts(codec: Float, body: Body, part: slice) -> Iterator[tuple[int, Vec]]:
    """Decode a part of a body block by block into the same memory; yield each block with where it
    starts."""
    out = np.empty(min(part.stop - part.start, _BLOCK_VALUES), np.float32)
    for start in range(part.start, part.stop, _BLOCK_VALUES):
        yield start, codec.decode_part(body, start, out[: min(_BLOCK_VALUES, part.stop - start)])


def _encode_dpsgd(codec: Float, x: Vec, base: Vec, view: NodeView) -> Body:
    """Encode what `before` publishes: the parameters of x and the statistics of base, without a
    vector of them where there is room. Raises UsageError when a value is not finite.

    Where there is, that is so in fp32, too: a message that lends x keeps it until it was sent, and
    the next round may have begun by then."""
    layout, cut = view.layout, view.layout.trainable_size
    width, tensors = half.BYTES[codec.name], sum(t.trainable for t in layout.tensors)
    body = view.room(width * layout.size)
    if body is None and isinstance(codec, Fp32) and cut == layout.size:
        return codec.lend(x, layout)
    body = np.empty(width * layout.size, np.uint8) if body is None else body
    for first, last, values in ((0, tensors, x[:cut]), (tensors, len(layout.tensors), base[cut:])):
        offsets = layout.offsets[first : last + 1] - layout.offsets[first]
        out = body[width * layout.offsets[first] : width * layout.offsets[last]]
        if (bad := half.encode(codec.name, values, offsets, out)) >= 0:
            raise nonfinite(layout, first + bad)
    return body.data.toreadonly()


def _encoding_error(codec: Float, body: Body, x: Vec, base: Vec, layout: Layout) -> float:
    """Return ||decoded - v|| / ||v|| of what `_encode_dpsgd` makes, see
    `messages.relative_error`."""
    lost, parameters = 0.0, layout.trainable_size
    for start, part in _parts(codec, body, slice(0, x.size)):
        cut = min(max(parameters - start, 0), part.size)
        part[:cut] -= x[start : start + cut]
        part[cut:] -= base[start + cut : start + part.size]
        lost += float(part.dot(part))
    whole = float(x[:parameters].dot(x[:parameters])) + float(base[parameters:].dot(base[parameters:]))
    return math.sqrt(lost / whole) if whole else (0.0 if lost == 0.0 else math.inf)


def dpsgd(eta: Eta = 1.0, keeps: bool = False) -> DPsgd:
    """Return decentralised parallel SGD: whole models travel. A coarse codec makes the models
    coarse: see `choco_sgd`.

    Lian et al., "Can decentralized algorithms outperform centralized algorithms?" (2017), algorithm
    1: x_i <- sum_j W_ij x_j - gamma g_i(x_i), gradient at the model before mixing, W symmetric and
    doubly stochastic.

    Deviations. (1) It is computed as x_i + eta sum_j W_ij (xhat_j - xhat_i) + delta_i with xhat =
    decode(encode(x)), which is the same for a lossless codec and eta = 1, and keeps the mean of the
    models for any codec: what i adds, j takes off. (2) delta_i, the local update, may be several
    optimiser steps. (3) W may be directed if it is doubly stochastic in every round."""
    return DPsgd("dpsgd", Plain(), before, eta, require_doubly_stochastic, keeps)


def deep_squeeze(eta: EtaOrDefault = 0.0, keeps: bool = False) -> Symmetric:
    """Return DeepSqueeze: what compression loses of the model is sent later.

    Tang et al., "DeepSqueeze: decentralization meets error-compensated compression" (2019),
    algorithm 1; Aketi et al. (2021), algorithm 2: x~ = x - gamma g; v = x~ + e; send C[v]; e <- v -
    C[v]; x <- x~ + eta sum_j (W_ij - I_ij) C[v_j]."""
    return Symmetric("deep-squeeze", Compensated(), after, eta, require_doubly_stochastic, keeps)


def choco_sgd(eta: EtaOrDefault = 0.0, zero_start: bool = False, keeps: bool = False) -> Symmetric:
    """Return CHOCO-SGD: compressed differences to public copies that all neighbours hold.

    Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with
    compressed communication" (2019), algorithm 2; Aketi et al. (2021), algorithm 3: x~ = x - gamma
    g; q = C[x~ - xhat]; everybody: xhat <- xhat + q; x <- x~ + eta sum_j W_ij (xhat_j - xhat_i).

    Deviation: the public copies start at the initial model rather than at zero, which every node
    knows and which spares the first rounds from sending it; `zero_start` gives the paper's. Nodes
    that start from different models notice that."""
    return Symmetric("choco-sgd", Difference(), after, eta, require_symmetric, keeps, zero_start)


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
    return Bagua("bagua-lp", Difference(), after, eta, require_symmetric)


def extrapolate(m: Mixing, local: LocalUpdate, layout: Layout) -> tuple[Vec, Vec, Any]:
    """Publish and mix x_t + delta_t + c_t."""
    step = local.delta if m.past is None else local.delta + m.past
    y = m.x + step
    return y, y, m.past


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
    return D2("d2", Plain(), extrapolate, eta, require_symmetric, keeps)
