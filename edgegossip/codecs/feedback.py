"""`error-feedback`: what a codec loses of one message is added to the next.

Seide et al. 2014; Karimireddy et al. 2019 (EF-SGD, Algorithm 2); CO3's Algorithm 1 with its memory
decay gamma: a = x + gamma m; the message is Q(a); m' = a - Q(a). The memory is float32, so gamma
m, its sum with x and a - Q(a) are each rounded once: Q(a) + m' equals x + gamma m within three
roundings, two with gamma = 1. Only the sender remembers: bodies are those of the inner codec.

The memory stays bounded when Q loses less than it is given, gamma^2 E||Q(a) - a||^2 < ||a||^2:
nearest and sparse codecs do. Stochastic levels do where they are many for the bucket. Few levels of
an L2 norm lose a share of ||a||^2 that is 1 or more, and the square of the memory, which is a sum
of rounding errors and so close to normally distributed, grows by that factor a message, without
end: such codecs are refused by `levels.normal_variance`, at gamma = 1 from about 6.3 s^2 values in
a bucket on for s uniform levels (4 bits: 308, so qsgd's default 512 is refused and 256 is not).
With bucket = 0 and in elasticl a bucket is a tensor, whose size is not known here: there the same
happens unseen. Codecs that scale up what they draw (randk, atomo) are refused as well. With few
levels of the largest magnitude (qsgd-inf of 2 bits, terngrad) the memory comes to several times
what a message is given, and feedback harms: those are unbiased and need none.

`ef-signsgd` is error feedback around signsgd with decay 1 (Karimireddy et al. 2019, Algorithm 1):
the p = eta g + e of the paper is here x + m, because x is what the local optimiser adds to the
model, learning rate included.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body, Codec, Ctx, inside
from edgegossip.codecs.checks import add_own, all_finite, chunks, require_sound
from edgegossip.codecs.levels import normal_variance
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.codecs.sign import SIGN_CODER, SignSgd
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, UsageError, Vec

S = TypeVar("S")
_SCALED_UP = MappingProxyType({"randk": "set its unbiased to false", "atomo": "send it without error feedback"})


@dataclass(frozen=True, slots=True, eq=False)
class FeedbackState(Generic[S]):
    """The inner codec's state and what has not been sent yet."""

    layout: Layout
    inner: S
    memory: Vec | None  # float32[n]; None: zeros


@dataclass(frozen=True, slots=True)
class ErrorFeedback(Codec[FeedbackState[S]], Generic[S]):
    """`codec` with a memory. `decay` is gamma, 0 to 1: 1 keeps all of the error, 0 forgets it at
    once."""

    codec: Codec[S]
    decay: float = 1.0
    title: str = ""
    has_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, "error-feedback", (_DECAY,))
        for codec in inside(self.codec):
            if fault := _fault(codec, self.decay):
                raise ConfigError(f"codec error-feedback: {codec.name} {fault}")

    @property
    @override
    def name(self) -> str:
        return self.title or f"error-feedback({self.codec.name})"

    @property
    @override
    def wire_id(self) -> int:
        return self.codec.wire_id

    @override
    def wire_params(self) -> bytes:
        return self.codec.wire_params()

    @override
    def init(self, layout: Layout) -> FeedbackState[S]:
        return FeedbackState(layout, self.codec.init(layout), None)

    @override
    def encode(self, x: Vec, state: FeedbackState[S], ctx: Ctx) -> tuple[Body, FeedbackState[S]]:
        state.layout.check(x)  # the inner codec refuses a sum that is not finite, and names the tensor
        memory = _corrected(x, state.memory, self.decay)
        body, inner = self.codec.encode(memory, state.inner, ctx)
        add_own(self.codec, body, state.layout, memory, -1.0)
        if not all_finite(memory):
            raise UsageError(
                "what the codec lost of this message is larger than float32 holds; lower the learning rate"
            )
        return body, FeedbackState(state.layout, inner, memory)

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        return self.codec.decode(body, layout, out, weight)

    def check(self, body: Body, layout: Layout) -> None:
        """Raises DecodeError unless it can be decoded."""
        require_sound(self.codec, body, layout)


def _fault(codec: Codec[Any], decay: float) -> str:
    """Why this codec can have no error feedback; empty when it can."""
    if getattr(codec, "has_memory", False):
        return "has a memory of its own and needs no other"
    if codec.name == "auto":
        return "has a rate of its own for each message, and an error that feedback cannot foresee; take deadzone"
    if codec.name in _SCALED_UP and getattr(codec, "unbiased", True):
        return f"scales its values up to be unbiased, and the error would grow without end; {_SCALED_UP[codec.name]}"
    if getattr(codec, "dithered", False) and getattr(codec, "bytes", 0):
        return "has an error that follows from its bytes, and would grow without end where they are few; take deadzone"
    if getattr(codec, "dithered", False) and decay * getattr(codec, "error", 0.0) >= 1.0:
        return "adds an error as large as what it sends, which would grow without end; take an error below 1"
    if _grows(codec, decay):
        return (
            f"has too few levels for buckets of {getattr(codec, 'bucket', 0)} values: the error would grow without end; "
            "take more bits or a smaller bucket, or send it without error feedback (it is unbiased)"
        )
    return ""


def _grows(codec: Codec[Any], decay: float) -> bool:
    """Whether rounding loses as much as the memory holds, at least: then every message leaves more
    than the one before."""
    grid, bucket = getattr(codec, "grid", None), getattr(codec, "bucket", 0)
    if grid is None or bucket == 0 or getattr(codec, "norm", "") != "l2":
        return False
    return decay**2 * normal_variance(grid(), bucket) >= 1.0


def _corrected(x: Vec, memory: Vec | None, decay: float) -> Vec:
    """x + decay * memory, in a new float32[n]."""
    if memory is None:
        return x.copy()
    total, factor = np.empty_like(x), np.float32(decay)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for part in chunks(x.size):
            np.multiply(memory[part], factor, out=total[part])
            np.add(total[part], x[part], out=total[part])
    return total


_DECAY = Param("decay", 1.0, "share of the error that the next message makes up for (gamma)", low=0.0, high=1.0)

FAMILIES = (
    Family(
        "error-feedback",
        ErrorFeedback,
        "another codec, whose error is added to the next message",
        (Param("codec", "signsgd", "the codec inside", codec=True), _DECAY),
    ),
    Family(
        "ef-signsgd",
        lambda decay, stage: ErrorFeedback(SignSgd(stage), decay, "ef-signsgd"),
        "signsgd with error feedback",
        (_DECAY, SIGN_CODER),
    ),
)
