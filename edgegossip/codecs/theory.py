"""What stochastic rounding to a list of levels costs a given vector: its exact variance and the
entropy of its codes.

Nothing is drawn: both are expectations over the rounding, by the formula. `levels.py` has the
bounds over all vectors. Definitions: a bucket's norm N (L2 or L-infinity), r = |v_i| / N, levels 0
= l_0 < ... < 1; r between two of them goes up with probability (r - l_j) / (l_(j+1) - l_j). The
variance of a value is N^2 (l_(j+1) - r)(r - l_j).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgegossip.codecs.checks import CHUNK_VALUES
from edgegossip.codecs.levels import require_levels
from edgegossip.types import Vec

Norm: TypeAlias = Literal["l2", "linf"]


def normalized_variance(
    levels: Sequence[float] | NDArray[np.floating], x: Vec, bucket: int = 0, norm: Norm = "l2"
) -> float:
    """E||Q(x) - x||^2 / ||x||^2 of float32[n] in buckets of `bucket` values (0: one bucket); 0 for
    a vector of zeros.

    Raises UsageError unless the levels increase from 0 to 1.
    """
    grid = require_levels(levels)
    error = square = 0.0
    for r, low, size in _intervals(grid, x, bucket, norm):
        error += float((size**2 * (grid[low + 1] - r) * (r - grid[low])).sum())
        square += float((size**2 * r**2).sum())
    return error / square if square else 0.0


def code_entropy(levels: Sequence[float] | NDArray[np.floating], x: Vec, bucket: int = 0, norm: Norm = "l2") -> float:
    """Order-0 entropy, in bits a value, of the codes (sign and level) of float32[n] on average over
    the rounding: what an entropy coder of single codes needs, scales left out. Raises
    UsageError."""
    grid = require_levels(levels)
    counts = np.zeros((2, grid.size))  # by sign and level
    at = 0
    for r, low, _ in _intervals(grid, x, bucket, norm):
        r, low = r.ravel(), low.ravel()
        up = (r - grid[low]) / (grid[low + 1] - grid[low])
        negative = np.signbit(x[at : at + r.size]).astype(np.int64)
        np.add.at(counts, (negative, low), 1 - up)
        np.add.at(counts, (negative, low + 1), up)
        at += r.size
    counts[0, 0] += counts[1, 0]  # no signed zero
    counts[1, 0] = 0
    return entropy_bits(counts)


def entropy_bits(counts: ArrayLike) -> float:
    """Order-0 entropy in bits a symbol of these counts (or probabilities), in any shape; 0 when
    there are none."""
    count = np.asarray(counts, np.float64).ravel()
    p = count[count > 0] / max(count.sum(), np.finfo(np.float64).tiny)
    return float(abs((p * np.log2(p)).sum()))


def _intervals(
    grid: NDArray[np.float64], x: Vec, bucket: int, norm: Norm
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]]:
    """r, the level at or below it and the norm, float64[buckets, b] each, some buckets at a time;
    then the last, shorter bucket."""
    width = bucket or max(x.size, 1)
    step = max(1, CHUNK_VALUES // width) * width
    whole = x.size // width * width
    parts = [slice(at, min(at + step, whole)) for at in range(0, whole, step)]
    if whole < x.size:
        parts.append(slice(whole, x.size))
    for part in parts:
        size = np.abs(x[part].astype(np.float64)).reshape(-1, min(width, part.stop - part.start))
        n = np.sqrt((size**2).sum(1, keepdims=True)) if norm == "l2" else size.max(1, keepdims=True)
        r = np.minimum(np.divide(size, n, out=np.zeros_like(size), where=n > 0), 1.0)
        yield r, np.minimum(np.searchsorted(grid, r, side="right") - 1, grid.size - 2), n
