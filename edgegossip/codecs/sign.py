"""`signsgd` and `terngrad`: the sign of a value, or nothing, times one number a tensor.

signsgd: one bit a value, times the tensor's mean magnitude (Bernstein et al. 2018; the scaled sign
of Karimireddy et al. 2019, equation 4). Biased: use it with error feedback (`ef-signsgd`) or a sum
over many senders.

x'_i = sign(x_i) mean |x|, the mean taken over the values of x_i's tensor. A zero counts as
positive: one bit has no third value. ||x - x'||^2 = (1 - ||x||_1^2 / (n ||x||_2^2)) ||x||^2 when no
value is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from edgegossip.codecs.base import Body, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat
from edgegossip.codecs.quantised import CODER, EntropyCoder, QuantisedBodies, Reader, Scale, encode_body
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.layout import Layout
from edgegossip.native.quantise import LevelKind, Moments, Quantiser
from edgegossip.types import Vec

_SIGNS = Quantiser(LevelKind.SIGN, bits=1)


@dataclass(frozen=True, slots=True)
class SignSgd(QuantisedBodies[Layout], StatelessCodec):
    """1 bit a value before the entropy coder, a float32 a tensor. Its state is the layout."""

    stage: EntropyCoder = "raw"
    name: ClassVar[str] = "signsgd"
    wire_id: ClassVar[int] = 11

    def __post_init__(self) -> None:
        check_fields(self, self.name, (SIGN_CODER,))

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, _SIGNS, ctx.key, self.stage, scale_of=_mean_magnitude), state

    @override
    def reader(self, body: Body, layout: Layout) -> Reader:
        return Reader(flat(body), layout, _SIGNS, self.name)


def _mean_magnitude(m: Moments, n: int) -> Scale:
    return Scale(m.magnitudes / n)


# Signs of gradients are as good as random, so looking for less is in vain. One bit a value is no
# symbol to code.
SIGN_CODER = replace(CODER, default="raw", choices=("raw", "zstd", "auto"))


_TERNARY = Quantiser(LevelKind.UNIFORM, bits=2, levels=1, bucket=0)


@dataclass(frozen=True, slots=True)
class TernGrad(QuantisedBodies[Layout], StatelessCodec):
    """2 bits a value before the entropy coder, a float32 a tensor. Its state is the layout.

    `terngrad`: three levels a tensor, -scale, 0 and scale (Wen et al. 2017, equations 2 to 4
    and 10).

    g is clipped to +-c, c = `clip` (2.5) standard deviations of the tensor; scale = max |g|
    after clipping; g becomes scale sign(g) with probability |g| / scale, else 0. Unbiased for
    the clipped g. Deviation: the deviation is taken about zero, sqrt(mean g^2), not about the
    mean, because a clip about zero would otherwise cut all of a tensor whose values lie close
    together. Error of a value: at most its scale, and what the clip cuts off.
    """

    clip: float = 2.5
    stage: EntropyCoder = "auto"
    name: ClassVar[str] = "terngrad"
    wire_id: ClassVar[int] = 10

    def __post_init__(self) -> None:
        check_fields(self, self.name, _TERNGRAD_PARAMS)

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, _TERNARY, ctx.key, self.stage, scale_of=self._scale), state

    @override
    def reader(self, body: Body, layout: Layout) -> Reader:
        return Reader(flat(body), layout, _TERNARY, self.name)

    def _scale(self, m: Moments, n: int) -> Scale:
        limit = self.clip * math.sqrt(m.squares / n) if self.clip else math.inf
        return Scale(min(m.largest, limit))


_TERNGRAD_PARAMS = (
    Param("clip", 2.5, "standard deviations beyond which values are clipped; 0: never", low=0.0, high=1e6),
    CODER,
)

FAMILIES = (
    Family(
        "signsgd", SignSgd, "the sign of each value, times the tensor's mean magnitude", (SIGN_CODER,), SignSgd.wire_id
    ),
    Family("terngrad", TernGrad, "three stochastic levels a tensor", _TERNGRAD_PARAMS, TernGrad.wire_id),
)
