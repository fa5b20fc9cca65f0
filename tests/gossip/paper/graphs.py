"""Random graphs of the kinds that the papers' theory allows. Each takes (nodes, rng) and gives a
topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from edgegossip.gossip import topologies
from edgegossip.gossip.topologies import build

Graph: TypeAlias = Callable[[int, np.random.Generator], Any]


def undirected(n: int, rng: np.random.Generator) -> Any:
    """A random tree and some more edges; Metropolis-Hastings weights, so W is symmetric and doubly
    stochastic."""
    tree = [(i, int(rng.integers(i))) for i in range(1, n)]
    more = [tuple(map(int, rng.choice(n, 2, replace=False))) for _ in range(int(rng.integers(n)))]
    return build("random", n, [tree + more], directed=False, weights=None)


def undirected_far_from_minus_one(n: int, rng: np.random.Generator) -> Any:
    """One whose W has no eigenvalue near or below -1/3, which D2 asks for."""
    while True:
        graph = undirected(n, rng)
        if np.linalg.eigvalsh(graph.matrix(0))[0] > -0.3:
            return graph


def digraph(n: int, rng: np.random.Generator) -> Any:
    """A random cycle through all nodes, so that it is strongly connected, and some more arcs;
    columns sum to 1."""
    order = rng.permutation(n).tolist()
    cycle = [(order[k], order[(k + 1) % n]) for k in range(n)]
    return build("random", n, [cycle + _arcs(n, int(rng.integers(n)), rng)], directed=True, weights="column")


def time_varying(n: int, rng: np.random.Generator) -> Any:
    """Two to four directed rounds that only together need to be strongly connected. Every node says
    something in every round, so that everything that a codec decided can be seen on the wire; some
    hear nobody in some rounds."""
    period = int(rng.integers(2, 5))
    order = rng.permutation(n).tolist()
    rounds: list[list[tuple[int, int]]] = [_arcs(n, 1, rng) for _ in range(period)]
    for k in range(n):
        rounds[int(rng.integers(period))].append((order[k], order[(k + 1) % n]))
    for edges in rounds:
        silent = set(range(n)) - {sender for sender, _ in edges}
        edges += [(k, (k + int(rng.integers(1, n))) % n) for k in sorted(silent)]
    return build("random", n, rounds, directed=True, weights="column")


def circulants(n: int, rng: np.random.Generator) -> Any:
    """Directed, time-varying and doubly stochastic; 1 is among the offsets, so the union is
    connected."""
    offsets = [{1}, *({int(k) for k in rng.integers(1, n, 2)} for _ in range(2))]
    rounds = [[(i, (i + k) % n) for i in range(n) for k in some] for some in offsets]
    return build("random", n, rounds, directed=True, weights="column")


def nearly_complete(n: int, rng: np.random.Generator) -> Any:
    """One in which every node has all others but one, or all, for neighbours."""
    order = rng.permutation(n).tolist()
    apart = {frozenset(order[k : k + 2]) for k in range(0, n, 2)}
    edges = [(i, j) for j in range(n) for i in range(j) if frozenset((i, j)) not in apart]
    return build("random", n, [edges], directed=False, weights=None)


def named(name: str) -> Graph:
    """A topology that is the same for every rng."""
    return lambda n, rng: topologies.get(name, n)


def _arcs(n: int, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    pairs = (rng.choice(n, 2, replace=False).tolist() for _ in range(count))
    return [(a, b) for a, b in pairs]


DOUBLY: Mapping[str, Graph] = {
    "undirected": undirected,
    "circulants": circulants,
    "one-peer": named("one-peer-exponential"),
}
SYMMETRIC: Mapping[str, Graph] = {"undirected": undirected, "ring": named("ring")}
COLUMN: Mapping[str, Graph] = {
    "digraph": digraph,
    "time-varying": time_varying,
    "one-peer": named("one-peer-exponential"),
    "undirected": undirected,
}
RING: Mapping[str, Graph] = {"ring": named("ring")}
COMPLETE: Mapping[str, Graph] = {"complete": named("complete")}
DENSE: Mapping[str, Graph] = {"complete": named("complete"), "nearly complete": nearly_complete}
EXACT: Mapping[str, Graph] = {"undirected": undirected_far_from_minus_one, "complete": named("complete")}
