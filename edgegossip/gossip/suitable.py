"""Which topologies an algorithm works on. Each raises ConfigError that says what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from edgegossip.gossip.base import NodeView, Topology
from edgegossip.gossip.weights import Matrix, is_column_stochastic, is_doubly_stochastic, is_symmetric
from edgegossip.types import ConfigError

_DOUBLY = "ring, torus, complete, star, random-regular, directed-ring, exponential, one-peer-exponential"
_SYMMETRIC = "ring, torus, complete, star, random-regular"


def doubly_stochastic(name: str, view: NodeView) -> None:
    """Rows and columns of W sum to 1 in every round."""
    cure = f"use an undirected one with metropolis weights or one of: {_DOUBLY}"
    _in_every_round(name, view.topology, is_doubly_stochastic, "rows and columns", cure)


def symmetric(name: str, view: NodeView) -> None:
    """One undirected graph with symmetric, doubly stochastic W."""
    topology = view.topology
    if topology.period != 1:
        raise ConfigError(f"{name} needs the same neighbours in every round, and topology {topology.name!r} changes")
    if _first_without(topology, _doubly_and_symmetric) is not None:  # type: ignore[arg-type]
        raise ConfigError(
            f"{name} needs symmetric weights whose rows sum to 1, and those of topology {topology.name!r} are not; "
            f"use metropolis weights and one of: {_SYMMETRIC}; for directed graphs sparse-push or quant-sgp"
        )


def column_stochastic(name: str, view: NodeView) -> None:
    """Columns of W sum to 1 in every round: what a node hands over and keeps is what it has."""
    _in_every_round(name, view.topology, is_column_stochastic, "columns", "use weights = 'column'")


def _in_every_round(name: str, topology: Topology, holds: Callable[[Matrix], bool], what: str, cure: str) -> None:
    r = _first_without(topology, holds)  # type: ignore[arg-type]
    if r is not None:
        raise ConfigError(
            f"{name} needs weights whose {what} sum to 1, and those of topology {topology.name!r} do not in round {r}; {cure}"
        )


@lru_cache(maxsize=256)
def _first_without(topology: Any, holds: Callable[[Matrix], bool]) -> int | None:
    """The first round whose weights are not so; asked again whenever a simulated board starts."""
    return next((r for r in range(topology.period) if not holds(topology.matrix(r))), None)


def _doubly_and_symmetric(w: Matrix) -> bool:
    return is_doubly_stochastic(w) and is_symmetric(w)


def complete(name: str, view: NodeView) -> None:
    """Everybody hears everybody in every round."""
    topology = view.topology
    everybody = all(
        len(topology.neighbours(i, r).in_) == topology.n - 1 for r in range(topology.period) for i in range(topology.n)
    )
    if not everybody:
        raise ConfigError(
            f"{name} needs topology = 'complete': with {topology.name!r} somebody would not hear of a gradient"
        )
