"""The table at the end of a run: a line a board and one for all of them. Plain text, aligned, no colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgegossip.profiling.records import PARTS
from edgegossip.profiling.summary import SENT
from edgegossip.report.units import bytes_text, number_text, printable, seconds_text

_HEADER = ("board", "accuracy", "loss", *SENT, "bits/value", *PARTS)
_GROUPS = {"payload": "sent", "compute": "time"}  # a word over the first column of a group


def run_table(summary: Mapping[str, Any]) -> str:
    """The table for a document of `summary.summarise`: accuracy, loss, bytes sent (payload, overhead, what the socket
    saw), bits per value and seconds by part. Unknown values are "-"."""
    rows = [_cells(_name(row), row["accuracy"], row) for row in summary["boards"]]
    rows.append(_cells("all", summary["accuracy"]["mean"], summary))
    notes = ["all: accuracy, loss and time are means over the boards that finished; bytes are sums over all"]
    if summary["failed_nodes"]:
        notes.append(f"lost: {printable(', '.join(summary['failed_nodes']))}; their figures are up to that moment")
    if summary.get("unfinished_nodes"):
        notes.append(f"not finished: {printable(', '.join(summary['unfinished_nodes']))}")
    return "\n".join([_title(summary), "", *_aligned(rows), "", *notes])


def _title(summary: Mapping[str, Any]) -> str:
    asked = summary.get("rounds_asked")
    rounds = (
        f"{summary['rounds']} rounds"
        if asked in (None, summary["rounds"])
        else f"{summary['rounds']} of {asked} rounds"
    )
    boards = f"{summary['nodes']} board{'' if summary['nodes'] == 1 else 's'}"
    parts = [summary["run"], summary["mode"], boards, rounds, seconds_text(summary["seconds"])]
    return " | ".join(printable(str(part)) for part in parts if part)


def _name(row: Mapping[str, Any]) -> str:
    return printable(row["node"]) + (
        "" if row["state"] == "finished" or row["role"] != "board" else f" ({row['state']})"
    )


def _cells(name: str, accuracy: float | None, row: Mapping[str, Any]) -> tuple[str, ...]:
    sent = (bytes_text(row["sent_bytes"][part]) for part in SENT)
    times = (seconds_text(row["time_s"][part]) for part in PARTS)
    bits = number_text(row["bits_per_value"], 2)
    return (name, number_text(accuracy, 4), number_text(row["loss"], 4), *sent, bits, *times)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names to the left, numbers to the right, a rule under the head and above the last row."""
    groups = [_GROUPS.get(name, "") for name in _HEADER]
    widths = [max(len(cell) for cell in column) for column in zip(_HEADER, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "  ".join([cells[0].ljust(widths[0]), *numbers]).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [line(groups), line(_HEADER), rule, *map(line, rows[:-1]), rule, line(rows[-1])]
