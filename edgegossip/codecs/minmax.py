"""`minmax8`: every tensor linearly quantised to 8 bits between its own minimum and maximum.

Bagua's MinMaxUInt8 (Gan et al. 2021, the compression of its low-precision algorithms): scale = 255
/ (max - min + eps); ub = rint(max * scale), lb = ub - 255; q = min(rint(x * scale), ub) - lb; x' =
(q + lb) / scale. Deviations: eps is relative to max - min, because an absolute 1e-7 collapses
tensors whose values all lie close together; x' is clamped to [min, max]; a constant tensor is
exact. |x' - x| <= 0.52 (max - min) / 255 + 2^-23 |x| + 2^-149: half a step, a float32's rounding of
x' and, within the 0.02, what float32 arithmetic adds. The kernel is C++, the same bits on every
instruction set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from edgegossip import native
from edgegossip.codecs.base import Body, Ctx, StatelessCodec
from edgegossip.codecs.checks import nonfinite, require_body_bytes, require_out
from edgegossip.codecs.registry import Family
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, Vec

_HEADER_BYTES = 8  # a tensor's minimum and maximum, float32 each


@dataclass(frozen=True, slots=True)
class MinMax8(StatelessCodec):
    """8 bits a value and 8 bytes a tensor. Body: (min, max) of float32[t, 2], then uint8[n]. Its
    state is the layout."""

    name: ClassVar[str] = "minmax8"
    wire_id: ClassVar[int] = 3

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        state.check(x)
        body = np.empty(_body_bytes(state), np.uint8)
        if (bad := native.minmax8_encode(x, state.offsets, body)) >= 0:
            raise nonfinite(state, bad)
        return body.data.toreadonly(), state

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        data = require_body_bytes(body, _body_bytes(layout), self.name)
        values = np.empty(layout.size, np.float32) if out is None else out
        if (bad := native.minmax8_decode(data, layout.offsets, values, weight)) >= 0:
            raise _invalid(layout, bad)
        return values

    def check(self, body: Body, layout: Layout) -> None:
        """Raises DecodeError unless it can be decoded. Any code is sound, so only the minima and
        maxima are looked at: they are the body of as many tensors without values."""
        data = require_body_bytes(body, _body_bytes(layout), self.name)
        tensors = len(layout.tensors)
        empty = np.zeros(tensors + 1, np.int64)
        if (bad := native.minmax8_decode(data[: _HEADER_BYTES * tensors], empty, np.empty(0, np.float32))) >= 0:
            raise _invalid(layout, bad)


def _invalid(layout: Layout, tensor: int) -> DecodeError:
    return DecodeError(f"the minmax8 body has an invalid minimum and maximum for tensor {layout.tensors[tensor].name}")


def _body_bytes(layout: Layout) -> int:
    return _HEADER_BYTES * len(layout.tensors) + layout.size


FAMILIES = (
    Family("minmax8", MinMax8, "8 bits a value between each tensor's minimum and maximum", wire_id=MinMax8.wire_id),
)
