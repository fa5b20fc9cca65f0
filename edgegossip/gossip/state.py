"""What a synchronous algorithm keeps between two inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edgegossip.frame import Frame
from edgegossip.gossip.base import Action, NodeView
from edgegossip.gossip.changed import changed
from edgegossip.gossip.here import Here
from edgegossip.gossip.inbox import Inbox
from edgegossip.gossip.scheme import Published
from edgegossip.gossip.streams import InEdge, OutEdge
from edgegossip.quick import quick
from edgegossip.types import Round

Key: TypeAlias = tuple[int, int]  # (member index, phase); the phase is 0 where there are no streams


@quick
@dataclass(frozen=True, eq=False)
class Stepped:
    """This node's own part of a round, from `step` until the round is done."""

    frame: Frame  # what out-neighbours get, without a number
    published: Published
    sent: frozenset[int] = frozenset()


@quick
@dataclass(frozen=True, eq=False)
class State:
    """Immutable; arrays and mappings in it are never written to once they are there."""

    view: NodeView
    index: int
    round: Round
    here: Here  # the three above, and what follows from them
    math: Any  # the scheme's state
    life: int  # which history the totals belong to
    epoch: int  # of this process
    out: Mapping[Key, OutEdge] = field(default_factory=dict)
    in_: Mapping[Key, InEdge] = field(default_factory=dict)
    inbox: Inbox = field(default_factory=Inbox)
    stepped: Stepped | None = None
    refused: frozenset[int] = frozenset()  # senders whose message of this round could not be used
    lingering: bool = False  # the quorum is there
    sessions: int = 0  # that this process has opened
    claims: Mapping[int, Round] = field(default_factory=dict)  # who says that we are far behind, and their round
    late: int = 0  # messages of a round that was over, dropped
    duplicates: int = 0  # second messages of one sender and round, dropped

    def out_edge(self, key: Key) -> OutEdge:
        return self.out.get(key, NO_OUT_EDGE)

    def in_edge(self, key: Key) -> InEdge:
        return self.in_.get(key, NO_IN_EDGE)

    def with_out(self, key: Key, edge: OutEdge, **changes: Any) -> State:
        return changed(self, out={**self.out, key: edge}, **changes)

    def with_in(self, key: Key, edge: InEdge, **changes: Any) -> State:
        return changed(self, in_={**self.in_, key: edge}, **changes)


NO_OUT_EDGE, NO_IN_EDGE = OutEdge(), InEdge()  # before anything went over an edge
Outcome: TypeAlias = tuple[State, list[Action]]
