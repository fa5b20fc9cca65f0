"""What is known of a run while it goes on: of a fleet from its records alone, and of a run folder
as `edgegossip top` sees it, in words and figures. Draws nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgegossip.agreement import unlike
from edgegossip.report.units import UNKNOWN, brief_text, bytes_text, number_text, seconds_text
from edgegossip.telemetry.clocks import AFTERWARDS, OF_THE_RUN, Clocks
from edgegossip.telemetry.evidence import held_sizes
from edgegossip.telemetry.records import (
    EVALUATED,
    PARTS,
    EventRecord,
    MetricsRecord,
    Record,
    in_order,
    score_text,
    scores_in,
)
from edgegossip.telemetry.run_folder import HOLDS, Follower, RunData, is_written, read_run
from edgegossip.telemetry.summary import COORDINATOR, head_of, members_of
from edgegossip.types import DataError, NodeId, Round
from edgegossip.untrusted import printable

_STATES = {
    "listening": "starting",
    "joined": "loading",
    "started": "training",
    "finished": "finished",
    "lost": "lost",
    "error": "failed",
    "restarted": "starting",
    "resumed": "starting",
}
# They change a board's line, or are for the verdict, and say nothing.
_QUIET = frozenset({*_STATES, "waiting", "trained", "compared", "averaged", "trained-alone"} - {"lost", "restarted"})
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
        "strained",
        "doubt",
        "unchanged",
        "drifted",
    }
)
# May come every round, or from every board: said at most every ROUTINE_S.
_ROUTINE = frozenset({"stragglers", "late", "doubt", "drifted", "ending"})
_ALIKE = frozenset({"refused"})  # may be of many boards: the same sentence is said at most as often
ROUTINE_S = 60.0
_SMOOTH = 0.2  # weight of the newest round in the means
_ENDED = ("finished", "lost", "failed")
_GAUGES = ("sys/temperature_c", "sys/cpu_percent", "sys/rss_bytes", "sys/throttled", "sys/power_w")
_GONE, _HERE = ("peer-down", "peer-left", "member-dead", "member-left"), ("peer-up", "member-here")


@dataclass(slots=True)
class BoardLine:
    """Holds one line of the display."""

    name: NodeId
    rounds: Round = 0  # done
    loss: float | None = None  # of the training in the last round
    score: float | None = None  # of the last evaluation, see Fleet.score
    scores: dict[str, float | None] = field(default_factory=dict)
    frames_bytes: float = 0.0  # payload and what carried it
    sockets_bytes: float | None = None  # None: the system does not tell
    parts_s: dict[str, float] = field(default_factory=dict)  # means over the last rounds, newest first in weight
    gauges: dict[str, float] = field(default_factory=dict)  # last values of _GAUGES
    doing: str = "starting"
    state: str = "starting"
    waits: bool = False
    waits_since_s: float = 0.0  # when it said so

    @property
    def sent_bytes(self) -> float:
        """What its sockets have sent so far, or its frames where that is not known."""
        return self.frames_bytes if self.sockets_bytes is None else self.sockets_bytes

    @property
    def round_s(self) -> float | None:
        """Seconds that a round takes; None before the first."""
        return sum(self.parts_s.values()) if self.parts_s else None

    def measure(self, record: MetricsRecord) -> None:
        """Take in what a round took, and what sensors said in it."""
        for part in PARTS:
            if (seconds := record.number(f"time/{part}_s")) is not None:
                before = self.parts_s.get(part, seconds)
                self.parts_s[part] = before + _SMOOTH * (seconds - before)
        for name in _GAUGES:
            if isinstance(value := record.values.get(name), int | float):
                self.gauges[name] = float(value)


@dataclass(frozen=True, slots=True)
class Sentence:
    """Holds a sentence for people."""

    text: str
    alarm: bool


class FleetLines:
    """Keeps the boards' lines, and what of the events is worth a sentence. A node that is no member
    gets a line but does not count for the fleet's progress."""

    def __init__(self, members: Sequence[NodeId], rounds: Round) -> None:
        self.members, self.rounds = tuple(members), rounds
        self.clocks = Clocks()
        self.boards = {name: BoardLine(name) for name in members}
        self.score = ""  # the name of what evaluations go by; "" before the first, or with the loss alone
        self._last_s: dict[NodeId, float] = {}  # of what a node said itself
        self._run_s = 0.0  # of what was said of it
        self._scores: list[str] = []
        self._known_down: set[str] = set()
        self._sizes: dict[NodeId, Mapping[str, float]] = {}  # of inputs, until they have been compared
        # By the event's name, or its text: when it was said, and how many were not since.
        self._routine: dict[str, tuple[float, int]] = {}

    @property
    def t_s(self) -> float:
        """Seconds since the first board began."""
        run_s = self.clocks.of(COORDINATOR, self._run_s)
        return max((run_s, *(self.clocks.of(node, t_s) for node, t_s in self._last_s.items())))

    @property
    def lost(self) -> tuple[NodeId, ...]:
        """Names of the boards that were lost or failed."""
        return tuple(b.name for b in self.boards.values() if b.state in ("lost", "failed"))

    @property
    def round(self) -> Round:
        """Rounds done by the slowest board still at work; by the last one where all were lost."""
        rounds = [b.rounds for b in self._active()]
        return min(rounds) if rounds else max((self.boards[name].rounds for name in self.members), default=0)

    @property
    def sent_bytes(self) -> float:
        """What all boards have sent so far. What a coordinator sends is what they receive."""
        return sum(b.sent_bytes for b in self.boards.values() if b.name in self.members)

    def mean(self, what: str) -> float | None:
        """Return the mean of "loss" or "score" over the boards at work that have one; where none
        has, the coordinator's. Its score counts before the boards', as in a summary."""
        others = [b for name, b in self.boards.items() if name not in self.members]
        groups = (others, self._active()) if what == "score" else (self._active(), others)
        values = next(filter(None, ([v for b in g if (v := getattr(b, what)) is not None] for g in groups)), [])
        return sum(values) / len(values) if values else None

    def update(self, record: MetricsRecord) -> None:
        """Take in what a board measured in one round."""
        board = self._board(record.node)
        self._last_s[record.node] = max(self._last_s.get(record.node, 0.0), record.t_s)
        board.rounds = max(board.rounds, record.step + 1)
        board.loss = record.number("train/loss") if "train/loss" in record.values else board.loss
        if scores := scores_in(record.values):
            board.scores |= {name: record.number(f"{EVALUATED}{name}") for name in scores}
            self._scores = in_order(self._scores, scores)
            self.score = self._scores[0]
            for one in self.boards.values():
                one.score = one.scores.get(self.score)
        board.frames_bytes += sum(record.number(f"net/{part}_bytes") or 0.0 for part in ("payload", "overhead"))
        if "net/sent_bytes" in record.values:
            board.sockets_bytes = (board.sockets_bytes or 0.0) + (record.number("net/sent_bytes") or 0.0)
        board.measure(record)
        said_later = board.waits and record.t_s < board.waits_since_s  # a reader of a folder sees events first
        if board.state in ("starting", "loading", "training") and not said_later:
            board.state = board.doing = "training"
            board.waits = False

    def resume(self, before: RunData) -> None:
        """Take in what earlier processes wrote of the run; now all of its boards start again."""
        for event in before.events():
            self.event(event)
        for record in before.metrics():
            self.update(record)
        for board in self.boards.values():
            board.state = board.doing = "starting"
            board.waits = False
        self._known_down.clear()
        self._routine.clear()

    def event(self, record: EventRecord) -> Sentence | None:
        """Take in an event; returns what should be said of it, or None."""
        board = self._board(record.node)
        self.clocks.take(record)
        if record.name not in OF_THE_RUN:
            self._last_s[record.node] = max(self._last_s.get(record.node, 0.0), record.t_s)
        elif record.name not in AFTERWARDS:
            self._run_s = max(self._run_s, record.t_s)
        if record.name in _STATES:
            board.state = board.doing = _STATES[record.name]
            board.waits = False
            if board.state in ("lost", "failed"):
                board.doing += f" at {seconds_text(self.clocks.at(record))}"
        elif record.name == "waiting":
            board.doing, board.waits, board.waits_since_s = record.text, True, record.t_s
        self._goes_on(record)
        if record.name == HOLDS:
            self._sizes[record.node] = held_sizes(record)
        if record.name in _QUIET or self._told(record):
            return self._other_units() if record.name == "started" else None
        own = record.text.startswith(record.node) or record.name == "lost"
        text = record.text if own else f"{record.node}: {record.text}"
        if record.name in _ROUTINE:
            return self._seldom(record, text, record.name)
        if record.name in _ALIKE:
            return self._seldom(record, text, text)
        return Sentence(text, record.name in ALARMS)

    def _other_units(self) -> Sentence | None:
        """Whose inputs are of another size than the others', once all boards at work have told."""
        if not self._sizes.keys() >= {board.name for board in self._active()}:
            return None
        apart, self._sizes = unlike(self._sizes), {}
        return Sentence(apart, True) if apart else None

    def _goes_on(self, record: EventRecord) -> None:
        """A coordinator that goes on with a run tells the round that comes next: its boards have
        done those before."""
        round = record.fields.get("round")
        if record.name in ("listening", "started") and record.node not in self.members and isinstance(round, int):
            for name in self.members:
                self.boards[name].rounds = max(self.boards[name].rounds, round)

    def _seldom(self, record: EventRecord, text: str, key: str) -> Sentence | None:
        """What a run may say in every round, or of every board. It is all in the record."""
        said_s, more = self._routine.get(key, (-ROUTINE_S, 0))
        if record.t_s - said_s < ROUTINE_S:
            self._routine[key] = said_s, more + 1
            return None
        self._routine[key] = record.t_s, 0
        return Sentence(f"{text} (and {more} like it since the last one)" if more else text, record.name in ALARMS)

    def _told(self, record: EventRecord) -> bool:
        """Several neighbours notice that a board is gone, and so do the members; one sentence is
        enough. One that has done all rounds is not missed. In how many rounds a model was unchanged
        is for the verdict."""
        if record.name == "unchanged" and "rounds" in record.fields:
            return True
        if record.name == "lost":
            self._known_down.add(record.node)
            return False
        peer = record.fields.get("peer")
        if not isinstance(peer, str):
            return False
        if record.name in ("notice", *_GONE) and peer in self.lost:  # nobody can reach that one any more
            return True
        if record.name not in (*_GONE, *_HERE):
            return False
        gone = record.name in _GONE
        told = (peer in self._known_down) == gone
        (self._known_down.add if gone else self._known_down.discard)(peer)
        board = self.boards.get(peer)
        done = board is not None and (board.state == "finished" or board.rounds >= self.rounds > 0)
        return done or (told and record.name != "member-here")  # who comes says where it is

    def slowest(self) -> NodeId | None:
        """Return the board that the others wait for: it hardly ever waits itself, and they do. None
        when there is none such."""
        boards = [b for b in map(self._board, self.members) if b.round_s and b.state not in _ENDED]
        shares = [(board.parts_s.get("wait", 0.0) / (board.round_s or 1.0), board.name) for board in boards]
        if len(shares) < 3:
            return None
        (least, name), *rest = sorted(shares)
        others = sum(share for share, _ in rest) / len(rest)
        return name if others > 0.1 and least < 0.35 * others else None

    def _board(self, name: NodeId) -> BoardLine:
        return self.boards.setdefault(name, BoardLine(name))

    def _active(self) -> list[BoardLine]:
        """Members that are not lost."""
        return [b for name in self.members if (b := self.boards[name]).state not in ("lost", "failed")]


class Watcher:
    """Follows one folder. `read` takes in what is new and gives what should be said of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begin()

    def _begin(self) -> None:
        data = read_run(self.folder)
        self._follower = Follower(self.folder)
        self.head: dict[str, Any] = head_of(data)
        self.members = tuple(members_of(data))
        self.fleet = FleetLines(self.members, self.head["rounds_asked"] or 0)

    def read(self) -> list[tuple[float, Sentence]]:
        """Take in what is new, and return what should be said of it, in its order. Raises OSError,
        and DataError when the folder is none any more."""
        if self._follower.shrunk():
            self._begin()
        taken = [*self._taken(self._follower.new())]  # all of them, before it is known when they were
        return sorted(((self.fleet.clocks.at(record), one) for record, one in taken), key=lambda timed: timed[0])

    def _taken(self, records: Iterator[Record]) -> Iterator[tuple[EventRecord, Sentence]]:
        for record in records:
            if not self.members and record.node not in self.fleet.members and record.node != COORDINATOR:
                self.fleet.members = (*self.fleet.members, record.node)  # nothing tells who takes part: whoever does
            if isinstance(record, EventRecord):
                notice = self.fleet.event(record)
                if notice is not None:
                    yield record, notice
            else:
                self.fleet.update(record)

    @property
    def over(self) -> bool:
        """Whether every board has finished or was lost."""
        boards = [self.fleet.boards[name] for name in self.fleet.members if name in self.fleet.boards]
        return bool(boards) and all(board.state in _ENDED for board in boards)

    def abandoned(self, quiet_s: float, now_s: float | None = None) -> bool:
        """Tell whether nobody writes there any more although the run is not over, as after kill -9:
        no process of this machine has the folder open, and nothing new has come for so long (it may
        be copied here from elsewhere). `now_s`: by time.time."""
        if self.over or is_written(self.folder):
            return False
        files = [self.folder / name for name in ("metrics.jsonl", "events.jsonl", "run.json", "recipe.toml")]
        newest_s = max((path.stat().st_mtime for path in files if path.exists()), default=0.0)
        return (time.time() if now_s is None else now_s) - newest_s >= quiet_s


def newest_run(runs: Path) -> Path:
    """Return the run folder in `runs` that was written to last. Raises DataError when there is
    none."""
    folders = [path.parent for path in runs.glob("*/metrics.jsonl") if path.is_file()]
    if not folders:
        raise DataError(f"there is no run folder in {runs}; name one: edgegossip top RUN")
    return max(folders, key=lambda folder: (folder / "metrics.jsonl").stat().st_mtime)


def title(watcher: Watcher) -> str:
    """Return the line above the table: run, round, time, bytes."""
    fleet = watcher.fleet
    asked = f"/{fleet.rounds}" if fleet.rounds else ""
    parts = [printable(str(watcher.head["run"])), f"round {fleet.round}{asked}", f"{seconds_text(fleet.t_s)} wall"]
    return " | ".join([*parts, f"sent {bytes_text(fleet.sent_bytes)}", *(["over"] if watcher.over else [])])


# Of the table; SCORE stands for whatever score the run goes by. `cells` gives their texts.
SCORE = "score"
COLUMNS = ("board", "round", "train loss", SCORE, "a round", *PARTS[:5], "sent", "CPU", "memory", "temp")


def heads(fleet: FleetLines) -> dict[str, str]:
    """Return what stands over each column of COLUMNS; one without a score is left out."""
    score = printable(fleet.score, 32)
    return {name: score if name == SCORE else name for name in COLUMNS if name != SCORE or score}


def cells(board: BoardLine, score: str) -> dict[str, str]:
    """Give the texts of COLUMNS; `score` is the name of what the run goes by."""
    gauge = board.gauges.get
    hot, load = gauge("sys/temperature_c"), gauge("sys/cpu_percent")
    texts = (
        printable(board.name, 64),
        str(board.rounds),
        number_text(board.loss, 4),
        score_text(score, board.score),
        brief_text(board.round_s),
        *(brief_text(board.parts_s.get(part)) for part in PARTS[:5]),
        bytes_text(board.sent_bytes),
        UNKNOWN if load is None else f"{load:.0f} %",
        bytes_text(gauge("sys/rss_bytes")),
        UNKNOWN if hot is None else f"{hot:.0f} °C" + ("!" if gauge("sys/throttled") else ""),
    )
    return dict(zip(COLUMNS, texts, strict=True))


def doing(board: BoardLine, fleet: FleetLines) -> str:
    """Return what the board is at, and who waits for whom."""
    if not board.waits and board.name == fleet.slowest():
        return "the others wait for it"
    return "" if board.doing == "training" else printable(board.doing, 200)
