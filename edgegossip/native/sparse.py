"""Sparse bodies: the k largest magnitudes of every tensor, or k drawn ones, and the momentum of
DGC.

`offsets` is int64[tensors + 1], `counts` int64[tensors]: how many values of each tensor are sent,
from 1 to all of them, 0 for an empty one (ValueError otherwise). `values` is the form in which they
travel, as in `edgegossip.native.half`. Selection is exact, and of equal magnitudes those with the
lower index come first, so the result is the same for any `isa` and `threads`. It costs one pass
over x where at most 1/16 of a tensor is sent, and four passes beyond that. The bytes are in
docs/wire-format.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native
from edgegossip.native.half import Form
from edgegossip.types import Vec

if TYPE_CHECKING:
    from edgegossip.native._native import ReadBuffer, WriteBuffer

Counts: TypeAlias = NDArray[np.int64]

FAULTS = ("", "ends too early or too late", "has an invalid head", "has invalid positions", "has values not finite")


def capacity(offsets: ReadBuffer, counts: Counts, values: Form) -> int:
    """Return how many bytes of `out` that the encoders need: an upper bound of the body."""
    return _native.sparse_capacity(offsets, counts, values)


def topk_encode(
    x: Vec,
    offsets: ReadBuffer,
    counts: Counts,
    values: Form,
    out: WriteBuffer,
    zero: Vec | None = None,
    rest: Vec | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> int:
    """Write the counts[k] largest magnitudes of every tensor of x, float32[n], into `out`,
    uint8[capacity(...)].

    Where a value is sent, zero[i] = 0 and rest[i] -= what the receiver gets; both are float32[n],
    and `rest` may be x. Returns the size of the body, or -1 - k when tensor k is not finite; what
    was written is then of no use.
    """
    return _native.topk_encode(x, offsets, counts, values, out, zero, rest, isa, threads)


def topk_decode(
    body: ReadBuffer, offsets: ReadBuffer, out: Vec, weight: float | None = None, isa: str | None = None
) -> tuple[int, int]:
    """Compute out = value, or out += weight * value, float32[n]; what was not sent is zero and is
    not added.

    Returns (-1, 0), or the tensor at which the body is wrong (their number: behind the last one)
    and the index of what is wrong in FAULTS. All is checked before anything is written. Nothing is
    allocated.
    """
    return _native.topk_decode(body, offsets, out, weight, isa)


def randk_encode(
    x: Vec,
    offsets: ReadBuffer,
    counts: Counts,
    values: Form,
    unbiased: bool,
    seed: int,
    out: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> int:
    """Write counts[k] values of every tensor, at the positions that the 64-bit `seed` draws, into
    `out`, uint8[capacity(...)]: times the tensor's n / counts[k] when `unbiased`, a magnitude
    beyond the form's largest as that.

    Returns the size of the body, or -1 - k when tensor k is not finite.
    """
    return _native.randk_encode(x, offsets, counts, values, unbiased, seed, out, isa, threads)


def randk_decode(
    body: ReadBuffer,
    offsets: ReadBuffer,
    out: Vec,
    weight: float | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> tuple[int, int]:
    """Do as `topk_decode` for what `randk_encode` writes. Takes at most 2 n bytes and 1 MiB of
    memory for a while."""
    return _native.randk_decode(body, offsets, out, weight, isa, threads)


def sum_of_squares(x: Vec, isa: str | None = None) -> float:
    """Return ||x||^2 of float32[n] in float64, summed in eight lanes; not finite exactly when x is
    not."""
    return _native.sum_of_squares(x, isa)


def accumulate_momentum(
    u: Vec, v: Vec, g: Vec, momentum: float, factor: float, u_next: Vec, v_next: Vec, isa: str | None = None
) -> None:
    """Compute u_next = momentum u + factor g; v_next = v + u_next; all float32[n], each product and
    sum rounded to float32, as `momentum` and `factor` are. u_next may be u and v_next v. Sums may
    overflow."""
    _native.accumulate_momentum(u, v, g, momentum, factor, u_next, v_next, isa)
