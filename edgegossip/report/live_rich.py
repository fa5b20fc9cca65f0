"""The live display and `edgegossip top` on a terminal, with rich. Imported only when it draws."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from edgegossip.report.progress import (
    COLUMNS,
    SCORE,
    BoardLine,
    BoardStats,
    FleetLines,
    Sentence,
    Watcher,
    cells,
    doing,
    heads,
    notice_text,
    title,
)
from edgegossip.report.units import bytes_text, number_text, seconds_text
from edgegossip.telemetry.records import PARTS, score_text
from edgegossip.untrusted import printable

_STYLES = {"lost": "bold red", "failed": "bold red", "finished": "green"}
_PER_SECOND = 4


class RichScreen:
    """Draws at most four times a second, whatever comes in."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._bar = Progress(
            TextColumn("round"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            expand=True,
        )
        self._task = self._bar.add_task("", total=None)
        self._fleet: FleetLines | None = None
        self._live = RichLive(
            get_renderable=self._draw, console=self._console, refresh_per_second=_PER_SECOND, redirect_stderr=False
        )
        self._live.start()

    def refresh(self, fleet: FleetLines) -> None:
        """Keep the new state: rich's own thread draws it."""
        self._fleet = fleet

    def say(self, fleet: FleetLines, t_s: float, text: str, alarm: bool) -> None:
        """Print a sentence above the live part."""
        style = "bold red" if alarm else "yellow"
        self._console.print(Text(f"{seconds_text(t_s)}  {text}", style=style))

    def close(self, fleet: FleetLines) -> None:
        """Draw for the last time."""
        self._fleet = fleet
        self._live.stop()

    def _draw(self) -> Group:
        fleet = self._fleet
        if fleet is None:
            return Group(self._bar)
        self._bar.update(self._task, completed=fleet.round, total=fleet.rounds)
        return Group(_table(fleet), self._bar)


def _table(fleet: FleetLines) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    table.add_column("board", no_wrap=True)
    score = printable(fleet.score, 32)
    for name in ("round", "train loss", *([score] if score else ()), "sent", "a round"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for board in list(fleet.boards.values()):
        table.add_row(*_row(board, fleet.score))
    return table


def _row(board: BoardLine, score: str) -> tuple[Text, ...]:
    style = _STYLES.get(board.state, "yellow" if board.waits else "")
    doing = board.doing
    if doing == "training" and board.busiest:
        doing = f"training, most of it {board.busiest}"
    numbers = (
        str(board.rounds),
        number_text(board.loss, 4),
        *([score_text(score, board.score)] if score else ()),
        bytes_text(board.sent_bytes),
        seconds_text(board.round_s),
    )
    return (Text(printable(board.name), style), *(Text(n, style) for n in numbers), Text(printable(doing, 200), style))


_COLORS = {
    "compute": "#0072B2",
    "encode": "#E69F00",
    "transmit": "#D55E00",
    "decode": "#F0E442",
    "wait": "#8C949C",
    "other": "#4A5058",
}
_BAR, _SHORT_BAR = 24, 12  # characters; the short one on a narrow terminal
# Columns of the terminal: below _WIDE the parts' numbers give way to the bar, below _NARROW more.
_NARROW, _WIDE = 100, 165
_DROPPED = {SCORE, "CPU", "memory", *PARTS}


class RichTop:
    """Takes the whole terminal while it runs and leaves the last state behind."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._live = RichLive(console=self._console, auto_refresh=False, screen=True, redirect_stderr=False)
        self._live.start()

    def show(self, watcher: Watcher, said: list[tuple[float, Sentence]]) -> None:
        """Draw the table anew in its place."""
        self._live.update(_drawn(watcher, self._console.width), refresh=True)

    def close(self, watcher: Watcher) -> None:
        """Leave the alternate screen, and print the last table."""
        self._live.stop()
        self._console.print(_drawn(watcher, self._console.width))


def _drawn(watcher: Watcher, width: int) -> Group:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    shown = {name: head for name, head in heads(watcher).items() if _fits(name, width)}
    names = list(shown)
    table.add_column("board", no_wrap=True)
    for name in names[1:]:
        table.add_column(shown[name], justify="right", no_wrap=True)
    table.add_column("its parts", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for board in list(watcher.fleet.boards.values()):
        table.add_row(*_top_row(board, watcher, names, _BAR if width >= _NARROW else _SHORT_BAR))
    legend = Text(" ").join(Text(f"█ {part}", _COLORS[part]) for part in PARTS)
    notices = [
        Text(notice_text(t_s, notice), "bold red" if notice.alarm else "yellow") for t_s, notice in watcher.notices
    ]
    return Group(Text(title(watcher), "bold"), Text(""), table, Text(""), legend, *notices)


def _fits(name: str, width: int) -> bool:
    return width >= _WIDE or (name not in PARTS if width >= _NARROW else name not in _DROPPED)


def _top_row(board: BoardLine, watcher: Watcher, names: list[str], bar: int) -> tuple[Text, ...]:
    style = _STYLES.get(board.state, "yellow" if board.waits else "")
    now = watcher.now.get(board.name)
    texts = dict(zip(COLUMNS, cells(board, now, watcher.fleet.score), strict=True))
    return (*(Text(texts[name], style) for name in names), _shares(now, bar), Text(doing(board, watcher), style))


def _shares(now: BoardStats | None, length: int) -> Text:
    """Shares of the parts, as so many characters; the rounding never makes the bar longer or
    shorter."""
    bar, total, done, drawn = Text(), (now.round_s or 0.0) if now is not None else 0.0, 0.0, 0
    if now is None or total <= 0:
        return bar
    for part in PARTS:
        done += now.parts_s.get(part, 0.0)
        until = round(length * done / total)
        bar.append("█" * (until - drawn), _COLORS[part])
        drawn = until
    return bar
