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
    cure = f"use an undirected one with metropolis weights or one of: {_those_with(is_doubly_stochastic, view)}"
    _in_every_round(name, view.topology, is_doubly_stochastic, "rows and columns", cure)


def require_symmetric(name: str, view: NodeView) -> None:
    """Raise ConfigError unless it is one undirected graph with symmetric, doubly stochastic W."""
    topology = view.topology
    if topology.period != 1:
        raise ConfigError(f"{name} needs the same neighbours in every round, and topology {topology.name!r} changes")
    if _first_without(topology, _doubly_and_symmetric) is not None:  # type: ignore[arg-type]
        raise ConfigError(
            f"{name} needs symmetric weights whose rows sum to 1, and those of topology {topology.name!r} are not; use "
            f"metropolis weights and one of: {_those_with(_doubly_and_symmetric, view)}; for directed graphs sparse-push or "
            "quant-sgp"
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
            f"use one of: {_those_with(_goes_both_ways, view)}"
        )


def require_complete(name: str, view: NodeView) -> None:
    """Raise ConfigError unless everybody hears everybody in every round."""
    topology = view.topology
    if _first_without(topology, _goes_everywhere) is not None:  # type: ignore[arg-type]
        raise ConfigError(
            f"{name} needs topology = 'complete': with {topology.name!r} somebody would not hear of a gradient"
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


def _those_with(holds: Callable[[Matrix], bool], view: NodeView) -> str:
    """Return the names of topologies whose weights for so many nodes are so in every round."""
    n = view.topology.n
    rules = [name for name in topologies.names() if name != "file"]
    return ", ".join(name for name in rules if _first_without(topologies.get(name, n), holds) is None)


def _doubly_and_symmetric(w: Matrix) -> bool:
    return is_doubly_stochastic(w) and is_symmetric(w)


def _goes_both_ways(w: Matrix) -> bool:
    return bool(np.array_equal(w != 0, w.T != 0))


def _goes_everywhere(w: Matrix) -> bool:
    return bool(((w != 0) | np.eye(len(w), dtype=np.bool_)).all())
