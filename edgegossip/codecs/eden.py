"""`eden`: a random rotation, then the Lloyd-Max quantiser of a normal law, 1 to 4 bits a value
(EDEN, Vargaftik et al. 2022; with 1 bit DRIVE, Vargaftik et al. 2021).

Blocks of d values are rotated, y = R x, and what comes out is as good as normal, whatever x was:
every y_i goes to the nearest level of the best quantiser for that law, Q(y). The receiver takes
S R' Q(y) with the scale S = ||x||^2 / <y, Q(y)>, which makes it unbiased: <x', x> = ||x||^2
exactly, and what is left of the error has no direction of its own. E||x' - x||^2 = w ||x||^2 with
w = 1 / (1 - D) - 1, D the quantiser's distortion: 0.571, 0.133, 0.0358 and 0.0096 at 1, 2, 3 and 4
bits (a little less in small blocks). No entropy coder: the codes are as good as random.

Deviations. The paper's R is uniform; a randomised Hadamard transform, which its code has instead,
is biased by up to half of x for some x (a value and a tenth of it among zeros). So blocks are
rotated twice, those of 512, 256, 128, 64 and 32 values 3, 4, 4, 6 and 8 times: with fewer turns a
spike among noise is biased by up to 7 % of its norm. What is left is below what 40,000 messages
show, 0.2 % of the norm with 1 bit. A tensor is cut into
blocks of 4096 values, the rest as the bits of its length say, at least 32, each with a float32
scale: at most 31 zeros are sent after it, and 32 / 4096 bits a value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body, Ctx, StatelessCodec
from edgegossip.codecs.checks import nonfinite, require_body_bytes, require_out
from edgegossip.codecs.keys import tensor_keys
from edgegossip.codecs.registry import Family, Param, check_fields, from_packed
from edgegossip.layout import Layout
from edgegossip.native import _native
from edgegossip.types import DecodeError, Vec

_KEY = struct.Struct("<Q")
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Eden(StatelessCodec):
    """`bits` a value, 32 a block. Body: the key, then the blocks of every tensor. Its state is the
    layout."""

    bits: int = 2
    name: ClassVar[str] = "eden"
    wire_id: ClassVar[int] = 21

    def __post_init__(self) -> None:
        check_fields(self, self.name, (_BITS,))

    @override
    def wire_params(self) -> bytes:
        return bytes([self.bits])

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        state.check(x)
        body = np.empty(self._body_bytes(state), np.uint8)
        body[: _KEY.size] = np.frombuffer(_KEY.pack(ctx.key & _MASK), np.uint8)
        keys = tensor_keys(ctx.key, len(state.tensors))
        if (bad := _native.eden_encode(x, state.offsets, keys, self.bits, body[_KEY.size :])) >= 0:
            raise nonfinite(state, bad)
        return body.data.toreadonly(), state

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        data = require_body_bytes(body, self._body_bytes(layout), self.name)
        keys = tensor_keys(_KEY.unpack_from(data)[0], len(layout.tensors))
        values = np.empty(layout.size, np.float32) if out is None else out
        if (bad := _native.eden_decode(data[_KEY.size :], layout.offsets, keys, self.bits, values, weight)) >= 0:
            raise _invalid(layout, bad)
        return values

    def check(self, body: Body, layout: Layout) -> None:
        """Raise DecodeError unless it can be decoded: any codes are sound, so only the scales are
        looked at."""
        data = require_body_bytes(body, self._body_bytes(layout), self.name)
        if (bad := _native.eden_fault(data[_KEY.size :], layout.offsets, layout.size, self.bits)) >= 0:
            raise _invalid(layout, bad)

    def _body_bytes(self, layout: Layout) -> int:
        return _KEY.size + _native.eden_bytes(layout.offsets, layout.size, self.bits)


def _invalid(layout: Layout, tensor: int) -> DecodeError:
    return DecodeError(f"the eden body has an invalid scale in tensor {layout.tensors[tensor].name}")


_BITS = Param("bits", 2, "bits a value", low=1, high=4)

FAMILIES = (
    Family(
        "eden",
        Eden,
        "a random rotation, then the best quantiser of a normal law, 1 to 4 bits",
        (_BITS,),
        Eden.wire_id,
        from_packed("eden", struct.Struct("B"), Eden),
    ),
)
