"""The display while a run goes on, and `edgegossip top`: a table that changes in place on a
terminal, a few lines that do below a notebook's cell, plain lines anywhere else.

Plain lines (no terminal, NO_COLOR, TERM=dumb, or no rich) come at most every two seconds, and at
once for what a person should know: a lost board, a peer out of reach, who waits for whom. On a
terminal these stay above the live part.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TextIO

from typing_extensions import override

from edgegossip.report.progress import FleetLines, Sentence, Watcher, cells, doing, heads, title
from edgegossip.report.table import aligned
from edgegossip.report.units import bytes_text, number_text, seconds_text
from edgegossip.telemetry.records import MetricsRecord, Record, score_text
from edgegossip.telemetry.run_folder import RunData
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.types import NodeId, Round
from edgegossip.untrusted import printable

PLAIN_EVERY_S = 2.0
NOTEBOOK_EVERY_S = 1.0
NOTEBOOK_LINES = 12  # the newest sentences, which stay until others come
QUIET_S = 10.0  # nothing new for so long, and nobody there to write it: the run was stopped


class Screen(Protocol):
    """Draws. It is called with the fleet's state, one call at a time."""

    def refresh(self, fleet: FleetLines) -> None:
        """Take notice that something changed."""

    def say(self, fleet: FleetLines, t_s: float, text: str, alarm: bool) -> None:
        """Show a sentence that stays; `alarm` when something was lost."""

    def close(self, fleet: FleetLines) -> None:
        """Leave the fleet's last state behind."""


class Live(RecordSink):
    """Shows a run of `rounds` rounds by `members` on `stream` (standard error by default).
    `before`: what earlier processes wrote of it, which is not said again. Thread-safe. With
    `enabled=False` it shows nothing, at no cost."""

    what = "the display"

    def __init__(
        self,
        members: Sequence[NodeId],
        rounds: Round,
        *,
        stream: TextIO | None = None,
        enabled: bool = True,
        before: RunData | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._fleet = FleetLines(members, rounds)
        self._lock = threading.Lock()
        self._screen: Screen | None = None
        if enabled:
            if before is not None:
                self._fleet.resume(before)
            show = notebook_output()
            stream = sys.stderr if stream is None else stream
            self._screen = _screen(stream, environ, clock) if show is None else NotebookScreen(show, clock)

    @override
    def write(self, record: Record) -> None:
        """Take in a round's measurements, or something that happened: a sentence that stays when
        people should know it."""
        with self._lock:
            notice = None
            if isinstance(record, MetricsRecord):
                self._fleet.update(record)
            else:
                notice = self._fleet.event(record)
            if self._screen is not None:
                if notice is not None:
                    _say(self._screen, self._fleet, self._fleet.clocks.at(record), notice)
                self._screen.refresh(self._fleet)

    @override
    def close(self) -> None:
        """Leave the terminal as it was, with the last state on it. Idempotent."""
        with self._lock:
            screen, self._screen = self._screen, None
            if screen is not None:
                screen.close(self._fleet)


def _say(screen: Screen, fleet: FleetLines, t_s: float, notice: Sentence) -> None:
    screen.say(fleet, t_s, printable(notice.text), notice.alarm)


def _screen(
    stream: TextIO, environ: Mapping[str, str], clock: Callable[[], float], every_s: float = PLAIN_EVERY_S
) -> Screen:
    if not can_draw(stream, environ):
        return PlainScreen(stream, clock, every_s)
    from edgegossip.report.live_rich import RichScreen

    return RichScreen(stream)


class PlainScreen(Screen):
    """Prints one line of text at a time, without control characters."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], every_s: float) -> None:
        self._stream, self._clock, self._every_s = stream, clock, every_s
        self._next_s = clock() + every_s
        self._shown = ""

    @override
    def refresh(self, fleet: FleetLines) -> None:
        if self._clock() >= self._next_s:
            self._progress(fleet)

    @override
    def say(self, fleet: FleetLines, t_s: float, text: str, alarm: bool) -> None:
        self._print(f"{seconds_text(t_s)}  {'!! ' if alarm else ''}{text}")

    @override
    def close(self, fleet: FleetLines) -> None:
        self._progress(fleet)

    def _progress(self, fleet: FleetLines) -> None:
        self._next_s = self._clock() + self._every_s
        line = progress_line(fleet)
        if line != self._shown:
            self._print(line)
            self._shown = line

    def _print(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # whoever read the display has gone; the run is not the display's to end


class NotebookScreen(Screen):
    """Replaces the text below the cell: the newest sentences, and the fleet in a line."""

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._show, self._clock = show, clock
        self._next_s = clock()
        self._said: deque[str] = deque(maxlen=NOTEBOOK_LINES)

    @override
    def refresh(self, fleet: FleetLines) -> None:
        if self._clock() >= self._next_s:
            self.close(fleet)

    @override
    def say(self, fleet: FleetLines, t_s: float, text: str, alarm: bool) -> None:
        self._said.append(f"{seconds_text(t_s)}  {'!! ' if alarm else ''}{text}")
        self.refresh(fleet)

    @override
    def close(self, fleet: FleetLines) -> None:
        self._next_s = self._clock() + NOTEBOOK_EVERY_S
        self._show("\n".join([*self._said, progress_line(fleet)]))


def notebook_output() -> Callable[[str], None] | None:
    """Return a function that replaces the text below the notebook's cell that runs now, from any
    thread; None where there is no notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):  # IPython in a terminal has none
        return None
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)


def line_output() -> Callable[[str], None]:
    """Return a function that shows a line of progress: on standard error, or in a notebook in place
    of those before the last few."""
    show = notebook_output()
    if show is None:
        return lambda line: print(line, file=sys.stderr, flush=True)
    lines: deque[str] = deque(maxlen=NOTEBOOK_LINES)

    def say(line: str) -> None:
        lines.append(line)
        show("\n".join(lines))

    return say


def progress_line(fleet: FleetLines) -> str:
    """Return the whole fleet in one line: time, round of the slowest board, means over the boards
    at work, who waits."""
    parts = [f"{seconds_text(fleet.t_s)} wall", f"round {fleet.round}/{fleet.rounds}"]
    parts.append(f"training loss {number_text(fleet.mean('loss'), 4)}")
    if fleet.score:
        parts.append(f"test {printable(fleet.score, 32)} {score_text(fleet.score, fleet.mean('score'))}")
    parts.append(f"sent {bytes_text(fleet.sent_bytes)}")
    if fleet.lost:
        parts.append(f"lost {', '.join(map(printable, fleet.lost))}")
    waiting = [f"{printable(b.name)}: {printable(b.doing, 120)}" for b in fleet.boards.values() if b.waits]
    return "  ".join(parts + waiting[:3])


def can_draw(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Tell whether rich can draw there."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb" or find_spec("rich") is None:
        return False
    return bool(getattr(stream, "isatty", lambda: False)())


def follow(
    folder: Path,
    *,
    once: bool = False,
    interval_s: float = 1.0,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the run until it is over or was stopped; `once`: as it is now. Raises DataError when
    `folder` is no run folder."""
    stream = sys.stdout if stream is None else stream
    watcher = Watcher(folder)
    said = watcher.read()
    if once:
        stream.write(plain_table(watcher) + "\n")
        return
    screen = _screen(stream, environ, time.monotonic, every_s=0.0)
    for t_s, notice in said:
        _say(screen, watcher.fleet, t_s, notice)
    try:
        screen.refresh(watcher.fleet)
        while not watcher.over and not watcher.abandoned(QUIET_S):
            sleep(interval_s)
            for t_s, notice in watcher.read():
                _say(screen, watcher.fleet, t_s, notice)
            screen.refresh(watcher.fleet)
    finally:
        screen.close(watcher.fleet)
    if not can_draw(stream, environ):
        stream.write(plain_table(watcher) + "\n")
    if not watcher.over:
        text = (
            f"nobody writes {folder} any more: the run was stopped; `edgegossip run --resume {folder}` goes on with it"
        )
        stream.write(f"{text}\n")


def plain_table(watcher: Watcher) -> str:
    """Return the boards as they are now, without control characters."""
    shown, fleet = heads(watcher.fleet), watcher.fleet
    rows = [list(shown.values()), *([cells(b, fleet.score)[name] for name in shown] for b in fleet.boards.values())]
    ends = ["", "", *(doing(board, fleet) for board in fleet.boards.values())]
    lines = (f"{line}  {end}".rstrip() for line, end in zip(aligned(rows), ends, strict=True))
    return "\n".join([title(watcher), "", *lines])
