"""C++ kernels behind the codecs, chosen at run time for the machine's instruction set, with the
same bytes on all.

Built in: `portable` everywhere; `avx2`, `avx512` and `avx512vbmi` on x86-64; `neon` on aarch64. An
editable install has those alone that its machine can execute. The fastest that the machine has is
used; the environment variable EDGEGOSSIP_ISA=NAME, or the argument `isa` of a function, asks for
another. All are compiled from the same source without fused multiply-add, and have been compared
bit by bit: those of x86-64 on a machine that has all of them, `portable` and `neon` under emulation
of aarch64. `avx512` needs F, BW, VL and DQ; `avx512vbmi` VBMI and VBMI2 too, with which Huffman
codes are looked up in registers. `avxvnni` and `avx512vnni` differ from `avx2` and `avx512` in
integer training alone (`edgegossip.native.int8`); `avx512vbmi` has what `avx512vnni` has there.

Every function is zero-copy, releases the GIL and can be called from many threads. Common errors:
TypeError for a wrong element type; ValueError for a wrong size, an array that is not contiguous or
aligned, or bad offsets; UsageError for an instruction set that is unknown or that this machine
lacks. What is written must not overlap what is read.

`offsets` is int64[tensors + 1]: tensor k is x[offsets[k]:offsets[k + 1]], as in `Layout.offsets`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native

__all__ = ["available_isas", "compiled_isas", "first_nonfinite", "isa", "minmax8_decode", "minmax8_encode"]

Offsets: TypeAlias = NDArray[np.int64]

isa = _native.isa
"""Return the instruction set that functions use when not told otherwise."""

available_isas = _native.available_isas
"""Return what this machine can execute, slowest first."""

compiled_isas = _native.compiled_isas
"""Return what this build contains, slowest first."""

first_nonfinite = _native.first_nonfinite
"""Return the index of the first tensor of x, float32[n], that holds a NaN or an infinity; -1
when all are finite."""

minmax8_encode = _native.minmax8_encode
"""Quantise every tensor of x, float32[n], to 8 bits between its own minimum and maximum
(Bagua's MinMaxUInt8).

scale = 255 / ((max - min)(1 + 1e-7)); ub = rint(max scale); lb = ub - 255; q = clamp(rint(x
scale), lb, ub) - lb.

`out` is uint8[8 * tensors + n]: a pair (min, max) of little-endian float32 a tensor, (0, 0) for
an empty one and -0 written as 0, then the n codes q. Arithmetic is float32 with scale rounded
to float32, and double throughout for a tensor whose scale is not a normal float32 or for which
max(|min|, |max|) scale > 2^18. A constant tensor has codes 0.

Returns -1, or the index of the first tensor that is not finite; `out` then holds nothing of
use.
"""

minmax8_decode = _native.minmax8_decode
"""Invert `minmax8_encode`: out = v, or out += weight * v, with v = (q + lb) / scale clamped to
[min, max].

`body` is uint8[8 * tensors + n] at any alignment, `out` float32[n]. v is finite for any body
whose headers are valid, and exact for a constant tensor. `weight` is rounded to float32
(ValueError when not finite), and so is weight * v, before the sum; that sum may overflow, as
any sum of float32 may.

Returns -1, or the index of the first tensor whose header is invalid (not finite, or min > max).
All headers are checked before anything is written, so `out` is then untouched.
"""
