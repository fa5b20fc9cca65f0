"""What the papers say and no codec needs. ElastiQuant's equation 3 and section 3.6 (Sudharsan et
al. 2022; theorems of NUQSGD, Ramezani-Kebrya et al. 2021); words and levels are those of
`edgegossip.codecs.levels`. CO3's equation 9 (Chen et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.levels import MAX_LEVELS, geometric_levels, require_levels, worst_case_variance
from edgegossip.types import UsageError


def bin_bound(levels: Sequence[float] | NDArray[np.floating], counts: Sequence[int]) -> float:
    """Return the displayed bound of section 3.6.1, counts[j] = d_j values of r in [l_j, l_(j+1)):

    sum over j of min(tau_j^2 d_j / 4, tau_j (sqrt(d_j) - l_j d_j)), tau_j = l_(j+1) - l_j.

    Each term is a bound of its own: f <= tau^2 / 4, and f <= tau (r - l_j) with sum r <= sqrt(d_j)
    by Cauchy-Schwarz. Raises UsageError.
    """
    grid = require_levels(levels)
    low, width, count = grid[:-1], np.diff(grid), np.asarray(counts, np.float64)
    _require(count.shape == low.shape, f"{low.size} bins need as many counts, got {count.size}")
    return float(np.minimum(width**2 * count / 4, width * (np.sqrt(count) - low * count)).sum())


def optimal_ratio(s: int, d: int) -> float:
    """Return the p, in whole thousandths, whose levels 0, p^s, ..., p, 1 have the smallest
    `worst_case_variance` (3.6.2).

    Near the optimum two things balance. Values below p^s cost at most p^s sqrt(d) - 1 (many values;
    p^(2s) d / 4 while that is below 1): small p is good. All others cost at most (1 - p)^2 / (4 p)
    of their square, the largest f(r) / r^2 between neighbours of ratio p (1/8 for p = 1/2): p near
    1 is good. So p falls with d and rises with s. (The paper's figure text has both directions the
    other way round.) The bound need not be unimodal: a coarse search over all p comes first. Raises
    UsageError.
    """
    _require(d >= 1, f"a bucket has at least one value, got d = {d}")
    _require(1 <= s <= MAX_LEVELS, f"s = {s} levels are outside 1 to {MAX_LEVELS}")

    def bound(thousandths: int) -> float:
        try:
            return worst_case_variance(geometric_levels(s, thousandths / 1000), d)
        except UsageError:  # p^s is not a normal float32
            return math.inf

    coarse = min(range(5, 1000, 5), key=bound)
    return min(range(max(1, coarse - 5), min(999, coarse + 5) + 1), key=bound) / 1000


def length_bound(s: int, d: int, norm_bits: int = 32) -> float:
    """Return a bound (equation 3), in bits, on the mean length of a bucket's Elias stream with the
    levels 0, 2^-s, ..., 1.

        norm_bits + 3 n + n A(d / n) + n A(log2(8 (2^2s + d) / n)),   n = 2^2s + 2^s sqrt(d),

    for any vector of d values: its norm, then gap, sign and level index of each nonzero. (What a
    section adds, such as the number of nonzeros, comes on top.) The paper's A(x) is (1 + o(1)) log
    x and its first term norm_bits - (1 + o(1)). Both are asymptotic, hence no bound of anything;
    the same theorem stands in NUQSGD, with the same signs. Here the first is read as norm_bits, and
    A(x) = log2(x) + 2.7 log2(1 + log2(x)), because the recursive code has

        |omega(k)| <= 1 + A(k)  for all k >= 1   (it would take 2.69; the hardest k is 2^16),

    and 2.7 log2(1 + log2(x)) / log2(x) is an o(1). With it the proof is short: 1 + A is concave, m
    nonzeros have gaps that add up to at most d, and level index 1 + log2(2^s h) where E sum (2^s
    h)^2 <= 4^s (1 + eps_Q) <= 9/8 4^s + d/4, so Jensen's inequality gives the two terms at m = E m
    <= n, in which they grow while m <= d / e.

    Raises UsageError unless n <= d / e, the theorem's own assumption.
    """
    _require(d >= 1, f"a bucket has at least one value, got d = {d}")
    _require(1 <= s <= MAX_LEVELS, f"s = {s} levels are outside 1 to {MAX_LEVELS}")
    n = math.inf if s > 500 else 4.0**s + 2.0**s * math.sqrt(d)
    _require(
        n <= d / math.e, f"equation 3 needs 2^(2s) + 2^s sqrt(d) <= d / e; s = {s}, d = {d} have {n:g} > {d / math.e:g}"
    )

    def a(x: float) -> float:
        return math.log2(x) + 2.7 * math.log2(1 + math.log2(x))

    return norm_bits + n * (3 + a(d / n) + a(math.log2(8 * (4.0**s + d) / n)))


def normalized_variance(
    levels: Sequence[float] | NDArray[np.floating], x: NDArray[np.float32], bucket: int = 0, norm: str = "l2"
) -> float:
    """Return E||Q(x) - x||^2 / ||x||^2 of stochastic rounding of float32[n] in buckets of `bucket`
    values (0: one bucket); 0 for a vector of zeros. Raises UsageError unless the levels increase
    from 0 to 1."""
    grid, width, error = require_levels(levels), bucket or max(x.size, 1), 0.0
    for start in range(0, x.size, width):
        size = np.abs(x[start : start + width].astype(np.float64))
        n = float(np.linalg.norm(size) if norm == "l2" else size.max())
        r = np.minimum(size / n, 1.0) if n else size
        low = np.minimum(np.searchsorted(grid, r, side="right") - 1, grid.size - 2)
        error += n**2 * float(((grid[low + 1] - r) * (r - grid[low])).sum())
    square = float((x.astype(np.float64) ** 2).sum())
    return error / square if square else 0.0


def eq9_scale(alpha: float, beta: float) -> float:
    """Return CO3's k as its paper has it, equation 9 with alpha in sigma's place: (0.46 - 2.85 b +
    5.37 b^2 - 2.85 b^3 + 0.52 b^4) / alpha.

    Within 15 % of the optimum for beta from .5 to 2; raises UsageError outside. (At .3 its relative
    error would be .85 where .38 is possible.)
    """
    _require(0.5 <= beta <= 2.0, f"equation 9 holds for beta from 0.5 to 2, got {beta}")
    _require(0 < alpha < math.inf, f"alpha = {alpha} must be positive")
    return (0.46 + beta * (-2.85 + beta * (5.37 + beta * (-2.85 + beta * 0.52)))) / alpha


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
