"""`bench mesh`: the peer mesh beside bare gRPC and a plain TCP socket, between real processes, in
the same run.

*Bare gRPC* is a stream of raw bytes over the same grpcio: identity serialisers, no framing, no
windows, no acknowledgements but one byte a frame where a time has to be taken, the same bytes again
and again, which the receiver drops, everything in one asyncio loop without a change of threads.
*Tuned gRPC* has the settings of who sends large messages, and does what a program needs that sends
models: it makes messages of a model's memory, and has what arrives in one piece. *TCP* is
a blocking socket with TCP_NODELAY.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgegossip.types import EXIT_OK
from lab.bench.mesh_cases import CASES, Row, Settings, measure
from lab.bench.tables import exit_code, machine_line, packages_line, page, verdict_word, write_document

__all__ = ["CASES", "Settings", "run", "target_lines"]

Print = Callable[[str], None]


def run(
    settings: Settings, arguments: Sequence[str], out: Print, *, check: bool, save: Path | None
) -> tuple[dict[str, Any], int]:
    """Measure. Lines go to `out` when they are there. The document and the exit code. Raises
    HostError when a process of the measurement fails."""
    from edgegossip.telemetry.machine import environment  # psutil, which `--help` does not need

    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "machine": environment(arguments),
        "load_average": round(os.getloadavg()[0], 2),
        "command": shlex.join(["python", "-m", "lab.bench", *arguments]),
        "settings": asdict(settings),
    }
    out(machine_line(document["machine"]))
    out(heading())
    document["rows"] = measure(settings, lambda row: out(line(row)))
    for note in NOTES:
        out(note)
    code = _conclude(document, out) if check else EXIT_OK
    if save is not None:
        write_document(save, "mesh", document, markdown(document))
    return document, code


def _conclude(document: dict[str, Any], out: Print) -> int:
    verdicts = verdicts_on(document["rows"])
    document["checks"] = [verdict.as_dict() for verdict in verdicts]
    for verdict in document["checks"]:
        out(verdict_line(verdict))
    return exit_code([verdict.holds for verdict in verdicts])


# Head, field, width, decimals.
_COLUMNS: tuple[tuple[str, str, int, int], ...] = (
    ("nodes", "nodes", 5, 0),
    ("frame bytes", "frame_bytes", 11, 0),
    ("mesh MB/s", "mesh_mb_s", 9, 0),
    ("gRPC MB/s", "grpc_mb_s", 9, 0),
    ("tuned MB/s", "tuned_grpc_mb_s", 10, 0),
    ("TCP MB/s", "tcp_mb_s", 8, 0),
    ("mesh ms", "latency_ms", 8, 3),
    ("gRPC ms", "grpc_latency_ms", 8, 3),
    ("tuned ms", "tuned_grpc_latency_ms", 8, 3),
    ("TCP ms", "tcp_latency_ms", 8, 3),
    ("round ms", "round_ms", 8, 1),
    ("gRPC round", "grpc_round_ms", 10, 1),
    ("tuned round", "tuned_grpc_round_ms", 11, 1),
    ("to gRPC", "ratio_to_grpc", 7, 2),
    ("to tuned", "ratio_to_tuned_grpc", 8, 2),
    ("CPU %", "cpu_percent", 6, 2),
    ("MiB", "rss_bytes", 6, 1),
    ("grown MiB", "rss_growth_bytes", 9, 2),
)
_IN_MIB = ("rss_bytes", "rss_growth_bytes")
NOTES = (
    "gRPC: a raw stream of bytes over the same grpcio, without framing, acknowledgements or assembly; TCP: a plain socket",
    "tuned: gRPC at its best, with the mesh's poller (mesh/_grpc.py) and heap, windows of 16 MiB and large reads; messages are "
    "made of a model's memory and put together again, as a program needs it",
    "throughput: frames one after the other between two processes; latency: a frame there and one back, halved",
    "ring: a frame to and from each neighbour a round, no computing; MB/s of all processes together",
    "idle: CPU of all processes (members of one run) while they wait, percent of one core; memory: growth of a process, average",
    "to gRPC, to tuned: the mesh's rate divided by theirs (throughput, more is better), else time by time (less is better)",
    "targets are judged against tuned gRPC",
)


def heading() -> str:
    """Return the head of the columns."""
    return "  ".join(["case".ljust(10), *(head.rjust(width) for head, _, width, _ in _COLUMNS)])


def line(row: Row) -> str:
    """Return one row under the heading."""
    cells = zip(_COLUMNS, _cells(row), strict=True)
    return "  ".join([row["case"].ljust(10), *(text.rjust(width) for (_, _, width, _), text in cells)])


def verdict_line(verdict: dict[str, Any]) -> str:
    """Return one line of --check."""
    figure = "-" if verdict["figure"] is None else f"{verdict['figure']:.2f}"
    sign = ">=" if verdict["at_least"] else "<="
    return f"{verdict_word(verdict['holds'])}  {figure:>10} {sign} {verdict['bound']:<8g}  {verdict['text']}"


def markdown(document: dict[str, Any]) -> str:
    """Return the document as lab/results/pages keeps it."""
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
    return [_text(row.get(field), decimals, field in _IN_MIB) for _, field, _, decimals in _COLUMNS]


def _text(value: float | None, decimals: int, in_mib: bool) -> str:
    if value is None:
        return "-"
    return f"{value / 2**20 if in_mib else value:.{decimals}f}"


# The figures that a release has to reach, and the check of rows against them.


@dataclass(frozen=True, slots=True)
class Target:
    """Describes one line: a field of certain rows and its bound."""

    text: str
    of: Callable[[Row], bool]
    field: str
    bound: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says what a line came to: the worst row's figure. `holds` None: no row that it speaks of was
    measured."""

    text: str
    bound: float
    at_least: bool
    figure: float | None
    holds: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for the document."""
        return asdict(self)


def _case(case: str, nodes: int | None = None) -> Callable[[Row], bool]:
    return lambda row: row["case"] == case and nodes in (None, row["nodes"])


_TO_TUNED = "ratio_to_tuned_grpc"
TARGETS = (
    Target("8 MB frames, rate to tuned gRPC's", _case("throughput"), _TO_TUNED, 0.95, at_least=True),
    Target("ring of 16, frames of 1 MB, round to tuned gRPC's", _case("ring", 16), _TO_TUNED, 1.6),
    Target("64 KiB frames, latency to tuned gRPC's", _case("latency"), _TO_TUNED, 2.5),
    Target("ring of 8, frames of 1 MB, round to tuned gRPC's", _case("ring", 8), _TO_TUNED, 2.5),
    Target("18 idle nodes, percent of a core together", _case("idle", 18), "cpu_percent", 5.0),
    # glibc keeps what was freed: a node that keeps nothing still moves by some hundred KiB either
    # way
    Target(
        "growth of a node over 1,000 rounds, bytes", lambda r: (r["rounds"] or 0) >= 1000, "rss_growth_bytes", 2 << 20
    ),
)


def target_lines() -> tuple[str, ...]:
    """Return each target in words, for `--help`."""
    return tuple(f"{'at least' if t.at_least else 'at most'} {t.bound:,.10g}: {t.text}" for t in TARGETS)


def verdicts_on(rows: Sequence[Row]) -> tuple[Verdict, ...]:
    """Return every line with the worst figure among its rows."""
    return tuple(_check(target, rows) for target in TARGETS)


def _check(target: Target, rows: Sequence[Row]) -> Verdict:
    figures = [row[target.field] for row in rows if target.of(row) and row[target.field] is not None]
    if not figures:
        return Verdict(target.text, target.bound, target.at_least, None, None)
    worst = min(figures) if target.at_least else max(figures)
    holds = worst >= target.bound if target.at_least else worst <= target.bound
    return Verdict(target.text, target.bound, target.at_least, worst, holds)
