"""A table whose rows are long runs. Their results are kept as JSON beside the text, so that what
was stopped is resumed, and a run that was made is not made again."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from edgegossip.files import write_atomic
from edgegossip.sweep.results import Result
from edgegossip.telemetry.machine import environment, result_source

SOURCE = result_source()  # of the code that is loaded, not of what comes to lie there meanwhile


def finished(out: Path) -> list[Result]:
    """Return the results that a former call left beside `out`, without those that failed."""
    path = out.with_suffix(".json")
    results: list[Result] = json.loads(path.read_text()) if path.exists() else []
    return [result for result in results if "failed" not in result]


def write(out: Path, results: Sequence[Result], title: str, script: str, text: str) -> None:
    """Write `out` (date, machine, command, text) and the results as JSON beside it."""
    machine = f"{platform.machine()}, {platform.processor() or platform.system()}, {os.cpu_count()} cores"
    words = ("DATA_DIR" if Path(word).is_dir() else word for word in sys.argv[1:])  # a folder here says nothing
    command = f"python -m lab.results.{script} {' '.join(words)}".strip()
    head = (
        f"# {title}\n\nDate: {datetime.datetime.now(datetime.UTC).date()}. Machine: {machine}, shared with other work, so "
        f"the seconds say little. Command:\n\n    {command}"
    )
    write_page(out, results, f"{head}\n\n{text}\n")


def write_page(out: Path, results: Sequence[Result], page: str) -> None:
    """Write the results as JSON beside `out`, each with its source, and `out` as it is. A page that
    has a template is made of that by results.py instead."""
    rows = [{**result, "source": result.get("source", SOURCE)} for result in results]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out.with_suffix(".json"), (json.dumps(rows, indent=1) + "\n").encode())
    if not out.with_suffix(".md.in").exists():
        write_atomic(out, page.encode())


def keep_part(path: Path, part: str, rows: Sequence[Result]) -> None:
    """Put the rows of a part into a document of several parts, in place of its former ones, with
    the command and the source of each part."""
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"sources": [], "rows": []}
    command = ["DIR" if Path(word).is_dir() else word for word in environment()["command"]]
    made = {"sources": [{"part": part, "command": command, **SOURCE}], "rows": rows}
    for key, new in made.items():
        document[key] = [one for one in document[key] if one["part"] != part] + [{"part": part, **one} for one in new]
    lists = (",\n  ".join(json.dumps(one) for one in document[key]) for key in made)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, '{{\n "sources": [\n  {}\n ],\n "rows": [\n  {}\n ]\n}}\n'.format(*lists).encode())


def heading(columns: str) -> list[str]:
    """Return the first two rows of a table in Markdown; `columns`: their names, with commas between
    them."""
    names = columns.split(", ")
    return [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 when a run failed, else 0."""
    return int(any("failed" in result for result in results))
