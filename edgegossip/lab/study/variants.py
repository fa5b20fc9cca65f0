"""What the plots of a study show: variants sorted into panels, colours and marks by what differs
between them.

Panels: the problem (data, model, topology, number of nodes). Colours: the algorithm, or the server.
Marks and lines: whatever else differs, such as the codec and momentum. A key that others determine
(eta, where it follows the codec) is not named."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgegossip.lab.study.cases import Case, say
from edgegossip.lab.study.table import headline, scores_of

Result = Mapping[str, Any]
Point = tuple[float, float]

MOST_PANELS = 9
_PROBLEM = ("data.", "model.", "gossip.topology", "run.nodes")
_METHOD = ("gossip.algorithm", "run.mode")


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant over its seeds. Lists are means over the runs that did not fail."""

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


def variants(cases: Sequence[Case], results: Mapping[str, Result]) -> list[Variant]:
    """Every variant with at least one run that did not fail, in the order of the cases."""
    groups: dict[str, list[Case]] = {}
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


def _looks(cases: Sequence[Case]) -> list[tuple[str, str, str]]:
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


def _lookup(case: Case, key: str) -> Any:
    """The value of a recipe key in the resolved recipe; None for a parameter that this case does
    not set."""
    section, name, *inside = key.split(".")
    value = getattr(getattr(case.recipe, section), name)
    for part in inside:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
