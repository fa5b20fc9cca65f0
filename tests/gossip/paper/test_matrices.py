"""The mixing matrices that the references are given are the papers': built here anew, entry by
entry, from edges alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import pytest

from edgegossip.gossip import topologies
from tests.gossip.paper import graphs

Edges: TypeAlias = set[tuple[int, int]]  # (sender, receiver)


def cleaned(edges: Iterable[tuple[int, int]], both_ways: bool) -> Edges:
    """Without loops, and once each."""
    found = {(a, b) for a, b in edges if a != b}
    return found | {(b, a) for a, b in found} if both_ways else found


def metropolis(n: int, edges: Edges) -> np.ndarray:
    """W_ij = 1 / (1 + max(d_i, d_j)) on an edge, and W_ii what is missing to 1 (Xiao, Boyd, Kim
    2007)."""
    degree = [sum(sender == i for sender, _ in edges) for i in range(n)]
    w = [[0.0] * n for _ in range(n)]
    for j, i in edges:
        w[i][j] = 1.0 / (1 + max(degree[i], degree[j]))
    for i in range(n):
        w[i][i] = 1.0 - sum(w[i][j] for j in range(n) if j != i)
    return np.array(w)


def column(n: int, edges: Edges) -> np.ndarray:
    """A sender divides what it has by its out-degree and itself (Nedic, Olshevsky 2015)."""
    w = [[0.0] * n for _ in range(n)]
    for j in range(n):
        receivers = [j, *(receiver for sender, receiver in edges if sender == j)]
        for i in receivers:
            w[i][j] = 1.0 / len(receivers)
    return np.array(w)


def uniform(n: int, edges: Edges) -> np.ndarray:
    """1 / (d + 1) on every edge and the diagonal, where every node has d neighbours on either
    side."""
    degrees = {sum(e[end] == i for e in edges) for i in range(n) for end in (0, 1)}
    (degree,) = degrees
    w = [[0.0] * n for _ in range(n)]
    for j, i in edges | {(i, i) for i in range(n)}:
        w[i][j] = 1.0 / (degree + 1)
    return np.array(w)


SCHEMES: dict[str, Callable[[int, Edges], np.ndarray]] = {
    "metropolis": metropolis,
    "column": column,
    "uniform": uniform,
}

RANDOM = {
    "undirected": (graphs.undirected, "metropolis"),
    "undirected, for d2": (graphs.undirected_far_from_minus_one, "metropolis"),
    "digraph": (graphs.digraph, "column"),
    "time-varying": (graphs.time_varying, "column"),
    "circulants": (graphs.circulants, "column"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, scheme = RANDOM[name]
    given: list[tuple[list[list[tuple[int, int]]], bool]] = []
    build = graphs.build

    def noting(name: str, n: int, rounds: Any, *, directed: bool, weights: str | None) -> Any:
        given.append(([list(edges) for edges in rounds], directed))
        return build(name, n, rounds, directed=directed, weights=weights)

    monkeypatch.setattr(graphs, "build", noting)
    for n in range(2, 10):
        topology = make(n, np.random.default_rng(n - 2))
        rounds, directed = given[-1]
        assert topology.period == len(rounds)
        for r, edges in enumerate(rounds):
            expected = SCHEMES[scheme](n, cleaned(edges, not directed))
            np.testing.assert_allclose(topology.matrix(r), expected, rtol=0, atol=1e-15)


def ring(n: int) -> list[Edges]:
    return [cleaned([(i, (i + 1) % n) for i in range(n)], both_ways=True)]


def directed_ring(n: int) -> list[Edges]:
    return [cleaned([(i, (i + 1) % n) for i in range(n)], both_ways=False)]


def complete(n: int) -> list[Edges]:
    return [{(a, b) for a in range(n) for b in range(n) if a != b}]


def hops(n: int) -> list[int]:
    """1, 2, 4, ... below n."""
    return [2**k for k in range(n) if 2**k < n]


def one_peer(n: int) -> list[Edges]:
    return [cleaned([(i, (i + hop) % n) for i in range(n)], both_ways=False) for hop in hops(n)]


def exponential(n: int) -> list[Edges]:
    return [set().union(*one_peer(n))]


NAMED: dict[str, tuple[Callable[[int], list[Edges]], str]] = {
    "ring": (ring, "metropolis"),
    "directed-ring": (directed_ring, "column"),
    "complete": (complete, "metropolis"),
    "one-peer-exponential": (one_peer, "column"),
    "exponential": (exponential, "column"),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_graphs(name: str) -> None:
    edges_of, default = NAMED[name]
    for n, scheme in itertools.product((2, 3, 5, 6, 8, 9), (None, "uniform")):
        topology = topologies.get(name, n, **({} if scheme is None else {"weights": scheme}))
        rounds = edges_of(n)
        assert topology.period == len(rounds)
        for r, edges in enumerate(rounds):
            expected = SCHEMES[scheme or default](n, edges)
            np.testing.assert_allclose(topology.matrix(r), expected, rtol=0, atol=1e-15)
