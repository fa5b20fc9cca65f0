"""What a node makes known of a vector v: the three ways in which compressed gossip differs.

plain: C[v]. compensated: C[v + e], what was lost is kept in e and said later (Tang et al. 2019,
DeepSqueeze, algorithm 1). difference: the public copy xhat moves by C[v - xhat], which vanishes as
v settles (Koloskova et al. 2019, CHOCO-SGD, algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from edgegossip.codecs.base import Body, Codec
from edgegossip.codecs.floats import Fp32
from edgegossip.gossip.averaging import default_eta, memory_eta
from edgegossip.gossip.scheme import RoundContext
from edgegossip.types import LocalUpdate, Vec

P = TypeVar("P")


@dataclass(frozen=True, slots=True, eq=False)
class Announced:
    """One message and what receivers know after it."""

    body: Body
    public: Vec  # float32[n]
    relative_error: float  # ||decoded - meant|| / ||meant||, 0 when both vanish


class Publisher(Protocol[P]):
    @property
    def replicates(self) -> bool:
        """Whether receivers keep the public vector and messages move it on."""

    def init(self, start: Vec, ctx: RoundContext) -> P:
        """`start`, float32[n]: what replicas start from; kept, not copied."""

    def publish(self, memory: P, v: Vec, local: LocalUpdate, ctx: RoundContext) -> tuple[P, Announced]: ...

    def reset(self, memory: P, v: Vec) -> P:
        """The node has another vector, which has nothing to do with what it said before."""

    def public(self, memory: P, phase: int) -> Vec | None:
        """What receivers hold now, float32[n], if they hold anything."""

    def rate(self, codec: Codec[Any]) -> float:
        """Return the averaging rate with this codec where none is given."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Implements `Publisher[codec state]`."""

    replicates = False

    def init(self, start: Vec, ctx: RoundContext) -> Any:
        return ctx.view.codec.init(ctx.view.layout)

    def publish(self, memory: Any, v: Vec, local: LocalUpdate, ctx: RoundContext) -> tuple[Any, Announced]:
        if isinstance(ctx.view.codec, Fp32):  # exact: neither body nor public vector is a copy
            return memory, Announced(ctx.view.codec.lend(v, ctx.view.layout), v, 0.0)
        body, memory = ctx.view.codec.encode(v, memory, ctx.for_codec(local))
        public = ctx.view.codec.decode(body, ctx.view.layout)
        return memory, Announced(body, public, relative_error(public - v, v))

    def reset(self, memory: Any, v: Vec) -> Any:
        return memory

    def public(self, memory: Any, phase: int) -> None:
        return None

    def rate(self, codec: Codec[Any]) -> float:
        return default_eta(codec)


@dataclass(frozen=True, slots=True, eq=False)
class ErrorMemory:
    """The memory of `Compensated`."""

    codec: Any
    error: Vec | None  # e, float32[n]; None: zero


@dataclass(frozen=True, slots=True)
class Compensated:
    """Implements `Publisher[ErrorMemory]`."""

    replicates = False

    def init(self, start: Vec, ctx: RoundContext) -> ErrorMemory:
        return ErrorMemory(ctx.view.codec.init(ctx.view.layout), None)

    def publish(
        self, memory: ErrorMemory, v: Vec, local: LocalUpdate, ctx: RoundContext
    ) -> tuple[ErrorMemory, Announced]:
        meant = v if memory.error is None else v + memory.error
        body, codec = ctx.view.codec.encode(meant, memory.codec, ctx.for_codec(local))
        public = ctx.view.codec.decode(body, ctx.view.layout)
        error = meant - public
        return ErrorMemory(codec, error), Announced(body, public, relative_error(error, meant))

    def reset(self, memory: ErrorMemory, v: Vec) -> ErrorMemory:
        return ErrorMemory(memory.codec, None)

    def public(self, memory: ErrorMemory, phase: int) -> None:
        return None

    def rate(self, codec: Codec[Any]) -> float:
        return memory_eta(codec)


@dataclass(frozen=True, slots=True, eq=False)
class PublicCopies:
    """The memory of `Difference`."""

    codec: Any
    start: Vec  # what the public copies were before the first message
    copies: Mapping[int, Vec]  # xhat by phase of the topology; where the receivers change, so does what they know


@dataclass(frozen=True, slots=True)
class Difference:
    """Implements `Publisher[PublicCopies]`."""

    replicates = True

    def init(self, start: Vec, ctx: RoundContext) -> PublicCopies:
        return PublicCopies(ctx.view.codec.init(ctx.view.layout), start, {})

    def publish(
        self, memory: PublicCopies, v: Vec, local: LocalUpdate, ctx: RoundContext
    ) -> tuple[PublicCopies, Announced]:
        copy = memory.copies.get(ctx.phase, memory.start)
        meant = v - copy
        body, codec = ctx.view.codec.encode(meant, memory.codec, ctx.for_codec(local))
        public = moved(copy, body, ctx)
        np.subtract(v, public, out=(left := np.empty_like(v)))
        copies = {**memory.copies, ctx.phase: public}
        return replace(memory, codec=codec, copies=copies), Announced(body, public, relative_error(left, meant))

    def reset(self, memory: PublicCopies, v: Vec) -> PublicCopies:
        return PublicCopies(memory.codec, v, {})

    def public(self, memory: PublicCopies, phase: int) -> Vec:
        return memory.copies.get(phase, memory.start)

    def rate(self, codec: Codec[Any]) -> float:
        return default_eta(codec)


def moved(copy: Vec, body: Body, ctx: RoundContext) -> Vec:
    """copy + decode(body), float32[n]; sender and receivers compute it alike, so their copies stay
    equal to the bit. Raises DecodeError."""
    return ctx.view.codec.decode(body, ctx.view.layout, out=copy.copy(), weight=1.0)


def relative_error(error: Vec, meant: Vec) -> float:
    """||error|| / ||meant||; 0 when both vanish."""
    lost, whole = math.sqrt(float(error.dot(error))), math.sqrt(float(meant.dot(meant)))
    return lost / whole if whole else (0.0 if lost == 0.0 else math.inf)
