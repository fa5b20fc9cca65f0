"""Rounds and their parts as a trace, in the format that ui.perfetto.dev and chrome://tracing read
("Trace Event Format", Google, 2016): a process a run, a thread a board, a slice a round with slices
for its parts inside, sensors as counters, events as instants.

Where only the sums of a round's parts were recorded, they stand in their usual order, and their
slices say "order": "usual". Times are microseconds on one clock for all boards, which begins with
the first of them (telemetry/clocks.py)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgegossip.files import replacing
from edgegossip.report.web.view import RunView, Table, names_of
from edgegossip.telemetry.records import EVALUATED, PARTS
from edgegossip.types import HostError

USUAL = ("compute", "encode", "transmit", "wait", "decode", "other")
_PART = {part[0]: part for part in PARTS}
_TOLD = ("train/loss", "net/sent_bytes", "codec/bits_per_value", "time/cpu_s")

Slices = list[tuple[str, float, bool]]  # part, seconds, whether frames were on their way beside it


def write_trace(views: Sequence[RunView], path: Path) -> Path:
    """Write the trace as JSON, one event after the other. Raises HostError."""
    try:
        with replacing(path) as file:
            file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
            between = b""
            for event in trace_events(views):
                file.write(between + json.dumps(event, ensure_ascii=False, allow_nan=False).encode())
                between = b",\n"
            file.write(b"\n]}\n")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None
    return path


def trace_events(views: Sequence[RunView]) -> Iterator[dict[str, Any]]:
    """Yield the events of the trace format, run by run and board by board."""
    for pid, (run, view) in enumerate(zip(names_of(views), views, strict=True), 1):
        yield _name("process_name", pid, 0, run)
        tids = {node: tid for tid, node in enumerate(view.tables.nodes, 1)}
        for node, tid in tids.items():
            yield _name("thread_name", pid, tid, node)
            yield from _rounds(view, node, {"pid": pid, "tid": tid})
        for t_s, event in view.tables.in_order():
            where = {"pid": pid, "tid": tids.get(event.node, 0)}
            yield {"ph": "i", "s": "t", "name": event.name, "ts": _us(t_s), **where, "args": {"text": event.text}}


def _rounds(view: RunView, node: str, where: dict[str, int]) -> Iterator[dict[str, Any]]:
    table, spans = view.tables.nodes[node], view.tables.spans.get(node, {})
    sensors = sorted(name for name in table.columns if name.startswith("sys/"))
    told_of = [*_TOLD, *(name for name in table.columns if name.startswith(EVALUATED))]
    for row, step in enumerate(table.step):
        length_s = _value(table, "time/round_s", row)
        end_s = view.tables.clocks.of(node, table.columns["t_s"][row])
        start_s = end_s - (length_s or 0.0)
        if length_s is not None:
            told = {name: v for name in told_of if (v := _value(table, name, row)) is not None}
            yield {
                "ph": "X",
                "name": f"round {step + 1}",
                "cat": "round",
                "ts": _us(start_s),
                "dur": _us(length_s),
                **where,
                "args": told,
            }
            exact = step in spans
            order = {} if exact else {"args": {"order": "usual"}}
            at_s = start_s
            for part, seconds, sends in parse_spans(spans[step]) if exact else _usual(table, row):
                when = {"ts": _us(at_s), "dur": _us(seconds), **where}
                yield {"ph": "X", "name": part, "cat": "part", **when, **order}
                if sends:
                    yield {"ph": "X", "name": "transmit", "cat": "beside", **when}
                at_s += seconds
        for name in sensors:
            if (value := _value(table, name, row)) is not None:
                yield {
                    "ph": "C",
                    "name": f"{name} {node}",
                    "ts": _us(end_s),
                    "pid": where["pid"],
                    "args": {"value": value},
                }


def parse_spans(text: str) -> Slices:
    """Parse what spans.RoundTimes.spans made; what is none of it is passed over."""
    found = [(letter, int(us) / 1e6) for letter, us in re.findall(r"([a-zA-Z])(\d+)", text)]
    return [(_PART[k.lower()], seconds, k.isupper()) for k, seconds in found if k.lower() in _PART]


def _usual(table: Table, row: int) -> Slices:
    parts = [(part, _value(table, f"time/{part}_s", row)) for part in USUAL]
    return [(part, seconds, False) for part, seconds in parts if seconds]


def _value(table: Table, name: str, row: int) -> float | None:
    column = table.columns.get(name)
    return None if column is None or not math.isfinite(column[row]) else column[row]


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 1)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
