"""Studies of tasks without accuracy: their scores in the table, the files and the plots' axes."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from edgegossip import recipe as recipes
from edgegossip.studies import summary
from edgegossip.studies.cases import StudyCase

BASE = recipes.load("quickstart-gossip")


def case(codec: str, seed: int) -> StudyCase:
    settings = {"codec.name": codec}
    return StudyCase(settings, recipes.with_settings(BASE, {**settings, "run.seed": seed}), codec)


def result(**scores: float) -> dict[str, Any]:
    over = {name: {"averaged": v, "mean": v, "min": v, "max": v} for name, v in scores.items()}
    curve = [{"round": 2, "sent_bytes": 400, "accuracy": None, "scores": dict(scores), "loss": 1.0, "train_loss": 1.0}]
    return {
        "state": "done",
        "reason": "",
        "accuracy": over.get("accuracy"),
        "score": next(iter(over), None),
        "scores": over,
        "loss": {"averaged": 0.75, "mean": 0.75},
        "bits_per_value": 8.0,
        "bytes_per_node_round": 10.0,
        "sent_bytes": {"payload": 800, "overhead": 0},
        "nodes": 4,
        "curve": curve,
        "consensus_distance": [[0, 1.0]],
        "seconds": 1.0,
    }


def test_other_scores_have_columns_in_place_of_accuracys() -> None:
    cases = [case("fp32", 1), case("fp32", 2), case("minmax8", 1)]
    found = {c.key: result(mae=v, r2=0.5) for c, v in zip(cases, (0.25, 0.75, 1.0), strict=True)}
    rows = summary.rows(cases, found)
    assert rows[0]["scores"] == {"mae": 0.5, "r2": 0.5} and rows[0]["accuracy"] is None
    assert rows[0]["scores_std"]["mae"] == pytest.approx(0.3535534) and rows[1]["scores_std"]["mae"] is None
    head = summary.as_text(rows).splitlines()[0].split()
    assert head[:6] == ["case", "seeds", "mae", "r2", "test", "loss"]
    (line, _) = list(csv.DictReader(io.StringIO(summary.as_csv(rows))))
    assert (line["mae"], line["r2"], line["accuracy"]) == ("0.5", "0.5", "")
    assert "0.5000 ± 0.3536" in summary.as_markdown(rows)


def test_what_came_out_of_a_run_is_said_by_its_score_or_its_loss() -> None:
    assert summary.outcome(result(mae=0.25)) == "mae 0.2500"
    assert summary.outcome(result(accuracy=0.5)) == "accuracy 50.00 %"
    assert summary.outcome(result()) == "test loss 0.7500"
    assert summary.outcome({**result(), "loss": None}) == "no evaluation"
    earlier = {"accuracy": {"averaged": 0.5}, "loss": {"averaged": 1.0}}
    assert summary.outcome(earlier) == "accuracy 50.00 %"


def test_plots_go_by_the_score_and_without_one_by_the_loss() -> None:
    cases = [case("fp32", 1), case("fp32", 2)]
    (found,) = summary.variants(cases, {c.key: result(mae=v) for c, v in zip(cases, (0.25, 0.75), strict=True)})
    assert (found.score, found.value, found.by_bytes) == ("mae", 0.5, [(100.0, 0.5), (200.0, 0.5)])
    (bare,) = summary.variants(cases[:1], {cases[0].key: result()})
    assert (bare.score, bare.value, bare.by_bytes) == ("loss", 0.75, [(100.0, 1.0), (200.0, 0.75)])


def test_rounds_and_bytes_to_a_target_are_over_the_runs_that_reached_it() -> None:
    cases = [case("fp32", seed) for seed in (1, 2, 3)] + [case("minmax8", 1)]
    runs = [result(accuracy=value) | {"rounds": 6} for value in (0.5, 0.75, 0.75, 0.25)]
    for run, at_first in zip(runs, (0.25, 0.75, 0.25, 0.125), strict=True):  # a test after round 2, and the end
        run["curve"][0]["accuracy"] = at_first
    found = {c.key: run for c, run in zip(cases, runs, strict=True)}
    some, none = summary.rows(cases, found, target=0.625)
    assert (some["reached"], some["target_rounds"], some["target_bytes"]) == (2, 4.5, 150.0)
    assert (none["reached"], none["target_rounds"], none["target_bytes"]) == (0, None, None)
    head, _, first, second, *_ = summary.as_text([some, none]).splitlines()
    assert head.split("  ")[-1].strip() == "sent/node to target" and "rounds to target" in head
    assert first.endswith("4  150 B +- 71 B (2 of 3)") and second.split()[-2:] == ["-", "-"]
    assert "target_bytes" in summary.as_csv([some]).splitlines()[0]
    assert "target" not in summary.as_text(summary.rows(cases, found))
