"""The codec interface: float32 vector <-> bytes, pure and stateless objects with explicit state.

The shape follows optax's gradient transformations: a codec is an immutable description; what it
must remember from one message to the next (error memory, momentum, levels) is a state value that
the caller passes in and gets back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from typing_extensions import override

from edgegossip.layout import Layout
from edgegossip.types import Vec

S = TypeVar("S")
Body: TypeAlias = bytes | memoryview  # what travels: bytes, or a read-only view of bytes that nobody writes to any more

MAX_PARAMS_BYTES = 512  # limit of the frame's codec parameter field


@dataclass(frozen=True, slots=True)
class Ctx:
    """What may differ from one encoding to the next. Same x, state and ctx: same bytes, on every
    CPU."""

    key: int  # 64-bit key of the counter-based generator; travels in the frame
    round: int
    loss: float | None = None  # smoothed training loss, for level rules
    lr: float = 0.0
    levels: int | None = None  # that a coordinator's level rule asks for; None: the codec's own choice
    bytes: int | None = None  # that a control of rates asks for, at most; None: the codec's own choice


class Codec(Protocol[S]):
    """One compression scheme with its parameters fixed.

    Two more methods may be there. `check(body, layout)` raises the DecodeError that `decode` would,
    and neither writes nor allocates by the model's size: `checks.require_sound` uses it, and
    decodes where there is none. `add_own(body, layout, out, weight)` is `decode` of a body that
    this very codec just made, without checking it first: `checks.add_own`. A codec whose state
    holds what its messages lost says so by `has_memory = True`: `remembers`.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """Return the name in the registry, such as "minmax8"."""

    @property
    def wire_id(self) -> int:
        """Return the 16-bit number that names the scheme in a frame; never reused. 0 is not a
        codec."""

    def wire_params(self) -> bytes:
        """Return the canonical bytes (at most MAX_PARAMS_BYTES) from which `codecs.from_wire`
        rebuilds a codec that decodes this one's bodies."""

    def init(self, layout: Layout) -> S:
        """Return the state before the first message. Raises ConfigError where the codec can say
        next to nothing of such a model."""

    def encode(self, x: Vec, state: S, ctx: Ctx) -> tuple[Body, S]:
        """Encode float32[layout.size]; the body and the next state. Neither x nor `state` is
        changed. Raises UsageError that names the tensor when x is not finite, or has the wrong
        size."""

    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        """Decode into a finite float32[layout.size].

        `out` given, which shares no memory with the body: write there (and return it); `weight`
        given too: out += weight * value. Raises DecodeError on any other body, before anything is
        allocated by a length that the body claims. A sum (`weight` given) is then as it was; a
        vector that was to be overwritten may be half overwritten. Time and memory are bounded by
        the layout, never by the body.
        """


class StatelessCodec(Codec[Layout]):
    """Remembers nothing from one message to the next: its state is the layout. Its bodies decode
    without parameters, too."""

    __slots__ = ()

    @override
    def wire_params(self) -> bytes:
        return b""

    @override
    def init(self, layout: Layout) -> Layout:
        return layout


def inside(codec: Codec[Any]) -> Iterator[Codec[Any]]:
    """Yield a codec, and those that it wraps: `codec` of one, `codecs` of a choice."""
    yield codec
    for inner in (getattr(codec, "codec", None), *getattr(codec, "codecs", ())):
        if inner is not None:
            yield from inside(inner)


def remembers(codec: Codec[Any]) -> bool:
    """Tell whether a codec, or one that it wraps, adds what one message lost to the next."""
    return any(getattr(one, "has_memory", False) for one in inside(codec))
