"""What the server engine does about boards that are late, silent or too few, and about evaluations
that nobody does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.engine.server_boards import SILENT_S, BoardPresence
from edgegossip.engine.server_events import (
    Ask,
    BoardAnswer,
    Bye,
    Delivering,
    Effect,
    Evaluate,
    ProcessEnded,
    RoundEnded,
    Stop,
    Train,
)
from edgegossip.types import DecodeError, Metrics, PeerError, RunError, Vec
from tests.engine.fleet import FINAL, Run, garbage


def test_a_round_goes_on_at_its_quorum_and_names_the_stragglers() -> None:
    run = Run(rounds=5, quorum=3, every=5)
    run.boards[0].late = frozenset({1, 3})
    run.play()
    assert run.texts("stragglers") == [
        "round 1: went on with 3 answers, without board-0",
        "round 3: went on with 3 answers, without board-0",
    ]
    assert run.boards[0].trained == [0, 1, 3]
    assert run.texts("late") == ["the answer of board-0 came after its round was over"] * 2 and len(run.saved) == 5


def test_a_board_that_comes_late_takes_part_from_then_on() -> None:
    run = Run(rounds=60, join_s=2.0, downlink="fp16", every=60)
    run.boards[3].joins_s = 3.0
    run.play()
    assert "lost board-3: it did not join within 2 s" in run.texts("peer-down")
    assert "board-3 joined" in run.texts("joined")
    assert 0 < len(run.boards[3].trained) < 60 and run.boards[3].trained[-1] == 59
    assert run.boards[3].received_bytes[0] > run.boards[0].received_bytes[-1]  # the whole model first


def test_a_round_with_an_evaluation_ends_at_its_quorum_and_takes_what_a_late_answer_found() -> None:
    run = Run(rounds=6, quorum=3)
    run.boards[0].late = frozenset({1})  # the first evaluation is its
    run.play()
    assert run.texts("stragglers") == ["round 1: went on with 3 answers, without board-0"]
    assert run.evaluations().keys() == set(range(6)) and not run.texts("not-evaluated")


def test_an_evaluation_that_nobody_does_is_named_and_the_run_goes_on_to_its_model() -> None:
    run = Run(rounds=60, deadline_s=0.1, every=15)
    for board in run.boards:
        board.deaf = True
    x = run.play()
    np.testing.assert_array_equal(run.model, x)
    *during, last = run.texts("not-evaluated")
    assert during and all(text.count("board-") <= 2 for text in during) and last.count("board-") == 4
    assert all(text.startswith("the model after round ") for text in (*during, last))
    assert all(f"{board.name}: no answer for 1 s" in last for board in run.boards)
    assert len(run.saved) == 60 and not run.evaluations()


def test_the_final_model_is_handed_over_before_it_is_evaluated_by_whoever_answers() -> None:
    run = Run(rounds=3, deadline_s=0.1, every=3)
    for board in run.boards[:3]:
        board.deaf = True
    x = run.play()
    np.testing.assert_array_equal(run.model, x)
    assert not run.evaluated_before and run.evaluations().keys() == {2}
    went_on = "final evaluation: went on without board-{}: no answer for 1 s"
    assert sorted(run.texts("suspect")) == [went_on.format(k) for k in range(3)]


def test_a_board_that_loses_all_answers_is_given_up_on_after_ever_longer_times() -> None:
    run = Run(rounds=600, quorum=3, every=600, deadline_s=0.1)
    run.boards[2].lost = frozenset(range(1, 420))
    run.play()
    waits = [float(text.split("has not come for ")[1].split(" s")[0]) for text in run.texts("refused")]
    assert waits == [1.0, 2.0, 4.0, 8.0]


def test_a_board_that_answers_again_is_given_up_on_as_soon_as_ever() -> None:
    run = Run(rounds=100, quorum=3, every=100, deadline_s=0.1)
    run.boards[2].lost = frozenset({*range(1, 61), *range(70, 100)})
    run.play()
    assert [text.split("has not come for ")[1].split(" s")[0] for text in run.texts("refused")] == ["1", "2", "1"]


def test_rounds_without_a_usable_update_end_the_run() -> None:
    run = Run(boards=2, rounds=9)
    for board in run.boards:
        board.spoil = dict.fromkeys(range(1, 9), garbage)
    with pytest.raises(RunError, match="no usable update for 3 rounds; the last reason: board-1: .*lower training.lr"):
        run.play()
    assert [board.failed for board in run.boards] == [True, True]
    run = Run(boards=2, rounds=9)
    for board in run.boards:
        board.spoil = dict.fromkeys((1, 2, 4, 5, 7, 8), garbage)
    run.play()
    assert run.used == [2, 0, 0] * 3  # so many in a row


@pytest.mark.parametrize("times", [1.5, 2.5])
def test_boards_slower_than_the_deadline_train_all_the_same(times: float) -> None:
    run = Run(boards=3, rounds=4, min_nodes=2, every=4, deadline_s=0.1)
    for board in run.boards:
        board.takes_s = 0.1 * times
    x = run.play()
    np.testing.assert_array_equal(x, Run(boards=3, rounds=4, every=4).play())  # everybody's update was used
    said = [text for text in run.texts("waiting") if text.startswith("round 0: nobody answered within 0.1 s")]
    assert len(said) == 1 and "server.deadline_s = 0.1 is too short" in said[0]
    assert not run.texts("suspect") and not run.texts("refused")


def test_who_follows_half_of_the_answers_where_these_are_late_has_one_more_deadline() -> None:
    run = Run(boards=3, rounds=1, every=1, deadline_s=0.2)
    for board, takes_s in zip(run.boards, (0.3, 0.35, 1.2), strict=True):
        board.takes_s = takes_s
    run.play()
    assert run.used == [2]
    assert run.texts("suspect") == ["round 0: went on without board-2: no answer for 0.55 s"]


def test_a_board_that_is_never_in_time_costs_few_deadlines() -> None:
    run = Run(rounds=600, deadline_s=1.0, every=600)
    run.boards[3].takes_s = 1.2
    run.play()
    went_on = [text for text in run.texts("suspect") if text.startswith("round ")]
    asked = len(run.boards[3].trained)
    assert asked > 20 and 4 <= len(went_on) <= 2 + math.log2(asked) and run.used == [3] * 600
    assert all(text.endswith("without board-3") for text in run.texts("stragglers"))


@pytest.mark.parametrize("times", [(1.2, 1.2, 0.01), (1.2, 0.01), (1.2, 1.2, 1.2, *[0.01] * 5)])
def test_a_board_that_is_in_time_now_and_then_costs_few_deadlines(times: tuple[float, ...]) -> None:
    run = Run(rounds=600, deadline_s=1.0, every=600)
    board = run.boards[3]
    answer = board.answer

    def in_turn(instruction: Any) -> Any:
        board.takes_s = times[len(board.trained) % len(times)]
        return answer(instruction)

    board.answer = in_turn  # type: ignore[method-assign]
    run.play()
    went_on = [text for text in run.texts("suspect") if text.startswith("round ")]
    assert len(went_on) <= 3 + math.log2(600)


def test_a_board_that_comes_and_goes_costs_few_deadlines() -> None:
    """Asked, it is silent until it counts as gone, and is there again."""

    class Goes(Run):
        asked_s = math.inf

        def _seen(self) -> list[BoardPresence]:
            seen = super()._seen()
            for k, board in enumerate(seen):
                if self._nodes[board.address].name == "board-3" and self.now_s > self.asked_s:
                    silent_s = self.now_s - self.asked_s
                    self.asked_s = math.inf if silent_s > SILENT_S + 1.0 else self.asked_s
                    seen[k] = BoardPresence(board.address, silent_s if self.asked_s < math.inf else 0.0)
            return seen

    run = Goes(rounds=400, deadline_s=60.0, every=400)
    board = run.boards[3]
    board.lost, answer = frozenset(range(1, 10_000)), board.answer

    def goes(instruction: Any) -> Any:
        run.asked_s = run.now_s
        return answer(instruction)

    board.answer = goes  # type: ignore[method-assign]
    began_s = run.now_s
    run.play()
    assert run.texts("peer-down") and run.now_s - began_s < 400 * 0.05 + (3 + math.log2(400)) * (SILENT_S + 1.0)


def test_a_board_that_is_in_time_again_is_waited_for_as_ever() -> None:
    run = Run(rounds=60, deadline_s=1.0, every=60)
    run.boards[3].takes_s = 1.2

    def recovers(effect: Effect) -> None:
        if isinstance(effect, RoundEnded) and effect.round == 29:
            run.boards[3].takes_s = 0.9

    run.on_effect = recovers
    run.play()
    short = [k for k, used in enumerate(run.used) if used == 3]
    assert set(range(30)) <= set(short) and max(short) < 45 and run.used[45:] == [4] * 15


def test_who_goes_away_while_nobody_relies_on_it_is_not_charged_for_it() -> None:
    found = []
    for away in (frozenset(), frozenset(range(10, 40))):
        run = Run(rounds=160, deadline_s=1.0, every=160, return_s=60.0)
        for board in run.boards[:3]:
            board.takes_s = 0.5
        run.boards[3].takes_s, run.boards[3].away = 1.2, away

        def recovers(effect: Effect, run: Run = run) -> None:
            if isinstance(effect, RoundEnded) and effect.round == 59:
                run.boards[3].takes_s = 0.9

        run.on_effect = recovers
        run.play()
        found.append(run.used.index(4))
    assert found[1] <= found[0] < 120


def test_late_boards_are_waited_for_where_the_others_go_away() -> None:
    run = Run(boards=2, rounds=30, deadline_s=1.0, every=30)
    run.boards[1].takes_s, run.boards[0].gone = 1.2, frozenset({18})
    run.play()
    assert 18 in run.boards[1].trained and run.used == [1] * 30


def test_an_error_that_comes_at_once_ends_no_wait_for_boards_that_are_slow() -> None:
    def fail(result: BoardAnswer) -> BoardAnswer:
        raise PeerError("out of memory")

    run = Run(rounds=4, deadline_s=1.0, every=4)
    run.boards[0].spoil = dict.fromkeys(range(4), fail)
    for board in run.boards[1:]:
        board.takes_s = 1.5
    run.play()
    assert run.used == [3] * 4 and not run.texts("suspect")


def test_boards_that_are_never_in_time_are_waited_for_where_there_are_no_others() -> None:
    run = Run(boards=2, rounds=12, deadline_s=1.0, every=12)
    for board in run.boards:
        board.lost = frozenset({2, 3})
    run.play()
    assert len(run.saved) == 12 and run.used[-1] == 2


SLOW = pytest.mark.parametrize(
    ("boards", "slow_s", "why"),
    [(3, 2.9, []), (3, 30.0, ["no answer for 10 s"]), (1, 1.2, []), (1, 2.9, ["no answer for 2 s"])],
)


@SLOW
def test_answers_that_go_on_coming_in_are_waited_for_up_to_ten_deadlines_and_few_of_them_two(
    boards: int, slow_s: float, why: list[str]
) -> None:
    run = Run(rounds=2, deadline_s=1.0, every=2)
    for board in run.boards[:boards]:
        board.takes_s, board.trickles = slow_s, True
    run.play()
    said = [text for text in run.texts("suspect") if text.startswith("round 0: ")]
    assert said[:1] == [f"round 0: went on without board-0: {reason}" for reason in why]
    assert run.used[0] == (4 - boards if why else 4)


def test_a_board_that_sends_byte_by_byte_holds_up_few_rounds() -> None:
    run = Run(rounds=40, deadline_s=1.0, every=40)
    run.boards[0].takes_s, run.boards[0].trickles = 5.0, True
    run.play()
    assert len(run.rounds) == 40 and 3.0 < run.now_s - 100.0 < 6.0


@SLOW
def test_the_deadline_counts_from_when_a_large_model_has_gone_down(boards: int, slow_s: float, why: list[str]) -> None:
    run = Run(rounds=2, deadline_s=1.0, every=2)
    for board in run.boards[:boards]:
        board.fetches_s, board.takes_s = slow_s, slow_s + 0.7  # work takes its time, too
    run.play()
    said = [text for text in run.texts("suspect") if text.startswith("round 0: ")]
    assert said[:1] == [f"round 0: went on without board-0: {reason}" for reason in why]
    assert run.used[0] == (4 - boards if why else 4)


def test_boards_that_never_answer_end_the_run_with_the_key_to_raise() -> None:
    run = Run(boards=2, rounds=9, deadline_s=0.05)
    for board in run.boards:
        board.lost = frozenset(range(9))
    with pytest.raises(RunError, match=r"server\.deadline_s = 0\.05 is too short") as raised:
        run.play()
    assert "training.lr" not in str(raised.value) and "board-0, board-1" in str(raised.value)


def test_a_quorum_that_is_lost_is_waited_for_and_regained() -> None:
    run = Run(boards=3, rounds=200, min_nodes=3, every=200, return_s=60.0, deadline_s=5.0)
    run.boards[1].silent = (3.0, 30.0)
    run.play()
    assert run.texts("peer-down") == ["lost board-1: no sign of life for 6 s"]
    assert run.texts("peer-up") == ["board-1 is back"]
    assert run.used.count(3) >= 199 and len(run.rounds) == 200
    waits = [text for text in run.texts("waiting") if "to come back" in text]
    assert waits and waits[0] == "waiting for board-1 to come back for 5 s"


@pytest.mark.parametrize("min_nodes", [2, 3])
def test_a_board_whose_process_has_ended_is_not_waited_for(min_nodes: int) -> None:
    run = Run(boards=3, rounds=60, min_nodes=min_nodes, every=60, return_s=60.0, deadline_s=5.0)

    def play() -> Any:
        run.at(2.0, ProcessEnded("board-1", "its process was killed by SIGKILL"))
        return run.play

    if min_nodes == 3:
        with pytest.raises(RunError, match="2 of the 3 boards .*board-1: its process was killed by SIGKILL"):
            play()()
        assert run.now_s < 110.0
    else:
        play()()
        assert run.texts("peer-down") == ["lost board-1: its process was killed by SIGKILL"]
        assert run.engine.lost == {"board-1": "its process was killed by SIGKILL"} and run.used[-1] == 2


def test_a_run_that_is_stopped_tells_its_boards_and_fails_with_nothing() -> None:
    run = Run(rounds=1000)
    run.at(4.0, Stop("the run was stopped"))
    run.play()
    assert all(board.farewell == "the run was stopped" and board.failed for board in run.boards)
    assert not run.completed and not run.texts("finished") and 0 < len(run.rounds) < 1000


def test_the_final_evaluation_goes_on_to_the_next_board_where_one_cannot() -> None:
    def fail(result: BoardAnswer) -> BoardAnswer:
        raise PeerError("no test data here")

    run = Run(boards=5, rounds=2, every=2)
    answers = (
        lambda r: replace(r, evaluation=DecodeError("the evaluation makes no sense")),
        lambda r: replace(r, evaluation=None),
        lambda r: replace(r, evaluation=Metrics(1e20, 10)),
        fail,
    )
    for board, answer in zip(run.boards, answers, strict=False):
        board.spoil = {FINAL: answer}
    run.play()
    assert run.evaluations().keys() == {1} and not run.texts("not-evaluated")
    everybody = Run(boards=4, rounds=2, every=2)
    for board, answer in zip(everybody.boards, answers, strict=True):
        board.spoil = {FINAL: answer}
    everybody.play()
    (text,) = everybody.texts("not-evaluated")
    assert "board-0: the evaluation makes no sense" in text and "board-1: its answer has no evaluation" in text
    assert "board-2: the evaluation claims a loss of 1e+20" in text and "board-3: no test data here" in text
    assert everybody.completed


@pytest.mark.parametrize("has_one", [True, False])
def test_boards_without_a_test_set_are_asked_once(has_one: bool) -> None:
    asked: list[str] = []
    run = Run(boards=3, rounds=6)
    for board in run.boards[: 2 if has_one else 3]:

        def none(x: Vec, examples: int | None = None, name: str = board.name) -> Metrics:
            asked.append(name)
            return Metrics(0.0, 0)

        board.workload.evaluate = none  # type: ignore[method-assign]
    run.play()
    assert sorted(asked) == [board.name for board in run.boards[: 2 if has_one else 3]]
    assert len(run.texts("no-test-set")) == len(asked) and len(run.rounds) == 6 and run.completed
    missing = run.texts("not-evaluated")
    if has_one:
        assert not missing and 5 in run.evaluations() and len(run.evaluations()) >= 4
    else:
        assert not run.evaluations() and [text.count("it has no test set") for text in missing] == [3]


def test_a_board_that_goes_away_with_the_final_evaluation_is_asked_again_but_not_for_ever() -> None:
    run = Run(boards=1, rounds=2, every=2, return_s=60.0)
    run.boards[0].away, run.boards[0].back_s = frozenset({FINAL}), 8.0
    run.play()
    assert run.evaluations().keys() == {1}
    assert run.texts("waiting") == ["waiting for board-0 for 5 s"]
    for_ever = Run(boards=1, rounds=2, every=2, return_s=60.0)
    asked: list[int] = []

    def go_away(effect: Effect) -> None:
        if isinstance(effect, Ask) and isinstance(effect.questions[0].instruction, Evaluate):
            asked.append(effect.questions[0].address)
            for_ever.boards[0].away = frozenset({FINAL})

    for_ever.on_effect = go_away
    for_ever.play()
    assert len(set(asked)) == 3 and for_ever.completed
    assert for_ever.texts("not-evaluated") == ["the model after round 1 is not evaluated (board-0: it went away)"]


def test_a_late_answer_that_is_an_error_or_a_lie_is_logged_and_harms_nothing() -> None:
    def fail(result: BoardAnswer) -> BoardAnswer:
        raise PeerError("out of memory")

    run = Run(boards=4, rounds=40, every=3, quorum=3)
    run.boards[0].takes_s = 0.3  # always late
    run.boards[0].spoil = {2: fail, 9: lambda r: replace(r, evaluation=DecodeError("the evaluation makes no sense"))}
    run.boards[0].spoil |= dict.fromkeys(range(10, 40), fail)
    for board in run.boards[1:]:
        board.spoil = dict.fromkeys(range(30), lambda r: replace(r, evaluation=None))
    run.play()
    assert "refused a late answer of board-0: out of memory" in run.texts("refused")
    assert any("(board-0: out of memory; board-" in text for text in run.texts("not-evaluated"))
    assert len(run.rounds) == 40 and 39 in run.evaluations()


def test_an_answer_that_comes_while_boards_leave_is_nobodys_business() -> None:
    run = Run(boards=3, rounds=1, quorum=2)
    run.boards[0].takes_s = 0.13  # the final evaluation ends at 0.1 s, and boards have left at 0.15 s
    run.play()
    assert run.texts("stragglers") == ["round 0: went on with 2 answers, without board-0"]
    assert not run.texts("late") and run.logs[-1].event == "finished" and run.evaluations().keys() == {0}


def test_an_evaluation_that_has_not_come_when_the_training_ends_is_missing() -> None:
    run = Run(boards=3, rounds=4, quorum=2, every=2)
    run.boards[0].lost = frozenset({2})  # the model after round 1 is its to evaluate
    run.play()
    assert run.texts("not-evaluated") == ["the model after round 1 is not evaluated (board-0: it has not answered)"]
    assert run.evaluations().keys() == {3}


def test_who_takes_in_the_final_model_without_end_holds_the_end_for_ten_deadlines() -> None:
    run = Run(boards=1, rounds=2, every=2, deadline_s=1.0)
    run.boards[0].lost = frozenset({FINAL})

    def takes_in(effect: Effect) -> None:
        if isinstance(effect, Ask) and isinstance(effect.questions[0].instruction, Evaluate):
            for k in range(400):
                run.at(k / 2, Delivering())

    run.on_effect = takes_in
    run.play()
    assert run.texts("not-evaluated") and run.now_s < 100.0 + 15.0


def test_whom_the_transport_takes_for_gone_is_not_refused() -> None:
    run = Run(boards=3, rounds=5, every=5)
    run.boards[1].gone = frozenset({1, 2, 3})
    run.play()
    assert run.used == [3, 2, 2, 2, 3] and not run.texts("refused") and not run.texts("quarantine")
    assert [ended.values["server/answers"] for ended in run.rounds] == [3] * 5
    nobody = Run(boards=2, rounds=5, every=5)
    for board in nobody.boards:
        board.gone = frozenset({1, 2, 3})
    with pytest.raises(RunError, match="no usable update for 3 rounds; all boards went away before they had answered"):
        nobody.play()


def test_who_is_late_in_each_round_does_not_make_the_end_longer() -> None:
    run = Run(boards=3, rounds=100, quorum=2, every=100, deadline_s=0.1, evaluates_everywhere=True)
    run.boards[0].takes_s, run.boards[1].deaf = 0.9, True
    run.play()
    assert run.texts("not-evaluated") == ["the final evaluation is without board-1: no answer for 1 s"]


def test_a_final_evaluation_by_all_is_of_those_that_can() -> None:
    run = Run(boards=4, rounds=2, evaluates_everywhere=True, records_boards=True)
    run.boards[1].spoil = {FINAL: lambda r: replace(r, evaluation=DecodeError("the evaluation makes no sense"))}
    run.play()
    assert run.evaluations().keys() == {0, 1}
    assert run.texts("not-evaluated") == ["the final evaluation is without board-1: the evaluation makes no sense"]
    told = {name for name, step, values in run.records if step == 1 and "eval/loss" in values}
    assert told == {"board-0", "board-2", "board-3", "coordinator"}
    nobody = Run(boards=2, rounds=2, evaluates_everywhere=True)
    for board in nobody.boards:
        board.spoil = {FINAL: lambda r: replace(r, evaluation=None)}
    nobody.play()
    (text,) = nobody.texts("not-evaluated")
    assert "board-0: its answer has no evaluation; board-1: its answer has no evaluation" in text and nobody.completed


def test_profiles_come_with_later_answers_and_make_records_of_boards() -> None:
    run = Run(boards=2, rounds=4, every=4, records_boards=True)
    for k in range(1, 4):
        run.boards[0].spoil[k] = lambda r, k=k: replace(r, profile=(k - 1, {"time/compute_s": 0.5 + k}))  # type: ignore[misc]
    run.boards[1].spoil = {2: lambda r: replace(r, profile=DecodeError("the profile makes no sense"))}
    run.play()
    records = [(step, v.get("time/compute_s")) for who, step, v in run.records if who == "board-0"]
    assert records == [(0, 1.5), (1, 2.5), (2, 3.5), (3, None)]
    assert [step for who, step, _ in run.records if who == "board-1"] == [0, 1, 2, 3]
    assert run.texts("refused") == ["refused the profile of board-1: the profile makes no sense"]
    assert [p.records["board-0"][0] for p in run.saved] == [0, 1, 2, 3]


# One board that is quicker, or slower on purpose


@pytest.mark.parametrize("boards", [4, 8])
def test_a_quick_board_does_not_play_alone_while_all_others_are_late_together(boards: int) -> None:
    run = Run(boards=boards, rounds=60, deadline_s=60.0, every=60)
    for board in run.boards[1:]:
        board.takes_s = 1.0

    def stalls(effect: Effect) -> None:
        if isinstance(effect, RoundEnded):
            for board in run.boards[1:]:
                board.takes_s = 130.0 if effect.round == 4 else 1.0

    run.on_effect = stalls
    run.play()
    assert run.used == [boards] * 60


def test_a_quick_board_does_not_play_alone_where_the_deadline_is_too_short_for_the_others() -> None:
    run = Run(rounds=20, deadline_s=60.0, every=20)
    for board in run.boards[1:]:
        board.takes_s = 70.0
    run.play()
    assert run.used == [4] * 20


def test_answers_just_before_the_coordinator_gives_up_do_not_make_it_wait_longer() -> None:
    run, took = Run(boards=8, rounds=60, every=60, deadline_s=60.0, fraction=0.125), list[float]()
    ask = run._ask

    def late(question: Any) -> None:
        run.boards[0].takes_s = 0.98 * run.engine._patience_s
        if run._nodes.get(question.address) is run.boards[0] and isinstance(question.instruction, Train):
            took.append(run.boards[0].takes_s)
        ask(question)

    run._ask = late  # type: ignore[method-assign]
    run.play()
    assert len(took) > 2 and max(took[1:]) <= 600.0


@pytest.mark.parametrize("silent", ["final evaluation", "goodbye"])
def test_the_end_waits_for_a_silent_board_about_one_deadline_more(silent: str) -> None:
    run = Run(rounds=6, deadline_s=60.0, every=6, evaluates_everywhere=True, hands_out_model=True)
    ask, instruction = run._ask, Evaluate if silent == "final evaluation" else Bye

    def deaf(question: Any) -> None:
        if not (run._nodes.get(question.address) is run.boards[0] and isinstance(question.instruction, instruction)):
            ask(question)

    run._ask = deaf  # type: ignore[method-assign]
    run.play()
    assert run.completed and run.now_s - 100.0 < 75.0


def test_a_board_whose_evaluation_takes_twice_as_long_as_the_others_is_in_the_final_one() -> None:
    run = Run(rounds=3, deadline_s=1.0, every=3, evaluates_everywhere=True)
    ask = run._ask

    def slowly(question: Any) -> None:
        if isinstance(question.instruction, Evaluate):
            for board in run.boards:
                board.takes_s = 5.0 if board is run.boards[0] else 3.0
        ask(question)

    run._ask = slowly  # type: ignore[method-assign]
    run.play()
    assert not run.texts("not-evaluated")
