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

from edgegossip.lab.study.cases import Case
from edgegossip.report.table import aligned
from edgegossip.report.units import UNKNOWN, bytes_text, number_text, printable, seconds_text

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


def headline(result: Result) -> str | None:
    """Name of the score that a run goes by; results of earlier versions have an accuracy only."""
    return result.get("score") or ("accuracy" if result.get("accuracy") else None)


def scores_of(result: Result) -> Mapping[str, Mapping[str, float | None]]:
    """Scores of a run by name: of the averaged model, and mean, least and greatest of the
    nodes'."""
    found: Mapping[str, Mapping[str, float | None]] = result.get("scores") or {}
    return found or ({"accuracy": result["accuracy"]} if result.get("accuracy") else {})


def outcome(result: Result) -> str:
    """What came out of a run in a few words: "accuracy 93.10 %", "mae 0.2143", "loss 0.3511"."""
    name = headline(result)
    if name == "accuracy":
        return f"accuracy {100 * result['accuracy']['averaged']:.2f} %"
    if name is not None:
        return f"{printable(name, 32)} {number_text(scores_of(result)[name]['averaged'], 4)}"
    loss = result.get("loss")
    return "no evaluation" if loss is None else f"loss {number_text(loss['averaged'], 4)}"


def _last_distance(result: Result) -> float | None:
    points = result["consensus_distance"]
    return points[-1][1] if points else None


_ACCURACY = (
    _Figure("accuracy", "accuracy %", _accuracy("averaged"), _percent),
    _Figure("node_mean", "nodes %", _accuracy("mean"), _percent),
    _Figure("node_min", "worst %", _accuracy("min"), lambda mean, std: _percent(mean, None)),
    _Figure("node_max", "best %", _accuracy("max"), lambda mean, std: _percent(mean, None)),
)
_FIGURES = (
    *_ACCURACY,
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
        row[figure.key], row[f"{figure.key}_std"] = _mean_and_std(known)
    row["scores"], row["scores_std"] = {}, {}
    for name in dict.fromkeys(name for result in done for name in scores_of(result)):
        found = (scores_of(result).get(name, {}).get("averaged") for result in done)
        known = [value for value in found if value is not None]
        row["scores"][name], row["scores_std"][name] = _mean_and_std(known)
    return row


def _mean_and_std(known: Sequence[float]) -> tuple[float | None, float | None]:
    return statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None


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
    scores = _other_scores(table)
    heads = [head for name in scores for head in (name, f"{name}_std")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["case", *keys, "seeds", "failed", *figures, *heads])
    for row in table:
        settings = [row["settings"].get(key, "") for key in keys]
        seeds = " ".join(map(str, row["seeds"]))
        more = [row[of].get(name) for name in scores for of in ("scores", "scores_std")]
        values = ["" if value is None else value for value in (*(row[key] for key in figures), *more)]
        writer.writerow([row["case"], *settings, seeds, row["failed"], *values])
    return out.getvalue()


def _cells(table: Sequence[Row]) -> list[list[str]]:
    scores = _other_scores(table)
    shown = [f for f in _FIGURES if f not in _ACCURACY or not scores or any(row[f.key] is not None for row in table)]
    lines = [["case", "seeds", *(printable(name, 32) for name in scores), *(figure.head for figure in shown)]]
    for row in table:
        runs = len(row["seeds"]) - row["failed"]
        seeds = str(runs) if not row["failed"] else f"{runs} ({row['failed']} failed)"
        more = (_score_text(row["scores"].get(name), row["scores_std"].get(name)) for name in scores)
        figures = (UNKNOWN if _missing(row[f.key]) else f.show(row[f.key], row[f"{f.key}_std"]) for f in shown)
        lines.append([printable(row["case"], 80), seeds, *more, *figures])
    return lines


def _other_scores(table: Sequence[Row]) -> list[str]:
    """Names of scores besides the accuracy, which has columns of its own."""
    return [name for name in dict.fromkeys(name for row in table for name in row["scores"]) if name != "accuracy"]


def _score_text(mean: float | None, std: float | None) -> str:
    if mean is None or _missing(mean):
        return UNKNOWN
    return number_text(mean, 4) + ("" if std is None else f" +- {number_text(std, 4)}")


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)
