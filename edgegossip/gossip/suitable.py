"""Which topologies an algorithm works on. Each raises ConfigError that says what to use instead."""

from __future__ import annotations

from edgegossip.gossip.base import NodeView
from edgegossip.gossip.weights import is_column_stochastic, is_doubly_stochastic, is_symmetric
from edgegossip.types import ConfigError

_DOUBLY = "ring, torus, complete, star, random-regular, directed-ring, exponential, one-peer-exponential"
_SYMMETRIC = "ring, torus, complete, star, random-regular"


def doubly_stochastic(name: str, view: NodeView) -> None:
    """Rows and columns of W sum to 1 in every round."""
    topology = view.topology
    for r in range(topology.period):
        if not is_doubly_stochastic(topology.matrix(r)):
            raise ConfigError(
                f"{name} needs weights whose rows and columns sum to 1, and those of topology {topology.name!r} "
                f"do not in round {r}; use an undirected one with metropolis weights or one of: {_DOUBLY}"
            )


def symmetric(name: str, view: NodeView) -> None:
    """One undirected graph with symmetric, doubly stochastic W."""
    topology = view.topology
    if topology.period != 1:
        raise ConfigError(f"{name} needs the same neighbours in every round, and topology {topology.name!r} changes")
    w = topology.matrix(0)
    if not (is_doubly_stochastic(w) and is_symmetric(w)):
        raise ConfigError(
            f"{name} needs symmetric weights whose rows sum to 1, and those of topology {topology.name!r} are not; "
            f"use metropolis weights and one of: {_SYMMETRIC}; for directed graphs sparse-push or quant-sgp"
        )


def column_stochastic(name: str, view: NodeView) -> None:
    """Columns of W sum to 1 in every round: what a node hands over and keeps is what it has."""
    topology = view.topology
    for r in range(topology.period):
        if not is_column_stochastic(topology.matrix(r)):
            raise ConfigError(
                f"{name} needs weights whose columns sum to 1, and those of topology {topology.name!r} do not in round "
                f"{r}; use weights = 'column'"
            )


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
