"""Mixing weights: their sums, their domain and the eigenvalues that closed forms give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.gossip import weights
from edgegossip.types import ConfigError


@st.composite
def links(draw: st.DrawFn, symmetric: bool = False) -> np.ndarray:
    n = draw(st.integers(2, 12))
    a = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).random((n, n)) < draw(st.floats(0.0, 1.0))
    return a | a.T if symmetric else a


@given(links(symmetric=True))
def test_metropolis_hastings_is_symmetric_and_doubly_stochastic(a: np.ndarray) -> None:
    w = weights.metropolis_hastings(a)
    off = ~np.eye(len(a), dtype=bool)
    degree = (a & off).sum(axis=1)
    assert weights.is_symmetric(w) and weights.is_doubly_stochastic(w) and (np.diag(w) > 0).all()
    for i, j in np.argwhere(off):
        assert w[i, j] == pytest.approx(a[i, j] / (1 + max(degree[i], degree[j])))


@given(links())
def test_column_stochastic_shares_equally_among_receivers_and_self(a: np.ndarray) -> None:
    w = weights.column_stochastic(a)
    assert weights.is_column_stochastic(w)
    for j in range(len(a)):
        receivers = {int(i) for i in np.flatnonzero(a[:, j])} | {j}
        assert {int(i) for i in np.flatnonzero(w[:, j])} == receivers
        assert w[list(receivers), j] == pytest.approx(1 / len(receivers))


def test_metropolis_hastings_refuses_a_directed_graph() -> None:
    with pytest.raises(ConfigError, match="undirected graph; use 'column'"):
        weights.metropolis_hastings(np.array([[False, True], [False, False]]))


def test_uniform_is_doubly_stochastic_on_regular_graphs_only() -> None:
    ring = np.roll(np.eye(5, dtype=bool), 1, axis=0)
    w = weights.uniform(ring)
    assert weights.is_doubly_stochastic(w) and w[1, 0] == w[0, 0] == 0.5
    star = np.zeros((4, 4), bool)
    star[0, 1:] = star[1:, 0] = True
    with pytest.raises(ConfigError, match="regular graph"):
        weights.uniform(star)
    out_regular_only = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], bool)  # every node sends to one, node 0 hears two
    with pytest.raises(ConfigError, match="regular graph"):
        weights.uniform(out_regular_only)


def test_predicates_tell_the_kinds_apart() -> None:
    column = np.array([[0.5, 1.0], [0.5, 0.0]])
    assert weights.is_column_stochastic(column) and not weights.is_row_stochastic(column)
    assert not weights.is_doubly_stochastic(column) and not weights.is_doubly_stochastic(column.T)
    assert weights.is_row_stochastic(column.T) and not weights.is_symmetric(column)
    negative = np.array([[1.5, -0.5], [-0.5, 1.5]])
    assert weights.is_symmetric(negative) and not weights.is_doubly_stochastic(negative)


def test_spectral_gap_of_a_period_is_that_of_the_product_per_round() -> None:
    a, b, c = (m / m.sum(axis=0) for m in np.random.default_rng(0).random((3, 4, 4)))
    second = sorted(np.abs(np.linalg.eigvals(c @ b @ a)))[-2]
    assert weights.spectral_gap([a, b, c]) == pytest.approx(1 - np.cbrt(second))
    assert weights.spectral_gap([c, b, a]) != pytest.approx(1 - np.cbrt(second))
    assert weights.spectral_gap([np.eye(3)]) == 0.0
    assert weights.spectral_gap([np.full((3, 3), 1 / 3)]) == 1.0
