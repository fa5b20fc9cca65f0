"""`signsgd`: one bit a value, times the tensor's mean magnitude (Bernstein et al. 2018; the scaled
sign of Karimireddy et al. 2019, equation 4). Biased: use it with error feedback (`ef-signsgd`) or a
sum over many senders.

x'_i = sign(x_i) mean |x|, the mean taken over the values of x_i's tensor. A zero counts as
positive: one bit has no third value. ||x - x'||^2 = (1 - ||x||_1^2 / (n ||x||_2^2)) ||x||^2 when no
value is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.quantised import STAGE, QuantisedBodies, Reader, Scale, Stage, encode_body, reader_of
from edgegossip.codecs.registry import Family, check_fields, without_params
from edgegossip.layout import Layout
from edgegossip.native.quantise import Kind, Moments, Quantiser
from edgegossip.types import Vec

_QUANTISER = Quantiser(Kind.SIGN, bits=1)


@dataclass(frozen=True, slots=True)
class SignSgd(QuantisedBodies):
    """1 bit a value before the entropy stage, a float32 a tensor. Its state is the layout."""

    stage: Stage = "raw"
    name: ClassVar[str] = "signsgd"
    wire_id: ClassVar[int] = 11

    def __post_init__(self) -> None:
        check_fields(self, self.name, (SIGN_STAGE,))

    def wire_params(self) -> bytes:
        return b""

    def init(self, layout: Layout) -> Layout:
        return layout

    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, _QUANTISER, ctx.key, self.stage, scale_of=_mean_magnitude), state

    def reader(self, body: Body, layout: Layout) -> Reader:
        return reader_of(body, layout, _QUANTISER, self.name)


def _mean_magnitude(m: Moments, n: int) -> Scale:
    return Scale(m.magnitudes / n)


# Signs of gradients are as good as random, so looking for less is in vain. One bit a value is no
# symbol to code.
SIGN_STAGE = replace(STAGE, default="raw", choices=("raw", "zstd", "auto"))

FAMILIES = (
    Family(
        "signsgd",
        SignSgd,
        "the sign of each value, times the tensor's mean magnitude",
        (SIGN_STAGE,),
        SignSgd.wire_id,
        without_params("signsgd", SignSgd),
    ),
)
