"""A topology as a document, for topology.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgegossip.types import NodeId

if TYPE_CHECKING:
    from edgegossip.gossip.base import Topology


def topology_document(topology: Topology, members: Sequence[NodeId]) -> dict[str, Any]:
    """{name, nodes, period, spectral_gap, rounds}: `rounds[t % period]` lists the edges [from, to, weight] of round
    t, where weight is the one that `to` gives to what `from` sends; [i, i, weight] is a node's own share."""
    rounds = []
    for round_ in range(topology.period):
        edges: list[list[Any]] = []
        for i, node in enumerate(members):
            weights = topology.neighbours(i, round_).weights
            edges += [[members[j], node, float(weights[j])] for j in sorted(weights)]
        rounds.append(edges)
    return {
        "name": topology.name,
        "nodes": list(members),
        "period": topology.period,
        "spectral_gap": float(topology.spectral_gap()),
        "rounds": rounds,
    }
