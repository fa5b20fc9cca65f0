"""The display on a terminal, with rich. Imported only when it draws."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from edgegossip.report.progress import BoardLine, FleetLines, cells, doing, heads
from edgegossip.report.units import seconds_text
from edgegossip.telemetry.records import PARTS

_STYLES = {"lost": "bold red", "failed": "bold red", "finished": "green"}
_PER_SECOND = 4
_COLORS = {
    "compute": "#0072B2",
    "encode": "#E69F00",
    "transmit": "#D55E00",
    "decode": "#F0E442",
    "wait": "#8C949C",
    "other": "#4A5058",
}
_LEGEND = Text(" ").join(Text(f"█ {part}", color) for part, color in _COLORS.items())
_BAR = 24  # characters
# Columns of the terminal: below _WIDE the parts' numbers give way to the bar, below _NARROW more.
_NARROW, _WIDE = 100, 165
_DROPPED = {"CPU", "memory", "temp", *PARTS}


class RichScreen:
    """Draws at most four times a second, whatever comes in."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._bar = Progress(
            TextColumn("round"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.description} wall  left"),
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
        self._bar.update(
            self._task, completed=fleet.round, total=fleet.rounds or None, description=seconds_text(fleet.t_s)
        )
        width = self._console.width
        return Group(_table(fleet, width), *([_LEGEND] if width >= _NARROW else []), self._bar)


def _table(fleet: FleetLines, width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    shown = {name: head for name, head in heads(fleet).items() if _fits(name, width)}
    for name, head in shown.items():
        table.add_column(head, justify="left" if name == "board" else "right", no_wrap=True)
    if width >= _NARROW:
        table.add_column("its parts", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for board in list(fleet.boards.values()):
        style = _STYLES.get(board.state, "yellow" if board.waits else "")
        texts = cells(board, fleet.score)
        bar = [_shares(board)] if width >= _NARROW else []
        table.add_row(*(Text(texts[name], style) for name in shown), *bar, Text(doing(board, fleet), style))
    return table


def _fits(name: str, width: int) -> bool:
    return width >= _WIDE or (name not in PARTS if width >= _NARROW else name not in _DROPPED)


def _shares(board: BoardLine) -> Text:
    """Shares of the parts, as so many characters; the rounding never makes the bar longer or
    shorter."""
    bar, total, done, drawn = Text(), board.round_s or 0.0, 0.0, 0
    for part in PARTS if total > 0 else ():
        done += board.parts_s.get(part, 0.0)
        until = round(_BAR * done / total)
        bar.append("█" * (until - drawn), _COLORS[part])
        drawn = until
    return bar
