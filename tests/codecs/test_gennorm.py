"""CO3's scale and Huffman marginals, against integration and samples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs import co3
from edgegossip.codecs.gennorm_tables import MARGINALS, OPTIMA
from edgegossip.codecs.typical import BETA, generalised_normal
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import UsageError, Vec
from lab.papers import bounds
from tests.codecs import gennorm_oracle as oracle

OPTIMUM = {row[0]: row[3] for row in OPTIMA}
BIG = float(np.finfo(np.float32).max)


def moments(x: Vec) -> tuple[float, float, float, int]:
    a = np.abs(x.astype(np.float64))
    return float(a.sum()), float((a * a).sum()), float(a.max(initial=0)), a.size


def quantised(x: Vec, k: float) -> np.ndarray:
    a = np.abs(x.astype(np.float64))
    return np.sign(x) * np.array(co3.GRID)[np.searchsorted(co3.EDGES, a * k)] / k


def scale_by_law(beta: float) -> float:
    """k alpha that the codec would use for the law itself."""
    mean, squares = oracle.integral(beta, 1, 0, math.inf), oracle.integral(beta, 2, 0, math.inf)
    return float(co3.scale_for(mean * 1e6, squares * 1e6, 1e9, 10**6))


@pytest.mark.parametrize("row", OPTIMA[::6] + OPTIMA[-1:], ids=lambda row: str(row[0]))
def test_the_table_by_integration(row: tuple[float, float, float, float]) -> None:
    beta, ratio, mean, optimum = row
    gamma = math.gamma
    assert ratio == pytest.approx(gamma(2 / beta) ** 2 / (gamma(1 / beta) * gamma(3 / beta)), rel=1e-10)
    assert mean == pytest.approx(gamma(2 / beta) / gamma(1 / beta), rel=1e-10)
    assert oracle.integral(beta, 1, 0, math.inf) == pytest.approx(mean, rel=1e-9)
    at = oracle.relative_error(beta, optimum)
    for factor in np.geomspace(1 / 16, 16, 17):  # nothing else is better, near or far
        assert at <= oracle.relative_error(beta, optimum * factor) + 1e-9
    # and the optimum is where the slope changes its sign: D' = 0 is z sum g^2 P = sum g A
    grid = np.array(co3.GRID)
    p, a = oracle.cells(beta, 0, optimum), oracle.cells(beta, 1, optimum)
    assert optimum == pytest.approx(float((grid**2) @ p / (grid @ a)), rel=1e-9)


def test_the_table_is_ordered() -> None:
    for column in (0, 1):
        assert all(a[column] < b[column] for a, b in itertools.pairwise(OPTIMA))
    assert all(a[2] * a[3] < b[2] * b[3] for a, b in itertools.pairwise(OPTIMA))


@pytest.mark.parametrize("beta", [0.1625, 0.2875, 0.5625, 1.125, 2.3, 7.0, 12.0])
def test_between_the_points_the_scale_is_as_good_as_the_optimum(beta: float) -> None:
    k = scale_by_law(beta)
    best = min(oracle.relative_error(beta, k * f) for f in np.geomspace(0.9, 1.1, 11))
    assert oracle.relative_error(beta, k) <= best * 1.0005
    fitted = co3.fit(oracle.integral(beta, 1, 0, math.inf), oracle.integral(beta, 2, 0, math.inf), 1)
    assert fitted.beta == pytest.approx(beta, rel=0.04)
    assert beta < 0.35 or fitted.alpha == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("beta", [0.4, 0.6, 1.0, 2.0])
def test_a_sample_is_fitted_and_quantised_as_well_as_by_its_own_best_scale(beta: float) -> None:
    x = oracle.sample(beta, 200_000) * np.float32(0.003)
    law = co3.fit(*moments(x)[:2], x.size)
    assert law.beta == pytest.approx(beta, rel=0.03) and law.alpha == pytest.approx(0.003, rel=0.05)
    k = float(co3.scale_for(*moments(x)))
    norm = np.linalg.norm(x.astype(np.float64))
    error = np.linalg.norm(quantised(x, k) - x) / norm
    assert error <= 1.005 * min(np.linalg.norm(quantised(x, k * f) - x) / norm for f in np.geomspace(0.25, 4, 33))
    assert error == pytest.approx(oracle.relative_error(beta, OPTIMUM[beta]), rel=0.03)


def test_equation_9_is_good_from_one_half_and_broken_below() -> None:
    for beta in (0.5, 0.6, 0.8, 1.0, 1.5, 2.0):
        k = bounds.eq9_scale(1.0, beta)
        assert bounds.eq9_scale(4.0, beta) == k / 4
        assert k == pytest.approx(OPTIMUM[beta], rel=0.15)
        assert oracle.relative_error(beta, k) <= 1.01 * oracle.relative_error(beta, OPTIMUM[beta])
    beta = 0.3
    broken = 0.46 - 2.85 * beta + 5.37 * beta**2 - 2.85 * beta**3 + 0.52 * beta**4
    assert oracle.relative_error(beta, broken) ** 2 == pytest.approx(0.72, abs=0.01)
    assert oracle.relative_error(beta, OPTIMUM[beta]) ** 2 == pytest.approx(0.144, abs=0.001)
    for alpha, outside in ((1.0, 0.49), (1.0, 2.01), (1.0, math.nan), (0.0, 1.0), (math.inf, 1.0)):
        with pytest.raises(UsageError):
            bounds.eq9_scale(alpha, outside)


def test_the_static_tables_by_integration() -> None:
    assert [t.index for t in co3.STATIC_TABLES] == list(range(len(MARGINALS)))
    for table in co3.STATIC_TABLES:
        p = oracle.probabilities(table.beta, OPTIMUM[table.beta])
        assert p.sum() == pytest.approx(1)
        expected = np.where(p > 0, np.maximum(1, np.rint(255 * p / p.max())), 0)
        np.testing.assert_array_equal(table.weights, expected)
        assert co3.static_table_for(table.beta) is table
        assert co3.static_table_for(table.beta * 1.01) is table
    assert co3.static_table_for(0.01).index == 0
    assert co3.static_table_for(1e9).index == len(MARGINALS) - 1


def test_impossible_moments_are_the_callers_mistake() -> None:
    for arguments in (
        (1.0, 1.0, 1.0, 0),
        (-1.0, 1.0, 1.0, 3),
        (math.nan, 1.0, 1.0, 3),
        (1.0, math.inf, 1.0, 3),
        (1.0, 1.0, 0.0, 3),
    ):
        with pytest.raises(UsageError):
            co3.scale_for(*arguments)


def test_fits_at_the_ends_of_the_table() -> None:
    assert co3.fit(0.0, 0.0, 5).alpha == 0  # all zero
    assert co3.fit(1.0, 1.0, 10**6).beta == OPTIMA[0][0]  # one value that is not
    assert co3.fit(10.0, 10.0, 10).beta == OPTIMA[-1][0]  # all equal


def test_what_is_drawn_is_of_the_law() -> None:
    """Of which the mean of |x / alpha|^beta is 1 / beta."""
    x = generalised_normal(np.random.default_rng(1), 100_000, alpha=2.0)
    assert np.mean(np.abs(x / 2.0) ** BETA) == pytest.approx(1.0 / BETA, rel=0.02) and abs(np.sign(x).mean()) < 0.01


def test_co3_takes_two_bits_and_a_fifth_at_beta_six_tenths() -> None:
    n = 1 << 17
    layout, x, codec = Layout.of([TensorSpec("t", (n,))]), oracle.sample(0.6, n), codecs.get("co3", gamma=0.0)
    body, _ = codec.encode(x, layout, codecs.Ctx(key=1, round=0))
    assert codecs.bits_per_value(body, layout) <= 2.20
    error = codecs.relative_error(x, codec.decode(body, layout))
    assert error == pytest.approx(oracle.relative_error(0.6, OPTIMUM[0.6]), rel=0.02)
