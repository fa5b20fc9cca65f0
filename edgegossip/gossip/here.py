"""Where a scheme stands: its node, its round, and who is around it."""

from __future__ import annotations

from dataclasses import dataclass

from edgegossip.codecs.base import Ctx
from edgegossip.gossip import edges
from edgegossip.gossip.base import Neighbours, NodeView
from edgegossip.types import LocalUpdate, NodeId, Round


@dataclass(frozen=True, slots=True)
class Here:
    """One node in one round."""

    view: NodeView
    index: int
    round: Round

    @property
    def phase(self) -> int:
        """The round within the topology's period; streams of different phases are kept apart."""
        return self.round % self.view.topology.period

    @property
    def around(self) -> Neighbours:
        return self.view.topology.neighbours(self.index, self.round)

    @property
    def key(self) -> int:
        """Codec key of this node's message of this round."""
        return edges.key_of(self.view, self.index, self.round)

    def ctx(self, local: LocalUpdate) -> Ctx:
        return Ctx(self.key, self.round, local.loss, local.lr)

    def name(self, j: int) -> NodeId:
        return self.view.members[j]

    def out_phases(self, k: int) -> tuple[int, ...]:
        """Phases in which this node sends to k."""
        topology = self.view.topology
        return tuple(r for r in range(topology.period) if k in topology.neighbours(self.index, r).out)

    def in_phases(self, j: int) -> tuple[int, ...]:
        """Phases in which j sends to this node."""
        topology = self.view.topology
        return tuple(r for r in range(topology.period) if j in topology.neighbours(self.index, r).in_)
