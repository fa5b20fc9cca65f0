"""Refuses the topologies that an algorithm does not work on. Each function raises ConfigError that
says what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from edgegossip.gossip import topologies
from edgegossip.gossip.base import NodeView, Topology
from edgegossip.gossip.weights import Matrix, is_column_stochastic, is_doubly_stochastic, is_symmetric
from edgegossip.types import ConfigError


def require_doubly_stochastic(name: str, view: NodeView) -> None:
    """Raise ConfigError unless rows and columns of W sum to 1 in every round."""
    cure = (
        f"use an undirected one with metropolis weights or one of: {_those_with(is_doubly_stochastic, view.topology.n)}"
    )
    _in_every_round(name, view.topology, is_doubly_stochastic, "rows and columns", cure)


def require_symmetric(
    name: str, view: NodeView, directed: str = "for directed graphs sparse-push or quant-sgp"
) -> None:
    """Raise ConfigError unless it is one undirected graph with symmetric, doubly stochastic W.
    `directed` says what to do who needs another graph."""
    topology = view.topology
    if topology.period != 1:
        raise ConfigError(f"{name} needs the same neighbours in every round, and topology {topology.name!r} changes")
    if _first_without(topology, _doubly_and_symmetric) is not None:  # type: ignore[arg-type]
        raise ConfigError(
            f"{name} needs symmetric weights whose rows sum to 1, and those of topology {topology.name!r} are not; use "
            f"metropolis weights and one of: {_those_with(_doubly_and_symmetric, view.topology.n)}; {directed}"
        )


def require_column_stochastic(name: str, view: NodeView) -> None:
    """Raise ConfigError unless the columns of W sum to 1 in every round: what a node hands over and
    keeps is what it has."""
    _in_every_round(name, view.topology, is_column_stochastic, "columns", "use weights = 'column'")


def require_undirected(name: str, view: NodeView) -> None:
    """Raise ConfigError unless every edge goes both ways in every round."""
    topology = view.topology
    if _first_without(topology, _goes_both_ways) is not None:  # type: ignore[arg-type]
        raise ConfigError(
            f"{name} averages in pairs and needs an undirected graph, which topology {topology.name!r} is not; "
            f"use one of: {_those_with(_goes_both_ways, view.topology.n)}"
        )


def require_complete(name: str, view: NodeView) -> None:
    """Raise ConfigError unless everybody hears everybody in every round, over the same edges: each
    phase of a period has sessions of its own, and a full state of one would count again what a
    message of another brings."""
    topology = view.topology
    if topology.period > 1 or _first_without(topology, _goes_everywhere) is not None:  # type: ignore[arg-type]
        raise ConfigError(
            f"{name} needs topology = 'complete': with {topology.name!r} somebody would not hear of a gradient"
        )


def require_honest_majority(name: str, view: NodeView, malicious: int) -> None:
    """Raise ConfigError unless, whoever the `malicious` ones are, every board has more honest
    neighbours than others, and the honest ones are still joined.

    Weights must be symmetric (He, Karimireddy, Jaggi 2022, assumption 1): else what a board adds
    would not be what another takes off."""
    directed = "no algorithm for directed graphs bears malicious nodes"
    require_symmetric(f"{name} with gossip.malicious_nodes", view, directed)
    topology, needs = view.topology, 2 * malicious + 1
    fewest = _fewest_neighbours(topology)  # type: ignore[arg-type]
    if fewest < needs:
        why = f"a board has {fewest} neighbour{'s' * (fewest != 1)}, of whom {malicious} may lie, and needs {needs}"
    elif not _stays_joined(topology, malicious):  # type: ignore[arg-type]
        why = "without these its other boards can be parted"
    else:
        return
    who = f"{malicious} malicious node{'s' * (malicious != 1)}"
    cure = "use topology = 'complete'"
    if topology.n <= needs:
        cure = f"a run needs {needs + 1} boards for so many, and topology = 'complete'"
    raise ConfigError(
        f"{name} cannot bear {who} on topology {topology.name!r}: {why}; {cure}, or fewer gossip.malicious_nodes"
    )


def _in_every_round(name: str, topology: Topology, holds: Callable[[Matrix], bool], what: str, cure: str) -> None:
    r = _first_without(topology, holds)  # type: ignore[arg-type]
    if r is not None:
        raise ConfigError(
            f"{name} needs weights whose {what} sum to 1, and those of topology {topology.name!r} do not in round {r}; {cure}"
        )


@lru_cache(maxsize=256)
def _first_without(topology: Any, holds: Callable[[Matrix], bool]) -> int | None:
    """Return the first round whose weights are not so; asked again whenever a simulated board
    starts."""
    return next((r for r in range(topology.period) if not holds(topology.matrix(r))), None)


@lru_cache(maxsize=256)
def _those_with(holds: Callable[[Matrix], bool], n: int) -> str:
    """Return the names of topologies whose weights for n nodes are so in every round."""
    rules = [name for name in topologies.names() if name != "file"]
    return ", ".join(name for name in rules if _first_without(topologies.get(name, n), holds) is None)


def _doubly_and_symmetric(w: Matrix) -> bool:
    return is_doubly_stochastic(w) and is_symmetric(w)


def _goes_both_ways(w: Matrix) -> bool:
    return bool(np.array_equal(w != 0, w.T != 0))


def _goes_everywhere(w: Matrix) -> bool:
    return bool(((w != 0) | np.eye(len(w), dtype=np.bool_)).all())


@lru_cache(maxsize=64)
def _fewest_neighbours(topology: Any) -> int:
    links = topology.matrix(0) != 0
    np.fill_diagonal(links, False)
    return int(links.sum(axis=1).min())


@lru_cache(maxsize=64)
def _stays_joined(topology: Any, without: int) -> bool:
    """Tell whether an undirected graph stays connected whichever `without` of its nodes are taken
    out: whether any two nodes that are not neighbours have more paths without a common node
    between them than that (Menger 1927). As in Even's algorithm (1975), one of the two need only
    be among the first `without` + 1 nodes."""
    links = topology.matrix(0) != 0
    n = len(links)
    pairs = ((s, t) for s in range(min(without + 1, n)) for t in range(n) if t != s and not links[s, t])
    return all(_disjoint_paths(links, s, t, without + 1) > without for s, t in pairs)


def _disjoint_paths(links: Matrix, source: int, target: int, most: int) -> int:
    """Return how many paths from source to target, up to `most`, have no other node in common: a
    flow of 1 through each node, split into where it comes in, (v, 0), and out, (v, 1)."""
    free = {((u, 1), (v, 0)) for u, v in np.argwhere(links).tolist() if u != v}
    free |= {((v, 0), (v, 1)) for v in range(len(links))}
    after: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for a, b in free:
        after.setdefault(a, set()).add(b)
        after.setdefault(b, set()).add(a)
    for found in range(most):
        came, queue = {(source, 1): (source, 1)}, [(source, 1)]
        for a in queue:
            for b in after[a]:
                if b not in came and (a, b) in free:
                    came[b] = a
                    queue.append(b)
        if (target, 0) not in came:
            return found
        b = (target, 0)
        while b != (source, 1):
            a = came[b]
            free.remove((a, b))
            free.add((b, a))
            b = a
    return most
