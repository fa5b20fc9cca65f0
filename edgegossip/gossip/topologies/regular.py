"""Graphs by rule: rings, torus, complete, star, random regular, exponential."""

from __future__ import annotations

import math

import numpy as np

from edgegossip.gossip.params import check_integer
from edgegossip.gossip.topologies.graph import Edge, GraphTopology, build
from edgegossip.types import ConfigError

SWAPS_PER_EDGE = 10  # attempted double edge swaps; the usual choice for the chain to forget where it began


def ring(n: int, weights: str | None = None) -> GraphTopology:
    """Undirected cycle. Metropolis-Hastings weights 1/3 (1/2 for n = 2)."""
    return build("ring", n, [_cycle(n)], directed=False, weights=weights)


def directed_ring(n: int, weights: str | None = None) -> GraphTopology:
    """Node i sends to i + 1 only. Weights 1/2."""
    return build("directed-ring", n, [_cycle(n)], directed=True, weights=weights)


def torus(n: int, rows: int | None = None, cols: int | None = None, weights: str | None = None) -> GraphTopology:
    """Undirected rows x cols grid that wraps round; the squarest factorisation unless rows or cols
    is given. One row (as for a prime n) makes it a ring, and two rows have one edge between them a
    column."""
    rows, cols = _shape(n, rows, cols)
    edges = [
        (r * cols + c, other)
        for r in range(rows)
        for c in range(cols)
        for other in (r * cols + (c + 1) % cols, (r + 1) % rows * cols + c)
    ]
    return build("torus", n, [edges], directed=False, weights=weights)


def complete(n: int, weights: str | None = None) -> GraphTopology:
    """Everybody talks to everybody. Weights 1/n."""
    return build("complete", n, [[(i, j) for i in range(n) for j in range(i)]], directed=False, weights=weights)


def star(n: int, weights: str | None = None) -> GraphTopology:
    """Node 0 is the hub of all others."""
    return build("star", n, [[(0, i) for i in range(1, n)]], directed=False, weights=weights)


def random_regular(n: int, degree: int | None = None, seed: int = 0, weights: str | None = None) -> GraphTopology:
    """Undirected, connected, every node with `degree` neighbours (n * degree even; default 3, or 4
    when n is odd, as far as n allows), drawn by double edge swaps from a circulant graph.
    Randomness is PCG64's raw stream, which is the same in every numpy version, so boards agree."""
    low = 1 if n == 2 else 2
    if degree is None:
        degree = min(3 + n % 2, n - 1)
    check_integer(f"degree of random-regular on {n} nodes", degree, low, n - 1)
    check_integer("seed of random-regular", seed, 0, 2**64 - 1)
    if n * degree % 2:
        raise ConfigError(f"random-regular on {n} nodes needs an even degree; {degree} is odd, use {degree - 1}")
    generator = np.random.PCG64(seed)
    if degree == 2:  # the connected graphs of degree 2 are the cycles
        order = _shuffled(n, generator)
        return build(
            "random-regular", n, [[(order[a], order[b]) for a, b in _cycle(n)]], directed=False, weights=weights
        )
    edges = _circulant(n, degree)
    _swap(edges, generator)
    while not _is_connected(n, edges):
        _swap(edges, generator)
    return build("random-regular", n, [edges], directed=False, weights=weights)


def _cycle(n: int) -> list[Edge]:
    return [(i, (i + 1) % n) for i in range(n)]


def _shape(n: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    if rows is None and cols is None:
        rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
    for key, value in (("rows", rows), ("cols", cols)):
        if value is not None:
            check_integer(f"{key} of torus on {n} nodes", value, 1, n)
            if n % value:
                near = min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: abs(d - value))
                raise ConfigError(f"torus: {key} = {value} does not divide {n} nodes; the nearest that does is {near}")
    if rows is None:
        assert cols is not None
        rows = n // cols
    if cols is not None and rows * cols != n:
        raise ConfigError(f"torus: {rows} x {cols} is not {n} nodes; with rows = {rows} use cols = {n // rows}")
    return rows, n // rows


def _circulant(n: int, degree: int) -> list[Edge]:
    """Every node with its degree // 2 nearest on both sides, and the opposite one when the degree
    is odd (n is even then)."""
    edges = [(i, (i + k) % n) for i in range(n) for k in range(1, degree // 2 + 1)]
    return edges + ([(i, i + n // 2) for i in range(n // 2)] if degree % 2 else [])


def _below(generator: np.random.PCG64, bound: int) -> int:
    """Uniform in 0..bound - 1, up to a bias below 2^-50."""
    return int(generator.random_raw()) % bound


def _shuffled(n: int, generator: np.random.PCG64) -> list[int]:
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = _below(generator, i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def _swap(edges: list[Edge], generator: np.random.PCG64) -> None:
    """Edges a-b and c-d become a-d and c-b, where that makes no loop and no double edge; in
    place."""
    present = {frozenset(e) for e in edges}
    for _ in range(SWAPS_PER_EDGE * len(edges)):
        p, q = _below(generator, len(edges)), _below(generator, len(edges))
        (a, b), (c, d) = edges[p], edges[q]
        if _below(generator, 2):
            c, d = d, c
        first, second = frozenset((a, d)), frozenset((c, b))
        if a == d or b == c or first in present or second in present or first == second:
            continue
        present -= {frozenset((a, b)), frozenset((c, d))}
        present |= {first, second}
        edges[p], edges[q] = (a, d), (c, b)


def _is_connected(n: int, edges: list[Edge]) -> bool:
    parent = list(range(n))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for a, b in edges:
        parent[root(a)] = root(b)
    return len({root(i) for i in range(n)}) == 1


# -- Exponential graphs
# ------------------------------------------------------------------------------
#
# Ying et al., "Exponential graph is provably efficient for decentralized deep training" (2021).
# Both are circulant, so column-stochastic weights are doubly stochastic on them.


def exponential(n: int, weights: str | None = None) -> GraphTopology:
    """Static and directed: node i sends to i + 2^k (mod n) for k = 0 .. ceil(log2 n) - 1. The
    spectral gap is 2 / (1 + ceil(log2 n)) for even n (proposition 1)."""
    edges = [(i, (i + 2**k) % n) for i in range(n) for k in range(_hops(n))]
    return build("exponential", n, [edges], directed=True, weights=weights)


def one_peer_exponential(n: int, weights: str | None = None) -> GraphTopology:
    """Time-varying and directed: in round t node i sends to i + 2^(t mod p) (mod n) only, p =
    ceil(log2 n). When n is a power of two, one period averages exactly (lemma 1)."""
    rounds = [[(i, (i + 2**k) % n) for i in range(n)] for k in range(_hops(n))]
    return build("one-peer-exponential", n, rounds, directed=True, weights=weights)


def _hops(n: int) -> int:
    """ceil(log2 n)"""
    return (n - 1).bit_length()
