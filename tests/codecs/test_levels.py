"""ElastiCL's rule, lists of levels, and bounds that must be bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.codecs import levels
from edgegossip.codecs.levels import LevelRule
from edgegossip.types import UsageError
from lab.papers import bounds

RULE = LevelRule(s0=4, eta0=0.1, f0=2.0)


def spread(grid: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Variance of stochastic rounding of each r to the list."""
    j = np.clip(np.searchsorted(grid, r, side="right") - 1, 0, len(grid) - 2)
    return (grid[j + 1] - r) * (r - grid[j])


@pytest.mark.parametrize(
    ("loss", "lr", "expected"),
    [
        (2.0, 0.1, 4),  # as at the start
        (0.5, 0.1, 8),  # a quarter of the loss: twice the levels (eq 3)
        (8.0, 0.01, 1),  # 0.2 levels: one
        (2.0, 0.0, 1),
        (0.0, 0.1, 32767),
        (1e-300, 0.1, 32767),
        (1e-320, 1e300, 32767),
    ],
)
def test_the_level_rule(loss: float, lr: float, expected: int) -> None:
    assert levels.levels_for(RULE, loss, lr) == expected


@pytest.mark.parametrize(
    ("rule", "loss", "lr", "expected"),
    [
        (LevelRule(4, 1e-300, 1e-300), 1e300, 1e300, 32767),  # 4 * 1e600 * 1e-300
        (LevelRule(4, 1e-150, 1e-300), 1e100, 3e50, 12),  # f0 / loss is 0 in float64: 4 * 3e200 * sqrt(1e-400)
        (LevelRule(4, 1e160, 1e300), 1e-30, 1e-5, 4),  # f0 / loss is infinite: 4 * 1e-165 * 1e165
        (LevelRule(4, 1e10, 2.0), 1e-320, 1e-320, 1),
    ],
)
def test_quotients_beyond_float64(rule: LevelRule, loss: float, lr: float, expected: int) -> None:
    assert levels.levels_for(rule, loss, lr) == expected


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_the_level_rule_refuses_what_is_no_loss_or_learning_rate(bad: float) -> None:
    for call in (
        lambda: levels.levels_for(RULE, bad, 0.1),
        lambda: levels.levels_for(RULE, 1.0, bad),
        lambda: LevelRule(4, bad, 1.0),
        lambda: LevelRule(4, 0.1, bad),
        lambda: LevelRule(0, 0.1, 1.0),
        lambda: LevelRule(32768, 0.1, 1.0),
        lambda: levels.smooth_loss(bad, 1.0),
        lambda: levels.smooth_loss(None, bad),
        lambda: levels.smooth_loss(1.0, 1.0, bad),
    ):
        with pytest.raises(UsageError):
            call()


def test_smoothing() -> None:
    assert levels.smooth_loss(None, 3.0) == 3.0
    assert levels.smooth_loss(2.0, 1.0) == pytest.approx(1.9)
    assert levels.smooth_loss(2.0, 1.0, decay=0.0) == 1.0


def test_geometric_levels() -> None:
    assert levels.geometric_levels(6, 0.5).tolist() == [0, *(2.0**-k for k in range(6, -1, -1))]
    assert levels.geometric_levels(126, 0.5)[1] == np.float32(2.0**-126)
    nine = levels.geometric_levels(126, 0.9)
    assert nine.dtype == np.float32 and nine.shape == (128,) and nine[0] == 0 and nine[-1] == 1
    np.testing.assert_allclose(nine[1:], 0.9 ** np.arange(126.0, -1, -1), rtol=1e-7)
    np.testing.assert_allclose(levels.uniform_levels(4), [0, 0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize(
    ("s", "p"),
    [(127, 0.5), (6, 0.0), (6, 1.0), (6, -0.1), (6, math.nan), (0, 0.5), (40000, 0.9), (6, 1 - 1e-9), (300, 0.5)],
)
def test_geometric_levels_that_float32_cannot_hold(s: int, p: float) -> None:
    with pytest.raises(UsageError):
        levels.geometric_levels(s, p)


def test_equation_2() -> None:
    assert levels.variance_bound(6, 512) == 0.125 + 512 / 2**14
    assert levels.variance_bound(6, 2**14) == 2 - 0.875
    assert levels.variance_bound(6, 9 * 2**10) == 1.5 - 0.875  # from 9/4 * 4^s on
    assert levels.variance_bound(6, 9 * 2**10 - 1) == pytest.approx(0.125 + 9 / 16, abs=1e-3)


def test_equation_2_as_printed_is_no_bound_at_its_border() -> None:
    s, d = 4, 512
    r = np.full(d, 2.0**-s / 2)
    r[0] = math.sqrt(1 - (d - 1) * r[1] ** 2)
    variance = float(spread(levels.geometric_levels(s, 0.5).astype(np.float64), r).sum())
    assert (r**2).sum() == pytest.approx(1) and d == 2 * 4**s
    assert 2.0**-s * math.sqrt(d) - 0.875 < 0.54 < 0.559 < variance <= levels.variance_bound(s, d)


_lists = st.one_of(
    st.tuples(st.integers(1, 12), st.floats(0.05, 0.95)).map(lambda a: levels.geometric_levels(*a)),
    st.integers(1, 20).map(levels.uniform_levels),
    st.lists(st.floats(0.001, 0.999), max_size=6, unique=True).map(lambda a: np.array([0, *sorted(a), 1.0])),
)


@settings(max_examples=100)
@given(grid=_lists, d=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1), tail=st.floats(0.2, 5))
def test_no_vector_is_worse_than_the_worst_case(grid: np.ndarray, d: int, seed: int, tail: float) -> None:
    """Of either norm; and section 3.6's displayed sum lies above every vector too."""
    rng = np.random.default_rng(seed)
    size = rng.standard_gamma(1 / tail, d) ** (1 / tail) + 1e-12
    grid = np.asarray(grid, np.float64)
    bound = levels.worst_case_variance(grid, d)
    r = size / np.sqrt((size**2).sum())
    variance = spread(grid, np.minimum(r, 1)).sum()
    assert variance <= bound + 1e-12
    largest = size / size.max()
    assert spread(grid, largest).sum() / (largest**2).sum() <= bound + 1e-12
    counts = np.histogram(np.minimum(r, 1), grid)[0]
    assert variance <= bounds.bin_bound(grid, counts.tolist()) + 1e-9


@pytest.mark.parametrize("s", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("d", [1, 5, 100, 512, 8192, 9215, 9216, 9217, 10**4, 2**14, 10**6])
def test_the_worst_case_is_below_equation_2_and_the_bins(s: int, d: int) -> None:
    grid = levels.geometric_levels(s, 0.5)
    worst = levels.worst_case_variance(grid, d)
    assert worst <= levels.variance_bound(s, d) + 1e-9
    assert levels.variance_bound(s, d, 0.5000001) == pytest.approx(worst, rel=1e-4)
    if d >= 4 ** (s + 1):  # all values below l_1
        assert worst >= 2.0**-s * math.sqrt(d) - 1 - 1e-9


@pytest.mark.parametrize(("s", "d"), [(2, 100), (6, 512), (8, 10**4), (126, 512)])
def test_the_optimal_ratio_beats_every_other(s: int, d: int) -> None:
    best = bounds.optimal_ratio(s, d)
    bound = levels.worst_case_variance(levels.geometric_levels(s, best), d)
    for p in np.linspace(0.51 if s == 126 else 0.01, 0.995, 40):
        assert bound <= levels.worst_case_variance(levels.geometric_levels(s, float(p)), d) * (1 + 1e-3)


def test_equation_3_needs_its_assumption() -> None:
    with pytest.raises(UsageError, match="equation 3 needs"):
        bounds.length_bound(6, 512)
    with pytest.raises(UsageError, match="equation 3 needs"):
        bounds.length_bound(30000, 512)
    assert bounds.length_bound(6, 65536) < bounds.length_bound(6, 2 * 65536)
    assert bounds.length_bound(5, 65536) < bounds.length_bound(6, 65536)


@pytest.mark.parametrize("d", [8, 64, 512, 4096])
@pytest.mark.parametrize("grid", [[0, 1], levels.uniform_levels(7), levels.geometric_levels(6, 0.5)], ids=len)
def test_the_variance_of_normal_values_is_that_of_drawn_ones(grid: Sequence[float], d: int) -> None:
    x = np.random.default_rng(d).standard_normal(d * 400).astype(np.float32)
    assert levels.normal_variance(grid, d) == pytest.approx(
        bounds.normalized_variance(grid, x, d), rel=0.02 if d >= 64 else 0.15
    )


def test_arguments_that_make_no_sense() -> None:
    for call in (
        lambda: levels.variance_bound(0, 10),
        lambda: levels.variance_bound(6, 0),
        lambda: levels.worst_case_variance([0, 0.5], 10),
        lambda: levels.worst_case_variance([0.1, 1], 10),
        lambda: levels.worst_case_variance([0, 0.7, 0.6, 1], 10),
        lambda: levels.worst_case_variance([0, math.nan, 1], 10),
        lambda: bounds.bin_bound([0, 0.5, 1], [1]),
        lambda: levels.uniform_levels(0),
        lambda: levels.normal_variance([0, 0.5], 10),
        lambda: levels.normal_variance([0, 1], 0),
        lambda: bounds.optimal_ratio(0, 512),
        lambda: bounds.length_bound(0, 512),
    ):
        with pytest.raises(UsageError):
            call()
