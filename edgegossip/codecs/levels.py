"""Quantisation levels: how many (ElastiCL's rule), where (geometric lists), and what they cost at
worst.

ElastiCL: Sudharsan et al. 2021, equations 3 and 4. ElastiQuant: Sudharsan et al. 2022, equations 2
and 3 and section 3.6; it is NUQSGD (Ramezani-Kebrya et al. 2021) under another name, whose theorems
these are.

All variances are normalised: E||Q(v) - v||^2 / ||v||^2 of one bucket of d values, which a vector of
such buckets then keeps as well. Levels are 0 = l_0 < l_1 < ... < l_(s+1) = 1 of r = |v_i| / N;
stochastic rounding between neighbours has the variance f(r) = (l_(j+1) - r)(r - l_j). The bounds
are for the L2 norm N. They hold for the L-infinity norm too, because there sum r^2 is at least 1
and the worst ratio is at 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgegossip.types import UsageError, Vec

MAX_LEVELS = 32767  # 16 bits a code: a sign and 15 bits of level
_NORMAL = float(np.finfo(np.float32).smallest_normal)


@dataclass(frozen=True, slots=True)
class LevelRule:
    """ElastiCL's state at the server: s levels, learning rate and smoothed training loss at the
    start."""

    s0: int
    eta0: float
    f0: float

    def __post_init__(self) -> None:
        _require(1 <= self.s0 <= MAX_LEVELS, f"s0 = {self.s0} levels are outside 1 to {MAX_LEVELS}")
        _require(0 < self.eta0 < math.inf, f"the learning rate at the start must be positive, got {self.eta0}")
        _require(0 < self.f0 < math.inf, f"the loss at the start must be positive, got {self.f0}")


def levels_for(rule: LevelRule, loss: float, lr: float) -> int:
    """Return s_k = max(1, round(s_0 (eta_k / eta_0) sqrt(f_0 / f_k))), ElastiCL's equations 3 and
    4, at most MAX_LEVELS.

    `loss` is the smoothed training loss f_k that clients report, `lr` the learning rate eta_k. Ties
    round to even. A loss of 0 asks for as many levels as there are. Raises UsageError unless both
    are finite and not negative.
    """
    _require(0 <= loss < math.inf, f"the training loss must be finite and not negative, got {loss}")
    _require(0 <= lr < math.inf, f"the learning rate must be finite and not negative, got {lr}")
    if lr == 0.0:
        return 1
    if loss == 0.0:
        return MAX_LEVELS
    rates, losses = lr / rule.eta0, rule.f0 / loss
    if 0 < rates < math.inf and 0 < losses < math.inf:
        wanted = rule.s0 * rates * math.sqrt(losses)
    else:  # one of them leaves float64, and infinity times zero is no number; logarithms do not
        doublings = _log2_ratio(lr, rule.eta0) + _log2_ratio(rule.f0, loss) / 2
        wanted = rule.s0 * 2.0 ** min(doublings, 100.0)
    return MAX_LEVELS if wanted >= MAX_LEVELS else max(1, round(wanted))


def _log2_ratio(a: float, b: float) -> float:
    """log2(a / b) of positive numbers."""
    return math.log2(a) - math.log2(b)


def smooth_loss(previous: float | None, loss: float, decay: float = 0.9) -> float:
    """Return decay * previous + (1 - decay) * loss; the loss itself when there is no previous one.

    Equation 3 speaks of the loss at the round's model; a mini-batch's loss is a noisy sample of it.
    Raises UsageError.
    """
    _require(0 <= decay < 1, f"the decay must be at least 0 and below 1, got {decay}")
    for value in (loss, previous if previous is not None else 0.0):
        _require(0 <= value < math.inf, f"the training loss must be finite and not negative, got {value}")
    return loss if previous is None else decay * previous + (1 - decay) * loss


def geometric_levels(s: int, p: float) -> Vec:
    """Return float32[s + 2]: 0, p^s, ..., p^2, p, 1 (section 3.6.2).

    Powers by repeated multiplication in double, each rounded to float32 once: the same on every
    machine. Raises UsageError unless 0 < p < 1, all levels differ in float32 and p^s is a normal
    float32.
    """
    _require(1 <= s <= MAX_LEVELS, f"s = {s} levels are outside 1 to {MAX_LEVELS}")
    _require(0 < p < 1, f"the ratio of levels must lie between 0 and 1, got {p}")
    powers = [1.0]
    for _ in range(s):
        powers.append(powers[-1] * p)
    levels = np.array([0.0, *reversed(powers)], np.float64).astype(np.float32)
    fits = float(levels[1]) >= _NORMAL and bool((np.diff(levels) > 0).all())
    _require(fits, f"{s} levels of ratio {p} cannot be told apart in float32; use fewer, or another ratio")
    return levels


def uniform_levels(s: int) -> NDArray[np.float64]:
    """Return float64[s + 1]: 0, 1/s, ..., 1, the levels of QSGD."""
    _require(1 <= s <= MAX_LEVELS, f"s = {s} levels are outside 1 to {MAX_LEVELS}")
    return np.arange(s + 1) / s


def variance_bound(s: int, d: int, p: float = 0.5) -> float:
    """Return ElastiQuant's eps_Q for buckets of d values with the levels 0, p^s, ..., p, 1.

    p = 1/2: equation 2, 1/8 + 2^(-2s-2) d for small d and 2^-s sqrt(d) - 7/8 for large ones. Any
    other p: the worst case of section 3.6 (`worst_case_variance`), which is below equation 2 where
    both apply. Raises UsageError.

    Deviation: the paper (as NUQSGD) begins the second case at d = 2 * 4^s. There it is no bound: s
    = 4 and d = 512 give .539, while 511 values of l_1 / 2 and one that carries the other half of
    the norm have .5597. With q the share of the squared norm below l_1 and x = 2^-s sqrt(d), the
    variance is at most x sqrt(q) - q + (1 - q) / 8, whose maximum is 2/9 x^2 + 1/8, and that is at
    most x - 7/8 from x = 3/2 on (at q = 1 from x = 9/4). So the first case is kept up to d = 9/4 *
    4^s.
    """
    _require_dimension(d)
    if p != 0.5:
        return worst_case_variance(geometric_levels(s, p), d)
    _require(1 <= s <= MAX_LEVELS, f"s = {s} levels are outside 1 to {MAX_LEVELS}")
    x = 0.5**s * math.sqrt(d)
    return 0.125 + x * x / 4 if x < 1.5 else x - 0.875


def normal_variance(levels: Sequence[float] | NDArray[np.floating], d: int) -> float:
    """Return the variance of a bucket of d normally distributed values under its L2 norm, by 512 of
    their quantiles.

    What error feedback remembers comes to be spread like this, whatever it is given: it is a sum of
    rounding errors. Raises UsageError.
    """
    from statistics import NormalDist  # brings modules that few runs need

    _require_dimension(d)
    grid, law = require_levels(levels), NormalDist()
    size = np.array([law.inv_cdf((1 + (k + 0.5) / 512) / 2) for k in range(512)])
    r = np.minimum(size / np.sqrt((size**2).mean() * d), 1.0)
    low = np.minimum(np.searchsorted(grid, r, side="right") - 1, grid.size - 2)
    return float(d * ((grid[low + 1] - r) * (r - grid[low])).mean())


def worst_case_variance(levels: Sequence[float] | NDArray[np.floating], d: int) -> float:
    """Return the largest variance that any bucket of d values can have with this increasing list
    from 0 to 1.

    Section 3.6 maximises "over the distribution of normalised coordinates" and shows only
    a bound that grants every bin the whole norm. The maximum itself is no harder. With q_i =
    r_i^2 the variance is sum g(q_i), g(q) = f(sqrt(q)), where sum q_i = 1. By Jensen it is at most
    d G(1/d), G the concave envelope of g, and a mixture of at most two values of q attains that: so
    it is the maximum, but for counts that are whole numbers. Its dual is

        min over lambda >= 0 of  lambda + d max_r (f(r) - lambda r^2),

    where bin j has its largest value at r = m / (1 + lambda), m = (l_j + l_(j+1)) / 2: m^2 / (1 +
    lambda) - l_j l_(j+1), if that r is still in the bin (else r = 0 is better). The slope in lambda
    is 1 - d r^2 at the maximising r, so bisection finds the minimum; every lambda gives a valid
    bound, hence rounding does no harm. Raises UsageError.
    """
    _require_dimension(d)
    grid = require_levels(levels)
    low, middle, product = grid[:-1], (grid[:-1] + grid[1:]) / 2, grid[:-1] * grid[1:]

    def worst(weight: float) -> tuple[float, float]:
        """max_r (f(r) - weight r^2) and the r that has it."""
        r = middle / (1 + weight)
        values = np.where(r >= low, middle * r - product, 0.0)
        best = int(np.argmax(values))
        return float(values[best]), float(r[best])

    left, right = 0.0, 1.0
    while d * worst(right)[1] ** 2 > 1:
        left, right = right, 2 * right
    for _ in range(60):
        weight = (left + right) / 2
        left, right = (weight, right) if d * worst(weight)[1] ** 2 > 1 else (left, weight)
    return min(weight + d * worst(weight)[0] for weight in (0.0, left, right))


def increases_from_0_to_1(grid: NDArray[np.floating]) -> bool:
    """Return whether these are levels, as far as their type tells them apart."""
    return grid.ndim == 1 and grid.size >= 2 and grid[0] == 0 and grid[-1] == 1 and bool((np.diff(grid) > 0).all())


def require_levels(levels: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the levels as float64[n]. Raises UsageError unless they increase from 0 to 1."""
    grid = np.asarray(levels, np.float64)
    _require(increases_from_0_to_1(grid), "levels must be an increasing list from 0 to 1")
    return grid


def _require_dimension(d: int) -> None:
    _require(d >= 1, f"a bucket has at least one value, got d = {d}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
