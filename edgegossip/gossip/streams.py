"""Keeps streams: messages of which none may be missing, over an edge that may lose, repeat and
reorder them. Here is what either end keeps of one, and the messages that came before their round.

A stream belongs to an edge and a phase of the topology's period. Its messages are numbered from 1.
They count only within the *session* that the receiver opened last, and from the one process of the
sender (its *epoch*) that it began with. So neither a sender that restarted from an older checkpoint
nor a message of a process that is gone can be mistaken for the next one, and nobody needs a clock
or a counter that survives everything.

    receiver                           sender
    HELLO session  ----------------->                  opens the stream, by a number used once
                   <-----------------  message 1       both started alike (FRESH): that is all
                   <-----------------  message 2, ...
    HELLO session' ----------------->                  a gap, or a restart of the receiver
                   <-----------------  STATE           all that the stream has brought, in parts
                   <-----------------  message k, ...  goes on where the STATE ends
                   <-----------------  HELLO           no session: the sender restarted, open anew

A node's *incarnation* is the history that its push-sum totals belong to. It survives restarts from
a checkpoint and ends with the disk. Both ends of an edge start their totals at zero when the other
has begun a new one. A late HELLO of an old incarnation must not do that, so the sender asks back
first: HELLO with a CHALLENGE, which the next HELLO has to bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgegossip.codecs.keys import derive_key
from edgegossip.frame import Aux, Frame
from edgegossip.gossip.base import NodeView
from edgegossip.gossip.messages import MAX_ID
from edgegossip.types import Round, replace

# Of a receiver, that are remembered, so that a late HELLO of one of them is not believed.
RETIRED_INCARNATIONS = 4
# Full states that one receiver gets in one round; what it asks for beyond comes in the next.
STATES_A_ROUND = 3

_NO_PARTS: Mapping[int, Frame] = {}


@dataclass(frozen=True)
class OutEdge:
    """Keeps the sender's end of one stream; of an edge without streams only `position` and
    `answers` are used."""

    session: int = 0  # 0: not opened by the receiver yet, or broken by a restart of this node
    position: int = 0  # messages so far
    incarnations: tuple[int, ...] = ()  # the receiver's, the present one last
    process: int = 0  # the receiver's, that opened the session
    number: int = 0  # of the session, among those that this process has opened
    answers: int = 0  # full states sent in the present round; above STATES_A_ROUND: one more is owed

    def opened(self, session: int, incarnation: int, process: int, number: int) -> OutEdge:
        """Return the edge once the receiver has opened a session."""
        known = self.incarnations
        if known[-1:] != (incarnation,):
            known = (*known, incarnation)[-RETIRED_INCARNATIONS - 1 :]
        return OutEdge(session, self.position, known, process, number, self.answers)

    def closed(self) -> OutEdge:
        """Return the edge over which nothing more goes before the receiver has opened a new
        session."""
        return replace(self, session=0)

    def advanced(self, by: int = 1) -> OutEdge:
        """Return the edge so many messages further, whether they were sent or not."""
        return replace(self, position=self.position + by)

    def answered(self) -> OutEdge:
        """Return the edge after one more full state, or what stands for one, went out in this
        round."""
        return replace(self, answers=self.answers + 1)

    def deferred(self) -> OutEdge:
        """Return the edge whose receiver has opened a session that gets nothing before the next
        round."""
        return replace(self, answers=STATES_A_ROUND + 1)

    @property
    def owes(self) -> bool:
        """Whether the receiver waits for a full state, which the next round brings."""
        return self.session != 0 and self.answers > STATES_A_ROUND

    def is_retired(self, incarnation: int) -> bool:
        """Tell whether the receiver is known to have ended this incarnation."""
        return incarnation in self.incarnations[:-1]

    def is_unknown(self, incarnation: int) -> bool:
        """Tell whether the receiver is known by another incarnation than this."""
        return self.incarnations != () and self.incarnations[-1] != incarnation

    def is_late(self, process: int, number: int) -> bool:
        """Tell whether a HELLO is of an earlier session of the process that opened the present one.
        One of an earlier process cannot be recognised; it costs one full state more."""
        return process == self.process and number < self.number


@dataclass(frozen=True, eq=False)
class InEdge:
    """Keeps the receiver's end of one stream; of an edge without streams only `round` and `opening`
    are used."""

    session: int = 0  # established; 0: never
    position: int = 0  # messages taken in
    round: Round = -1  # of the last one
    epoch: int = 0  # of the sender's process in that session
    opening: int = 0  # session asked for and not established yet; 0: none
    number: int = 0  # of that session, among those that this process has opened
    asked: Round = -1  # the round in which it was asked for
    parts: Mapping[int, Frame] = field(default_factory=lambda: _NO_PARTS)  # of a full state that is not complete
    parts_of: tuple[int, int, int] = (0, 0, 0)  # its session, position and epoch

    @property
    def established(self) -> bool:
        """Whether a session is."""
        return self.session != 0

    def opening_session(self, session: int, number: int, round: Round) -> InEdge:
        """Return the edge on which a new session is asked for; what goes on in the old one counts
        until the new one is established."""
        return replace(self.without_parts(), opening=session, number=number, asked=round)

    def without_parts(self) -> InEdge:
        """Return the edge that awaits a full state from its first part on."""
        return replace(self, parts=_NO_PARTS, parts_of=(0, 0, 0))

    def started(self, session: int, epoch: int) -> InEdge:
        """Return the edge whose session begins with the sender's very first message: nothing was
        missed."""
        return InEdge(session, round=self.round, epoch=epoch)

    def restored(self, session: int, position: int, round: Round, epoch: int) -> InEdge:
        """Return the edge whose session begins with a full state, which holds all up to this
        position and round."""
        return InEdge(session, position, max(self.round, round), epoch)

    def advanced(self, round: Round) -> InEdge:
        """Return the edge after the next message was taken in."""
        return replace(self, position=self.position + 1, round=max(self.round, round))

    def received(self, round: Round) -> InEdge:
        """Return the edge after a message that stands for itself. Its sender is not far away, and
        need not answer any more."""
        return replace(self, round=round, opening=0)

    def stuck(self) -> InEdge:
        """Return the edge whose next message cannot be used, so the session cannot go on: no
        message is of process 0. What is held stays known."""
        return replace(self, epoch=0)

    def expects(self, frame: Frame) -> bool:
        """Tell whether a message is the next one of the session."""
        return frame.sequence == self.position + 1 and frame.aux[Aux.SESSION] == self.session

    def is_behind(self, session: int, position: int, epoch: float | None) -> bool:
        """Tell whether the parts that are here already are of a later full state than this."""
        return session == self.parts_of[0] and position < self.parts_of[1] and epoch == self.parts_of[2]


def session_id(view: NodeView, peer: int, phase: int, count: int) -> int:
    """Return a number, 1..2^48 - 1, that this process does not use twice and that no other process
    is likely to."""
    return derive_key(view.boot, view.index, peer, phase, count) % MAX_ID + 1


def challenge_of(view: NodeView, peer: int, phase: int, incarnation: int) -> int:
    """Return what a receiver of an incarnation that is not the one we know must bring back. Of a
    late HELLO nobody does: it would end the present incarnation for good."""
    return derive_key(view.boot, view.index, peer, phase, incarnation) % MAX_ID + 1


def incarnation_of(view: NodeView) -> int:
    """Return the incarnation, 1..2^48 - 1, of a node that begins with nothing."""
    return derive_key(view.boot, view.index) % MAX_ID + 1


# -- Messages that came before their round


@dataclass(frozen=True, slots=True)
class PendingMessages:
    """Keeps messages that came before their round, encoded: a bounded number of rounds a sender, so
    that one which sends without end takes no other's room. Where they lie is the shell's affair
    (mesh/shelf.py). Immutable; every change gives a new value that shares the frames.

    In a strongly connected static graph without deadlines nobody can run more than n - 1 rounds
    ahead of anybody: each round of theirs needs, over at most n - 1 hops, one of ours. A sender
    that is further ahead has gone on without us."""

    frames: Mapping[int, tuple[Frame, ...]] = field(default_factory=dict)  # by sender, by round

    def of(self, sender: int) -> tuple[Frame, ...]:
        """Return what is kept of a sender, by round."""
        return self.frames.get(sender, ())

    def newest(self, sender: int) -> Round:
        """Return the latest round that is kept of a sender; -1 without any."""
        kept = self.frames.get(sender)
        return kept[-1].round if kept else -1

    def put(self, sender: int, frame: Frame, max_frames: int) -> PendingMessages | None:
        """Return the messages with this frame; None if there is one of the same sender, round and
        session already. Of a sender's frames the newest stay, at most `max_frames`."""
        kept = self.frames.get(sender, ())
        session = frame.aux.get(Aux.SESSION)
        if any(f.round == frame.round and f.aux.get(Aux.SESSION) == session for f in kept):
            return None
        kept = tuple(sorted((*kept, frame), key=lambda f: f.round))[-max_frames:]
        return PendingMessages({**self.frames, sender: kept})

    def keep(self, sender: int, frames: tuple[Frame, ...]) -> PendingMessages:
        """Return the messages with these frames of a sender, and no others of it."""
        if len(frames) == len(self.of(sender)):
            return self
        rest = {j: kept for j, kept in self.frames.items() if j != sender}
        return PendingMessages({**rest, sender: frames} if frames else rest)

    def take(self, oldest: Round, round: Round) -> tuple[dict[int, Frame], PendingMessages]:
        """Return the newest frames of these rounds by sender (in order of their index), and the
        messages of later ones."""
        now = {j: f for j in sorted(self.frames) for f in self.frames[j] if oldest <= f.round <= round}
        later = {j: tuple(f for f in kept if f.round > round) for j, kept in self.frames.items()}
        return now, PendingMessages({j: kept for j, kept in later.items() if kept})
