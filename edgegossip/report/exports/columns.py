"""Metrics, events and links of runs as columns, in CSV files. Numbers are as they were recorded,
but times are on one clock for all boards (telemetry/clocks.py), by which events are sorted; what
was not measured is an empty cell."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgegossip.report.web.view import RunView, names_of
from edgegossip.telemetry.records import METRICS
from edgegossip.types import HostError

Columns = dict[str, list[Any]]
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet calculates what begins so
_WHOLE = 2.0**53  # up to here a float64 holds every whole number


def columns_of(views: Sequence[RunView]) -> dict[str, Columns]:
    """Return {"metrics": run, node, step, t_s and a column a metric; "events": run, node, t_s,
    event, text; "links": run, sender, receiver, bytes, seconds}; all columns of one table are
    equally long."""
    return {"metrics": _metrics(views), "events": _events(views), "links": _links(views)}


def _named(views: Sequence[RunView]) -> Iterator[tuple[str, RunView]]:
    return zip(names_of(views), views, strict=True)


def _metrics(views: Sequence[RunView]) -> Columns:
    tables = [(run, view, node, table) for run, view in _named(views) for node, table in view.tables.nodes.items()]
    found = {name for *_, table in tables for name in table.columns} - {"t_s"}
    names = [*(name for name in METRICS if name in found), *sorted(found - set(METRICS))]
    out: Columns = {name: [] for name in ("run", "node", "step", "t_s", *names)}
    for run, view, node, table in tables:
        rows = len(table)
        out["run"] += [run] * rows
        out["node"] += [node] * rows
        out["step"] += table.step
        out["t_s"] += [view.tables.clocks.of(node, t_s) for t_s in table.columns["t_s"]]
        for name in names:
            column = table.columns.get(name)
            out[name] += [None] * rows if column is None else [None if math.isnan(value) else value for value in column]
    return out


def _events(views: Sequence[RunView]) -> Columns:
    events = [(run, *timed) for run, view in _named(views) for timed in view.tables.in_order()]
    return {
        "run": [run for run, _, _ in events],
        "node": [event.node for *_, event in events],
        "t_s": [t_s for _, t_s, _ in events],
        "event": [event.name for *_, event in events],
        "text": [event.text for *_, event in events],
    }


def _links(views: Sequence[RunView]) -> Columns:
    rows = [(run, *link) for run, view in _named(views) for link in view.links()]
    names = ("run", "sender", "receiver", "bytes", "seconds")
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


def write_csv(views: Sequence[RunView], folder: Path) -> list[Path]:
    """Write metrics.csv, events.csv and links.csv, as RFC 4180 has it. Text that a spreadsheet
    would take for a formula begins with an apostrophe more. Raises HostError."""
    written = []
    for name, columns in columns_of(views).items():
        path = folder / f"{name}.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _csv(path, columns)
        except OSError as error:
            raise HostError(f"cannot write {path}: {error.strerror or error}") from None
        written.append(path)
    return written


def _csv(path: Path, columns: Columns) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_cells(columns))
        writer.writerows(map(_cells, zip(*columns.values(), strict=True)))


def _cells(row: Iterable[Any]) -> list[Any]:
    """Whole numbers without ".0": bytes and counts are no fractions. No text is a formula: what
    boards say is in it."""
    return [_cell(value) for value in row]


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return int(value) if type(value) is float and value.is_integer() and abs(value) < _WHOLE else value
