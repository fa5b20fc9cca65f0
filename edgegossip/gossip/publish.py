"""Says what is published of a vector v: the three ways in which compressed gossip differs.

- `Plain`: C[v].
- `Compensated`: C[v + e]; what was lost is kept in e and sent later (Tang et al. 2019, DeepSqueeze,
  algorithm 1).
- `Difference`: the public copy xhat moves by C[v - xhat], which vanishes as v converges (Koloskova
  et al. 2019, CHOCO-SGD, algorithm 2).

Mixing with symmetric weights, push-sum and tracking all go by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body, Codec
from edgegossip.codecs.floats import Fp32
from edgegossip.frame import Kind
from edgegossip.gossip import messages
from edgegossip.gossip.averaging import default_eta, difference_eta, follows, memory_eta, on_probe, rate_of
from edgegossip.gossip.base import Says
from edgegossip.gossip.fragments import Fragment
from edgegossip.gossip.scheme import RoundContext, Scheme
from edgegossip.layout import Layout
from edgegossip.types import LocalUpdate, Vec, replace

M = TypeVar("M")
P = TypeVar("P")


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
        return False

    @property
    def says(self) -> Says:
        """What is encoded."""

    def init(self, start: Vec, ctx: RoundContext) -> P:
        """Return the memory before the first message. `start`, float32[n]: what replicas start
        from; kept, not copied."""

    def publish(self, memory: P, v: Vec, local: LocalUpdate, ctx: RoundContext) -> tuple[P, Announced]:
        """Encode v, float32[n], by the memory of what was published before."""

    def reset(self, memory: P, v: Vec) -> P:
        """Return the memory of a node that has another vector, which has nothing to do with what it
        published before."""
        return memory

    def public(self, memory: P, phase: int) -> Vec | None:
        """Return what receivers hold now, float32[n], if they hold anything."""
        return None

    def rate(self, codec: Codec[Any]) -> float:
        """Return the averaging rate with this codec where none is given."""
        return default_eta(codec)

    def followed(self, codec: Codec[Any]) -> float:
        """Return the same of a message where each has bytes of its own (`averaging.rate_of`)."""
        return self.rate(codec)


@dataclass(frozen=True, slots=True)
class Plain(Publisher[Any]):
    """Publishes C[v], to each neighbour with as many bytes as its link is allowed. Its memory is
    the codec's state."""

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


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMemory:
    """Holds the memory of `Compensated`."""

    codec: Any
    error: Vec | None  # e, float32[n]; None: zero


@dataclass(frozen=True, slots=True)
class Compensated(Publisher[ErrorMemory]):
    """Publishes C[v + e]; what was lost is kept in e and sent later."""

    says = Says.COMPENSATED

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
    def rate(self, codec: Codec[Any]) -> float:
        return memory_eta(codec)


@dataclass(frozen=True, eq=False)
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
    says = Says.DIFFERENCES

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
    def followed(self, codec: Codec[Any]) -> float:
        return difference_eta(codec)


def moved(copy: Vec, body: Body, ctx: RoundContext, fragment: Fragment | None = None) -> Vec:
    """Return copy + decode(body), float32[n], for a body of what this round exchanges, or of this
    fragment. Sender and receivers compute it alike, so their copies stay equal to the bit. Raises
    DecodeError."""
    copy, fragment = copy.copy(), fragment or ctx.fragment
    ctx.view.codec.decode(body, fragment.layout, out=fragment.of(copy), weight=1.0)
    return copy


def unmoved(x: Vec, base: Vec, layout: Layout) -> Vec:
    """Return the model x as it was before the local update, with its statistics as they are after
    it, in base; float32[n].

    Training moves a parameter, but it overwrites a statistic of batch norm: s replaces x_i, so that
    mixing what was there before, W x + s - x, feeds W - I back. On a ring of 4 boards that has the
    eigenvalue -4/3, and the statistics run away; W s averages them."""
    cut = layout.trainable_size
    if cut == layout.size:
        return x
    published = x.copy()
    published[cut:] = base[cut:]
    return published


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
    def replicates(self) -> bool:
        return self.publisher.replicates

    @override
    def rate(self, codec: Codec[Any]) -> float | None:
        return self.publisher.rate(codec) if self.says.repaired and not self.eta else None

    def first_rate(self, ctx: RoundContext) -> float:
        """Return the averaging rate before the first message."""
        return self.eta or self.publisher.rate(on_probe(ctx.view.codec, ctx.view.layout.size // self.fragments))

    def follows(self, ctx: RoundContext) -> bool:
        """Tell whether the averaging rate goes by the messages."""
        return not self.eta and self.says.repaired and follows(ctx.view.codec)

    def rate_after(self, ctx: RoundContext, before: float, *bodies: Body) -> float:
        """Return the averaging rate of a message with these bodies, `before` that of its sender's
        last one, which stays where rates do not follow messages. Raises DecodeError."""
        if not self.follows(ctx):
            return before
        codec, layout = ctx.view.codec, ctx.view.layout
        return min(rate_of(self.publisher.followed, before, codec, body, layout) for body in bodies)
