"""Holds what a node that goes by rounds has at any time, for `rounds.py` and `sessions.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edgegossip.frame import Frame
from edgegossip.gossip.base import Action, NodeView
from edgegossip.gossip.messages import MAX_ID
from edgegossip.gossip.scheme import Published, RoundContext
from edgegossip.gossip.streams import InEdge, OutEdge, PendingMessages
from edgegossip.types import Round, replace

Key: TypeAlias = tuple[int, int]  # an edge: (member index, phase); phase 0 where nothing is streamed

NO_OUT_EDGE, NO_IN_EDGE = OutEdge(), InEdge()  # before anything went over an edge


@dataclass(frozen=True, eq=False)
class Stepped:
    """Holds this node's own part of a round, from `step` until the round is done."""

    frame: Frame  # what out-neighbours get, without a number
    published: Published
    waits_s: float | None = None  # where that is not the deadline, for there is nobody to rely on
    sent: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Reliance:
    """Says how far a neighbour can be relied on to send. One that lets deadlines pass has to send
    messages of further rounds, in time or late, before it may cost another; each time twice as
    many. One that fell behind in these rounds, and comes nearer in a deadline, gets the next one,
    too, or it would never be level again; as many in a row as it has let pass before. So what it
    costs grows with log2(R)^2 over R rounds, whatever it does, and one that is only slow is waited
    for."""

    FREE = 2  # deadlines

    missed: int = 0  # deadlines that this node waited for in vain
    sent: int = 0  # messages of further rounds since then
    newest: Round = -1  # that it has sent a message of
    began: Round = -1  # `newest` when the present round began to wait
    nearer: int = 0  # deadlines in a row, since then, in which it came nearer
    behind: int = MAX_ID  # rounds that it was behind after the last of these

    @property
    def holds(self) -> bool:
        """Whether a round waits for it."""
        return self.missed < self.FREE or self.sent >= 1 << (self.missed - self.FREE)

    def catches_up(self, round: Round) -> bool:
        """Return whether it came nearer in the deadline of this round, and may go on to."""
        nearer = 0 < round - self.newest < self.behind and self.newest > self.began
        return nearer and self.nearer < self.missed >= self.FREE

    def cost(self, round: Round) -> Reliance:
        """Return what is left after the deadline of this round."""
        if not self.catches_up(round):
            return self.miss()
        return replace(self, nearer=self.nearer + 1, behind=round - self.newest)

    def miss(self) -> Reliance:
        """Return what is left after a deadline in which it did not catch up."""
        return replace(self, missed=self.missed + 1, sent=0, nearer=0, behind=MAX_ID)


@dataclass(frozen=True, slots=True)
class Reach:
    """Says how far a neighbour can have come on its own word: PACE rounds for each that this node
    played since it heard of it. What it says in one round of ours counts once, however often."""

    PACE = 4

    base: tuple[Round, Round] = (-1, -1)  # its round when we had played so many, before the present one
    newest: Round = -1  # what it said since then, as far as it can be
    played: Round = -1  # rounds that we had played when it last said something

    def most(self, played: Round) -> Round:
        """Return the latest round in which it can be once we have played so many."""
        theirs, ours = (self.newest, self.played) if played > self.played else self.base
        return theirs + self.PACE * (played - ours)

    def heard(self, round: Round, played: Round) -> Reach:
        """Return what is known once it said to be in this round."""
        base = (self.newest, self.played) if played > self.played else self.base
        return Reach(base, max(self.newest, min(round, self.most(played))), played)


@dataclass(frozen=True, eq=False)
class State:
    """Holds one node's state. Immutable; arrays and mappings in it are never written to once they
    are there."""

    view: NodeView
    index: int
    round: Round
    ctx: RoundContext  # the three above, and what follows from them
    math: Any  # the scheme's state
    incarnation: int  # which history the totals belong to
    epoch: int  # of this process
    out: Mapping[Key, OutEdge] = field(default_factory=dict)
    in_: Mapping[Key, InEdge] = field(default_factory=dict)
    inbox: PendingMessages = field(default_factory=PendingMessages)
    stepped: Stepped | None = None
    refused: frozenset[int] = frozenset()  # senders whose message of this round could not be used
    lingering: bool = False  # the quorum is there
    bare: bool = False  # came again with nothing, and nobody's model was taken over yet
    sessions: int = 0  # that this process has opened
    # Who says that we are far behind: their round, and their model where neighbours may lie.
    claims: Mapping[int, tuple[Round, Any]] = field(default_factory=dict)
    reach: Mapping[int, Reach] = field(default_factory=dict)  # of in-neighbours, in rounds not far from ours
    left_out: int = 0  # rounds that were not played
    reliance: Mapping[int, Reliance] = field(default_factory=dict)  # on who has let a deadline pass
    late: int = 0  # messages of a round that was over, dropped
    duplicates: int = 0  # second messages of one sender and round, dropped

    def out_edge(self, key: Key) -> OutEdge:
        """Return the sender's end of an edge."""
        return self.out.get(key, NO_OUT_EDGE)

    def in_edge(self, key: Key) -> InEdge:
        """Return the receiver's end of an edge."""
        return self.in_.get(key, NO_IN_EDGE)

    def with_out(self, key: Key, edge: OutEdge, **changes: Any) -> State:
        """Return the state with this sender's end, and other changes."""
        return replace(self, out={**self.out, key: edge}, **changes)

    def with_in(self, key: Key, edge: InEdge, **changes: Any) -> State:
        """Return the state with this receiver's end, and other changes."""
        return replace(self, in_={**self.in_, key: edge}, **changes)


Outcome: TypeAlias = tuple[State, list[Action]]
