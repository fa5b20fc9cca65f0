"""What the nodes must come to once all is well: how close, and to what.

A lossless synchronous averaging contracts the nodes' spread (largest minus smallest value of a
coordinate) by the ergodicity coefficient of the product P of the mixing matrices in force, max_ik
1/2 sum_j |P_ij - P_kj| (Seneta, "Non-negative matrices and Markov chains", 1981, section 3.1): a
bound that needs no constant, from the topology alone. Compressed difference coding converges too,
more slowly: there the spread must fall below a share of what it was, within a number of rounds.
Plain compressed models need not converge at all, only stay near.

With error compensation no single model need converge, but what a node says is, over time, what it
means: sum_t C_t = sum_t v_t + e_0 - e_T, with e bounded. So (W - I) (mean over T rounds of C) =
(x_T - x_0) / (eta T) goes to zero, and the means over time of the models agree to O(1 / T)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgegossip.gossip.base import Topology

LEFT = 0.01  # of the spread after the last rounds, as far as the matrices promise
Manner = Literal["mixes", "shrinks", "averages", "bounded", "equal"]
Matrix = NDArray[np.float64]


class Averages:
    """Mean over time of each node's model."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[int, NDArray[np.float64]]] = {}

    def add(self, node: int, model: NDArray[np.floating]) -> None:
        count, total = self._sums.get(node, (0, np.zeros(len(model))))
        self._sums[node] = count + 1, total + model

    def spread(self) -> float:
        return spread([total / count for count, total in self._sums.values()])


def spread(models: Sequence[NDArray[np.floating]]) -> float:
    """max over coordinates of largest minus smallest; 0 for fewer than two."""
    if len(models) < 2:
        return 0.0
    stack = np.asarray(models, np.float64)
    return float((stack.max(axis=0) - stack.min(axis=0)).max())


def effective(topology: Topology, round: int, talks: NDArray[np.bool_], eta: float, column: bool) -> Matrix:
    """W of one round, float64[n, n], where j's message reaches i only if talks[i, j]: what is not
    handed over stays, with the receiver (rows sum to 1) or with the sender (`column`: columns
    do)."""
    w = np.where(talks, topology.matrix(round), 0.0) * eta
    np.fill_diagonal(w, 0.0)
    np.fill_diagonal(w, 1.0 - w.sum(axis=0 if column else 1))
    return w


def contraction(
    topology: Topology,
    rounds: range,
    live: Sequence[int],
    talks: NDArray[np.bool_],
    eta: float,
    weights: NDArray[np.float64] | None,
) -> float:
    """Factor by which the spread of the live nodes' models falls over these rounds, at least.
    `weights`: push-sum weights, float64[n]; the ratio mass / weight then mixes by the rows P_ij u_j
    / sum_j P_ij u_j."""
    product = np.eye(topology.n)
    for r in rounds:
        product = effective(topology, r, talks, eta, weights is not None) @ product
    p = product[np.ix_(live, live)]
    if weights is not None:
        p = p * weights[list(live)]
    p = p / p.sum(axis=1, keepdims=True)
    return float(np.abs(p[:, None, :] - p[None, :, :]).sum(axis=2).max() / 2.0)


def rounds_to_mix(topology: Topology, first: int, live: tuple[int, ...], bounds: tuple[int, int], share: float) -> int:
    """Rounds from `first` on after which the matrices alone promise that no more than LEFT of the
    spread is left, or, after bounds[0] of them, no more than `share`; bounds[1] where it takes
    longer."""
    return _rounds_to_mix(topology, first % topology.period, live, bounds, share)  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def _rounds_to_mix(topology: Any, first: int, live: tuple[int, ...], bounds: tuple[int, int], share: float) -> int:
    talks, (least, most) = np.ones((topology.n, topology.n), np.bool_), bounds
    for k in range(1, most):
        left = contraction(topology, range(first, first + k), live, talks, 1.0, None)
        if left <= LEFT or (k >= least and left <= share):
            return k
    return most


def connected(live: Sequence[int], talks: NDArray[np.bool_], topology: Topology) -> bool:
    """Whether every live node's model can get to every other one."""
    links = np.logical_or.reduce([topology.matrix(r) > 0 for r in range(topology.period)]) & talks
    onward = {j: [i for i in live if links[i, j]] for j in live}
    return all(len(_reached(onward, start)) == len(live) for start in live)


def _reached(onward: Mapping[int, Sequence[int]], start: int) -> set[int]:
    found, todo = {start}, [start]
    while todo:
        new = [i for i in onward[todo.pop()] if i not in found]
        found.update(new)
        todo += new
    return found
