"""`edgegossip top`: the boards of a run as a table that follows it, or plain lines where there is
no terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TextIO

from edgegossip.report.live import can_draw, progress_line
from edgegossip.report.progress import Notice
from edgegossip.report.watch import COLUMNS, Watcher, cells, doing, heads, notice_text, title

QUIET_S = 10.0  # nothing new for so long, and nobody there to write it


class Screen(Protocol):
    def show(self, watcher: Watcher, said: list[tuple[float, Notice]]) -> None: ...

    def close(self, watcher: Watcher) -> None: ...


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
    screen = _rich(stream) if can_draw(stream, environ) else PlainTop(stream)
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


class PlainTop:
    """A line when something changed, a sentence for what people should know. The table at the
    end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._shown = stream, ""

    def show(self, watcher: Watcher, said: list[tuple[float, Notice]]) -> None:
        lines = [notice_text(t_s, notice) for t_s, notice in said]
        line = progress_line(watcher.fleet)
        if line != self._shown:
            lines.append(line)
            self._shown = line
        self._write(lines)

    def close(self, watcher: Watcher) -> None:
        self._write([plain_table(watcher)])

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self._stream.write(line + "\n")
        self._stream.flush()


def plain_table(watcher: Watcher) -> str:
    """The boards as they are now, without control characters."""
    shown = heads(watcher)
    rows = []
    for board in watcher.fleet.boards.values():
        texts = dict(zip(COLUMNS, cells(board, watcher.now.get(board.name)), strict=True))
        rows.append((*(texts[name] for name in shown), doing(board, watcher)))
    header = (*shown.values(), "")
    widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(shown))]

    def line(row: tuple[str, ...]) -> str:
        numbers = (cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True))
        return "  ".join([row[0].ljust(widths[0]), *numbers, row[-1]]).rstrip()

    return "\n".join([title(watcher), "", line(header), "-" * (sum(widths) + 2 * len(widths) - 2), *map(line, rows)])


def _rich(stream: TextIO) -> Screen:
    from edgegossip.report.top_rich import RichTop

    return RichTop(stream)
