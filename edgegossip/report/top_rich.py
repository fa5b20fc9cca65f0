"""`edgegossip top` on a terminal, with rich: drawn anew in place, with a bar a board for what its
seconds go to. Imported only when it draws."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from edgegossip.report.progress import Board, Notice
from edgegossip.report.watch import COLUMNS, SCORE, Now, Watcher, cells, doing, heads, notice_text, title
from edgegossip.telemetry.records import PARTS

_STYLES = {"lost": "bold red", "failed": "bold red", "finished": "green"}
_COLORS = {
    "compute": "#0072B2",
    "encode": "#E69F00",
    "transmit": "#D55E00",
    "decode": "#F0E442",
    "wait": "#8C949C",
    "other": "#4A5058",
}
_BAR, _SHORT_BAR = 24, 12  # characters; the short one on a narrow terminal
_NARROW, _WIDE = (
    100,
    165,
)  # columns of the terminal: below, the parts' numbers give way to the bar; below the lower one, more do
_DROPPED = {SCORE, "CPU", "memory", *PARTS}


class RichTop:
    """Takes the whole terminal while it runs and leaves the last state behind."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._live = RichLive(console=self._console, auto_refresh=False, screen=True, redirect_stderr=False)
        self._live.start()

    def show(self, watcher: Watcher, said: list[tuple[float, Notice]]) -> None:
        self._live.update(_drawn(watcher, self._console.width), refresh=True)

    def close(self, watcher: Watcher) -> None:
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
        table.add_row(*_row(board, watcher, names, _BAR if width >= _NARROW else _SHORT_BAR))
    legend = Text(" ").join(Text(f"█ {part}", _COLORS[part]) for part in PARTS)
    notices = [
        Text(notice_text(t_s, notice), "bold red" if notice.alarm else "yellow") for t_s, notice in watcher.notices
    ]
    return Group(Text(title(watcher), "bold"), Text(""), table, Text(""), legend, *notices)


def _fits(name: str, width: int) -> bool:
    return width >= _WIDE or (name not in PARTS if width >= _NARROW else name not in _DROPPED)


def _row(board: Board, watcher: Watcher, names: list[str], bar: int) -> tuple[Text, ...]:
    style = _STYLES.get(board.state, "yellow" if board.waits else "")
    now = watcher.now.get(board.name)
    texts = dict(zip(COLUMNS, cells(board, now), strict=True))
    return (*(Text(texts[name], style) for name in names), _bar(now, bar), Text(doing(board, watcher), style))


def _bar(now: Now | None, length: int) -> Text:
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
