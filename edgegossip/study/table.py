"""The table of a study: one row a variant, with mean and sample standard deviation over its seeds.
Pure."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgegossip.report.table import aligned
from edgegossip.report.units import UNKNOWN, bytes_text, number_text, printable, seconds_text
from edgegossip.study.cases import Case

Result = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Figure:
    """One column: where its number comes from, and how it is shown."""

    key: str
    head: str
    find: Callable[[Result], float | None]
    show: Callable[[float, float | None], str]


def _percent(mean: float, std: float | None) -> str:
    return f"{100 * mean:.2f}" + ("" if std is None else f" +- {100 * std:.2f}")


def _plainly(digits: int) -> Callable[[float, float | None], str]:
    return lambda mean, std: number_text(mean, digits)


def _accuracy(part: str) -> Callable[[Result], float | None]:
    return lambda result: (result.get("accuracy") or {}).get(part)


def _last_distance(result: Result) -> float | None:
    points = result["consensus_distance"]
    return points[-1][1] if points else None


_FIGURES = (
    _Figure("accuracy", "accuracy %", _accuracy("averaged"), _percent),
    _Figure("node_mean", "nodes %", _accuracy("mean"), _percent),
    _Figure("node_min", "worst %", _accuracy("min"), lambda mean, std: _percent(mean, None)),
    _Figure("node_max", "best %", _accuracy("max"), lambda mean, std: _percent(mean, None)),
    _Figure("loss", "loss", lambda result: (result.get("loss") or {}).get("averaged"), _plainly(4)),
    _Figure("bits_per_value", "bits/value", lambda result: result["bits_per_value"], _plainly(3)),
    _Figure(
        "bytes_per_node_round",
        "sent/node/round",
        lambda result: result["bytes_per_node_round"],
        lambda mean, std: bytes_text(mean),
    ),
    _Figure("consensus_distance", "consensus", _last_distance, _plainly(4)),
    _Figure("seconds", "time", lambda result: result["seconds"], lambda mean, std: seconds_text(mean)),
)

NOTES = (
    "accuracy: of the mean of the nodes' models, on the whole test set; nodes, worst, best: of the nodes' own models;",
    "+-: sample standard deviation over the seeds, of which worst and best are means; sent: real frames, heads included;",
    "consensus: root mean square distance of the nodes' models from their mean after the last round; time: of one run",
)


def rows(cases: Sequence[Case], results: Mapping[str, Result]) -> list[Row]:
    """A row for every variant with a result, in the order of the cases. Figures are over the runs
    that did not fail: `x` is the mean and `x_std` the sample standard deviation (None with fewer
    than two), None when unknown."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        if case.key in results:
            groups.setdefault(case.group, []).append(case)
    return [_row(group, [results[case.key] for case in group]) for group in groups.values()]


def _row(group: Sequence[Case], results: Sequence[Result]) -> Row:
    done = [result for result in results if result["state"] == "done"]
    row: Row = {"case": group[0].name, "settings": dict(group[0].settings)}
    row |= {"seeds": [case.seed for case in group], "failed": len(results) - len(done)}
    for figure in _FIGURES:
        known = [value for result in done if (value := figure.find(result)) is not None]
        row[figure.key] = statistics.fmean(known) if known else None
        row[f"{figure.key}_std"] = statistics.stdev(known) if len(known) > 1 else None
    return row


def as_text(table: Sequence[Row]) -> str:
    """Aligned columns: names to the left, numbers to the right."""
    return "\n".join([*aligned(_cells(table)), "", *NOTES])


def as_markdown(table: Sequence[Row]) -> str:
    head, *body = _cells(table)
    rule = ["---", *["---:"] * (len(head) - 1)]
    lines = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in (head, rule, *body))
    return "\n".join([*lines, "", *NOTES]).replace("+-", "±") + "\n"


def as_csv(table: Sequence[Row]) -> str:
    """Every setting of the study has a column of its own; unknown values are empty."""
    keys = list(dict.fromkeys(key for row in table for key in row["settings"]))
    figures = [key for figure in _FIGURES for key in (figure.key, f"{figure.key}_std")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["case", *keys, "seeds", "failed", *figures])
    for row in table:
        settings = [row["settings"].get(key, "") for key in keys]
        seeds = " ".join(map(str, row["seeds"]))
        values = ["" if row[key] is None else row[key] for key in figures]
        writer.writerow([row["case"], *settings, seeds, row["failed"], *values])
    return out.getvalue()


def _cells(table: Sequence[Row]) -> list[list[str]]:
    lines = [["case", "seeds", *(figure.head for figure in _FIGURES)]]
    for row in table:
        runs = len(row["seeds"]) - row["failed"]
        seeds = str(runs) if not row["failed"] else f"{runs} ({row['failed']} failed)"
        figures = (UNKNOWN if _missing(row[f.key]) else f.show(row[f.key], row[f"{f.key}_std"]) for f in _FIGURES)
        lines.append([printable(row["case"], 80), seeds, *figures])
    return lines


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)
