"""What the server engine does about updates and claims that cannot be."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import frame as wire
from edgegossip.engine.quarantine import Reputation
from edgegossip.engine.server_events import BoardAnswer
from edgegossip.frame import Aux
from edgegossip.types import DecodeError, Metrics
from tests.engine import toy
from tests.engine.fleet import Run, garbage, with_frame


def scaled(frame: wire.Frame, factor: float) -> wire.Frame:
    x = np.frombuffer(frame.body, np.float32) * np.float32(factor)
    return replace(frame, body=x.astype(np.float32).tobytes())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (garbage, "a frame starts with"),
        (with_frame(lambda f: scaled(f, np.nan)), "NaN or infinite"),
        (with_frame(lambda f: scaled(f, 1e9)), "times as long as the typical one"),
        (with_frame(lambda f: replace(f, round=f.round - 1)), "is of round 1, this is round 2"),
        (with_frame(lambda f: replace(f, run_id=b"x" * 16)), "another run"),
        (with_frame(lambda f: replace(f, aux={**f.aux, Aux.EXAMPLES: 1e15})), "claims to be from 1e"),
        (with_frame(lambda f: replace(f, aux={**f.aux, Aux.LOSS: 1e308})), "claims a loss of 1e.308"),
        (with_frame(lambda f: replace(f, aux={**f.aux, Aux.LEARNING_RATE: 1e300})), "a learning rate of 1e.300"),
        (with_frame(lambda f: replace(f, aux={})), "how many examples"),
        (lambda result: replace(result, frame=None), "has no update"),
    ],
)
def test_a_bad_update_is_refused_with_the_reason_and_the_round_goes_on(spoil: Any, reason: str) -> None:
    run = Run(rounds=4)
    run.boards[2].spoil = {2: spoil}
    x = run.play()
    (text,) = run.texts("refused")
    assert text.startswith("refused the update of board-2: ")
    assert re.search(reason, text), text
    assert run.used == [4, 4, 3, 4] and np.isfinite(x).all()
    assert np.abs(x - toy.fedavg(4, 4, run.initial)).max() < 0.5


@pytest.mark.parametrize("loss", [-1e25, 1e20])
@pytest.mark.parametrize("boards", [2, 4])
def test_a_claimed_loss_is_not_the_curve(loss: float, boards: int) -> None:
    honest, run = (Run(boards=boards, rounds=4) for _ in range(2))
    run.boards[-1].spoil = dict.fromkeys(range(1, 4), with_frame(lambda f: replace(f, aux={**f.aux, Aux.LOSS: loss})))
    np.testing.assert_array_equal(run.play(), honest.play())
    told, right = ([ended.values["train/loss"] for ended in r.rounds] for r in (run, honest))
    assert told[0] == right[0] and told == pytest.approx(right, rel=0.5) and told != right


@pytest.mark.parametrize(
    ("lied", "reason"),
    [
        (DecodeError("the evaluation makes no sense: loss -1e300"), "makes no sense"),
        (Metrics(1e20, 100), "claims a loss of 1e.20, out of all proportion"),
    ],
)
def test_an_evaluation_that_cannot_be_is_not_the_curve(lied: Metrics | DecodeError, reason: str) -> None:
    def lie(result: BoardAnswer) -> BoardAnswer:
        return result if result.evaluation is None else replace(result, evaluation=lied)

    run = Run(rounds=6)
    run.boards[1].spoil = dict.fromkeys(range(6), lie)
    run.play()
    assert run.evaluations() and all(0.0 < loss < 10.0 for loss in run.evaluations().values())
    assert run.texts("refused") and all(re.search(reason, text) for text in run.texts("refused"))


def test_no_board_takes_over_the_mean_by_the_examples_that_it_claims() -> None:
    def lie(frame: wire.Frame) -> wire.Frame:
        return replace(scaled(frame, -1.0), aux={**frame.aux, Aux.EXAMPLES: 1e12})

    honest, run = (Run(boards=6, rounds=12) for _ in range(2))
    run.boards[5].spoil = dict.fromkeys(range(12), with_frame(lie))
    right, told = honest.play() - honest.initial, run.play() - run.initial
    assert right @ told > 0.6 * np.linalg.norm(right) * np.linalg.norm(told)
    assert all("1e+12 examples, " in text and "as many as the typical one" in text for text in run.texts("refused"))
    assert run.texts("quarantine")


def test_two_boards_are_held_against_those_of_earlier_rounds_by_a_coordinator_that_goes_on() -> None:
    lie = with_frame(lambda f: replace(f, aux={**f.aux, Aux.EXAMPLES: 1e6}))
    whole = Run(boards=5, rounds=8, fraction=0.4)
    whole.play()
    run = Run(boards=5, rounds=8, fraction=0.4)
    for board in run.boards:
        board.spoil = {4: lie}
    run.play(whole.saved[3])
    assert len(run.texts("refused")) == 2


@pytest.mark.parametrize("loss", [1e30, -1.0])
def test_a_wild_loss_leaves_the_levels_as_they_would_be(loss: float) -> None:
    honest, run = (Run(rounds=6, codec="elasticl") for _ in range(2))
    run.boards[3].spoil = {2: with_frame(lambda f: replace(f, aux={**f.aux, Aux.LOSS: loss}))}
    honest.play()
    run.play()
    (text,) = run.texts("refused")
    assert text.startswith(f"refused the update of board-3: the update claims a loss of {loss:g}")
    told, right = ([p.levels.levels for p in r.saved if p.levels is not None] for r in (run, honest))
    assert len(told) == 6 and max(abs(a - b) for a, b in zip(told, right, strict=True)) <= 10


def test_of_two_boards_one_may_be_nearly_done() -> None:
    run = Run(boards=2, rounds=8)
    run.boards[0].spoil = dict.fromkeys(range(8), with_frame(lambda f: scaled(f, 1e-5)))
    run.boards[1].spoil = {5: with_frame(lambda f: scaled(f, 1e5))}
    run.play()
    (text,) = run.texts("refused")
    assert text.startswith("refused the update of board-1: ") and "times as long as the typical one of the run" in text
    again = Run(boards=2, rounds=8)
    again.boards[1].spoil = run.boards[1].spoil
    again.play(run.saved[4])  # the first round of a process that has seen no honest one
    assert len(again.texts("refused")) == 1


def test_a_board_that_is_refused_again_and_again_is_left_out_and_comes_back() -> None:
    run = Run(rounds=12)
    run.boards[2].spoil = {1: garbage, 2: garbage, 5: garbage, 7: garbage}
    x = run.play()
    assert run.boards[2].trained == [0, 1, 2, 5, 10, 11] and run.boards[0].trained == list(range(12))
    (first, second), returned = run.texts("quarantine"), run.texts("readmitted")
    assert first.startswith("board-2 is left out for 2 rounds: ") and "a frame starts with" in first
    assert second.startswith("board-2 is left out for 4 rounds: ") and returned == ["board-2 takes part again"] * 2
    assert np.isfinite(x).all()


def test_nobody_is_said_to_be_left_out_who_is_asked_since_too_few_others_are_there() -> None:
    run = Run(boards=2, rounds=20, min_nodes=2)
    run.boards[1].spoil = dict.fromkeys(range(1, 20), garbage)
    run.play()
    assert run.boards[1].trained == list(range(20)) and len(run.texts("refused")) == 19
    assert not run.texts("quarantine") and not run.texts("readmitted")


def test_a_board_that_is_left_out_takes_part_again_where_it_is_needed() -> None:
    said: list[tuple[str, str]] = []

    reputation = Reputation(lambda event, text, **_fields: said.append((event, text)))
    three, two = ["a", "b", "c"], ["a", "c"]
    for round in range(2):
        assert reputation.trusted(three, round, 2) == three
        reputation.refused("a", "x")
        reputation.judge(round, ["b", "c"])
    assert reputation.trusted(three, 2, 2) == ["b", "c"] and reputation.trusted(three, 2, 2) == ["b", "c"]
    assert reputation.trusted(two, 3, 2) == two
    reputation.refused("a", "x")
    reputation.judge(3, ["c"])
    assert reputation.trusted(three, 4, 2) == ["b", "c"]
    assert [event for event, _ in said if event != "refused"] == ["quarantine", "readmitted", "quarantine"]
    assert all("left out for 2 rounds" in text for event, text in said if event == "quarantine")


def test_a_stranger_with_another_name_or_without_its_certificate_is_refused() -> None:
    run = Run(certified=True, join_s=2.0)
    for board in run.boards[:3]:
        board.identity = board.name
    run.boards[3].identity = "eve"
    run.play()
    (text,) = run.texts("refused")
    assert text == "refused a board: it says that it is board-3, but its certificate is that of eve"
    assert run.boards[3].failed and run.boards[3].farewell == text.removeprefix("refused a board: ")
    assert run.used == [3] * 6 and not run.boards[3].trained


def test_a_stranger_that_is_not_expected_or_cannot_take_part_is_not_waited_for() -> None:
    run = Run(join_s=1e9)
    run.boards[0].problem = "the coordinator trains another model"
    run.play()
    assert run.texts("peer-down") == ["lost board-0: the coordinator trains another model"]
    assert run.texts("refused") == ["board-0 cannot take part: the coordinator trains another model"]
    other = Run(join_s=3.0)
    other.boards[1].name = "eve"
    other.play()
    assert other.texts("refused")[0].startswith(
        "refused a board: no board of this run is named 'eve'; the names are board-0"
    )
    assert other.used == [3] * 6 and other.boards[1].failed


def test_a_board_that_answers_with_an_error_costs_its_round_only() -> None:
    run = Run(downlink="fp16", rounds=6)
    run.boards[1].ghost = frozenset()

    def forget(result: BoardAnswer) -> BoardAnswer:
        run.boards[1].begin()  # it holds no model any more, and does not say so
        return result

    run.boards[1].spoil = {2: forget}
    run.play()
    (text,) = run.texts("refused")
    assert (
        text
        == "refused the update of board-1: the difference of round 3 needs the model before it; this board has none"
    )
    assert run.used == [4, 4, 4, 3, 4, 4] and run.boards[1].received_bytes[-1] > 0


def moved_statistics(frame: wire.Frame, by: float) -> wire.Frame:
    x = np.frombuffer(frame.body, np.float32).copy()
    x[toy.LAYOUT.trainable_size :] = by
    return replace(frame, body=x.tobytes())


def test_a_board_whose_sensor_is_of_another_scale_is_heard() -> None:
    """Its statistics of batch norm move a million times as far as the others'."""
    run = Run(boards=4, rounds=6)
    run.boards[3].spoil = dict.fromkeys(range(6), with_frame(lambda f: moved_statistics(f, 1e8)))
    x = run.play()
    assert not [text for text in run.texts("refused") if "times as long" in text] and run.used[2:] == [4] * 4
    assert x[-1] > 1e7


def test_statistics_behind_which_an_update_hides_are_no_measure_of_it() -> None:
    run = Run(boards=4, rounds=4)
    run.boards[3].spoil = {2: with_frame(lambda f: moved_statistics(scaled(f, 1e6), 1e8))}
    for board in run.boards[:3]:
        board.spoil = dict.fromkeys(range(4), with_frame(lambda f: moved_statistics(f, 1e8)))
    run.play()
    (text,) = [text for text in run.texts("refused") if "times as long" in text]
    assert text.startswith("refused the update of board-3") and run.used[2:] == [3, 4]


def test_a_board_none_of_whose_updates_was_used_is_named() -> None:
    run = Run(boards=4, rounds=5)
    run.boards[3].spoil = dict.fromkeys(range(5), garbage)
    run.play()
    assert run.texts("unused") == ["no update of board-3 was ever used"]
