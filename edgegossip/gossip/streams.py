"""The two ends of a stream: messages of which none may be missing, over an edge that may lose, repeat and reorder them.

A stream belongs to an edge and a phase of the topology. Its messages are numbered from 1. They count only within the
*session* that the receiver opened last (HELLO with a number that it never used before), and from the one process of the
sender (*epoch*) that it began with: so neither a sender that restarted from an older checkpoint nor a message of a process
that is gone can be mistaken for the next one, and nobody needs a clock or a counter that survives everything. On a gap the
receiver opens a new session and gets the full state.

A node's *life* is the history that its push-sum totals belong to. It survives restarts from a checkpoint and ends with the
disk. Both ends of an edge start their totals at zero when the other has begun a new life; the sender asks back first, as
greetings may be late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgegossip.codecs.floats import Fp32
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.base import NodeView
from edgegossip.gossip.changed import changed
from edgegossip.gossip.keys import derive_key
from edgegossip.quick import quick
from edgegossip.types import PeerError, Round, Vec

MAX_ID = 2**48 - 1
RETIRED_LIVES = 4  # of a receiver that are remembered, so that a late HELLO of one of them is not believed
ANSWERS_A_ROUND = 3  # full states that one receiver gets in one round; what it asks for beyond comes in the next

FP32 = Fp32()
_NOTHING: Mapping[int, Vec] = {}


@dataclass(frozen=True)
class OutEdge:
    """What a sender keeps of one stream."""

    session: int = 0  # 0: not opened by the receiver yet, or broken by a restart of this node
    position: int = 0  # messages so far
    lives: tuple[int, ...] = ()  # the receiver's, the present one last
    process: int = 0  # the receiver's, that opened the session
    number: int = 0  # of the session, among those that this process has opened
    answers: int = 0  # full states sent in the present round; above ANSWERS_A_ROUND: one more is owed

    def opened(self, session: int, life: int, process: int, number: int) -> OutEdge:
        lives = self.lives if self.lives[-1:] == (life,) else (*self.lives, life)[-RETIRED_LIVES - 1 :]
        return changed(self, session=session, lives=lives, process=process, number=number)

    def owing(self) -> OutEdge:
        """The receiver has opened a session that gets nothing before the next round."""
        return changed(self, answers=ANSWERS_A_ROUND + 1)

    @property
    def owes(self) -> bool:
        return self.session != 0 and self.answers > ANSWERS_A_ROUND

    def is_retired(self, life: int) -> bool:
        return life in self.lives[:-1]

    def is_late(self, process: int, number: int) -> bool:
        """Whether a greeting is of an earlier session of the process that opened the present one. One of an earlier process
        cannot be told; it costs one full state more."""
        return process == self.process and number < self.number


@quick
@dataclass(frozen=True, eq=False)
class InEdge:
    """What a receiver keeps of one stream; of an edge without streams only `round` is used."""

    session: int = 0  # established; 0: never
    position: int = 0  # messages taken in
    round: Round = -1  # of the last one
    epoch: int = 0  # of the sender's process in that session
    opening: int = 0  # session asked for and not established yet; 0: none
    number: int = 0  # of that session, among those that this process has opened
    asked: Round = -1  # when
    parts: Mapping[int, Vec] = field(default_factory=lambda: _NOTHING)  # of a full state that is not complete
    parts_of: tuple[int, int, int] = (0, 0, 0)  # its session, position and epoch

    @property
    def established(self) -> bool:
        return self.session != 0

    def took(self, round: Round) -> InEdge:
        return changed(self, position=self.position + 1, round=max(self.round, round))

    def settled(self, session: int, position: int, round: Round, epoch: int) -> InEdge:
        return InEdge(session, position, max(self.round, round), epoch)


def session_id(view: NodeView, peer: int, phase: int, count: int) -> int:
    """A number, 1..2^48 - 1, that this process does not use twice and that no other process is likely to."""
    return derive_key(view.boot, view.index, peer, phase, count) % MAX_ID + 1


def challenge_of(view: NodeView, peer: int, phase: int, life: int) -> int:
    """What a receiver of a life that is not the one we know must bring back. Of a late greeting nobody does: it would end the
    present life for good."""
    return derive_key(view.boot, view.index, peer, phase, life) % MAX_ID + 1


def life_of(view: NodeView) -> int:
    """The life, 1..2^48 - 1, of a node that begins with nothing."""
    return derive_key(view.boot, view.index) % MAX_ID + 1


def number_of(frame: Frame, tag: Aux, low: int, high: int, default: int | None = None) -> int:
    """A whole number beside the body. Raises PeerError when it is missing (without default), or out of range."""
    value = frame.aux.get(tag, default)
    if value is None or not low <= value <= high or value != int(value):
        raise PeerError(f"a {frame.kind.name.lower()} message with {tag.name} = {value}; {low} to {high} is expected")
    return int(value)


def control(
    view: NodeView, kind: Kind, round: Round, sequence: int, aux: Mapping[int, float], vec: Vec | None
) -> Frame:
    """A HELLO (vec None) or one part of a STATE, whose body is fp32 whatever the run's codec is."""
    body = b"" if vec is None else vec.astype("<f4", copy=False).tobytes()
    return Frame(
        kind=kind,
        codec_id=FP32.wire_id,
        codec_params=FP32.wire_params(),
        layout_hash=view.layout.hash,
        run_id=view.run_id,
        round=round,
        sequence=sequence,
        key=0,
        body=body,
        aux=aux,
    )


def vector_of(view: NodeView, frame: Frame) -> Vec:
    """float32[n] of one part of a STATE. Raises DecodeError."""
    if frame.codec_id != FP32.wire_id or frame.codec_params != FP32.wire_params():
        raise PeerError("a state message that is not fp32")
    return FP32.decode(frame.body, view.layout)
