"""What is known of a fleet while it trains, from the records alone. Draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgegossip.telemetry.lines import EventRecord, MetricsRecord
from edgegossip.telemetry.records import EVALUATED, PARTS, scores_in
from edgegossip.types import NodeId, Round

_STATES = {
    "listening": "starting",
    "joined": "loading",
    "started": "training",
    "finished": "finished",
    "lost": "lost",
    "error": "failed",
    "restarted": "starting",
}
# They change a board's line, or are for the verdict, and say nothing.
_QUIET = frozenset({*_STATES, "waiting", "compared", "averaged"} - {"lost", "restarted"})
ALARMS = frozenset(
    {
        "lost",
        "restarted",
        "peer-down",
        "member-dead",
        "refused",
        "quarantine",
        "not-evaluated",
        "silent",
        "checkpoint-failed",
        "checkpoint-skipped",
        "records-lost",
    }
)
_ROUTINE = frozenset({"stragglers", "late"})  # may come every round: said at most every ROUTINE_S
ROUTINE_S = 60.0
_GONE, _HERE = ("peer-down", "peer-left", "member-dead", "member-left"), ("peer-up", "member-here")


@dataclass(slots=True)
class Board:
    """One line of the display."""

    name: NodeId
    rounds: Round = 0  # done
    loss: float | None = None  # of the last round's training
    score: float | None = None  # of the last evaluation, see Fleet.score
    sent_bytes: float = 0.0
    round_s: float | None = None
    busiest: str = ""  # the part that took most of the last round
    doing: str = "starting"
    state: str = "starting"
    waits: bool = False
    waits_since_s: float = 0.0  # when it said so


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for people."""

    text: str
    alarm: bool


class Fleet:
    """The boards' lines, and what of the events is worth a sentence. A node that is no member gets
    a line but does not count for the fleet's progress."""

    def __init__(self, members: Sequence[NodeId], rounds: Round) -> None:
        self.members, self.rounds, self.t_s = tuple(members), rounds, 0.0
        self.boards = {name: Board(name) for name in members}
        self.score = ""  # the name of what evaluations go by; "" before the first, or with the loss alone
        self._known_down: set[str] = set()
        self._routine: dict[
            str, tuple[float, int]
        ] = {}  # by the event's name: when it was said, and how many were not since

    @property
    def lost(self) -> tuple[NodeId, ...]:
        return tuple(b.name for b in self.boards.values() if b.state in ("lost", "failed"))

    @property
    def round(self) -> Round:
        """Rounds done by the slowest board still at work."""
        return min((b.rounds for b in self._active()), default=0)

    @property
    def sent_bytes(self) -> float:
        return sum(b.sent_bytes for b in self.boards.values())

    def mean(self, what: str) -> float | None:
        """Mean of "loss" or "score" over the boards at work that have one; where none has, the
        coordinator's."""
        others = [b for name, b in self.boards.items() if name not in self.members]
        known = [[v for b in group if (v := getattr(b, what)) is not None] for group in (self._active(), others)]
        values = known[0] or known[1]
        return sum(values) / len(values) if values else None

    def update(self, record: MetricsRecord) -> None:
        board = self._board(record.node)
        self.t_s = max(self.t_s, record.t_s)
        board.rounds = max(board.rounds, record.step + 1)
        board.loss = record.number("train/loss") if "train/loss" in record.values else board.loss
        if scores := scores_in(record.values):
            self.score = scores[0]
            board.score = record.number(f"{EVALUATED}{self.score}")
        elif "eval/loss" in record.values:
            self.score = ""
        board.sent_bytes += record.number("net/sent_bytes") or 0.0
        board.round_s = record.number("time/round_s")
        board.busiest = max(PARTS, key=lambda part: record.number(f"time/{part}_s") or 0.0)
        said_later = board.waits and record.t_s < board.waits_since_s  # a reader of a folder sees events first
        if board.state in ("starting", "loading", "training") and not said_later:
            board.state = board.doing = "training"
            board.waits = False

    def event(self, record: EventRecord) -> Notice | None:
        """Take in an event; returns what should be said of it, or None."""
        board = self._board(record.node)
        self.t_s = max(self.t_s, record.t_s)
        if record.name in _STATES:
            board.state = board.doing = _STATES[record.name]
            board.waits = False
        elif record.name == "waiting":
            board.doing, board.waits, board.waits_since_s = record.text, True, record.t_s
        self._goes_on(record)
        if record.name in _QUIET or self._told(record):
            return None
        own = record.text.startswith(record.node) or record.name == "lost"
        text = record.text if own else f"{record.node}: {record.text}"
        if record.name in _ROUTINE:
            return self._seldom(record, text)
        return Notice(text, record.name in ALARMS)

    def _goes_on(self, record: EventRecord) -> None:
        """A coordinator that goes on with a run tells the round that comes next: its boards have
        done those before."""
        round = record.fields.get("round")
        if record.name in ("listening", "started") and record.node not in self.members and isinstance(round, int):
            for name in self.members:
                self.boards[name].rounds = max(self.boards[name].rounds, round)

    def _seldom(self, record: EventRecord, text: str) -> Notice | None:
        """What a run may say in every round. It is all in the record."""
        said_s, more = self._routine.get(record.name, (-ROUTINE_S, 0))
        if record.t_s - said_s < ROUTINE_S:
            self._routine[record.name] = said_s, more + 1
            return None
        self._routine[record.name] = record.t_s, 0
        return Notice(f"{text} (and {more} like it since the last one)" if more else text, record.name in ALARMS)

    def _told(self, record: EventRecord) -> bool:
        """Several neighbours notice that a board is gone, and so do the members; one sentence is
        enough. One that finished is not missed."""
        if record.name == "lost":
            self._known_down.add(record.node)
            return False
        peer = record.fields.get("peer")
        if record.name not in (*_GONE, *_HERE) or not isinstance(peer, str):
            return False
        gone = record.name in _GONE
        told = (peer in self._known_down) == gone
        (self._known_down.add if gone else self._known_down.discard)(peer)
        finished = peer in self.boards and self.boards[peer].state == "finished"
        return finished or (told and record.name != "member-here")  # who comes says where it is

    def _board(self, name: NodeId) -> Board:
        return self.boards.setdefault(name, Board(name))

    def _active(self) -> list[Board]:
        """Members that are not lost."""
        return [b for name in self.members if (b := self.boards[name]).state not in ("lost", "failed")]
