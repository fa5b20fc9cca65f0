"""A benchmark's document as docs/results keeps it: machine, command, what the columns mean, the
table, the targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def page(
    title: str,
    machine: str,
    command: str,
    notes: Iterable[str],
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    text_columns: Iterable[str] = (),
    behind: Iterable[str] = (),
    verdicts: Sequence[str] = (),
) -> str:
    """`text_columns` name those of the head that are not numbers; `behind` are items under the
    table."""
    texts = set(text_columns)
    lines = [f"# {title}", "", f"Machine: {machine}.", "", "```", f"$ {command}", "```", "", *_items(notes), ""]
    lines += [_bar(head), _bar(["---" if name in texts else "---:" for name in head]), *map(_bar, rows)]
    if items := _items(behind):
        lines += ["", *items]
    if verdicts:
        lines += ["", "## Targets", "", "```", *verdicts, "```"]
    return "\n".join(lines) + "\n"


def _items(texts: Iterable[str]) -> list[str]:
    return [f"- {text}" for text in texts]


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
