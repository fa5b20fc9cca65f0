"""Quantisers: a float32 tensor <-> a row of codes of 1 to 16 bits. The kernels behind qsgd,
elastiquant, co3 and others.

A code of w bits is sign << (w - 1) | level; with w = 1 it is 1 for what is below zero. Zero is
always code 0. *Symbols* hold codes of w <= 8 bits in the next 1, 2, 4 or 8 bits, the first code in
the low bits of a byte, and those of 9 to 16 bits in a little-endian uint16; what is left of the
last byte is 0. With N the scale of a bucket, r = min(|v| / N, 1) and u the element's random number:

- UNIFORM (QSGD, Alistarh et al. 2017; TernGrad with levels = 1): level 0 .. s stands for l / s. In
  fixed point a = floor(min(|v| k, s 2^F)), k = s 2^F / N, level = (a + (u >> 32 - F)) >> F; F = 24,
  or 32 - w for more than 8 bits.
- LOG2 (NUQSGD, Ramezani-Kebrya et al. 2021, p = 1/2): levels 0, 2^-s, .., 1/2, 1. With t = 2^s r
  the 23 mantissa bits of max(1 + t, 2 t) are the probability of the next level.
- LEVELS (NUQSGD): any increasing list from 0 to 1; from l_j <= r < l_(j+1) up when (u >> 8) 2^-24 <
  (r - l_j) steepness, steepness = 1 / (l_(j+1) - l_j).
- FP4 (CO3): the nearest of 0, .5, 1, 1.5, 2, 3 to |v| k, edges to the smaller; the scale is k. Not
  random.
- SIGN (signSGD): the sign alone.

Every operation is rounded to float32; |v| / N is |v| times 1 / N. A scale outside [2^-60, 2^60] is
first brought nearer to 1, with its values, by 2^64 or 2^-64 (not FP4, SIGN). Probabilities are
exact to 2^-23 (2^(w - 32) for more than 8 bits) of a step. A value is unit * N, unit = l / s, the
level or 1; of FP4 the grid's number divided by k. A bucket with N = 0 is zeros.

The random numbers are a function of a 64-bit key and the element's index in its tensor, so the
symbols do not depend on how a tensor is cut, on the instruction set or on threads. `isa` and errors
as in `edgegossip.native`, and ValueError for a quantiser that cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native
from edgegossip.types import Vec

if TYPE_CHECKING:
    from edgegossip.native._native import ReadBuffer, WriteBuffer

Spec: TypeAlias = tuple[int, int, int, int, tuple[float, ...] | None]


class LevelKind(IntEnum):
    """What the levels of a quantiser are, as the kernels number it."""

    UNIFORM = 0
    LOG2 = 1
    LEVELS = 2
    FP4 = 3
    SIGN = 4


@dataclass(frozen=True, slots=True)
class Quantiser:
    """One quantiser: a code has `bits` bits; `levels` is s (UNIFORM 1 .. 2^(bits-1) - 1, LOG2 0 ..
    2^(bits-1) - 2); a bucket of `bucket` values (a power of two from 8 to 65536, or 0 for the whole
    tensor) has one scale; `list` has the levels of LEVELS, 2 to 2^(bits-1) numbers rounded to
    float32."""

    kind: LevelKind
    bits: int
    levels: int = 0
    bucket: int = 0
    list: tuple[float, ...] | None = None

    @property
    def spec(self) -> Spec:
        """Return what the native functions take."""
        return int(self.kind), self.bits, self.levels, self.bucket, self.list

    def symbol_bytes(self, n: int) -> int:
        """Return how many bytes the symbols of n values."""
        width = next((width for width in (1, 2, 4, 8) if width >= self.bits), 16)
        return (n * width + 7) // 8

    def scale_count(self, n: int) -> int:
        """Return how many scales n values have: one a bucket, or one of a tensor that has any."""
        return -(-n // self.bucket) if self.bucket else min(n, 1)

    def scale_bytes(self, n: int) -> int:
        """Return how many bytes the scales of n values as they travel: 2 a bucket, or 4 for the one
        of a tensor."""
        return self.scale_count(n) * (2 if self.bucket else 4)


class Moments(NamedTuple):
    """Sums over values, in double."""

    sum: float
    magnitudes: float  # sum |x|
    squares: float  # sum x^2
    largest: float  # max |x|; not finite exactly when a value is not


def moments_of(x: Vec, offsets: NDArray[np.int64], isa: str | None = None) -> list[Moments]:
    """Return the moments of every tensor x[offsets[k]:offsets[k + 1]] of float32[n]."""
    return [Moments(*m) for m in _native.quantise_moments(x, offsets, isa)]


def quantise(
    quantiser: Quantiser,
    x: Vec,
    scales: Vec,
    key: int,
    first: int = 0,
    out: WriteBuffer | None = None,
    isa: str | None = None,
) -> WriteBuffer:
    """Write the symbols, uint8[symbol_bytes(n)], of x, float32[n], which is elements first .. first
    + n of a tensor with this key.

    `first` is a multiple of 512 and of the bucket; x must be finite, `scales` finite and not below
    0.
    """
    symbols = np.empty(quantiser.symbol_bytes(len(x)), np.uint8) if out is None else out
    _native.quantise(quantiser.spec, x, key, first, scales, symbols, None, isa)
    return symbols


def dequantise(
    quantiser: Quantiser,
    symbols: ReadBuffer,
    scales: ReadBuffer,
    out: Vec,
    weight: float | None = None,
    isa: str | None = None,
) -> bool:
    """Compute out = values, or out += weight * values, float32[n]; weight * value is rounded to
    float32 before the sum.

    False when a code is none that `quantise` makes (a level too many, a negative zero): `out` then
    holds nothing of use. Scales are not checked; values are finite when they are (FP4: when 3 / k
    is).
    """
    return _native.dequantise(quantiser.spec, symbols, scales, out, weight, isa)


def uniform32(key: int, first: int, n: int, isa: str | None = None) -> NDArray[np.uint32]:
    """Return the random numbers, uint32[n], of elements first .. first + n of a tensor with this
    key."""
    out = np.empty(n, np.uint32)
    _native.uniform32(key, first, out.view(np.uint8), isa)
    return out
