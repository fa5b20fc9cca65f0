"""The display while a run goes on, and `edgegossip top`: bars and a line a board on a terminal, a
few lines that change in place below a notebook's cell, plain lines anywhere else.

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

from edgegossip.report.progress import COLUMNS, FleetLines, Sentence, Watcher, cells, doing, heads, notice_text, title
from edgegossip.report.table import aligned
from edgegossip.report.units import bytes_text, number_text, seconds_text
from edgegossip.telemetry.records import EventRecord, MetricsRecord, Record, score_text
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


class Live:
    """Shows a run of `rounds` rounds by `members` on `stream` (standard error by default).
    `before`: what earlier processes wrote of it, which is not said again. Thread-safe. With
    `enabled=False` it shows nothing, at no cost."""

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
        stream = sys.stderr if stream is None else stream
        self._fleet = FleetLines(members, rounds)
        self._lock = threading.Lock()
        self._screen: Screen | None = None
        if enabled:
            if before is not None:
                self._fleet.resume(before)
            if (show := notebook_output()) is not None:
                self._screen = NotebookScreen(show, clock)
            else:
                self._screen = _rich_screen(stream) if can_draw(stream, environ) else PlainScreen(stream, clock)

    def update(self, record: MetricsRecord) -> None:
        """Take in a board's measurements of one round."""
        with self._lock:
            self._fleet.update(record)
            if self._screen is not None:
                self._screen.refresh(self._fleet)

    def event(self, record: EventRecord) -> None:
        """Take in something that happened; it is shown as a sentence that stays when people should
        know it."""
        with self._lock:
            notice = self._fleet.event(record)
            if self._screen is None:
                return
            if notice is not None:
                self._screen.say(self._fleet, self._fleet.clocks.at(record), printable(notice.text), notice.alarm)
            self._screen.refresh(self._fleet)

    def close(self) -> None:
        """Leave the terminal as it was, with the last state on it. Idempotent."""
        with self._lock:
            screen, self._screen = self._screen, None
            if screen is not None:
                screen.close(self._fleet)


class LiveSink(RecordSink):
    """Is the live display as a sink, for a Tee."""

    what = "the display"

    def __init__(self, live: Live) -> None:
        super().__init__()
        self._live = live

    @override
    def write(self, record: Record) -> None:
        if isinstance(record, MetricsRecord):
            self._live.update(record)
        else:
            self._live.event(record)

    @override
    def close(self) -> None:
        self._live.close()


class PlainScreen(Screen):
    """Prints one line of text at a time, without control characters."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._clock = stream, clock
        self._next_s = clock() + PLAIN_EVERY_S
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
        self._next_s = self._clock() + PLAIN_EVERY_S
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


def _rich_screen(stream: TextIO) -> Screen:
    from edgegossip.report.live_rich import RichScreen

    return RichScreen(stream)


class TopScreen(Protocol):
    """Draws for `top`."""

    def show(self, watcher: Watcher, said: list[tuple[float, Sentence]]) -> None:
        """Draw what is known now, and the sentences that came since the last call."""

    def close(self, watcher: Watcher) -> None:
        """Leave the last state behind."""


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
    watcher.read()
    if once:
        stream.write(plain_table(watcher) + "\n")
        return
    screen = _rich_top(stream) if can_draw(stream, environ) else PlainTop(stream)
    try:
        screen.show(watcher, list(watcher.notices))
        while not watcher.over:
            sleep(interval_s)
            screen.show(watcher, watcher.read())
            if watcher.abandoned(QUIET_S):
                break
    finally:
        screen.close(watcher)
    if not watcher.over:
        text = (
            f"nobody writes {folder} any more: the run was stopped; `edgegossip run --resume {folder}` goes on with it"
        )
        stream.write(f"{text}\n")


class PlainTop(TopScreen):
    """Prints a line when something changed, a sentence for what people should know. The table at
    the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._shown = stream, ""

    @override
    def show(self, watcher: Watcher, said: list[tuple[float, Sentence]]) -> None:
        lines = [notice_text(t_s, notice) for t_s, notice in said]
        line = progress_line(watcher.fleet)
        if line != self._shown:
            lines.append(line)
            self._shown = line
        self._write(lines)

    @override
    def close(self, watcher: Watcher) -> None:
        self._write([plain_table(watcher)])

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self._stream.write(line + "\n")
        self._stream.flush()


def plain_table(watcher: Watcher) -> str:
    """Return the boards as they are now, without control characters."""
    shown = heads(watcher)
    rows, ends = [list(shown.values())], ["", ""]
    for board in watcher.fleet.boards.values():
        texts = dict(zip(COLUMNS, cells(board, watcher.now.get(board.name), watcher.fleet.score), strict=True))
        rows.append([texts[name] for name in shown])
        ends.append(doing(board, watcher))
    lines = (f"{line}  {end}".rstrip() for line, end in zip(aligned(rows), ends, strict=True))
    return "\n".join([title(watcher), "", *lines])


def _rich_top(stream: TextIO) -> TopScreen:
    from edgegossip.report.live_rich import RichTop

    return RichTop(stream)
