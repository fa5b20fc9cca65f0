"""What the boards of a run measured, for Prometheus: its text exposition format 0.0.4, at /metrics
of `edgegossip top --web`.

Seconds, bytes and joules of rounds are counters, summed over the rounds so far; everything else is
a gauge, the last value that was recorded. Names are those of metrics.jsonl with Prometheus' units:
time/compute_s is edgegossip_time_compute_seconds_total. What was never measured is not there.
Labels: run, node. Names that are not in records.METRICS, such as a workload's own, have a label
more, `metric`, with the name as it was recorded: several may become one here ("top/1_a",
"top_1/a")."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from edgegossip.report.web.tables import Table
from edgegossip.report.web.view import RunView, names_of
from edgegossip.telemetry.records import METRICS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_UNITS = (("_s", "_seconds"), ("_c", "_celsius"), ("_j", "_joules"), ("_w", "_watts"), ("_hz", "_hertz"))
_STATES = ("unfinished", "finished", "lost")

Sample = tuple[str, str, str, float]  # name, type, labels, value


def exposition(views: Sequence[RunView]) -> str:
    """All samples of these runs, a metric's together."""
    metrics: dict[str, tuple[str, list[str]]] = {}
    named = zip(names_of(views), views, strict=True)
    for name, kind, labels, value in (sample for run, view in named for sample in _samples(run, view)):
        known, lines = metrics.setdefault(name, (kind, []))
        if known != kind:
            metrics[name] = ("untyped", lines)
        lines.append(f"{name}{{{labels}}} {value!r}")
    return "".join(
        f"# TYPE {name} {kind}\n" + "".join(line + "\n" for line in lines)
        for name, (kind, lines) in sorted(metrics.items())
    )


def _samples(name: str, view: RunView) -> Iterator[Sample]:
    run = f'run="{_escaped(name)}"'
    for board in view.summary()["boards"]:
        labels = f'{run},node="{_escaped(board["node"])}"'
        yield "edgegossip_rounds", "gauge", labels, float(board["rounds"])
        if board["energy_rounds"]:  # of so many rounds edgegossip_sys_energy_joules_total is
            yield "edgegossip_energy_rounds", "gauge", labels, float(board["energy_rounds"])
        for state in _STATES:
            yield "edgegossip_state", "gauge", f'{labels},state="{state}"', float(board["state"] == state)
    for node, table in view.tables.nodes.items():
        yield from _of(table, f'{run},node="{_escaped(node)}"')
    for sender, receiver, size_bytes, seconds in view.links():
        labels = f'{run},node="{_escaped(sender)}",peer="{_escaped(receiver)}"'
        yield "edgegossip_link_bytes_total", "counter", labels, float(size_bytes)
        yield "edgegossip_link_seconds_total", "counter", labels, seconds


def _of(table: Table, node: str) -> Iterator[Sample]:
    for name, column in table.columns.items():
        labels = node if name in METRICS else f'{node},metric="{_escaped(name)}"'
        values = np.asarray(column)
        known = values[np.isfinite(values)]
        if name == "t_s" or not known.size:
            continue
        if (
            name.startswith(("time/", "cpu/"))
            or name == "sys/energy_j"
            or (name.startswith("net/") and name.endswith("_bytes"))
        ):
            yield f"{metric_name(name)}_total", "counter", labels, float(known.sum())
        else:
            yield metric_name(name), "gauge", labels, float(known[-1])


def metric_name(name: str) -> str:
    """ "sys/temperature_c" -> "edgegossip_sys_temperature_celsius"."""
    for short, unit in _UNITS:
        if name.endswith(short):
            name = name.removesuffix(short) + unit
            break
    return "edgegossip_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
