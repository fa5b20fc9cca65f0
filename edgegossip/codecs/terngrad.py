"""`terngrad`: three levels a tensor, -scale, 0 and scale (Wen et al. 2017, equations 2 to 4 and
10).

g is clipped to +-c, c = `clip` (2.5) standard deviations of the tensor; scale = max |g| after
clipping; g becomes scale sign(g) with probability |g| / scale, else 0. Unbiased for the clipped g.
Deviation: the deviation is taken about zero, sqrt(mean g^2), not about the mean, because a clip
about zero would otherwise cut all of a tensor whose values lie close together. Error of a value: at
most its scale, and what the clip cuts off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.quantised import STAGE, QuantisedBodies, Reader, Scale, Stage, encode_body, reader_of
from edgegossip.codecs.registry import Family, Param, check_fields, without_params
from edgegossip.layout import Layout
from edgegossip.native.quantise import Kind, Moments, Quantiser
from edgegossip.types import Vec

_QUANTISER = Quantiser(Kind.UNIFORM, bits=2, levels=1, bucket=0)


@dataclass(frozen=True, slots=True)
class TernGrad(QuantisedBodies):
    """2 bits a value before the entropy stage, a float32 a tensor. Its state is the layout."""

    clip: float = 2.5
    stage: Stage = "auto"
    name: ClassVar[str] = "terngrad"
    wire_id: ClassVar[int] = 10

    def __post_init__(self) -> None:
        check_fields(self, self.name, _PARAMS)

    def wire_params(self) -> bytes:
        return b""

    def init(self, layout: Layout) -> Layout:
        return layout

    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, _QUANTISER, ctx.key, self.stage, scale_of=self._scale), state

    def reader(self, body: Body, layout: Layout) -> Reader:
        return reader_of(body, layout, _QUANTISER, self.name)

    def _scale(self, m: Moments, n: int) -> Scale:
        limit = self.clip * math.sqrt(m.squares / n) if self.clip else math.inf
        return Scale(min(m.largest, limit))


_PARAMS = (
    Param("clip", 2.5, "standard deviations beyond which values are clipped; 0: never", low=0.0, high=1e6),
    STAGE,
)

FAMILIES = (
    Family(
        "terngrad",
        TernGrad,
        "three stochastic levels a tensor",
        _PARAMS,
        TernGrad.wire_id,
        without_params("terngrad", TernGrad),
    ),
)
