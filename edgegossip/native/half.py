"""float32 numbers on the wire: as they are, as binary16 or as bfloat16 (the first half of a
float32).

`form` is "fp32", "fp16" or "bf16"; a body is little-endian, at any alignment. Rounding is to
nearest even, and a magnitude beyond the largest finite number of the form (65504; 3.3895e38)
becomes that number. `isa` and `threads` as in `edgegossip.native`; the bytes depend on neither.
Errors as there, and ValueError for an unknown form.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from edgegossip.native import _native

Form: TypeAlias = Literal["fp32", "fp16", "bf16"]

BYTES: dict[Form, int] = {"fp32": 4, "fp16": 2, "bf16": 2}  # a number

encode = _native.floats_encode
"""Write x, float32[n], into `out`, uint8[BYTES[form] * n]. `offsets`, int64[tensors + 1],
divides x into tensors.

Returns -1, or the index of the first tensor that is not finite; `out` then holds nothing of
use.
"""

finite = _native.floats_finite
"""Return whether no number of a body is NaN or infinite. ValueError when its size is no
multiple of BYTES[form]."""

decode = _native.floats_decode
"""Compute out = values of the body, or out += weight * values; both roundings to float32 as in
`minmax8_decode`.

False when a number is NaN or infinite: with a weight `out` is then untouched, without one it
may be partly written.
"""
