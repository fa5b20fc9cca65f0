"""Who evaluates the model of a server run, and what is recorded of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.engine.plausible import Losses
from edgegossip.engine.server_evaluations import Evaluations
from edgegossip.engine.server_events import ServerPlan
from edgegossip.engine.server_frames import COORDINATOR
from edgegossip.engine.server_records import Progress
from edgegossip.types import Metrics, Round
from tests.engine.conftest import Written
from tests.engine.toy import LAYOUT


def plan(after: set[Round], **more: Any) -> ServerPlan:
    return ServerPlan(
        boards=("a", "b", "c", "d"), rounds=40, layout=LAYOUT, run_id=bytes(16), codec=codecs.get("fp32"),
        evaluate_after=frozenset(after), **more,
    )  # fmt: skip


def test_an_evaluation_that_one_board_owes_is_asked_of_another(written: Written) -> None:
    logs: list[str] = []
    made = Evaluations(plan({1, 5}), Losses(), lambda event, text, **fields: logs.append(text), written)
    made.after(1)
    assert (
        made.wanted == made.open == 1 and list(made.ask(["a"], 1)) == ["a"] and made.open == 1 and made.wanted is None
    )
    made.failed("a", "it went away")
    assert made.wanted == 1 and list(made.ask(["b", "a"], 3)) == ["b"]  # although it would be a's turn
    made.answered("b", Metrics(0.5, 10, {"accuracy": 0.5, "f1": 0.25}))
    values = {"eval/loss": 0.5, "eval/accuracy": 0.5, "eval/f1": 0.25, "eval/examples": 10}
    assert written.all == [(COORDINATOR, 3, values)]
    made.after(5)
    made.ask(["a"], 5)
    made.failed("a", "it hangs")
    assert list(made.ask(["a"], 6)) == ["a"]  # there is nobody else
    made.failed("a", "it hangs again")
    assert made.wanted is None and made.open is None
    assert logs == ["the model after round 6 is not evaluated (a: it hangs; a: it hangs again)"]
    for step in (7, 8):  # the next one is due before another board is asked, and has tries of its own
        made.after(5)
        made.ask(["a"], step)
        made.failed("a", "it hangs")
        assert made.wanted == step


def test_an_evaluation_without_a_figure_is_none(written: Written) -> None:
    made = Evaluations(plan({1}), Losses(), lambda *_, **__: None, written)
    made.after(1)
    made.ask(["a"], 1)
    made.answered("a", Metrics(math.nan, 10))
    assert made.wanted == 1 and list(made.ask(["b"], 1)) == ["b"]
    made.answered("b", Metrics(math.nan, 0))  # it has no test set: that is no try
    assert made.wanted == 1 and list(made.ask(["b", "c"], 1)) == ["c"]
    made.answered("c", Metrics(math.nan, 10, {"f1": 0.25}))
    assert written.all == [(COORDINATOR, 1, {"eval/f1": 0.25, "eval/examples": 10})]


def test_where_each_board_has_a_test_set_the_evaluation_is_the_mean_by_examples(written: Written) -> None:
    logs: list[str] = []
    log = lambda event, text, **fields: logs.append(text)  # noqa: E731
    made = Evaluations(plan({1, 3, 5}, evaluates_everywhere=True), Losses(), log, written)
    made.after(1)
    assert list(made.ask(["a", "b", "c", "d"], 1)) == ["a", "b", "c", "d"] and made.open == 1
    made.answered("a", Metrics(0.5, 30, {"accuracy": 0.5, "f1": 0.25}))
    made.answered("b", Metrics(0.1, 10, {"accuracy": 0.9}))
    made.answered("c", Metrics(math.nan, 0))  # it has no test set
    assert not written.all  # until the round is over; d is late
    made.after(2)
    values = {"eval/loss": pytest.approx(0.4), "eval/accuracy": pytest.approx(0.6), "eval/examples": 40}
    assert written.all == [(COORDINATOR, 1, values)] and made.open is None
    made.answered("d", Metrics(0.5, 10, {"accuracy": 0.5}))
    made.after(3)
    assert list(made.ask(["a", "b", "c"], 3)) == ["a", "b"]
    made.failed("a", "it hangs")
    made.after(4)
    assert len(written.all) == 1
    assert logs[-1] == "the model after round 3 is not evaluated (a: it hangs; b: it has not answered in time)"


def test_of_boards_elsewhere_each_ones_own_evaluation_is_recorded_too(written: Written) -> None:
    chosen = plan({1}, evaluates_everywhere=True, records_boards=True)
    made = Evaluations(chosen, Losses(), lambda *_, **__: None, written)
    made.after(1)
    made.ask(["a", "b"], 1)
    made.answered("b", Metrics(0.1, 10, {"accuracy": 0.9}))
    made.answered("a", Metrics(0.5, 30, {"accuracy": 0.5}))
    made.after(2)
    assert [(name, step, values["eval/accuracy"]) for name, step, values in written.all] == [
        ("a", 1, 0.5), ("b", 1, 0.9), (COORDINATOR, 1, pytest.approx(0.6)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"patience": 2}, "evaluation.patience ends nothing: nobody"),
        ({"keeps_best": True}, "checkpoint.best keeps no model: nobody"),
        (
            {"patience": 2, "keeps_best": True},
            "evaluation.patience ends nothing and checkpoint.best keeps no model: nobody",
        ),
        ({}, ""),
    ],
)
def test_what_a_score_of_unknown_direction_is_of_no_use_for_is_said_once(
    asked: dict[str, Any], said: str, written: Written
) -> None:
    logs: list[str] = []
    made = Evaluations(plan({1}, **asked), Losses(), lambda event, text, **fields: logs.append(text), written)
    for step in range(3):
        made.record(step, Metrics(0.5, 10, {"bleu": 0.3}))
    assert [text.startswith(said) for text in logs] == [True] * bool(said)
    assert made.best is None and not made.exhausted


def honest(step: int, rounds: int = 40) -> float:
    """Rises, and is noisy: boards' test sets differ."""
    return 0.3 + 0.6 * step / rounds + 0.01 * (step % 3)


def took_turns(
    written: Written, liar: Any, rounds: int = 40, restart: int = -1, **more: Any
) -> tuple[Evaluations, list[tuple[Round, float]], int]:
    """Four boards take turns, of whom d finds what `liar` says; before round `restart` the
    coordinator is another process."""
    best: list[tuple[Round, float]] = []

    def process() -> Evaluations:
        every = plan(set(range(rounds)), **more)
        return Evaluations(every, Losses(), lambda *_, **__: None, written, lambda *found: best.append(found))

    made = process()
    for step in range(rounds):
        if step == restart:
            known = {"best": made.best, "since_best": made.since_best, "merits": made.merits}
            saved, made = Progress(step, np.zeros(1, np.float32), evaluations=made.asked, **known), process()
            made.resume(from_bytes(to_bytes(saved)))
        made.after(step)
        if made.exhausted:
            return made, best, step
        for name in made.ask(["a", "b", "c", "d"], step):
            accuracy = honest(step) if name != "d" or liar is None else liar(step)
            made.answered(name, Metrics(1.0 - accuracy / 2, 100, {"accuracy": accuracy}))
    return made, best, rounds


@pytest.mark.parametrize("restart", [-1, 9, 20])
@pytest.mark.parametrize("liar", [lambda step: 1.0, lambda step: 0.95 + step / 1000, lambda step: 0.0])
def test_one_board_that_lies_neither_ends_a_run_nor_has_an_old_model_kept(
    liar: Any, restart: int, written: Written
) -> None:
    made, best, played = took_turns(written, liar, restart=restart, patience=5)
    assert played == 40 and not made.exhausted and made.best == (best[-1][1], best[-1][0])
    assert best[-1][0] >= 37


def test_where_nobody_lies_each_that_is_better_than_all_before_is_the_best(written: Written) -> None:
    _, best, played = took_turns(written, None, patience=5)
    rises = [step for step in range(40) if all(honest(step) > honest(k) for k in range(step))]
    assert played == 40 and [step for step, _ in best] == rises


def test_evaluations_that_all_stand_still_end_a_run_although_a_board_lies(written: Written) -> None:
    made = Evaluations(plan(set(range(40)), patience=5), Losses(), lambda *_, **__: None, written)
    for step in range(40):
        made.after(step)
        if made.exhausted:
            break
        for name in made.ask(["a", "b", "c", "d"], step):
            made.answered(name, Metrics(0.5, 100, {"accuracy": 1.0 if name == "d" else min(0.5, 0.1 * step)}))
    assert made.exhausted and step <= 14


def test_an_evaluation_of_more_examples_than_anybody_has_decides_nothing(written: Written) -> None:
    logs: list[str] = []
    log = lambda event, text, **fields: logs.append(text)  # noqa: E731
    made = Evaluations(plan({1}, evaluates_everywhere=True), Losses(), log, written)
    made.after(1)
    made.ask(["a", "b", "c", "d"], 1)
    for name in "abc":
        made.answered(name, Metrics(0.5, 30, {"accuracy": 0.5}))
    made.answered("d", Metrics(0.1, 10**12, {"accuracy": 1.0}))
    made.after(2)
    assert written.all == [(COORDINATOR, 1, {"eval/loss": 0.5, "eval/accuracy": 0.5, "eval/examples": 90})]
    assert logs == ["refused the evaluation of d: the evaluation claims to be from 1e+12 examples, 3.33e+10 times as "
                    "many as the typical one"]  # fmt: skip
