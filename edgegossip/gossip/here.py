"""Where a scheme stands: its node, its round, and who is around it."""

from __future__ import annotations

from dataclasses import dataclass

from edgegossip.codecs.base import Ctx
from edgegossip.gossip import edges
from edgegossip.gossip.base import Neighbours, NodeView
from edgegossip.quick import quick
from edgegossip.types import LocalUpdate, NodeId, Round


@quick
@dataclass(frozen=True)
class Here:
    """One node in one round. Made with `at`, once a round: it is asked several times a message."""

    view: NodeView
    index: int
    round: Round
    phase: int  # the round within the topology's period; streams of different phases are kept apart
    around: Neighbours
    waited: tuple[int, ...]  # in-neighbours that are up

    @classmethod
    def at(cls, view: NodeView, index: int, round: Round) -> Here:
        around = view.topology.neighbours(index, round)
        return cls(view, index, round, round % view.topology.period, around, edges.up(view, around.in_))

    @property
    def key(self) -> int:
        """Codec key of this node's message of this round."""
        return edges.key_of(self.view, self.index, self.round)

    def ctx(self, local: LocalUpdate) -> Ctx:
        return Ctx(self.key, self.round, local.loss, local.lr)

    def name(self, j: int) -> NodeId:
        return self.view.members[j]
