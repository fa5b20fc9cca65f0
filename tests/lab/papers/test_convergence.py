"""The convergence bounds of ElastiQuant's sections 3.4.1 and 3.4.2: the paper's lines, and runs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from edgegossip.codecs import levels
from edgegossip.types import UsageError
from lab.papers.convergence import ConvergenceRun, convex_bound, nonconvex_bound, nonconvex_rate

GRID = levels.geometric_levels(6, 0.5).astype(np.float64)
D, K, NOISE = 32, 4, 1.0


@pytest.mark.parametrize(("nesterov", "mu"), [(False, 0.0), (True, 0.5), (False, 0.9)])
def test_the_papers_lines(nesterov: bool, mu: float) -> None:
    T, V, B, eps, a, l, gap, far, C, beta = 99, 2.0, 3.0, 0.25, 0.01, int(nesterov), 5.0, 7.0, 0.5, 4.0  # noqa: E741
    run = ConvergenceRun(K, T, V, B, eps, mu, nesterov)
    assert convex_bound(run, a, gap, far) == pytest.approx(
        a * (1 + 2 * l * mu) * (V**2 + (1 + eps) * B / K) / (2 * (1 - mu))
        + mu * gap / ((1 - mu) * (T + 1))
        + (1 - mu) * far**2 / (2 * a * (T + 1))
    )
    a = min((1 - mu) / (2 * beta), C / math.sqrt(T + 1))
    v = beta * (mu**2 * ((1 - mu) * l - 1) ** 2 + (1 - mu) ** 2) * (V**2 + (1 + eps) * B / K)
    assert nonconvex_rate(run, C, beta) == pytest.approx(a)
    assert nonconvex_bound(run, C, beta, gap) == pytest.approx(
        2 * gap * (1 - mu) / (a * (T + 1)) + C / ((1 - mu) ** 3 * math.sqrt(T + 1)) * v
    )


def quantised(g: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    norm = np.sqrt((g**2).sum())
    r = np.abs(g) / norm
    j = np.clip(np.searchsorted(GRID, r, side="right") - 1, 0, len(GRID) - 2)
    up = (r - GRID[j]) / (GRID[j + 1] - GRID[j])
    return norm * np.sign(g) * GRID[j + (rng.random(g.size) < up)]


def way(run: ConvergenceRun, rate: float, slope: Callable[[np.ndarray], np.ndarray], seed: int) -> list[np.ndarray]:
    """w_0..w_T by section 3.4's rule, K boards with noise of norm NOISE."""
    rng, w, before = np.random.default_rng(seed), np.ones(D), np.ones(D)
    models = [w]
    for _ in range(run.steps):
        noise = rng.standard_normal((K, D))
        noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
        g = np.mean([quantised(slope(w) + n, rng) for n in noise], 0)
        beside = w - run.nesterov * rate * g
        w, before = w - rate * g + run.momentum * (beside - before), beside
        models.append(w)
    return models


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_convex_run_stays_below_the_bound(nesterov: bool) -> None:
    """f = sqrt(1 + ||w||^2): its slope is at most 1."""
    run = ConvergenceRun(K, 200, 1.0, (1 + NOISE) ** 2, levels.variance_bound(6, D), 0.9, nesterov)
    found = []
    for seed in range(2):
        mean = np.mean(way(run, 0.02, lambda w: w / np.sqrt(1 + w @ w), seed), 0)
        found.append(np.sqrt(1 + mean @ mean) - 1)
    bound = convex_bound(run, 0.02, math.sqrt(1 + D) - 1, math.sqrt(D))
    assert bound / 50 < np.mean(found) <= bound


def test_a_nonconvex_run_stays_below_the_bound() -> None:
    """f = sum w^2 / (1 + w^2): its second derivative is at most 2, its slope below 0.65 a value."""
    run = ConvergenceRun(
        K, 200, 0.65 * math.sqrt(D), (0.65 * math.sqrt(D) + NOISE) ** 2, levels.variance_bound(6, D), 0.5
    )
    slope = lambda w: 2 * w / (1 + w**2) ** 2  # noqa: E731
    squares = [[slope(w) @ slope(w) for w in way(run, nonconvex_rate(run, 0.1, 2.0), slope, s)] for s in range(2)]
    assert np.mean(squares, 0).min() <= nonconvex_bound(run, 0.1, 2.0, D / 2)


def test_more_boards_and_finer_levels_come_nearer() -> None:
    def bound(boards: int, variance: float) -> float:
        return convex_bound(ConvergenceRun(boards, 100, 1.0, 4.0, variance), 0.01, 1.0, 1.0)

    assert bound(8, 0.1) < bound(2, 0.1) < bound(2, 1.3)


def test_arguments_that_make_no_sense() -> None:
    run = ConvergenceRun(2, 10, 1.0, 1.0)
    for call in (
        lambda: ConvergenceRun(0, 10, 1.0, 1.0),
        lambda: ConvergenceRun(2, 10, 1.0, 1.0, momentum=1.0),
        lambda: ConvergenceRun(2, 10, math.nan, 1.0),
        lambda: convex_bound(run, 0.0, 1.0, 1.0),
        lambda: convex_bound(run, 0.1, -1.0, 1.0),
        lambda: nonconvex_bound(run, 0.0, 1.0, 1.0),
        lambda: nonconvex_bound(run, 1.0, 1.0, math.inf),
    ):
        with pytest.raises(UsageError):
            call()
