"""Sums up a study: a row a variant, with mean and sample standard deviation over its seeds, for
tables; and curves, sorted into panels, colours and marks by what differs, for plots.

Panels: the problem (data, model, topology, number of nodes). Colours: the algorithm, or the server.
Marks and lines: whatever else differs, such as the codec and momentum. A key that others determine
(eta, where it follows the codec) is not named."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgegossip.report.plots import require_matplotlib
from edgegossip.report.style import Figures
from edgegossip.report.units import UNKNOWN, bytes_text, number_text, seconds_text
from edgegossip.studies import attack, heat, link
from edgegossip.studies.cases import StudyCase, say
from edgegossip.sweep import table
from edgegossip.untrusted import printable

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
    """Return the name of the score that a run goes by; results of earlier versions have an
    accuracy only."""
    return result.get("score") or ("accuracy" if result.get("accuracy") else None)


def scores_of(result: Result) -> Mapping[str, Mapping[str, float | None]]:
    """Return the scores of a run by name: of the averaged model, and mean, least and greatest of
    the nodes'."""
    found: Mapping[str, Mapping[str, float | None]] = result.get("scores") or {}
    return found or ({"accuracy": result["accuracy"]} if result.get("accuracy") else {})


def outcome(result: Result) -> str:
    """Say what came out of a run in a few words: "accuracy 93.10 %", "mae 0.2143", "test loss
    0.3511"."""
    name = headline(result)
    if name == "accuracy":
        return f"accuracy {100 * result['accuracy']['averaged']:.2f} %"
    if name is not None:
        return f"{printable(name, 32)} {number_text(scores_of(result)[name]['averaged'], 4)}"
    loss = result.get("loss")
    return "no evaluation" if loss is None else f"test loss {number_text(loss['averaged'], 4)}"


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
    _Figure("loss", "test loss", lambda result: (result.get("loss") or {}).get("averaged"), _plainly(4)),
    _Figure("bits_per_value", "bits/value", lambda result: result["bits_per_value"], _plainly(3)),
    _Figure(
        "bytes_per_node_round",
        "sent/node/round",
        lambda result: result["bytes_per_node_round"],
        lambda mean, std: bytes_text(mean),
    ),
    _Figure("consensus_distance", "consensus", _last_distance, _plainly(4)),
    _Figure("seconds", "wall", lambda result: result["seconds"], lambda mean, std: seconds_text(mean)),
)

_TO_TARGET = (  # in studies that name a target
    _Figure("target_rounds", "rounds to target", lambda result: result.get("target_rounds"), _plainly(0)),
    _Figure(
        "target_bytes",
        "sent/node to target",
        lambda result: result.get("target_bytes"),
        lambda mean, std: bytes_text(mean) + ("" if std is None else f" +- {bytes_text(std)}"),
    ),
)
_HEAT = (  # of boards that heat up, also where all were lost
    _Figure(
        "lost",
        "lost",
        lambda result: len(result["lost"]) if "lost" in result else None,
        lambda mean, std: f"{mean:.3g}",
    ),
    _Figure(
        "hottest_c",
        "hottest C",
        lambda result: max((board["hottest_c"] for board in result.get("heated", {}).values()), default=None),
        lambda mean, std: f"{mean:.1f}",
    ),
)
_WHERE_KNOWN = (
    *_HEAT,
    _Figure(  # in virtual seconds
        "target_s",
        "time to target",
        lambda result: result.get("target_s"),
        lambda mean, std: seconds_text(mean) + ("" if std is None else f" +- {seconds_text(std)}"),
    ),
)

NOTES = (
    "accuracy: of the mean of the nodes' models, on the whole test set; nodes, worst, best: of the nodes' own models;",
    "+-: sample standard deviation over the seeds, of which worst and best are means; sent: real frames, heads included;",
    "consensus: root mean square distance of the nodes' models from their mean after the last round; wall: seconds of one run",
)


def rows(cases: Sequence[StudyCase], results: Mapping[str, Result], target: float = 0.0) -> list[Row]:
    """Return a row for every variant with a result, in the order of the cases.

    Figures are over the runs that did not fail: `x` is the mean and `x_std` the sample standard
    deviation (None with fewer than two), None when unknown. `target`: an accuracy; 0 for none. What
    runs needed to get there is over those that did, of which `reached` is the number."""
    groups: dict[str, list[StudyCase]] = {}
    for case in cases:
        if case.key in results:
            groups.setdefault(case.group, []).append(case)
    return [_row(group, [results[case.key] for case in group], target) for group in groups.values()]


def _row(group: Sequence[StudyCase], results: Sequence[Result], target: float) -> Row:
    done = [result for result in results if result["state"] == "done"]
    row: Row = {"case": group[0].name, "settings": dict(group[0].settings)}
    row |= {"seeds": [case.seed for case in group], "failed": len(results) - len(done)}
    if target:
        done = [{**result, **_to_target(result, target)} for result in done]
        row["reached"] = sum("target_bytes" in result for result in done)
    for figure in (*_FIGURES, *(_TO_TARGET if target else ()), *_WHERE_KNOWN):
        over = results if figure in _HEAT else done
        known = [value for result in over if (value := figure.find(result)) is not None]
        if known or figure not in _WHERE_KNOWN:
            row[figure.key], row[f"{figure.key}_std"] = _mean_and_std(known)
    row["scores"], row["scores_std"] = {}, {}
    for name in dict.fromkeys(name for result in done for name in scores_of(result)):
        found = (scores_of(result).get(name, {}).get("averaged") for result in done)
        known = [value for value in found if value is not None]
        row["scores"][name], row["scores_std"][name] = _mean_and_std(known)
    return row


def _to_target(result: Result, target: float) -> Result:
    """What a run took up to its first test at which the averaged model had the accuracy."""
    points = [*result["curve"], {"round": result["rounds"] - 1, "virtual_s": result.get("virtual_s")}]
    for point, (sent_bytes, accuracy) in zip(points, _learning(result, "accuracy"), strict=True):
        if accuracy >= target:
            return {
                "target_rounds": point["round"] + 1,
                "target_bytes": sent_bytes,
                "target_s": point.get("virtual_s"),
            }
    return {}


def _mean_and_std(known: Sequence[float]) -> tuple[float | None, float | None]:
    return statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None


def as_text(rows: Sequence[Row]) -> str:
    """Return the table as aligned columns, with notes."""
    return table.as_text(cells(rows), NOTES)


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the table in Markdown, with notes."""
    return table.as_markdown(cells(rows), NOTES).replace("+-", "±")


def as_csv(rows: Sequence[Row]) -> str:
    """Return all figures as CSV; unknown values are empty."""
    return table.as_csv(figures(rows))


def figures(rows: Sequence[Row]) -> list[list[Any]]:
    """Return all figures as rows under a head: every setting of the study has a column of its own;
    None is unknown."""
    keys = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    measured = [key for figure in _figures(rows) for key in (figure.key, f"{figure.key}_std")]
    scores = _other_scores(rows)
    heads = [head for name in scores for head in (name, f"{name}_std")]
    lines: list[list[Any]] = [["case", *keys, "seeds", "failed", *measured, *heads]]
    for row in rows:
        settings = [row["settings"].get(key) for key in keys]
        seeds = " ".join(map(str, row["seeds"]))
        more = [row[of].get(name) for name in scores for of in ("scores", "scores_std")]
        lines.append([row["case"], *settings, seeds, row["failed"], *(row.get(key) for key in measured), *more])
    return lines


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table as people read it, its head first."""
    scores = _other_scores(rows)
    asked = _figures(rows)
    shown = [f for f in asked if f not in _ACCURACY or not scores or any(row[f.key] is not None for row in rows)]
    lines = [["case", "seeds", *(printable(name, 32) for name in scores), *(figure.head for figure in shown)]]
    for row in rows:
        runs = len(row["seeds"]) - row["failed"]
        seeds = str(runs) if not row["failed"] else f"{runs} ({row['failed']} failed)"
        more = (_score_text(row["scores"].get(name), row["scores_std"].get(name)) for name in scores)
        figures = (UNKNOWN if _missing(row.get(f.key)) else f.show(row[f.key], row[f"{f.key}_std"]) for f in shown)
        lines.append([printable(row["case"], 80), seeds, *more, *figures])
        if 0 < row.get("reached", runs) < runs:
            lines[-1][-1] += f" ({row['reached']} of {runs})"
    return lines


def _figures(rows: Sequence[Row]) -> tuple[_Figure, ...]:
    to_target = _TO_TARGET if rows and "reached" in rows[0] else ()
    return (*_FIGURES, *(f for f in _WHERE_KNOWN if any(f.key in row for row in rows)), *to_target)


def _other_scores(rows: Sequence[Row]) -> list[str]:
    """Names of scores besides the accuracy, which has columns of its own."""
    return [name for name in dict.fromkeys(name for row in rows for name in row["scores"]) if name != "accuracy"]


def _score_text(mean: float | None, std: float | None) -> str:
    if mean is None or _missing(mean):
        return UNKNOWN
    return number_text(mean, 4) + ("" if std is None else f" +- {number_text(std, 4)}")


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


Point = tuple[float, float]

MOST_PANELS = 9
_PROBLEM = ("data.", "model.", "gossip.topology", "run.nodes", attack.PREFIX, link.PREFIX, heat.PREFIX)
_METHOD = ("gossip.algorithm", "run.mode")


@dataclass(frozen=True, slots=True)
class Variant:
    """Holds the curves of one variant over its seeds. Lists are means over the runs that did not
    fail."""

    panel: str
    color: str
    mark: str
    bits_per_value: float
    score: str  # the name of what the runs go by, "loss" where they have no score
    value: float  # of the averaged model; nan when nothing was evaluated
    std: float  # 0 with one seed
    by_bytes: list[Point] = field(default_factory=list)  # (bytes sent by a node, score of the averaged model)
    loss_by_bits: list[Point] = field(default_factory=list)  # (bits sent by a node, loss on its own data)
    by_round: list[Point] = field(default_factory=list)  # (round, consensus distance)


def variants(cases: Sequence[StudyCase], results: Mapping[str, Result]) -> list[Variant]:
    """Return every variant with at least one run that did not fail, in the order of the cases."""
    groups: dict[str, list[StudyCase]] = {}
    for case in cases:
        if results.get(case.key, {}).get("state") == "done":
            groups.setdefault(case.group, []).append(case)
    looks = _looks([group[0] for group in groups.values()])
    runs = ([results[case.key] for case in group] for group in groups.values())
    return [_variant(look, results) for look, results in zip(looks, runs, strict=True)]


def _variant(look: tuple[str, str, str], results: Sequence[Result]) -> Variant:
    score = headline(results[0]) or "loss"
    rates = [_reached(result, score) for result in results]
    bits = [result["bits_per_value"] for result in results]
    return Variant(
        *look,
        bits_per_value=statistics.fmean(bits) if None not in bits else math.nan,
        score=score,
        value=statistics.fmean(rates),
        std=statistics.stdev(rates) if len(rates) > 1 else 0.0,
        by_bytes=_mean_curve([_learning(result, score) for result in results]),
        loss_by_bits=_mean_curve([_losing(result) for result in results]),
        by_round=_mean_curve([[(r, d) for r, d in result["consensus_distance"]] for result in results]),
    )


def _reached(result: Result, score: str) -> float:
    """The score, or the loss, of the averaged model at the end; nan when nothing was evaluated."""
    found = result.get("loss") if score == "loss" else scores_of(result).get(score)
    return math.nan if not found or found["averaged"] is None else float(found["averaged"])


def _learning(result: Result, score: str) -> list[Point]:
    """The evaluations of a run, and its end."""
    nodes, sent = result["nodes"], result["sent_bytes"]
    points = []
    for entry in result["curve"]:
        value = entry.get(score) if score in ("loss", "accuracy") else entry.get("scores", {}).get(score)
        points.append((entry["sent_bytes"] / nodes, math.nan if value is None else value))
    return [*points, ((sent["payload"] + sent["overhead"]) / nodes, _reached(result, score))]


def _losing(result: Result) -> list[Point]:
    """Training losses of a run, where its curve has them."""
    nodes = result["nodes"]
    return [(8 * e["sent_bytes"] / nodes, e["train_loss"]) for e in result["curve"] if e.get("train_loss") is not None]


def _mean_curve(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """Point by point: runs of one variant are measured after the same rounds."""
    known = [[(x, math.nan if y is None else y) for x, y in curve] for curve in curves]
    return [
        (statistics.fmean(x for x, _ in at), statistics.fmean(y for _, y in at)) for at in zip(*known, strict=False)
    ]


def _looks(cases: Sequence[StudyCase]) -> list[tuple[str, str, str]]:
    """(panel, colour, mark) of each."""
    keys = list(dict.fromkeys(key for case in cases for key in case.settings))
    table = [{key: _lookup(case, key) for key in keys} for case in cases]
    varying = [key for key in keys if len({repr(row[key]) for row in table}) > 1]
    varying = _without_tables(varying, table)
    problem = _needed([key for key in varying if key.startswith(_PROBLEM)], table)
    if len({_words(problem, row) for row in table}) > MOST_PANELS:
        problem = []
    method = [key for key in varying if key in _METHOD]
    rest = _needed([key for key in varying if key not in (*problem, *method)], table)
    if not method:
        method, rest = rest[:1], rest[1:]
    return [(_words(problem, row), _words(method, row), _words(rest, row)) for row in table]


def _without_tables(keys: list[str], table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Leave out a table such as codec.params where its own keys are there and tell as much
    apart."""
    kept = keys
    for key in [key for key in keys if any(other.startswith(f"{key}.") for other in keys)]:
        others = [other for other in kept if other != key]
        if len({_words(others, row) for row in table}) == len({_words(kept, row) for row in table}):
            kept = others
    return kept


def _needed(keys: Iterable[str], table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Leave out those that tell nothing apart that the others do not: the later ones go first. What
    the codec is, is said."""
    kept = list(keys)
    for key in [key for key in reversed(kept) if not key.startswith("codec.")]:
        others = [other for other in kept if other != key]
        if len({_words(others, row) for row in table}) == len({_words(kept, row) for row in table}):
            kept = others
    return kept


def _words(keys: Iterable[str], row: Mapping[str, Any]) -> str:
    return say({key: row[key] for key in keys if row[key] not in (None, "none", "")})


def _lookup(case: StudyCase, key: str) -> Any:
    """The value of a key in the resolved recipe, attack, link or heat; None for a parameter that
    this case does not set, and for all of an attack where nobody lies."""
    section, name, *inside = key.split(".")
    around = {attack.PREFIX: case.attack, link.PREFIX: case.link, heat.PREFIX: case.heat}
    value = getattr(around[f"{section}."] if f"{section}." in around else getattr(case.recipe, section), name, None)
    for part in inside:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def write_plots(
    folder: Path, cases: Sequence[StudyCase], results: Mapping[str, Result], figures: Figures = Figures()
) -> list[Path]:
    """Draw accuracy-bits.png, accuracy-bytes.png, loss-bits.png and consensus.png into `folder`, or
    what `figures` says; those without data are left out. Raises HostError without matplotlib."""
    require_matplotlib()
    from edgegossip.sweep import plots

    found, study, written = variants(cases, results), folder.resolve().name, []

    def series(v: Variant, points: Sequence[Point], error: float = 0.0) -> plots.PlotSeries:
        return plots.PlotSeries(v.panel, v.color, v.mark, points, error)

    def axis_of(shown: Sequence[Variant]) -> plots.Axis:
        score = _scores(shown)
        return plots.Axis(f"test {score}, averaged model", unit="%" if score == "accuracy" else "")

    if shown := [v for v in found if v.bits_per_value > 0]:
        points = [series(v, [(v.bits_per_value, v.value)], v.std) for v in shown]
        title, path = f"{study}: {_scores(shown)} against bits", figures.path(folder, "accuracy-bits")
        axis = plots.Axis("bits a value", log=2)
        written.append(plots.panels(points, figures.title(title), path, axis, axis_of(shown), "points"))
    if shown := [v for v in found if v.by_bytes]:
        curves = [series(v, v.by_bytes) for v in shown]
        title, path = f"{study}: {_scores(shown)} against bytes sent", figures.path(folder, "accuracy-bytes")
        axis = plots.Axis("bytes sent by a node", log=10, unit="B")
        written.append(plots.panels(curves, figures.title(title), path, axis, axis_of(shown), "curves"))
    if curves := [series(v, v.loss_by_bits) for v in found if v.loss_by_bits]:  # as ElastiCL's Figure 1
        title, path = f"{study}: training loss against bits sent", figures.path(folder, "loss-bits")
        axis = plots.Axis("bits sent by a node", log=10, unit="bit")
        written.append(plots.panels(curves, figures.title(title), path, axis, plots.Axis("training loss"), "curves"))
    apart = [(v, [(x, y) for x, y in v.by_round if y > 0]) for v in found]
    if lines := [series(v, points) for v, points in apart if points]:
        title, path = f"{study}: consensus distance", figures.path(folder, "consensus")
        distance = plots.Axis("consensus distance", log=10)
        written.append(plots.panels(lines, figures.title(title), path, plots.Axis("round"), distance, "lines"))
    return written


def _scores(shown: Sequence[Variant]) -> str:
    """What the vertical axis shows; a study of several tasks has one axis for all of them."""
    return printable(" or ".join(dict.fromkeys(v.score for v in shown)), 60)
