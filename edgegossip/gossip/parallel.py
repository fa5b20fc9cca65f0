"""Implements `parallel-sgd`: everybody sends everybody its encoded gradient and adds up what it
decodes.

Alistarh et al. (2017), QSGD, algorithm 1; ElastiQuant's own setting. Momentum is ElastiQuant's
section 3.4, heavy ball (l = 0) and Nesterov (l = 1) in one: y_(t+1) = w_t - a g; y'_(t+1) = w_t - l
a g; w_(t+1) = y_(t+1) + mu (y'_(t+1) - y'_t), g the mean of the decoded gradients.

Deviations. (1) What is encoded is the local update delta = -a g; the codecs commute with a factor.
(2) Averaging gradients does not bring models together again once they differ, so a lost message
would part them for ever. Hence every node holds each other's *stream*: the sum of its updates, with
the momentum played out per sender (the rule is linear). The model is a function of the streams
alone, w = w_0 + (1/n) sum_j F_j, in the order of the members: nodes that have heard the same
messages have the same model to the bit, and a full state mends what was lost. (3) A node that is
down adds nothing; the others' updates still count 1/n. (4) A stream's sum is kept as two float32
vectors, what rounding loses in the second: over thousands of rounds it grows far beyond the model,
whose mean of all is what counts, and float32 alone would lose small updates. Memory: two models a
member, three with momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np
from typing_extensions import override

from edgegossip.choices import Range
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip import messages
from edgegossip.gossip.base import Audit, NodeView, Says
from edgegossip.gossip.requirements import require_complete
from edgegossip.gossip.scheme import Published, RoundContext, Scheme, Snapshot, Spread, fingerprint_of
from edgegossip.gossip.traits import Traits
from edgegossip.types import LocalUpdate, PeerError, Vec, replace

MOST_MESSAGES = 2**32  # the rounds that a frame can number; a count stays there
MARGIN = 100.0  # what a node believes of its own stream is so much smaller than what the others would


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Sums up what one node's messages have come to."""

    total: Vec  # F, float32[n]
    low: Vec  # what F's rounding has lost, float32[n]
    momentum: Vec  # V, float32[n]; stays unused without momentum
    count: int = 0  # messages, at most MOST_MESSAGES


@dataclass(frozen=True, eq=False)
class Streams:
    """State of the scheme. Immutable; arrays in it are never written to once they are there."""

    index: int  # of this node
    start: Vec  # w_0
    x: Vec
    zero: Stream
    codec: Any
    process: int = -1  # the boot in which this node last ended a round
    by_node: Mapping[int, Stream] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parallel(Scheme[Streams]):
    """Adds up everybody's updates, each node's apart."""

    momentum: float
    nesterov: bool

    name = "parallel-sgd"
    traits = Traits(
        orders=(),
        one_order="updates travel, and there are no models to combine",
        unbounded="it sums gradients, and mixes no models",
    )
    kind = Kind.GRADIENT
    says = Says.UPDATES
    replicates = True

    @property
    @override
    def parts(self) -> int:
        return 6 if self.momentum else 4

    @override
    def check(self, view: NodeView) -> None:
        require_complete(self.name, view)

    @override
    def init(self, x: Vec, ctx: RoundContext) -> Streams:
        zero = np.zeros_like(x)
        return Streams(ctx.index, x.copy(), x.copy(), Stream(zero, zero, zero), ctx.view.codec.init(ctx.view.layout))

    @override
    def fingerprint(self, m: Streams) -> int:
        """Return the checksum of the first model: the models agree only if they start alike."""
        return fingerprint_of(m.start)

    @override
    def publish(
        self, m: Streams, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]
    ) -> tuple[Streams, Published]:
        body, codec = ctx.view.codec.encode(local.delta, m.codec, ctx.for_codec(local))
        decoded = ctx.view.codec.decode(body, ctx.view.layout)
        m = self._with(replace(m, codec=codec), m.index, self._on(_of(m, m.index), decoded))
        return m, Published(body, {}, messages.relative_error(decoded - local.delta, local.delta))

    @override
    def take(self, m: Streams, sender: int, frame: Frame, ctx: RoundContext) -> Streams:
        decoded = ctx.view.codec.decode(frame.body, ctx.view.layout)
        own = m.x if ctx.round else m.x + _of(m, m.index).total  # that has learnt something
        messages.require_proportion(ctx.name(sender), decoded, own, ctx.view.layout)
        return self._with(m, sender, self._on(_of(m, sender), decoded))

    @override
    def mix(self, m: Streams, ctx: RoundContext, fresh: Sequence[int]) -> tuple[Streams, Spread]:
        """Make the model of all streams as they are. The others' models are not known: no consensus
        distance."""
        return replace(self._model(m, ctx), process=ctx.view.boot), Spread()

    @override
    def abandon(self, m: Streams, model: Vec | None, ctx: RoundContext) -> Streams:
        """Take another's model until the next round's end, when all streams should be there."""
        return self._model(m, ctx) if model is None else replace(m, x=model)

    @override
    def full(self, m: Streams, to: int, phase: int) -> Snapshot:
        """Return the own stream, and the receiver's as it is known here: one that lost it gets it
        back so."""
        own, theirs = _of(m, m.index), _of(m, to)
        vectors = [*self._vectors(own), *self._vectors(theirs)]
        return Snapshot(vectors, {Aux.EXAMPLES: own.count, Aux.STEPS: theirs.count})

    @override
    def adopt(self, m: Streams, sender: int, phase: int, full: Snapshot, ctx: RoundContext) -> Streams:
        """Take in the sender's stream.

        One that knows more of this node's own stream than the node itself gives it back: after a
        restart, until the first round is over. Later nobody can know more, and whoever claims to
        lies."""
        name, own, theirs = ctx.name(sender), full.vectors[: self.parts // 2], full.vectors[self.parts // 2 :]
        count, known = _count(name, full, Aux.EXAMPLES, name), _count(name, full, Aux.STEPS, ctx.view.node)
        for vec, times in zip(own, self._times(count), strict=True):
            messages.require_proportion(name, vec, m.x, ctx.view.layout, times)
        m = self._with(m, sender, self._stream(own, count))
        if m.process == ctx.view.boot or known <= _of(m, m.index).count or not self._believes(m, theirs, known, ctx):
            return m
        return self._with(m, m.index, self._stream(theirs, known))

    @override
    def model(self, m: Streams) -> Vec:
        return m.x

    @override
    def public(self, m: Streams, phase: int) -> Vec:
        return _of(m, m.index).total

    @override
    def audit(self, m: Streams, ctx: RoundContext) -> Audit:
        replicas = {(j, 0): (s.count, s.total) for j, s in m.by_node.items() if j != m.index}
        row = dict.fromkeys(range(ctx.view.topology.n), 1.0 / ctx.view.topology.n)
        return Audit(public={0: (0, self.public(m, 0))}, replicas=replicas, row=row)

    def _times(self, count: int) -> list[float]:
        """Return how many plausible messages each of the `_vectors` of a stream may add up to.

        Not the model but the messages bound a sum: local gradients that cancel in the mean let
        every F grow for ever, each by one message of at most `require_proportion`'s limit, which
        momentum repeats 1 / (1 - mu) times in all. Whoever names a false count is believed a false
        sum; a single one of its messages may be as large, and both are bounded."""
        each = 1.0 / (1.0 - self.momentum)
        sums = [each * (count + 1)] * 2  # and what rounding lost of it
        return [*sums, each] if self.momentum else sums

    def _believes(self, m: Streams, vectors: Sequence[Vec], count: int, ctx: RoundContext) -> bool:
        """Tell whether these may be the own stream.

        What is believed must be MARGIN times smaller than what others take: a node whose own stream
        is at the very limit would be refused by those whose models are a little smaller, or one
        message later. Who brings more may be honest, and hold what this node sent when it lied or
        diverged: it is no reason to refuse its own stream."""

        def fits(vec: Vec, times: float) -> bool:
            found = messages.disproportion(
                lambda part: messages.squares_of(vec[part]), m.x, ctx.view.layout, times, MARGIN
            )
            return not found

        return all(map(fits, vectors, self._times(count)))

    def _on(self, stream: Stream, delta: Vec) -> Stream:
        """Return the stream one message further: V <- mu V + delta; F <- F + V, or F + delta + mu V
        with Nesterov. The count ends at what others take, so that a node which a liar has told the
        most of itself can go on."""
        count = min(stream.count + 1, MOST_MESSAGES)
        if not self.momentum:
            return Stream(*_added(stream.total, stream.low, delta), stream.momentum, count)
        momentum = np.float32(self.momentum) * stream.momentum + delta
        moved = delta + np.float32(self.momentum) * momentum if self.nesterov else momentum
        return Stream(*_added(stream.total, stream.low, moved), momentum, count)

    def _vectors(self, stream: Stream) -> tuple[Vec, ...]:
        """Return `parts` / 2 vectors."""
        return (stream.total, stream.low, stream.momentum) if self.momentum else (stream.total, stream.low)

    def _stream(self, vectors: Sequence[Vec], count: int) -> Stream:
        return Stream(vectors[0], vectors[1], vectors[-1], count)

    def _with(self, m: Streams, j: int, stream: Stream) -> Streams:
        return replace(m, by_node={**m.by_node, j: stream})

    def _model(self, m: Streams, ctx: RoundContext) -> Streams:
        total = np.zeros(len(m.x), np.float64)
        for j in sorted(m.by_node):
            total += m.by_node[j].total
            total += m.by_node[j].low
        total /= ctx.view.topology.n
        total += m.start
        return replace(m, x=total.astype(np.float32))


Momentum: TypeAlias = Annotated[
    float,
    Range(0, 0.9999, "mu, applied to the sum of what was sent; train without a momentum of the boards' own then"),
]


def parallel_sgd(momentum: Momentum = 0.0, nesterov: bool = False) -> Parallel:
    """Return parallel SGD: everybody adds up everybody's updates.

    nesterov: look ahead by one step of the momentum."""
    return Parallel(float(momentum), nesterov)


def _of(m: Streams, j: int) -> Stream:
    return m.by_node.get(j, m.zero)


def _added(total: Vec, low: Vec, moved: Vec) -> tuple[Vec, Vec]:
    """Return total + low + moved, rounded, and what rounding lost (Knuth's two-sum; Kahan's
    compensated summation)."""
    moved = moved + low
    new = total + moved
    part = new - total
    return new, (total - (new - part)) + (moved - part)


def _count(name: str, full: Snapshot, tag: Aux, whose: str) -> int:
    """Return a number of messages beside a full state. Raises PeerError unless it is from 0 to
    MOST_MESSAGES.

    More only a liar can name, whosoever they are: no honest node believes more of another or of
    itself, nor counts on beyond (`Parallel._on`). So none ever holds, sends or gives back what
    another refuses."""
    count = full.numbers.get(tag, -1.0)
    if not 0.0 <= count <= MOST_MESSAGES or count != int(count):
        raise PeerError(f"{name} sent a state that holds {count:.16g} messages of {whose}")
    return int(count)
