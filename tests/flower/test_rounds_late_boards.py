"""What the coordinator's rounds do about boards that are late, silent or too few, and about evaluations that nobody does."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from edgegossip.flower import exchange as exchanges
from edgegossip.types import RunError
from tests.flower import toy
from tests.flower.conftest import Memory
from tests.flower.play import Run, garbage


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch, in_run: int) -> None:
    monkeypatch.setattr(exchanges, "WATCH_S", 0.0)


def test_a_round_goes_on_at_its_quorum_and_names_the_stragglers(sink: Memory) -> None:
    run = Run(sink, rounds=5, server={"quorum": 3}, evaluation={"every": 5})
    run.boards[0].late = frozenset({1, 3})
    run.play()
    assert sink.texts("stragglers") == [
        "round 1: went on with 3 answers, without board-0",
        "round 3: went on with 3 answers, without board-0",
    ]
    assert run.boards[0].trained == [0, 1, 3] or run.boards[0].trained == [0, 1, 2, 3, 4]
    assert len(sink.texts("late")) >= 1 and len(run.saved) == 5


def test_a_board_that_comes_late_takes_part_from_then_on(sink: Memory) -> None:
    run = Run(sink, rounds=60, server={"join_s": 0.1, "downlink": "fp16"}, evaluation={"every": 60})
    run.boards[3].absent = 40
    run.play()
    assert "lost board-3: it did not join within 0.1 s" in sink.texts("peer-down")
    assert "board-3 joined" in sink.texts("joined")
    assert 0 < len(run.boards[3].trained) < 60 and run.boards[3].trained[-1] == 59
    assert run.boards[3].received_bytes[0] > run.boards[0].received_bytes[-1]  # the whole model first


def test_a_round_with_an_evaluation_ends_at_its_quorum_and_takes_what_a_late_answer_found(sink: Memory) -> None:
    run = Run(sink, rounds=6, server={"quorum": 3}, evaluation={"every": 1})
    run.boards[0].late = frozenset({1})  # the first evaluation is its
    run.play()
    assert sink.texts("stragglers") == ["round 1: went on with 3 answers, without board-0"]
    assert sink.evaluations().keys() == set(range(6)) and not sink.texts("not-evaluated")


def test_a_round_with_an_evaluation_ends_at_its_deadline_and_another_board_evaluates(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, rounds=24, server={"deadline_s": 0.1}, evaluation={"every": 12})
    for board in run.boards:
        board.workload = toy.Toy(0, delay_s=0.01)
    run.boards[0].lost = frozenset({12})
    run.play()
    assert sink.texts("suspect") == ["round 12: went on without board-0: no answer for 0.1 s"]
    (refused,) = sink.texts("refused")
    assert refused.startswith("round 12: gave up on board-0: it is alive")
    assert not sink.texts("not-evaluated") and len(sink.evaluations()) == 2
    assert 11 < min(sink.evaluations()) < 23 == max(sink.evaluations())
    assert run.boards[0].trained[-1] == 23 and len(run.boards[0].trained) < 24  # it is asked again


def test_an_evaluation_that_nobody_does_is_named_and_the_run_goes_on(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 1)
    run = Run(sink, rounds=30, server={"deadline_s": 0.1}, evaluation={"every": 15})
    for board in run.boards:
        board.workload, board.deaf = toy.Toy(0, delay_s=0.01), True
    run.play()
    first, last = sink.texts("not-evaluated")
    assert first.startswith("the model after round") and first.count("board-") == 2 and last.count("board-") == 4
    assert len(run.saved) == 30 and not sink.evaluations()


def test_the_final_model_is_handed_over_before_it_is_evaluated_by_whoever_answers(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, rounds=3, server={"deadline_s": 0.1}, evaluation={"every": 3})
    for board in run.boards[:3]:
        board.deaf = True
    x = run.play()
    np.testing.assert_array_equal(run.model, x)
    assert not run.evaluated_before and sink.evaluations().keys() == {2}
    assert len(sink.texts("suspect")) == 3


def test_a_final_evaluation_that_nobody_can_do_loses_no_run(sink: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, rounds=3, server={"deadline_s": 0.1}, evaluation={"every": 3})
    for board in run.boards:
        board.deaf = True
    x = run.play()
    np.testing.assert_array_equal(run.model, x)
    assert x is not run.initial and not sink.evaluations()
    (text,) = sink.texts("not-evaluated")
    assert text.startswith("the model after round 2 is not evaluated (")
    assert all(f"{b.name}: no answer for 0.2 s" in text for b in run.boards)


def test_a_board_whose_answer_was_lost_is_asked_again_after_a_while(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, rounds=40, server={"quorum": 3}, evaluation={"every": 40})
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.1))
    for board in run.boards:
        board.workload = toy.Toy(0, delay_s=0.005)
    run.boards[2].lost = frozenset({5})
    run.play()
    (refused,) = sink.texts("refused")
    assert refused.startswith("round 5: gave up on board-2: ")
    assert run.boards[2].trained[:6] == list(range(6)) and run.boards[2].trained[-1] == 39


def test_a_share_of_the_boards_takes_part(sink: Memory) -> None:
    run = Run(sink, rounds=12, server={"fraction": 0.5}, evaluation={"every": 12})
    run.play()
    assert all(0 < len(b.trained) < 12 for b in run.boards)
    assert sum(len(b.trained) for b in run.boards) == 24


def test_rounds_without_a_usable_update_end_the_run(sink: Memory) -> None:
    run = Run(sink, boards=2, rounds=9)
    for board in run.boards:
        board.spoil = dict.fromkeys(range(1, 9), garbage)
    with pytest.raises(RunError, match="no usable update for 3 rounds; the last reason: board-1: "):
        run.play()


def test_a_strategy_that_lacks_answers_says_of_what(sink: Memory) -> None:
    params = {"num_malicious_nodes": 1}
    run = Run(sink, boards=4, rounds=9, server={"strategy": "bulyan", "strategy_params": params})
    with pytest.raises(RunError, match=r"no usable update for 3 rounds; bulyan needs 4\*1 \+ 3 = 7 answers, got 4$"):
        run.play()
    assert sink.texts("refused")[0] == "round 0 changes nothing: bulyan needs 4*1 + 3 = 7 answers, got 4"
    assert not sink.texts("quarantine")


@pytest.mark.parametrize("times", [1.5, 2.5])
def test_boards_slower_than_the_deadline_train_all_the_same(times: float, sink: Memory) -> None:
    run = Run(sink, boards=3, rounds=4, server={"min_nodes": 2}, evaluation={"every": 4})
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.1))
    for board in run.boards:
        board.takes_s = 0.1 * times
    x = run.play()
    exact = Run(Memory(), boards=3, rounds=4, evaluation={"every": 4}).play()
    np.testing.assert_array_equal(x, exact)  # everybody's update was used
    said = [text for text in sink.texts("waiting") if text.startswith("round 0: nobody has answered for 0.1 s")]
    assert len(said) == 1 and "server.deadline_s = 0.1 is too short" in said[0]
    assert not sink.texts("suspect") and not sink.texts("refused")


def test_who_follows_the_first_late_answer_has_one_more_deadline(sink: Memory) -> None:
    run = Run(sink, boards=3, rounds=1, evaluation={"every": 1})
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.2))
    for board, takes_s in zip(run.boards, (0.3, 0.35, 1.2), strict=True):
        board.takes_s = takes_s
    run.play()
    assert [values["server/used"] for _, _, values in sink.records if "server/used" in values] == [2]
    (text,) = sink.texts("suspect")
    waited = re.fullmatch(r"round 0: went on without board-2: no answer for (0\.\d+) s", text)
    # From the first answer on; boards begin their 0.3 s a little before or after the coordinator's watch.
    assert waited is not None and 0.2 + 0.2 + 0.05 < float(waited[1]) < 1.2 - 0.2, text


def test_boards_that_are_needed_are_waited_for_longer_than_the_deadline(sink: Memory) -> None:
    run = Run(sink, boards=3, rounds=4, server={"min_nodes": 2}, evaluation={"every": 4})
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.1))
    for board in run.boards[1:]:
        board.takes_s = 0.35
    run.play()
    assert len(run.saved) == 4 and sink.texts("late") and not sink.texts("refused")


def test_boards_that_never_answer_end_the_run_with_the_key_to_raise(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, boards=2, rounds=9)
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.05))
    for board in run.boards:
        board.lost = frozenset(range(9))
    with pytest.raises(RunError, match=r"server\.deadline_s = 0\.05 is too short") as raised:
        run.play()
    assert "training.lr" not in str(raised.value) and "board-0, board-1" in str(raised.value)
