"""How near the optimum ElastiQuant with momentum comes: bounds of Sudharsan et al. 2022, sections
3.4.1 and 3.4.2, which are theorems 1 and 3 of Yang, Lin, Li 2016 ("Unified convergence analysis of
stochastic momentum methods") with the second moment of quantised gradients.

They are of `parallel-sgd` with its momentum: y_(t+1) = w_t - a g; y'_(t+1) = w_t - l a g; w_(t+1) =
y_(t+1) + mu (y'_(t+1) - y'_t), l = 0 heavy ball, l = 1 Nesterov. For any unbiased codec: `variance`
is its eps_Q, such as `levels.variance_bound`.

Deviations. The printed mean (1/T) sum over t = 0..T has T + 1 terms, so 1 / (T + 1) is meant. What
is printed as C / sqrt(T) + 1 is read as C / sqrt(T + 1): so it stands in the theorem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgegossip.types import UsageError


@dataclass(frozen=True, slots=True)
class ConvergenceRun:
    """Describes a run: K boards, T steps, momentum mu and l; V bounds the gradient's norm, B the
    second moment of a board's gradient, eps_Q the codec's normalised variance."""

    boards: int
    steps: int
    gradient: float
    second_moment: float
    variance: float = 0.0
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        _require(self.boards >= 1 and self.steps >= 0, "a run has at least one board, and no fewer than 0 steps")
        _require(0 <= self.momentum < 1, f"momentum must be at least 0 and below 1, got {self.momentum}")
        for value in (self.gradient, self.second_moment, self.variance):
            _require(0 <= value < math.inf, f"bounds must be finite and not negative, got {value}")

    @property
    def noise(self) -> float:
        """Return V^2 + (1 + eps_Q) B / K, what both bounds have of gradients and codec."""
        return self.gradient**2 + (1 + self.variance) * self.second_moment / self.boards


def convex_bound(run: ConvergenceRun, rate: float, gap: float, distance: float) -> float:
    """Return the bound of section 3.4.1 on E f(mean of w_0..w_T) - min f for convex f.

    `rate` is alpha, `gap` f(w_0) - f(w*), `distance` ||w_0 - w*||. Raises UsageError."""
    _require(0 < rate < math.inf, f"the learning rate must be positive, got {rate}")
    _require(0 <= gap < math.inf and 0 <= distance < math.inf, "gap and distance must be finite and not negative")
    mu, rounds = run.momentum, run.steps + 1
    return (
        rate * (1 + 2 * run.nesterov * mu) * run.noise / (2 * (1 - mu))
        + mu * gap / ((1 - mu) * rounds)
        + (1 - mu) * distance**2 / (2 * rate * rounds)
    )


def nonconvex_rate(run: ConvergenceRun, constant: float, smoothness: float) -> float:
    """Return section 3.4.2's alpha, min((1 - mu) / (2 beta), C / sqrt(T + 1)), of C > 0 and f's
    smoothness beta. Raises UsageError."""
    _require(0 < constant < math.inf, f"the constant C must be positive, got {constant}")
    _require(0 < smoothness < math.inf, f"the smoothness must be positive, got {smoothness}")
    return min((1 - run.momentum) / (2 * smoothness), constant / math.sqrt(run.steps + 1))


def nonconvex_bound(run: ConvergenceRun, constant: float, smoothness: float, gap: float) -> float:
    """Return the bound of section 3.4.2 on the smallest E ||grad f(w_t)||^2 for smooth f, at
    `nonconvex_rate`. Raises UsageError."""
    _require(0 <= gap < math.inf, f"the gap must be finite and not negative, got {gap}")
    rate, mu, rounds = nonconvex_rate(run, constant, smoothness), run.momentum, run.steps + 1
    spread = smoothness * (mu**2 * ((1 - mu) * run.nesterov - 1) ** 2 + (1 - mu) ** 2) * run.noise
    return 2 * gap * (1 - mu) / (rate * rounds) + constant / ((1 - mu) ** 3 * math.sqrt(rounds)) * spread


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
