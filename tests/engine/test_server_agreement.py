"""What boards of a server run must have alike: the most of those that are there when it begins
decide, who differs is refused by name and told why, and the run goes on without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgegossip.agreement import Agreement
from edgegossip.engine.server_boards import Agreements
from edgegossip.types import PeerError, RunError
from tests.engine.fleet import Run

NINE, EIGHT = Agreement({"target": "9 classes"}), Agreement({"target": "8 classes"})
DIFFERS = "the target is 8 classes on board-2 and 9 classes on board-0: set data.classes = 9 on every board"


def said(run: Run, **agreements: Agreement) -> Run:
    for board in run.boards:
        if (agreement := agreements.get(board.name.replace("-", "_"))) is not None:
            board.agreement = agreement.to_json()
    return run


def test_a_board_that_differs_from_one_before_it_is_refused_by_name_and_told_why() -> None:
    run = said(Run(join_s=1e9), board_0=NINE, board_1=NINE, board_2=EIGHT)
    run.boards[2].hello_s = 0.2
    run.play()
    assert run.texts("refused") == [f"board-2 cannot take part: {DIFFERS}"]
    assert run.texts("peer-down") == [f"lost board-2: {DIFFERS}"]
    odd = run.boards[2]
    assert odd.failed and odd.farewell == f"board-2 cannot take part: {DIFFERS}"
    assert not odd.trained and run.used == [3] * 6  # board-3 says nothing, and fits


@pytest.mark.parametrize("first", [True, False])
def test_one_board_that_lies_keeps_nobody_out_however_quick_it_is(first: bool) -> None:
    run = said(Run(join_s=1e9), board_0=NINE, board_1=NINE, board_2=NINE, board_3=EIGHT)
    run.boards[3].hello_s = 0.01 if first else 0.2
    run.play()
    (refused,) = run.texts("refused")
    assert refused == f"board-3 cannot take part: {DIFFERS.replace('board-2', 'board-3')}"
    assert [board.failed for board in run.boards] == [False] * 3 + [True] and run.used == [3] * 6
    assert run.boards[3].farewell == refused and not run.boards[3].trained


def test_of_two_parts_of_one_size_that_of_the_runs_first_board_goes_on() -> None:
    run = said(Run(join_s=1e9), board_0=NINE, board_1=EIGHT, board_2=EIGHT, board_3=NINE)
    run.boards[0].hello_s = run.boards[3].hello_s = 0.2
    run.play()
    assert [board.failed for board in run.boards] == [False, True, True, False] and run.used == [2] * 6


def test_a_run_with_too_few_that_fit_ends_with_the_reasons() -> None:
    run = said(Run(join_s=1e9, min_nodes=3), board_0=NINE, board_1=EIGHT, board_2=EIGHT, board_3=NINE)
    with pytest.raises(RunError, match="8 classes on board-1 and 9 classes on board-0"):
        run.play()


def test_who_comes_later_has_to_fit_those_that_began() -> None:
    run = said(Run(join_s=3.0), board_0=NINE, board_1=NINE, board_2=NINE, board_3=EIGHT)
    run.boards[3].joins_s = 3.5
    for board in run.boards[:3]:
        board.takes_s = 1.0
    run.play()
    assert run.texts("refused") == [f"board-3 cannot take part: {DIFFERS.replace('board-2', 'board-3')}"]
    assert run.boards[3].failed and run.used == [3] * 6


def test_the_coordinator_comes_before_all_boards() -> None:
    run = said(Run(join_s=1e9, agreement=NINE), board_0=EIGHT, board_1=EIGHT, board_3=NINE)
    run.play()
    assert len(run.texts("refused")) == 2
    assert all("9 classes at the coordinator" in text for text in run.texts("refused"))
    assert run.used == [2] * 6


def test_where_nobody_is_left_the_run_ends_with_the_reasons() -> None:
    everybody = {f"board_{k}": EIGHT for k in range(4)}
    run = said(Run(join_s=1e9, agreement=NINE), **everybody)
    with pytest.raises(RunError, match="8 classes on board-0 and 9 classes at the coordinator"):
        run.play()
    assert all(board.failed for board in run.boards)


@pytest.mark.parametrize("text", ["{", "[]", "x" * 5000, '{"values": NaN}', '{"task": 1}'])
def test_what_is_no_agreement_costs_its_board_and_nobody_else(text: str) -> None:
    run = Run(join_s=1e9)
    run.boards[1].agreement = text
    run.play()
    (refused,) = run.texts("refused")
    assert refused.startswith("board-1 cannot take part: an agreement") and run.boards[1].failed
    assert run.used == [3] * 6


def test_a_coordinator_that_goes_on_remembers_what_its_boards_had_alike() -> None:
    run = said(Run(rounds=4), **{f"board_{k}": NINE for k in range(4)})
    run.play()
    assert all(progress.agreement == NINE for progress in run.saved)
    again = said(Run(rounds=4), board_0=EIGHT, board_1=NINE, board_2=NINE)
    again.play(replace(run.saved[1], agreement=NINE))
    (refused,) = again.texts("refused")
    assert "8 classes on board-0 and 9 classes in this run so far" in refused
    assert again.used == [3, 3]


def test_a_board_may_come_again_with_another_word_while_nobody_else_has_said_it() -> None:
    agreements = Agreements(Agreement({"values": 5}))
    assert not agreements.settle(())
    agreements.take("a", EIGHT.to_json())
    agreements.take("a", NINE.to_json())
    agreements.take("b", Agreement({"target": "9 classes", "task": "regression"}).to_json())
    with pytest.raises(PeerError, match="on a and 9 classes on b"):
        agreements.take("a", EIGHT.to_json())
    agreements.take("c", "")
    facts = {"values": 5, "target": "9 classes", "task": "regression"}
    assert agreements.common == Agreement(facts)


@pytest.mark.parametrize("order", ["abcde", "ecbad"])  # e lies
def test_one_board_at_the_edge_of_what_is_alike_keeps_no_other_out_that_comes_back(order: str) -> None:
    """Sums of the first model are alike within a thousandth, so e may be alike with most, and not
    with c."""

    def sums(start: float) -> str:
        return Agreement({"start": [start] * 3}).to_json()

    honest = {"a": 100.0, "b": 100.00005, "c": 99.9999, "d": 100.0001}
    agreements = Agreements(Agreement({}))
    for name in order:
        agreements.take(name, sums((honest | {"e": 100.1001001}).get(name, 0.0)))
    assert agreements.settle(order) == {}
    after_a_restart = Agreements(Agreement({}))
    after_a_restart.resume(agreements.common)
    for name, start in honest.items():
        agreements.take(name, sums(start))
        after_a_restart.take(name, sums(start))
    with pytest.raises(PeerError, match=r"the first model is \[101, 101, 101\] on f"):
        agreements.take("f", sums(101.0))


def test_a_name_that_is_not_expected_decides_nothing() -> None:
    run = said(Run(join_s=1e9), board_1=NINE, board_2=NINE)
    run.boards[0].name, run.boards[0].agreement = "eve", EIGHT.to_json()
    run.plan = replace(run.plan, join_s=3.0)
    run.play()
    assert run.texts("refused")[0].startswith("refused a board: no board of this run is named")
    assert run.used == [3] * 6
