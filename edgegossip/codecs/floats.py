"""`fp32` and `fp16`: IEEE 754 numbers as they are, little-endian, in the order of the layout.

fp32 is exact. fp16 rounds to the nearest binary16 value, ties to even; magnitudes beyond the largest finite one, 65504,
become 65504 (a saturating conversion), so that what arrives is always finite and still the nearest value that binary16
has. The error is at most max(2**-11 * |x|, 2**-25) for |x| <= 65504.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.checks import (
    CHUNK_VALUES,
    all_finite,
    chunks,
    require_body_bytes,
    require_input,
    require_out,
    write,
)
from edgegossip.codecs.registry import Family, without_params
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, Vec

FP16_MAX = 65504.0


class _Float:
    """What both share: no parameters, the layout as state, and a body of `size` numbers of `dtype`."""

    __slots__ = ()

    name: ClassVar[str]
    wire_id: ClassVar[int]
    dtype: ClassVar[np.dtype[Any]]

    def wire_params(self) -> bytes:
        return b""

    def init(self, layout: Layout) -> Layout:
        return layout

    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        """Check all, then write; the body in a frame need not be aligned."""
        require_out(layout, out, weight)
        wire = np.frombuffer(require_body_bytes(body, self.dtype.itemsize * layout.size, self.name), self.dtype)
        if out is None:
            with np.errstate(invalid="ignore"):  # of a signalling NaN, which is about to be refused
                values = wire.astype(np.float32)
            _require_finite_body(all_finite(values), self.name)
            return values
        _require_finite_body(_is_finite(wire), self.name)
        write(wire, out, weight)
        return out


@dataclass(frozen=True, slots=True)
class Fp32(_Float):
    """32 bits a value, exact. Body: float32[n]. Its state is the layout."""

    name: ClassVar[str] = "fp32"
    wire_id: ClassVar[int] = 1
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<f4")

    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        require_input(x, state)
        return x.astype(self.dtype, copy=False).tobytes(), state


@dataclass(frozen=True, slots=True)
class Fp16(_Float):
    """16 bits a value, saturating at +-65504. Body: binary16[n]. Its state is the layout."""

    name: ClassVar[str] = "fp16"
    wire_id: ClassVar[int] = 2
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<f2")

    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        require_input(x, state)
        half = np.empty(x.size, self.dtype)
        with np.errstate(under="ignore"):
            for part in chunks(x.size):
                half[part] = np.clip(x[part], -FP16_MAX, FP16_MAX)
        return half.tobytes(), state


def _is_finite(wire: NDArray[Any]) -> bool:
    if wire.dtype == np.float32 and wire.flags.aligned:
        return all_finite(wire)
    scratch = np.empty(min(wire.size, CHUNK_VALUES), np.float32)
    for part in chunks(wire.size):
        values = scratch[: part.stop - part.start]
        with np.errstate(invalid="ignore"):
            np.copyto(values, wire[part])
        if not all_finite(values):
            return False
    return True


def _require_finite_body(finite: bool, name: str) -> None:
    if not finite:
        raise DecodeError(f"the {name} body holds NaN or infinite values")


FAMILIES = (
    Family("fp32", Fp32, "32 bits a value, exact", wire_id=Fp32.wire_id, from_params=without_params("fp32", Fp32)),
    Family(
        "fp16",
        Fp16,
        "16 bits a value, nearest, saturating",
        wire_id=Fp16.wire_id,
        from_params=without_params("fp16", Fp16),
    ),
)
