"""Rows, verdicts and the document as plain text and as Markdown."""

from __future__ import annotations

from typing import Any

from edgegossip.lab.bench.markdown import page
from edgegossip.lab.bench.show import machine_line, packages_line

Row = dict[str, Any]

# Head, field, width, decimals.
_COLUMNS: tuple[tuple[str, str, int, int], ...] = (
    ("nodes", "nodes", 5, 0),
    ("frame bytes", "frame_bytes", 11, 0),
    ("mesh MB/s", "mesh_mb_s", 9, 0),
    ("gRPC MB/s", "grpc_mb_s", 9, 0),
    ("TCP MB/s", "tcp_mb_s", 8, 0),
    ("mesh ms", "latency_ms", 8, 3),
    ("gRPC ms", "grpc_latency_ms", 8, 3),
    ("TCP ms", "tcp_latency_ms", 8, 3),
    ("round ms", "round_ms", 8, 1),
    ("gRPC round", "grpc_round_ms", 10, 1),
    ("to gRPC", "ratio_to_grpc", 7, 2),
    ("to tuned", "ratio_to_tuned_grpc", 8, 2),
    ("CPU %", "cpu_percent", 6, 2),
    ("MiB", "rss_bytes", 6, 1),
    ("grown MiB", "rss_growth_bytes", 9, 2),
)
_IN_MIB = ("rss_bytes", "rss_growth_bytes")
NOTES = (
    "gRPC: a raw stream of bytes over the same grpcio, without framing, acknowledgements or assembly; TCP: a plain socket",
    "tuned: the same gRPC with the poller that the mesh chooses (mesh/_grpc.py), which few who use gRPC know of",
    "throughput: frames one after the other between two processes; latency: a frame there and one back, halved",
    "ring: a frame to and from each neighbour a round, no computing; MB/s of all processes together",
    "idle: CPU of all processes (members of one run) while they wait, percent of one core; memory: growth of a process, average",
    "to gRPC: the mesh's rate divided by gRPC's (throughput, more is better), else time by time (less is better)",
)


def heading() -> str:
    return "  ".join(["case".ljust(10), *(head.rjust(width) for head, _, width, _ in _COLUMNS)])


def line(row: Row) -> str:
    cells = zip(_COLUMNS, _cells(row), strict=True)
    return "  ".join([row["case"].ljust(10), *(text.rjust(width) for (_, _, width, _), text in cells)])


def verdict_line(verdict: dict[str, Any]) -> str:
    """One line of --check."""
    word = {True: "holds", False: "FAILS", None: "not measured"}[verdict["holds"]]
    figure = "-" if verdict["figure"] is None else f"{verdict['figure']:.2f}"
    return f"{word:12}  {figure:>10} {'>=' if verdict['at_least'] else '<='} {verdict['bound']:<8g}  {verdict['text']}"


def markdown(document: dict[str, Any]) -> str:
    """The document as docs/results keeps it."""
    machine = document["machine"]
    facts = f"{machine_line(machine)}; {packages_line(machine, 'grpcio')}"
    return page(
        "The peer mesh beside bare gRPC and TCP",
        f"{facts}. Load average when it began: {document['load_average']}",
        document["command"],
        NOTES,
        ["case", *(head for head, *_ in _COLUMNS)],
        [[row["case"], *_cells(row)] for row in document["rows"]],
        ["case"],
        verdicts=[verdict_line(verdict) for verdict in document.get("checks") or ()],
    )


def _cells(row: Row) -> list[str]:
    return [_text(row[field], decimals, field in _IN_MIB) for _, field, _, decimals in _COLUMNS]


def _text(value: float | None, decimals: int, in_mib: bool) -> str:
    if value is None:
        return "-"
    return f"{value / 2**20 if in_mib else value:.{decimals}f}"
