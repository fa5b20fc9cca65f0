"""`fp32`, `fp16` and `bf16`: floating-point numbers as they are, little-endian, in the order of the
layout.

fp32 is exact. fp16 is IEEE 754's binary16; bf16 is the upper half of a float32 (8 bits of exponent,
7 of mantissa). Both round to the nearest value, ties to even; magnitudes beyond the largest finite
one (65504; 255 * 2**120) become that one (a saturating conversion), so that what arrives is always
finite and still the nearest value that the format has. The error of fp16 is at most max(2**-11 *
|x|, 2**-25) for |x| <= 65504, that of bf16 at most max(2**-8 * |x|, 2**-134) for any x. The kernels
are C++, one pass that converts and checks, the same bits on every instruction set.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat, nonfinite, require_body_bytes, require_input, require_out
from edgegossip.codecs.registry import Family
from edgegossip.layout import Layout
from edgegossip.native import half
from edgegossip.types import DecodeError, Vec


class Float(StatelessCodec):
    """What all share: no parameters, the layout as state, and a body of `size` numbers."""

    __slots__ = ()

    name: ClassVar[half.Form]
    wire_id: ClassVar[int]

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        state.check(x)
        body = np.empty(half.BYTES[self.name] * x.size, np.uint8)
        if (bad := half.encode(self.name, x, state.offsets, body)) >= 0:
            raise nonfinite(state, bad)
        return body.data.toreadonly(), state

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        data = require_body_bytes(body, half.BYTES[self.name] * layout.size, self.name)
        values = np.empty(layout.size, np.float32) if out is None else out
        if not half.decode(self.name, data, values, weight):
            raise self._not_finite()
        return values

    def decode_part(self, body: Body, start: int, out: Vec) -> Vec:
        """Decode the values from `start` on into all of `out`. The body has been checked by its
        size; raises DecodeError when one of these values is not finite."""
        width = half.BYTES[self.name]
        if not half.decode(self.name, flat(body)[width * start : width * (start + out.size)], out, None):
            raise self._not_finite()
        return out

    def check(self, body: Body, layout: Layout) -> None:
        """Raises DecodeError unless it can be decoded."""
        if not half.finite(self.name, require_body_bytes(body, half.BYTES[self.name] * layout.size, self.name)):
            raise self._not_finite()

    def _not_finite(self) -> DecodeError:
        return DecodeError(f"the {self.name} body holds NaN or infinite values")


@dataclass(frozen=True, slots=True)
class Fp32(Float):
    """32 bits a value, exact. Body: float32[n]. Its state is the layout."""

    name: ClassVar[half.Form] = "fp32"
    wire_id: ClassVar[int] = 1

    def lend(self, x: Vec, layout: Layout) -> Body:
        """Return what `encode` would, in the memory of x, which must not change any more. Raises as
        `encode` does."""
        if sys.byteorder != "little":
            return self.encode(x, layout, Ctx(0, 0))[0]
        require_input(x, layout)
        return x.view(np.uint8).data.toreadonly()


@dataclass(frozen=True, slots=True)
class Fp16(Float):
    """16 bits a value, saturating at +-65504. Body: binary16[n]. Its state is the layout."""

    name: ClassVar[half.Form] = "fp16"
    wire_id: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Bf16(Float):
    """16 bits a value with float32's range and 8 bits of precision. Body: bfloat16[n]. Its state is
    the layout."""

    name: ClassVar[half.Form] = "bf16"
    wire_id: ClassVar[int] = 4


FAMILIES = (
    Family("fp32", Fp32, "32 bits a value, exact", wire_id=Fp32.wire_id),
    Family("fp16", Fp16, "16 bits a value, nearest, saturating", wire_id=Fp16.wire_id),
    Family("bf16", Bf16, "16 bits a value, nearest, with the range of float32", wire_id=Bf16.wire_id),
)
