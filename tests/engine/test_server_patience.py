"""Evaluations that are the best so far, and a run that ends when none is any more."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from edgegossip.engine.server_events import Better
from edgegossip.types import Metrics
from tests.engine.fleet import Run


def played(scores: Sequence[Mapping[str, float]], loss: float = 1.0, **plan: Any) -> Run:
    """A run whose k-th evaluation finds the k-th scores, and its last ones again from there on."""
    run = Run(boards=2, **plan)
    found = itertools.chain(scores, itertools.repeat(scores[-1]))
    for board in run.boards:
        board.workload.evaluate = lambda x, examples=None: Metrics(loss, 100, next(found))
    run.play()
    assert run.completed
    return run


CURVE = [{"accuracy": a} for a in (0.1, 0.5, 0.6, 0.4, 0.6, 0.5, 0.7)]


def test_a_run_ends_after_so_many_evaluations_that_are_not_better_and_keeps_the_model_of_then() -> None:
    """Round 3 is the best; what the model after round 6 is worth is known when round 7 ends."""
    run = played(CURVE, rounds=40, patience=3)
    assert [ended.round for ended in run.rounds] == list(range(7))
    (text,) = run.texts("ended-early")
    assert text.startswith("training ends after round 7: no evaluation was better than that after round 3")
    assert run.model is not None
    np.testing.assert_array_equal(run.model, played(CURVE, rounds=7).model)
    assert max(step for name, step, values in run.records if "eval/accuracy" in values) == 6
    assert all(board.farewell == "the run is complete" for board in run.boards)


@pytest.mark.parametrize(
    ("scores", "better", "rounds"),
    [
        ([{"mae": m} for m in (0.5, 0.6, 0.4, 0.45, 0.4)], "auto", 6),
        ([{"bleu": b} for b in (0.5, 0.6, 0.55, 0.6)], "higher", 5),
        ([{"bleu": b} for b in (0.5, 0.6, 0.7, 0.8)], "lower", 4),
        ([{}], "higher", 4),  # a loss: lower is better whatever is said of scores
        (CURVE, "auto", 9),
    ],
)
def test_patience_goes_by_the_score_and_the_way_that_it_is_better(
    scores: Sequence[Mapping[str, float]], better: str, rounds: int
) -> None:
    run = played(scores, rounds=9, patience=2 if scores is not CURVE else 5, better=better)
    assert len(run.rounds) == rounds


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_model_of_each_better_evaluation_is_handed_over_as_it_was_tested(everywhere: bool) -> None:
    """Its evaluation comes when the next model is made already."""
    better: list[Better] = []
    run = Run(boards=2, rounds=8, keeps_best=True, evaluates_everywhere=everywhere)
    run.on_effect = lambda effect: better.append(effect) if isinstance(effect, Better) else None
    curve = [0.3, 0.5, 0.4, 0.45, 0.7, 0.1, 0.2, 0.9]
    taking_turns = iter(curve)
    for board in run.boards:
        seen = iter(curve) if everywhere else taking_turns
        board.workload.evaluate = lambda x, examples=None, seen=seen: Metrics(1.0, 100, {"accuracy": next(seen)})  # type: ignore[misc]
    run.play()
    assert [effect.rounds for effect in better] == [1, 2, 5, 8]
    assert [effect.merit for effect in better] == pytest.approx([0.3, 0.5, 0.7, 0.9])
    for effect in better:
        np.testing.assert_array_equal(effect.model, run.rounds[effect.rounds - 1].model)


@pytest.mark.parametrize("lies", [(0.99, 0.0), (0.0, 0.99), (0.99, 0.99)])
def test_where_all_evaluate_one_that_lies_neither_ends_the_run_nor_chooses_the_best(lies: tuple[float, float]) -> None:
    """It claims 900 times the examples of the others, which get ever better until round 8."""
    better: list[Better] = []
    run = Run(boards=4, rounds=20, patience=3, keeps_best=True, evaluates_everywhere=True)
    run.on_effect = lambda effect: better.append(effect) if isinstance(effect, Better) else None
    for board in run.boards[:3]:
        curve = itertools.chain([0.1 * k for k in range(8)], itertools.repeat(0.5))
        board.workload.evaluate = lambda x, examples=None, curve=curve: Metrics(1.0, 100, {"accuracy": next(curve)})  # type: ignore[misc]
    told = itertools.chain(lies[:1], itertools.repeat(lies[1]))
    run.boards[3].workload.evaluate = lambda x, examples=None: Metrics(1.0, 90_000, {"accuracy": next(told)})
    run.play()
    assert [effect.rounds for effect in better] == list(range(1, 9)) and len(run.rounds) == 12


def test_of_a_run_that_ends_early_the_last_model_may_be_the_best() -> None:
    better: list[Better] = []
    run = Run(boards=2, rounds=40, every=2, patience=1, keeps_best=True)
    run.on_effect = lambda effect: better.append(effect) if isinstance(effect, Better) else None
    found = iter([0.5, 0.4, 0.8])
    for board in run.boards:
        board.workload.evaluate = lambda x, examples=None: Metrics(1.0, 100, {"accuracy": next(found)})
    run.play()
    assert [effect.rounds for effect in better] == [2, 5] and len(run.rounds) == 5
    assert run.model is not None
    np.testing.assert_array_equal(better[-1].model, run.model)


def test_models_are_not_handed_over_where_nobody_keeps_them() -> None:
    better: list[Better] = []
    run = Run(boards=2, rounds=3)
    run.on_effect = lambda effect: better.append(effect) if isinstance(effect, Better) else None
    run.play()
    assert not better
