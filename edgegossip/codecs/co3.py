"""`co3`: convert, compress, correct (Chen et al. 2022): a 4-bit floating-point grid, Huffman codes,
error feedback.

Convert: Q(x) = G(x k) / k, G the nearest of the 11 values 0, +-0.5, +-1, +-1.5, +-2, +-3 (1 sign, 2
exponent, 1 mantissa bits with exponent bias 1; the fourth exponent is reserved). k is chosen for
each tensor to minimise the L2 error under a generalized normal law fitted by moments (gennorm.py,
which says why not by the paper's equation 9). Compress: Huffman codes of pairs, from static tables
for a few shapes of that law or one sent along, whichever is smaller. Correct: Algorithm 1, a = g +
gamma m; g' = Q(a); m <- a - g' (gamma 0.9), which is `error-feedback` around the grid; gamma = 0
leaves it out. Deviations: the paper's layout "[sgn mant exp] = [1 2 1]" has its labels in the wrong
order, and its sign in equation 5 and line 14 diverges: the receiver's sum is subtracted (for
gradients; a change of the model is added).

Biased (nearest). |Q(x_i) - x_i| <= max(0.5 / k, |x_i| - 3 / k), and a float32's rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.codecs.feedback import ErrorFeedback
from edgegossip.codecs.gennorm import STATIC_TABLES, fit, scale_for, static_table_for
from edgegossip.codecs.quantised import ANS_STAGE, QuantisedBodies, Reader, Scale, Stage, encode_body, reader_of
from edgegossip.codecs.registry import Family, Param, check_fields, without_params
from edgegossip.layout import Layout
from edgegossip.native.quantise import Kind, Moments, Quantiser
from edgegossip.types import Vec

_QUANTISER = Quantiser(Kind.FP4, bits=4)
_TABLES = np.array([t.weights for t in STATIC_TABLES], np.uint8).reshape(-1)


@dataclass(frozen=True, slots=True)
class Co3Grid(QuantisedBodies):
    """CO3 without its memory: 4 bits a value before the entropy stage, a float32 a tensor. Its
    state is the layout."""

    stage: Stage = "huffman"
    name: ClassVar[str] = "co3"
    wire_id: ClassVar[int] = 9

    def __post_init__(self) -> None:
        check_fields(self, self.name, (_STAGE,))

    def wire_params(self) -> bytes:
        return b""

    def init(self, layout: Layout) -> Layout:
        return layout

    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, _QUANTISER, ctx.key, self.stage, scale_of=_scale, tables=_TABLES), state

    def reader(self, body: Body, layout: Layout) -> Reader:
        return reader_of(body, layout, _QUANTISER, self.name, tables=_TABLES)


def _scale(m: Moments, n: int) -> Scale:
    k = float(scale_for(m.magnitudes, m.squares, m.largest, n))
    return Scale(k, static_table_for(fit(m.magnitudes, m.squares, n).beta).index)


def _make(gamma: float, stage: Stage) -> Codec[Any]:
    return ErrorFeedback(Co3Grid(stage), gamma, "co3") if gamma else Co3Grid(stage)


_STAGE = replace(ANS_STAGE, default="huffman")

FAMILIES = (
    Family(
        "co3",
        _make,
        "a 4-bit floating-point grid with error feedback",
        (
            Param("gamma", 0.9, "share of the error that the next message makes up for; 0: none", low=0.0, high=1.0),
            _STAGE,
        ),
        Co3Grid.wire_id,
        without_params("co3", Co3Grid),
    ),
)
