"""The live display on a terminal, with rich: one bar for the rounds and one line a board. Imported
only when it draws."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from edgegossip.report.progress import Board, Fleet
from edgegossip.report.units import bytes_text, number_text, printable, seconds_text

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
        self._fleet: Fleet | None = None
        self._live = RichLive(
            get_renderable=self._draw, console=self._console, refresh_per_second=_PER_SECOND, redirect_stderr=False
        )
        self._live.start()

    def refresh(self, fleet: Fleet) -> None:
        self._fleet = fleet  # drawn by rich's own thread

    def say(self, fleet: Fleet, t_s: float, text: str, alarm: bool) -> None:
        style = "bold red" if alarm else "yellow"
        self._console.print(Text(f"{seconds_text(t_s)}  {text}", style=style))

    def close(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._live.stop()

    def _draw(self) -> Group:
        fleet = self._fleet
        if fleet is None:
            return Group(self._bar)
        self._bar.update(self._task, completed=fleet.round, total=fleet.rounds)
        return Group(_table(fleet), self._bar)


def _table(fleet: Fleet) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    table.add_column("board", no_wrap=True)
    score = printable(fleet.score, 32)
    for name in ("round", "loss", *([score] if score else ()), "sent", "a round"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for board in list(fleet.boards.values()):
        table.add_row(*_row(board, bool(score)))
    return table


def _row(board: Board, scored: bool) -> tuple[Text, ...]:
    style = _STYLES.get(board.state, "yellow" if board.waits else "")
    doing = board.doing
    if doing == "training" and board.busiest:
        doing = f"training, most of it {board.busiest}"
    numbers = (
        str(board.rounds),
        number_text(board.loss, 4),
        *([number_text(board.score, 4)] if scored else ()),
        bytes_text(board.sent_bytes),
        seconds_text(board.round_s),
    )
    return (Text(printable(board.name), style), *(Text(n, style) for n in numbers), Text(printable(doing, 200), style))
