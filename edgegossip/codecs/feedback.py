"""`error-feedback`: what a codec loses of one message is added to the next.

Seide et al. 2014; Karimireddy et al. 2019 (EF-SGD, Algorithm 2); CO3's Algorithm 1 with its memory decay gamma:
a = x + gamma m; the message is Q(a); m' = a - Q(a). The memory is float32, so x + gamma m and a - Q(a) are each rounded
once: Q(a) + m' equals x + gamma m within two roundings. Only the sender remembers: bodies are those of the inner codec.

The error stays bounded when Q loses less than it is given, E||Q(a) - a||^2 < ||a||^2: nearest and sparse codecs do, few
stochastic levels do not (2-bit-qsgd and terngrad lose several times ||a||^2; they are unbiased and need no feedback).

`ef-signsgd` is error feedback around signsgd with decay 1 (Karimireddy et al. 2019, Algorithm 1): the p = eta g + e of
the paper is here x + m, because x is what the local optimiser adds to the model, learning rate included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.codecs.checks import all_finite, chunks, require_sound
from edgegossip.codecs.registry import Family, Param
from edgegossip.codecs.sign import SIGN_STAGE, SignSgd
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, LocalError, Vec

S = TypeVar("S")
_WITH_MEMORY = ("dgc", "powersgd")


@dataclass(frozen=True, slots=True, eq=False)
class FeedbackState(Generic[S]):
    """The inner codec's state and what has not been sent yet."""

    layout: Layout
    inner: S
    memory: Vec | None  # float32[n]; None: zeros


@dataclass(frozen=True, slots=True)
class ErrorFeedback(Generic[S]):
    """`codec` with a memory. `decay` is gamma, 0 to 1: 1 keeps all of the error, 0 forgets it at once."""

    codec: Codec[S]
    decay: float = 1.0
    title: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay <= 1.0:
            raise ConfigError(f"codec error-feedback: decay = {self.decay!r} is outside 0.0 to 1.0")
        if isinstance(self.codec, ErrorFeedback) or self.codec.name in _WITH_MEMORY:
            raise ConfigError(f"codec error-feedback: {self.codec.name} has a memory of its own and needs no other")
        if getattr(self.codec, "unbiased", False):
            raise ConfigError(
                f"codec error-feedback: {self.codec.name} scales its values up to be unbiased, and the error would grow "
                "without end; set its unbiased to false"
            )

    @property
    def name(self) -> str:
        return self.title or f"error-feedback({self.codec.name})"

    @property
    def wire_id(self) -> int:
        return self.codec.wire_id

    def wire_params(self) -> bytes:
        return self.codec.wire_params()

    def init(self, layout: Layout) -> FeedbackState[S]:
        return FeedbackState(layout, self.codec.init(layout), None)

    def encode(self, x: Vec, state: FeedbackState[S], ctx: Ctx) -> tuple[Body, FeedbackState[S]]:
        """As the seam says. The inner codec refuses a sum that is not finite, and names the tensor."""
        state.layout.check(x)
        memory = _corrected(x, state.memory, self.decay)
        body, inner = self.codec.encode(memory, state.inner, ctx)
        self.codec.decode(body, state.layout, memory, -1.0)
        if not all_finite(memory):
            raise LocalError(
                "what the codec lost of this message is larger than float32 holds; lower the learning rate"
            )
        return body, FeedbackState(state.layout, inner, memory)

    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        return self.codec.decode(body, layout, out, weight)

    def check(self, body: Body, layout: Layout) -> None:
        """Raises DecodeError unless it can be decoded."""
        require_sound(self.codec, body, layout)


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


def error_feedback(codec: Codec[S], decay: float = 1.0) -> ErrorFeedback[S]:
    """`codec` with error feedback, as a user writes it in Python."""
    return ErrorFeedback(codec, decay)


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
        (_DECAY, SIGN_STAGE),
    ),
)
