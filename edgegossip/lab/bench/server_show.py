"""Rows and verdicts of `bench server` as plain text and as Markdown."""

from __future__ import annotations

from typing import Any

from edgegossip.lab.bench.markdown import page
from edgegossip.lab.bench.show import machine_line

Row = dict[str, Any]

_COLUMNS = (
    ("boards", 6),
    ("MB", 6),
    ("s/round", 8),
    ("stock", 8),
    ("ratio", 6),
    ("CPU s", 6),
    ("stock", 6),
    ("MB/board", 8),
    ("stock", 6),
)
NOTES = (
    "s/round: median wall time of a round without the first; CPU s: of all processes together, a round",
    "stock: flower-superlink, flower-supernode and FedAvg with the same boards and model, right after ours",
    "MB/board: the largest resident memory of a board with all processes that it starts",
)


def heading() -> str:
    return "  ".join(head.rjust(width) for head, width in _COLUMNS)


def line(row: Row) -> str:
    """One row under the heading."""
    return "  ".join(text.rjust(width) for text, (_, width) in zip(_cells(row), _COLUMNS, strict=True))


def averaging_line(row: Row) -> str:
    return (
        f"averaging {row['updates']} updates of {row['values']} values: {row['codec']} decoded and averaged in "
        f"{row['seconds']:.3f} s, Flower's fp32 in {row['flower_fp32_seconds']:.3f} s, ratio {row['ratio']:.1f}"
    )


def verdict_line(verdict: Row) -> str:
    word = {True: "holds", False: "FAILS", None: "not measured"}[verdict["holds"]]
    sign = ">=" if verdict["at_least"] else "<="
    figure = "-" if verdict["figure"] is None else f"{verdict['figure']:.2f}"
    return f"{word:12}  {figure:>8} {sign} {verdict['bound']:<5g}  {verdict['text']}"


def markdown(document: Row) -> str:
    """The document as docs/results keeps it."""
    return page(
        "Rounds through a coordinator",
        machine_line(document["machine"]),
        document["command"],
        NOTES,
        [head for head, _ in _COLUMNS],
        [_cells(row) for row in document["rows"]],
        behind=[averaging_line(row) for row in document["averaging"]],
        verdicts=[verdict_line(verdict) for verdict in document.get("checks") or ()],
    )


def _cells(row: Row) -> list[str]:
    return [
        str(row["nodes"]),
        f"{row['payload_bytes'] / 1e6:g}",
        _number(row["seconds_per_round"], 2),
        _number(row["stock_seconds_per_round"], 2),
        _number(row["ratio"], 1),
        _number(row["cpu_s"], 2),
        _number(row["stock_cpu_s"], 2),
        _number(row["client_rss_bytes"] / 1e6, 0),
        _number(None if row["stock_client_rss_bytes"] is None else row["stock_client_rss_bytes"] / 1e6, 0),
    ]


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"
