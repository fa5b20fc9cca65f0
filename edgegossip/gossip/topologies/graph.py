"""GraphTopology: a period of directed graphs with their mixing matrices and neighbour lists,
computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from edgegossip.gossip import weights as mixing
from edgegossip.gossip.base import Neighbours
from edgegossip.gossip.params import choose
from edgegossip.gossip.weights import Links, Matrix
from edgegossip.types import ConfigError, NodeId, Round, UsageError

Edge: TypeAlias = tuple[int, int]  # (sender, receiver)


@dataclass(frozen=True, slots=True, eq=False)
class GraphTopology:
    """Who talks to whom. Build with `build` or `build_weighted`; implements
    `gossip.base.Topology`."""

    name: str
    n: int
    directed: bool  # False: every edge goes both ways in every round
    weights: str  # "metropolis", "column", "uniform" or "given"
    matrices: tuple[Matrix, ...]  # one a round of the period; read-only
    table: tuple[tuple[Neighbours, ...], ...]  # [round of the period][node]
    period: int = field(init=False)  # asked for several times a message

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", len(self.matrices))

    def neighbours(self, node: int, round: Round) -> Neighbours:
        return self.table[round % len(self.table)][node]

    def matrix(self, round: Round) -> Matrix:
        """W, float64[n, n], read-only; W[i, j] is the weight at i of what j sends."""
        return self.matrices[round % len(self.matrices)]

    def edges(self, round: Round) -> tuple[Edge, ...]:
        """(sender, receiver), sorted; an undirected edge is there twice."""
        row = self.table[round % len(self.table)]
        return tuple((j, i) for j, neighbours in enumerate(row) for i in neighbours.out)

    def spectral_gap(self) -> float:
        """1 - |second largest eigenvalue| of W; for a time-varying graph of the product over a
        period, per round."""
        return mixing.spectral_gap(self.matrices)

    def to_json(self, members: Sequence[NodeId]) -> dict[str, Any]:
        """What a run folder's topology.json holds: members, per round of the period its edges
        (sender, receiver) and W (in member order, W[i][j] the weight at i of what j sends), and the
        spectral gap. `from_file` reads it back."""
        if len(members) != self.n:
            raise UsageError(f"topology {self.name!r} has {self.n} nodes, but {len(members)} names were given")
        return {
            "name": self.name,
            "members": list(members),
            "directed": self.directed,
            "weights": self.weights,
            "period": self.period,
            "spectral_gap": self.spectral_gap(),
            "rounds": [
                {"edges": [[members[a], members[b]] for a, b in self.edges(r)], "weights": self.matrix(r).tolist()}
                for r in range(self.period)
            ],
        }


def build(name: str, n: int, rounds: Sequence[Iterable[Edge]], *, directed: bool, weights: str | None) -> GraphTopology:
    """Make a topology of edges (sender, receiver), a list a round of the period; undirected edges
    may be given one way only.

    `weights` names a scheme of `weights.SCHEMES`; None: Metropolis-Hastings if undirected, else
    column-stochastic. Raises ConfigError on an unknown or unfit scheme and when the union of the
    rounds is not strongly connected."""
    links = [links_of(n, edges, directed) for edges in rounds]
    scheme = weights if weights is not None else ("column" if directed else "metropolis")
    make = choose("weights", scheme, mixing.SCHEMES)
    return build_weighted(name, [make(a) for a in links], directed=directed, weights=scheme)


def build_weighted(name: str, matrices: Sequence[Matrix], *, directed: bool, weights: str) -> GraphTopology:
    """Make a topology of mixing matrices. Raises ConfigError when the union of the rounds is not
    strongly connected."""
    check_connected(name, np.logical_or.reduce([w > 0 for w in matrices]), [str(i) for i in range(len(matrices[0]))])
    for w in matrices:
        w.flags.writeable = False
    table = tuple(tuple(_neighbours(w, i) for i in range(len(w))) for w in matrices)
    return GraphTopology(name, len(matrices[0]), directed, weights, tuple(matrices), table)


def check_connected(name: str, links: Links, members: Sequence[NodeId]) -> None:
    """Raises ConfigError that names a node which cannot be reached, and from where, unless the
    graph is strongly connected."""
    for graph, flip in ((links, False), (links.T, True)):  # all reachable from node 0, and node 0 from all
        missing = np.flatnonzero(~_reached(graph, 0))
        if missing.size:
            start, end = (missing[0], 0) if flip else (0, missing[0])
            raise ConfigError(
                f"topology {name!r} is not strongly connected: no path leads from node {members[start]!r} "
                f"to node {members[end]!r}; add edges until every node can reach every other one"
            )


def _reached(links: Links, start: int) -> Links:
    """bool[n]: nodes that messages from `start` can get to."""
    reached = np.zeros(len(links), np.bool_)
    reached[start] = True
    for _ in range(len(links)):
        reached = reached | links[:, reached].any(axis=1)
    return reached


def links_of(n: int, edges: Iterable[Edge], directed: bool) -> Links:
    """bool[n, n] of edges (sender, receiver); both ways unless directed."""
    links = np.zeros((n, n), np.bool_)
    for sender, receiver in edges:
        if sender != receiver:  # small rings and tori wrap onto themselves
            links[receiver, sender] = True
            if not directed:
                links[sender, receiver] = True
    return links


def _neighbours(w: Matrix, i: int) -> Neighbours:
    in_ = tuple(j for j in np.flatnonzero(w[i]).tolist() if j != i)
    out = tuple(j for j in np.flatnonzero(w[:, i]).tolist() if j != i)
    return Neighbours(in_, out, MappingProxyType({j: float(w[i, j]) for j in (i, *in_)}))
