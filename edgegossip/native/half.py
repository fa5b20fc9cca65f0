"""float32 numbers on the wire: as they are, as binary16 or as bfloat16 (the first half of a
float32).

`form` is "fp32", "fp16" or "bf16"; a body is little-endian, at any alignment. Rounding is to
nearest even, and a magnitude beyond the largest finite number of the form (65504; 3.3895e38)
becomes that number. `isa` and `threads` as in `edgegossip.native`; the bytes depend on neither.
Errors as there, and ValueError for an unknown form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from edgegossip.native import _native
from edgegossip.types import Vec

if TYPE_CHECKING:
    from edgegossip.native._native import ReadBuffer, WriteBuffer

Form: TypeAlias = Literal["fp32", "fp16", "bf16"]

BYTES: dict[Form, int] = {"fp32": 4, "fp16": 2, "bf16": 2}  # a number


def encode(
    form: Form, x: Vec, offsets: ReadBuffer, out: WriteBuffer, isa: str | None = None, threads: int | None = None
) -> int:
    """Write x, float32[n], into `out`, uint8[BYTES[form] * n]. `offsets`, int64[tensors + 1],
    divides x into tensors.

    Returns -1, or the index of the first tensor that is not finite; `out` then holds nothing of
    use.
    """
    return _native.floats_encode(form, x, offsets, out, isa, threads)


def finite(form: Form, body: ReadBuffer, isa: str | None = None) -> bool:
    """Return whether no number of a body is NaN or infinite. ValueError when its size is no
    multiple of BYTES[form]."""
    return _native.floats_finite(form, body, isa)


def decode(
    form: Form,
    body: ReadBuffer,
    out: Vec,
    weight: float | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> bool:
    """Compute out = values of the body, or out += weight * values; both roundings to float32 as in
    `minmax8_decode`.

    False when a number is NaN or infinite: with a weight `out` is then untouched, without one it
    may be partly written.
    """
    return _native.floats_decode(form, body, out, weight, isa, threads)
