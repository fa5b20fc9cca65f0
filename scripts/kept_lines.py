"""A table whose lines are long runs: kept as JSON beside the text, so that a run that was made is
not made again."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def kept(out: Path) -> list[Line]:
    """The lines that a former call left beside `out`, without those that failed."""
    path = out.with_suffix(".json")
    lines: list[Line] = json.loads(path.read_text()) if path.exists() else []
    return [line for line in lines if "failed" not in line]


def write(out: Path, lines: Sequence[Line], title: str, script: str, text: str) -> None:
    """`out` (date, machine, command, text) and the lines as JSON beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(list(lines), indent=1) + "\n")
    machine = f"{platform.machine()}, {platform.processor() or platform.system()}, {os.cpu_count()} cores"
    words = (
        "DATA_DIR" if Path(word).is_dir() else word for word in sys.argv[1:]
    )  # a place of this machine says nothing
    command = f"python scripts/{script} {' '.join(words)}".strip()
    out.write_text(
        f"# {title}\n\nDate: {datetime.datetime.now(datetime.UTC).date()}. Machine: {machine}, shared with other work, so "
        f"the seconds say little. Command:\n\n    {command}\n\n{text}\n"
    )


def heading(columns: str) -> list[str]:
    """The first two rows of a table in Markdown; `columns`: their names, with commas between
    them."""
    names = columns.split(", ")
    return [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]


def exit_code(lines: Sequence[Line]) -> int:
    """1 when a line failed."""
    return int(any("failed" in line for line in lines))
