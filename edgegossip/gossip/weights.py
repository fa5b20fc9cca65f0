"""Makes mixing matrices. W is float64[n, n]; W[i, j] is the weight at node i of what node j sends;
the diagonal is what a node keeps of its own.

A graph is given as `links`, bool[n, n]: links[i, j] says that j sends to i. The diagonal is not
looked at. Metropolis-Hastings weights: Xiao, Boyd, Kim, "Distributed average consensus with
least-mean-square deviation" (2007), equation 2.4 in the form 1 / (1 + max(d_i, d_j)).
Column-stochastic weights: Nedic, Olshevsky, "Distributed optimization over time-varying directed
graphs" (2015), equation 2: a sender divides by its out-degree + 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.types import ConfigError

Matrix: TypeAlias = NDArray[np.float64]
Links: TypeAlias = NDArray[np.bool_]
Edge: TypeAlias = tuple[int, int]  # (sender, receiver)

TOLERANCE = 1e-9  # of a row or column sum
# An eigenvalue of this size is rounding, not a slow mode: a double 0 of a matrix that is not
# symmetric comes out as the root of what was rounded, and each processor rounds in its own way.
VANISHING = 1e-9


def links_of(n: int, edges: Iterable[Edge], directed: bool) -> Links:
    """Return bool[n, n] of edges (sender, receiver); both ways unless directed."""
    links = np.zeros((n, n), np.bool_)
    for sender, receiver in edges:
        if sender != receiver:  # small rings and tori wrap onto themselves
            links[receiver, sender] = True
            if not directed:
                links[sender, receiver] = True
    return links


def metropolis_hastings(links: Links) -> Matrix:
    """Return symmetric and doubly stochastic weights. Raises ConfigError unless every edge goes
    both ways."""
    if not np.array_equal(links, links.T):
        raise ConfigError(
            "weights = 'metropolis' need an undirected graph; use 'column' (or 'uniform' on a regular graph)"
        )
    degree = _edges(links).sum(axis=1)
    return _with_diagonal(links / (1.0 + np.maximum(degree[:, None], degree[None, :])))


def column_stochastic(links: Links) -> Matrix:
    """Return weights whose columns sum to 1: node j gives each of its out-neighbours and itself 1 /
    (out-degree + 1)."""
    share = 1.0 / (1.0 + _edges(links).sum(axis=0))
    return _with_diagonal(links * share[None, :], diagonal=share)


def uniform(links: Links) -> Matrix:
    """Return 1 / (degree + 1) on every edge and on the diagonal: doubly stochastic, for a graph in
    which every node has the same number of in- and of out-neighbours. Raises ConfigError on any
    other."""
    edges = _edges(links)
    degrees = set(edges.sum(axis=0).tolist()) | set(edges.sum(axis=1).tolist())
    if len(degrees) != 1:
        raise ConfigError("weights = 'uniform' need a regular graph; use 'metropolis' if undirected, else 'column'")
    share = 1.0 / (1.0 + degrees.pop())
    return _with_diagonal(links * share, diagonal=np.full(len(links), share))


SCHEMES: Mapping[str, Callable[[Links], Matrix]] = MappingProxyType(
    {"metropolis": metropolis_hastings, "column": column_stochastic, "uniform": uniform}
)


def is_row_stochastic(w: Matrix) -> bool:
    """Tell whether no weight is negative and every row sums to 1."""
    return bool((w >= 0).all() and np.allclose(w.sum(axis=1), 1.0, rtol=0, atol=TOLERANCE))


def is_column_stochastic(w: Matrix) -> bool:
    """Tell whether no weight is negative and every column sums to 1."""
    return is_row_stochastic(w.T)


def is_doubly_stochastic(w: Matrix) -> bool:
    """Tell whether no weight is negative and every row and column sums to 1."""
    return is_row_stochastic(w) and is_row_stochastic(w.T)


def is_symmetric(w: Matrix) -> bool:
    """Tell whether W is its own transpose."""
    return bool(np.allclose(w, w.T, rtol=0, atol=TOLERANCE))


def spectral_gap(rounds: Sequence[Matrix]) -> float:
    """Return 1 - |second largest eigenvalue| of W; of the product W_(p-1) ... W_0 over a period,
    per round, for p > 1 matrices.

    1 means that one period averages exactly, 0 that the nodes never agree."""
    product = np.eye(len(rounds[0]))
    for w in rounds:
        product = w @ product
    values = np.linalg.eigvalsh(product) if is_symmetric(product) else np.linalg.eigvals(product)
    second = float(np.sort(np.abs(values))[-2])
    second = 0.0 if second < VANISHING else min(second, 1.0)
    return float(1.0 - second ** (1.0 / len(rounds)))


def _edges(links: Links) -> Links:
    """Return the edges of a matrix, without self-loops."""
    return links & ~np.eye(len(links), dtype=np.bool_)


def _with_diagonal(w: Matrix, diagonal: Matrix | None = None) -> Matrix:
    """Set the diagonal; by default to what is missing in each row."""
    w = np.array(w, dtype=np.float64)
    np.fill_diagonal(w, 0.0)
    np.fill_diagonal(w, 1.0 - w.sum(axis=1) if diagonal is None else diagonal)
    return w
