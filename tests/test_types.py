"""Metrics: what an evaluation may say; the errors that users import."""

from __future__ import annotations

import math
from dataclasses import make_dataclass
from typing import Any

import numpy as np
import pytest

from edgegossip import types
from edgegossip.types import LocalUpdate, Metrics, replace, scores_problem


def test_the_first_score_is_the_headline_and_accuracy_is_none_where_there_is_none() -> None:
    found = Metrics(0.5, 10, {"mae": 0.25, "r2": 0.75})
    assert found.headline == ("mae", 0.25) and found.accuracy is None
    assert found.records() == {"eval/loss": 0.5, "eval/mae": 0.25, "eval/r2": 0.75, "eval/examples": 10}
    assert Metrics(0.5, 10).headline is None and Metrics(0.5, 10).records() == {"eval/loss": 0.5, "eval/examples": 10}
    assert Metrics(0.5, 10, {"f1": 0.2, "accuracy": 0.9}).accuracy == 0.9


def test_an_update_weighs_what_its_board_holds() -> None:
    delta = np.zeros(1, np.float32)
    assert LocalUpdate(delta, 0.1, 1.0, 64, 2, holds=900).weight == 900
    assert LocalUpdate(delta, 0.1, 1.0, 64, 2).weight == 64


@pytest.mark.parametrize("slots", [False, True])
def test_a_record_is_copied_with_other_fields_and_no_unknown_ones(slots: bool) -> None:
    record = make_dataclass("Record", [("a", list[int]), ("b", int)], frozen=True, slots=slots)([1], 2)
    assert replace(record, b=3) == type(record)(record.a, 3) and replace(record).a is record.a and record.b == 2
    with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
        replace(record, c=3)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"accuracy": 1.01}, "from 0 to 1"),
        ({"loss": 0.5}, "is named 'loss'"),
        ({"F1": 0.5}, "is named 'F1'"),
        ({"a\n": 0.5}, "is named"),
        ({3: 0.5}, "is named '3'"),
        ({"f1": math.nan}, "no finite number"),
        ({f"s{k}": 0.0 for k in range(17)}, "17 scores"),
    ],
)
def test_scores_that_cannot_be_are_named(scores: dict[Any, Any], words: str) -> None:
    assert words in scores_problem(scores)
    assert scores_problem({f"s-{k}_": float(k) for k in range(16)} | {}) == ""


def test_users_find_the_errors_at_the_top() -> None:
    import edgegossip

    public = {name for name in edgegossip.__all__ if name.endswith("Error")}
    assert public == {"ConfigError", "DataError", "EdgegossipError", "HostError", "UsageError", "PeerError", "RunError"}
    assert all(getattr(edgegossip, name) is getattr(types, name) for name in public)


def test_a_mean_over_boards_is_of_those_that_have_the_figure() -> None:
    parts = [
        Metrics(math.nan, 10, {"accuracy": 1.0}),
        Metrics(1.0, 30, {"auc": 0.5, "accuracy": 0.5}),
        Metrics(2.0, 10, {"auc": 0.9, "accuracy": 0.5, "one-board's-own": 3.0}),
    ]
    found = Metrics.over(parts)
    assert found == Metrics(1.25, 50, {"auc": 0.6, "accuracy": 0.6}) and found.headline == ("auc", 0.6)
    assert math.isnan(Metrics.over(parts[:1]).loss)


def test_figures_that_are_no_finite_number_are_not_known() -> None:
    found, unknown = Metrics.known({"auc": math.nan, "loss": math.inf, "mae": 0.5}, 7)
    assert (found.scores, found.examples, unknown) == ({"mae": 0.5}, 7, ["auc", "loss"]) and math.isnan(found.loss)
