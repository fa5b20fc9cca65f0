"""A run folder as `edgegossip top` sees it: what is known of each board now, from the records as
they come, and in what words. Draws nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgegossip.report.follow import Follower
from edgegossip.report.progress import Board, Fleet, Notice
from edgegossip.report.units import UNKNOWN, brief_text, bytes_text, number_text, printable, seconds_text
from edgegossip.telemetry.lines import EventRecord, MetricsRecord, Record
from edgegossip.telemetry.records import PARTS
from edgegossip.telemetry.run_folder import is_written, read_run
from edgegossip.telemetry.summary import COORDINATOR, head_of, members_of
from edgegossip.types import DataError, NodeId

# Of the table; SCORE stands for whatever score the run goes by. `cells` gives their texts.
SCORE = "score"
COLUMNS = ("board", "round", "loss", SCORE, "a round", *PARTS[:5], "sent", "CPU", "memory", "temp")
NOTICES = 6  # the last ones are shown
_SMOOTH = 0.2  # weight of the newest round in the means
_ENDED = ("finished", "lost", "failed")
_GAUGES = ("sys/temperature_c", "sys/cpu_percent", "sys/rss_bytes", "sys/throttled", "sys/power_w")


@dataclass(slots=True)
class Now:
    """One board's last rounds."""

    parts_s: dict[str, float] = field(default_factory=dict)  # means over the last rounds, newest first in weight
    gauges: dict[str, float] = field(default_factory=dict)  # last values of _GAUGES

    def take(self, record: MetricsRecord) -> None:
        for part in PARTS:
            seconds = record.number(f"time/{part}_s")
            if seconds is not None:
                before = self.parts_s.get(part, seconds)
                self.parts_s[part] = before + _SMOOTH * (seconds - before)
        for name in _GAUGES:
            value = record.values.get(name)
            if isinstance(value, (int, float)):
                self.gauges[name] = float(value)

    @property
    def round_s(self) -> float | None:
        return sum(self.parts_s.values()) if self.parts_s else None


class Watcher:
    """Follows one folder. `read` takes in what is new and gives what should be said of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begin()

    def _begin(self) -> None:
        data = read_run(self.folder)
        self._follower = Follower(self.folder)
        self.notices: deque[tuple[float, Notice]] = deque(maxlen=NOTICES)
        self.now: dict[NodeId, Now] = {}
        self.head: dict[str, Any] = head_of(data)
        self.members = tuple(members_of(data))
        self.fleet = Fleet(self.members, self.head["rounds_asked"] or 0)

    def read(self) -> list[tuple[float, Notice]]:
        """Raises OSError, and DataError when the folder is none any more."""
        if self._follower.shrunk():
            self._begin()
        said = list(self._taken(self._follower.new()))
        self.notices.extend(said)
        return said

    def _taken(self, records: Iterator[Record]) -> Iterator[tuple[float, Notice]]:
        for record in records:
            if not self.members and record.node not in self.fleet.members and record.node != COORDINATOR:
                self.fleet.members = (*self.fleet.members, record.node)  # nothing tells who takes part: whoever does
            if isinstance(record, EventRecord):
                notice = self.fleet.event(record)
                if notice is not None:
                    yield record.t_s, notice
            else:
                self.fleet.update(record)
                self.now.setdefault(record.node, Now()).take(record)

    @property
    def over(self) -> bool:
        """Whether every board has finished or was lost."""
        boards = [self.fleet.boards[name] for name in self.fleet.members if name in self.fleet.boards]
        return bool(boards) and all(board.state in _ENDED for board in boards)

    def abandoned(self, quiet_s: float, now_s: float | None = None) -> bool:
        """Whether nobody writes there any more although the run is not over, as after kill -9: no
        process of this machine has the folder open, and nothing new has come for so long (it may be
        copied here from elsewhere). `now_s`: by time.time."""
        if self.over or is_written(self.folder):
            return False
        files = [self.folder / name for name in ("metrics.jsonl", "events.jsonl", "run.json", "recipe.toml")]
        newest_s = max((path.stat().st_mtime for path in files if path.exists()), default=0.0)
        return (time.time() if now_s is None else now_s) - newest_s >= quiet_s

    def slowest(self) -> NodeId | None:
        """The board that the others wait for: it hardly ever waits itself, and they do. None when
        there is none such."""
        shares = []
        for name in self.fleet.members:
            now = self.now.get(name)
            if now is not None and now.round_s and self.fleet.boards[name].state not in _ENDED:
                shares.append((now.parts_s.get("wait", 0.0) / now.round_s, name))
        if len(shares) < 3:
            return None
        (least, name), *rest = sorted(shares)
        others = sum(share for share, _ in rest) / len(rest)
        return name if others > 0.1 and least < 0.35 * others else None


def newest_run(runs: Path, exists: Callable[[Path], bool] = Path.is_file) -> Path:
    """The run folder in `runs` that was written to last. Raises DataError when there is none."""
    folders = [path.parent for path in runs.glob("*/metrics.jsonl") if exists(path)]
    if not folders:
        raise DataError(f"there is no run folder in {runs}; name one: edgegossip top RUN")
    return max(folders, key=lambda folder: (folder / "metrics.jsonl").stat().st_mtime)


def title(watcher: Watcher) -> str:
    fleet = watcher.fleet
    asked = f"/{fleet.rounds}" if fleet.rounds else ""
    parts = [printable(str(watcher.head["run"])), f"round {fleet.round}{asked}", seconds_text(fleet.t_s)]
    return " | ".join([*parts, f"sent {bytes_text(fleet.sent_bytes)}", *(["over"] if watcher.over else [])])


def heads(watcher: Watcher) -> dict[str, str]:
    """What stands over each column of COLUMNS; one without a score is left out."""
    score = printable(watcher.fleet.score, 32)
    return {name: score if name == SCORE else name for name in COLUMNS if name != SCORE or score}


def cells(board: Board, now: Now | None) -> tuple[str, ...]:
    """Give the texts of COLUMNS."""
    now = now or Now()
    gauge = now.gauges.get
    hot = gauge("sys/temperature_c")
    warm = UNKNOWN if hot is None else f"{hot:.0f} °C" + ("!" if gauge("sys/throttled") else "")
    load = gauge("sys/cpu_percent")
    return (
        printable(board.name),
        str(board.rounds),
        number_text(board.loss, 4),
        number_text(board.score, 4),
        brief_text(now.round_s),
        *(brief_text(now.parts_s.get(part)) for part in PARTS[:5]),
        bytes_text(board.sent_bytes),
        UNKNOWN if load is None else f"{load:.0f} %",
        bytes_text(gauge("sys/rss_bytes")),
        warm,
    )


def doing(board: Board, watcher: Watcher) -> str:
    """What the board is at, and who waits for whom."""
    if board.waits:
        return printable(board.doing, 200)
    if board.name == watcher.slowest():
        return "the others wait for it"
    return "" if board.doing == "training" else printable(board.doing, 200)


def notice_text(t_s: float, notice: Notice) -> str:
    return f"{seconds_text(t_s)}  {'!! ' if notice.alarm else ''}{printable(notice.text)}"
