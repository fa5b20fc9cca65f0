"""Tables of many cases: aligned text, Markdown and CSV of the same cells, and their files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgegossip.files import write_atomic, write_json
from edgegossip.report.table import aligned


def as_text(cells: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Align columns, the first to the left and the others to the right; `notes` stand below.

    `cells` are rows of equal length, of which the first is the head.
    """
    return "\n".join([*aligned(cells), "", *notes])


def as_markdown(cells: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Return the same table in Markdown, with its end of line."""
    head, *body = cells
    rule = ["---", *["---:"] * (len(head) - 1)]
    lines = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, rule, *body))
    return "\n".join([*lines, "", *notes]) + "\n"


def as_csv(rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV, the head first; None is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return out.getvalue()


def write_tables(folder: Path, document: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Write table.json, which holds `document`, and table.SUFFIX of each text; raises HostError.

    Each file is replaced as a whole, so that a reader never sees half a table.
    """
    for suffix, text in texts.items():
        write_atomic(folder / f"table.{suffix}", text.encode())
    write_json(folder / "table.json", document)
