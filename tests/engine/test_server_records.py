"""What a coordinator keeps: records of boards whose metrics are elsewhere, and how far it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edgegossip.agreement import Agreement
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.engine.plausible import Losses, ServerLevels
from edgegossip.engine.server_frames import COORDINATOR
from edgegossip.engine.server_records import BoardRecords, Evaluations, Progress, Value
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import DataError, DecodeError, Metrics, NodeId, Round
from tests.engine.toy import LAYOUT

FRAME = Frame(Kind.UPDATE, 1, b"", LAYOUT.hash, b"r" * 16, 0, 1, 1, b"12345678", {Aux.LOSS: 0.5, Aux.EXAMPLES: 8.0})


class Written:
    """Records that have been written."""

    def __init__(self) -> None:
        self.all: list[tuple[NodeId, Round, Mapping[str, Value]]] = []

    def __call__(self, node: NodeId, round: Round, values: Mapping[str, Value]) -> None:
        self.all.append((node, round, values))

    @property
    def rows(self) -> list[tuple[NodeId, Round, Any, Any]]:
        return [(who, step, v.get("time/compute_s"), v.get("net/payload_bytes")) for who, step, v in self.all]


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def records(written: Written) -> BoardRecords:
    return BoardRecords(LAYOUT, written)


def test_a_round_has_the_profile_that_comes_with_the_next_answer(records: BoardRecords, written: Written) -> None:
    records.used("pi", 0, FRAME)
    assert written.rows == []
    assert records.answered("pi", (0, {"time/compute_s": 1.5, "net/sent_bytes": 900})) is None
    assert written.rows == [("pi", 0, 1.5, 8)] and written.all[0][2]["net/sent_bytes"] == 900
    records.used("pi", 1, FRAME)
    records.answered("pi", (1, {"time/compute_s": 2.5}))
    records.end()
    assert written.rows[1:] == [("pi", 1, 2.5, 8)]


def test_without_a_profile_a_round_has_what_the_update_said(records: BoardRecords, written: Written) -> None:
    records.used("pi", 0, FRAME)
    assert records.answered("pi", None) is None
    records.used("pi", 1, FRAME)
    assert records.answered("pi", (0, {"time/compute_s": 9.0})) is None  # of an earlier round: not this one's
    records.end()
    assert written.rows == [("pi", 0, None, 8), ("pi", 1, None, 8)]


def test_what_waits_outlives_the_coordinator(records: BoardRecords, written: Written) -> None:
    records.used("pi", 3, FRAME)
    other = BoardRecords(LAYOUT, written)
    other.resume(records.waiting)
    assert other.answered("pi", (3, {"time/compute_s": 1.5})) is None
    other.end()
    assert written.rows == [("pi", 3, 1.5, 8)]


def test_a_profile_that_makes_no_sense_is_logged_and_costs_nothing_else(
    records: BoardRecords, written: Written
) -> None:
    for _ in range(3):
        records.used("pi", 0, FRAME)
        assert records.answered("pi", DecodeError("the profile does not say of which round it is")) is not None
    assert records.answered("another", DecodeError("it has no record that waits")) is None
    records.end()
    assert len(written.all) == 3


def test_progress_survives_bytes() -> None:
    levels = ServerLevels(20, 0.9, 1.5, (2.0, 0.1), 17)
    x = np.arange(LAYOUT.size, dtype=np.float32)
    strategy = {"a/b": np.full((5, 2), 2.0)}
    waiting = {"pi": (6, {"train/loss": 0.5})}
    progress = Progress(7, x, x + 1, strategy, levels, 3, 6, waiting, "ab12", {"pi": 60.0})
    again = Progress.from_plain(from_bytes(to_bytes(progress.plain())), LAYOUT, ServerLevels(20, 0.9))
    assert (again.round, again.levels, again.evaluations, again.evaluate_next) == (7, levels, 3, 6)
    assert again.instance == "ab12" and again.records == waiting and again.examples == {"pi": 60.0}
    np.testing.assert_array_equal(again.reference, x + 1)
    np.testing.assert_array_equal(again.strategy["a/b"], strategy["a/b"])


@pytest.mark.parametrize(
    "wrong", [{}, {"format": 2}, {"format": 1, "round": 1, "model": np.zeros(3, np.float32), "reference": None}]
)
def test_progress_of_something_else_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        Progress.from_plain(wrong, LAYOUT, None)


def test_an_evaluation_that_one_board_owes_is_asked_of_another(written: Written) -> None:
    logs: list[str] = []
    made = Evaluations(frozenset({1, 5}), Losses(), lambda event, text, **fields: logs.append(text), written)
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


def test_an_evaluation_without_a_figure_is_none(written: Written) -> None:
    made = Evaluations(frozenset({1}), Losses(), lambda *_, **__: None, written)
    made.after(1)
    made.ask(["a"], 1)
    made.answered("a", Metrics(math.nan, 10))
    assert made.wanted == 1 and list(made.ask(["b"], 1)) == ["b"]
    made.answered("b", Metrics(math.nan, 10, {"f1": 0.25}))
    assert written.all == [(COORDINATOR, 1, {"eval/f1": 0.25, "eval/examples": 10})]


def test_where_each_board_has_a_test_set_the_evaluation_is_the_mean_by_examples(written: Written) -> None:
    logs: list[str] = []
    log = lambda event, text, **fields: logs.append(text)  # noqa: E731
    made = Evaluations(frozenset({1, 3, 5}), Losses(), log, written, everywhere=True)
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
    made = Evaluations(frozenset({1}), Losses(), lambda *_, **__: None, written, everywhere=True, of_boards=True)
    made.after(1)
    made.ask(["a", "b"], 1)
    made.answered("b", Metrics(0.1, 10, {"accuracy": 0.9}))
    made.answered("a", Metrics(0.5, 30, {"accuracy": 0.5}))
    made.after(2)
    assert [(name, step, values["eval/accuracy"]) for name, step, values in written.all] == [
        ("a", 1, 0.5), ("b", 1, 0.9), (COORDINATOR, 1, pytest.approx(0.6)),
    ]  # fmt: skip


def test_what_boards_have_alike_survives_a_restart() -> None:
    agreement = Agreement({"target": "9 classes", "values": 5, "start": [1.0, 2.5]})
    x = np.zeros(LAYOUT.size, np.float32)
    plain = from_bytes(to_bytes(Progress(3, x, agreement=agreement).plain()))
    assert Progress.from_plain(plain, LAYOUT, None).agreement == agreement
    for wrong in (None, [], {"target": 9}, {"unheard of": "x"}, {1: "x"}):
        with pytest.raises(DataError, match="cannot be used"):
            Progress.from_plain({**plain, "agreement": wrong}, LAYOUT, None)
