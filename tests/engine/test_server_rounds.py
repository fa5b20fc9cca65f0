"""A coordinator's rounds over boards in virtual time: what they compute, from the start and from a
checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from edgegossip.agreement import Agreement
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.engine.combine import Mean, with_control, with_outer
from edgegossip.engine.server import MAX_REPEATS, ServerEngine
from edgegossip.engine.server_events import (
    Ask,
    Effect,
    Evaluate,
    Instruction,
    Save,
    Stop,
    Train,
)
from edgegossip.engine.server_frames import COORDINATOR, Channel
from edgegossip.engine.server_records import Progress
from edgegossip.gossip import outer
from edgegossip.types import LocalUpdate, Metrics, RunError, Vec
from tests.engine import toy
from tests.engine.fleet import RUN_ID, Run, garbage


def test_three_boards_give_exact_fedavg() -> None:
    run = Run(boards=3, rounds=5)
    x = run.play()
    np.testing.assert_allclose(x, toy.fedavg(3, 5, run.initial), atol=1e-6)
    assert run.evaluations().keys() == set(range(5)) and run.evaluations()[4] == pytest.approx(float(np.mean(x**2)))
    assert run.evaluations()[0] == pytest.approx(float(np.mean(toy.fedavg(3, 1, run.initial) ** 2)), rel=1e-5)
    assert [board.farewell for board in run.boards] == ["the run is complete"] * 3 and run.completed


def test_boards_weigh_what_they_hold_and_not_what_they_saw() -> None:
    """Each sees another number of examples in a round; they hold 10, 20 and 30."""
    run = Run(boards=3, rounds=2)
    for k, board in enumerate(run.boards):

        def update(x: Vec, round: int, own: toy.Toy = board.workload, k: int = k) -> LocalUpdate:
            return replace(toy.Toy.local_update(own, x, round), examples=1000 - k, holds=own.examples)

        board.workload.local_update = update  # type: ignore[method-assign]
    np.testing.assert_allclose(run.play(), toy.fedavg(3, 2, run.initial), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("here", [False, True], ids=["boards evaluate", "coordinator evaluates"])
def test_boards_that_ask_for_it_get_the_final_model_with_the_goodbye(here: bool) -> None:
    run = Run(boards=3, hands_out_model=True, evaluates_itself=here, downlink="8-bit-elastiquant")
    run.evaluate = lambda x, examples: Metrics(1.0, 1)
    x = run.play()
    for board in run.boards:
        assert board.parting is not None and np.array_equal(board.parting, x)


def test_a_run_that_fails_hands_no_model_out() -> None:
    run = Run(boards=3, hands_out_model=True)
    for board in run.boards:
        board.spoil = dict.fromkeys(range(9), garbage)
    with pytest.raises(RunError):
        run.play()
    assert [board.parting for board in run.boards] == [None] * 3 and all(board.failed for board in run.boards)


def test_a_run_that_is_stopped_while_its_model_is_evaluated_hands_none_out() -> None:
    run = Run(boards=3, rounds=2, hands_out_model=True)

    def stop(effect: Effect) -> None:
        if isinstance(effect, Ask) and isinstance(effect.questions[0].instruction, Evaluate):
            run.at(0.0, Stop())

    run.on_effect = stop
    run.play()
    assert [board.parting for board in run.boards] == [None] * 3 and all(board.failed for board in run.boards)


def test_differences_go_down_to_those_who_hold_the_model_before() -> None:
    run = Run(rounds=8, downlink="8-bit-elastiquant")
    run.boards[1].away = frozenset({3})
    run.boards[2].spoil = {5: garbage}
    for board in run.boards:
        board.takes_s = 0.9  # the other process of board 1 joins meanwhile
    x = run.play()
    whole = run.boards[0].received_bytes[0]
    small = [[size < whole / 2 for size in b.received_bytes] for b in run.boards]
    assert small[0] == [False] + 7 * [True]
    assert run.boards[1].trained == list(range(8)) and small[1] == [False, True, True, True, False, True, True, True]
    assert small[2] == [False] + 7 * [True]  # it had the model, whatever it sent
    assert np.abs(x - toy.fedavg(4, 8, run.initial)).max() < 0.5
    sent = [ended.values["net/payload_bytes"] for ended in run.rounds]
    assert len(sent) == 8 and sent[0] > 2 * sent[1]  # type: ignore[operator]
    total = sum(v["net/payload_bytes"] + v["net/overhead_bytes"] for v in (e.values for e in run.rounds))  # type: ignore[operator, misc]
    assert total == sum(sum(b.received_bytes) for b in run.boards)


def test_a_board_that_was_too_busy_to_answer_its_hello_gets_another() -> None:
    run = Run()
    run.boards[1].unavailable = 2
    np.testing.assert_array_equal(run.play(), Run().play())
    assert not run.texts("refused") and len(run.texts("joined")) == 4


def test_nobody_waits_for_a_process_whose_successor_has_joined() -> None:
    run = Run(deadline_s=3600)
    run.boards[1].ghost = frozenset({2})
    run.play()
    assert run.boards[1].trained == list(range(6)) and len(run.texts("joined")) == 5
    assert run.used == [4, 4, 3, 4, 4, 4] and not run.texts("suspect")


@pytest.mark.parametrize("down", ["fp32", "8-bit-elastiquant"])
@pytest.mark.parametrize(("back_s", "away"), [(0.0, range(MAX_REPEATS + 1)), (40.0, [3])])
def test_a_round_whose_boards_all_went_away_is_asked_for_again(down: str, back_s: float, away: Sequence[int]) -> None:
    """So often in each round."""
    rounds = MAX_REPEATS + 1
    expected = Run(downlink=down, rounds=rounds).play()
    run = Run(downlink=down, rounds=rounds, return_s=60.0)
    for k, board in enumerate(run.boards):
        board.away, board.back_s = frozenset(away), back_s * (k + 1) / 4
    np.testing.assert_array_equal(run.play(), expected)
    assert run.boards[0].trained == sorted([*range(rounds), *away])
    assert run.used == [4] * rounds


def remembering(down: str) -> Run:
    """A run in which every field of Progress comes to hold something."""
    plan: dict[str, Any] = {"patience": 9, "keeps_best": True, "records_boards": True, "instance": "ab12"}
    run = Run(boards=3, fraction=0.5, rounds=7, codec="elasticl", downlink=down, every=2, **plan)
    channel = Channel.of(toy.LAYOUT, RUN_ID, run.codec)
    averaged = with_outer(Mean(channel), outer.make("adam"), toy.LAYOUT)
    run.make_combiner = lambda plan: with_control(averaged, "scaffold", channel, len(plan.boards))
    return run


@pytest.mark.parametrize("down", ["8-bit-elastiquant", "fp32"])
def test_from_any_round_another_process_goes_on_as_if_nothing_had_been(down: str) -> None:
    """From a checkpoint's bytes, with boards that begin anew, to the bytes of all later checkpoints
    and to the records that the first process had not written."""
    whole = remembering(down)
    whole.boards[1].agreement = Agreement({"target": "9 classes"}).to_json()  # and does not say it again
    written: list[int] = []  # records, at each save
    whole.on_effect = lambda effect: written.append(len(whole.records)) if isinstance(effect, Save) else None
    x = whole.play()
    kept = [to_bytes(progress) for progress in whole.saved]
    for field in fields(Progress) if down != "fp32" else ():
        assert any(np.size(value := getattr(saved, field.name)) > 1 or value for saved in whole.saved), field.name
    for k, data in enumerate(kept):
        again = remembering(down)
        progress = from_bytes(data)
        assert to_bytes(progress) == data
        np.testing.assert_array_equal(again.play(progress), x)
        assert [to_bytes(later) for later in again.saved] == kept[k + 1 :]
        theirs = [record for record in whole.records[written[k] :] if record[0] != COORDINATOR]
        assert [record for record in again.records if record[0] != COORDINATOR] == theirs


def test_a_save_comes_before_whatever_is_asked_next() -> None:
    order: list[object] = []

    def note(effect: Effect) -> None:
        if isinstance(effect, Save):
            order.append(effect.progress.round)
        if isinstance(effect, Ask) and isinstance(effect.questions[0].instruction, Train):
            order.append(f"round {effect.questions[0].instruction.frame.round}")

    run = Run(rounds=3)
    run.on_effect = note
    run.play()
    assert order == ["round 0", 1, "round 1", 2, "round 2", 3]


def test_a_coordinator_whose_last_round_was_kept_hands_the_model_over_and_evaluates_it() -> None:
    whole = Run()
    x = whole.play()
    again = Run()
    np.testing.assert_array_equal(again.play(whole.saved[-1]), x)
    assert not again.rounds and again.evaluations() == {5: whole.evaluations()[5]}
    np.testing.assert_array_equal(again.model, x)


def test_boards_of_a_run_that_goes_on_have_a_minute_to_come_back() -> None:
    whole = Run(boards=3, rounds=3)
    whole.play()
    again = Run(boards=3, rounds=3, join_s=600.0)
    again.boards[2].joins_s = 1e9
    again.play(whole.saved[0])
    assert again.texts("peer-down") == ["lost board-2: it did not join within 60 s"] and again.used == [2, 2]


def test_the_coordinator_may_evaluate_itself() -> None:
    run = Run(rounds=3, evaluates_itself=True, evaluation_examples=7)
    seen: list[int | None] = []

    def evaluate(x: Vec, examples: int | None) -> Metrics:
        seen.append(examples)
        return Metrics(float(np.mean(x**2)), 10)

    run.evaluate = evaluate
    asked: list[Instruction] = []
    run.on_effect = lambda effect: (
        asked.extend(q.instruction for q in effect.questions) if isinstance(effect, Ask) else None
    )
    x = run.play()
    assert sorted(run.evaluations()) == [0, 1, 2] and seen == [7, 7, None]
    assert run.evaluations()[2] == pytest.approx(float(np.mean(x**2)))
    assert {wish.examples for wish in asked if isinstance(wish, (Train, Evaluate))} == {None}, "boards evaluate nothing"


def test_the_model_is_waited_for_and_boards_that_go_away_meanwhile_do_no_harm() -> None:
    run = Run(rounds=2, min_nodes=4)
    run.keeps_after_s = 300.0
    run.boards[0].silent = (20.0, 400.0)
    x = run.play()
    np.testing.assert_array_equal(x, run.model)
    assert not run.evaluated_before - {0} and run.now_s > 400.0
    (text,) = run.texts("not-evaluated")  # by then too few boards are there: the model is safe, and the run is complete
    assert "3 of the 4 boards that server.min_nodes asks for are left" in text and run.completed


def test_too_few_boards_end_the_run_with_the_reason_and_all_hear_it() -> None:
    run = Run(boards=2, min_nodes=2, join_s=5.0)
    run.boards[0].joins_s = 1e9
    with pytest.raises(RunError, match=r"1 of the 2 boards .*\(board-0: it did not join within 5 s\)"):
        run.play()
    assert run.boards[1].farewell.startswith("the run failed: 1 of the 2 boards") and run.boards[1].failed
    assert run.texts("waiting") == run.texts("started") == run.texts("finished") == [] and not run.completed


def test_whoever_is_waited_for_is_named_every_five_seconds() -> None:
    run = Run(boards=3, join_s=60.0)
    run.boards[1].joins_s = 13.0
    run.play()
    assert run.texts("waiting") == ["waiting 2/3: missing board-1"] * 2
    assert [log.fields for log in run.logs if log.event == "waiting"] == [{"missing": "board-1"}] * 2


def test_who_waits_wants_to_be_called_when_it_says_so_next() -> None:
    run = Run(boards=3, join_s=60.0)
    engine = ServerEngine(run.plan, run.initial)
    engine.start(100.0)
    assert engine.wake_s == 105.0


def test_with_uniform_weights_examples_do_not_count() -> None:
    run = Run(boards=3, rounds=1, weighting="uniform")
    moved = [board.workload.local_update(run.initial, 0).delta for board in run.boards]
    np.testing.assert_allclose(run.play(), run.initial + np.mean(moved, axis=0), atol=1e-6)
