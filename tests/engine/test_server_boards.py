"""Who is in a run, who is still waited for when too few are left, and who takes part in a round."""

from __future__ import annotations

import math

import pytest

from edgegossip.engine.server_boards import SILENT_S, BoardPresence, Boards, sample, wanted
from edgegossip.types import PeerError, RunError


def _boards() -> Boards:
    boards = Boards(["board-0", "board-1"])
    boards.admit(10, "board-0", 1)
    boards.admit(11, "board-1", 2)
    return boards


def _seen(*silences: tuple[int, float], beats_fast: bool = True) -> list[BoardPresence]:
    return [BoardPresence(i, s, beats_fast) for i, s in silences]


def test_a_silent_board_goes_down_and_comes_back() -> None:
    boards = _boards()
    assert boards.observe(_seen((10, 1.0), (11, SILENT_S - 0.1))) == ([], [])
    (change,), _ = boards.observe(_seen((10, 1.0), (11, SILENT_S + 0.6)))
    assert (change.name, change.up, change.reason) == ("board-1", False, "no sign of life for 7 s")
    assert [m.name for m in boards.up()] == ["board-0"]
    (change,), _ = boards.observe(_seen((10, 1.0), (11, 0.1)))
    assert (change.name, change.up) == ("board-1", True)


def test_a_board_that_left_is_down_and_a_stock_node_may_beat_slowly() -> None:
    boards = _boards()
    (change,), _ = boards.observe(_seen((10, 25.0), beats_fast=False))
    assert (change.name, change.up) == ("board-1", False)
    assert [m.name for m in boards.up()] == ["board-0"]


def test_strangers_get_a_hello_unless_refused_or_replaced() -> None:
    boards = _boards()
    assert boards.observe(_seen((10, 0.0), (11, 0.0), (12, 0.0)))[1] == [12]
    assert boards.observe(_seen((10, 0.0), (11, 0.0), (12, SILENT_S)))[1] == []  # what is left of a process
    assert boards.admit(12, "board-1", 3) == 11
    with pytest.raises(PeerError, match="no board of this run is named 'eve'; the names are board-0, board-1"):
        boards.admit(13, "eve", 4)
    assert boards.observe(_seen((10, 0.0), (11, 0.0), (12, 0.0), (13, 0.0))) == ([], [])


def test_an_answer_of_the_process_before_that_comes_late_takes_nobodys_place() -> None:
    """The board has started again, has answered the later hello, and is there."""
    boards = _boards()
    assert boards.admit(13, "board-1", 1) == 13
    assert boards.by_name("board-1") is boards.by_address(11)
    assert boards.observe(_seen((10, 0.0), (11, 0.0), (13, 0.0))) == ([], [])
    boards.observe(_seen((10, 0.0)))
    assert boards.admit(13, "board-1", 1) == 11  # the later one is gone, and this one is there


def test_busy_boards_get_no_work_and_a_lost_one_is_named_once() -> None:
    boards = _boards()
    member = boards.by_name("board-0")
    assert member is not None
    member.busy = 7
    assert [m.name for m in boards.idle()] == ["board-1"]
    assert boards.ended("board-0", "killed")
    assert not boards.ended("board-0", "killed")
    assert boards.not_joined() == []


def test_a_board_whose_process_has_ended_does_not_come_back_with_its_last_heartbeat() -> None:
    boards = _boards()
    member = boards.by_name("board-0")
    assert member is not None and boards.ended("board-0", "killed")
    fresh = [BoardPresence(member.address, silent_s=0.2)]
    other = boards.by_name("board-1")
    assert other is not None
    changes, strangers = boards.observe([*fresh, BoardPresence(other.address, 0.1, True)])
    assert changes == [] and strangers == []
    boards.admit(member.address + 1000, "board-0", 3)
    assert [m.name for m in boards.up()] == ["board-0", "board-1"]


def _three() -> Boards:
    boards = Boards(["a", "b", "c"], least=2, return_s=60.0)
    for k, name in enumerate(boards.expected):
        boards.admit(k, name, k)
    return boards


def _silent(boards: Boards, *names: str) -> None:
    boards.observe([BoardPresence(k, 0.0) for k, name in enumerate(boards.expected) if name not in names])


def test_silent_boards_are_waited_for_and_may_come_back() -> None:
    boards = _three()
    assert boards.check(100.0) == math.inf
    _silent(boards, "b", "c")
    assert boards.short and boards.absent == ["b", "c"]
    assert boards.check(100.0) == boards.check(159.0) == 160.0
    _silent(boards, "b")  # c beats again
    assert boards.check(159.0) == math.inf
    assert not boards.short and boards.absent == ["b"]
    _silent(boards, "b", "c")
    assert boards.check(170.0) == 230.0  # a new absence, and a new wait
    with pytest.raises(RunError, match=r"1 of the 2 boards that server.min_nodes asks for are left \(b: it left"):
        boards.check(230.0)


def test_a_board_whose_process_has_ended_is_not_waited_for() -> None:
    boards = _three()
    _silent(boards, "b", "c")
    boards.ended("b", "killed")
    assert boards.check(100.0) == 160.0
    boards.ended("c", "killed")
    with pytest.raises(RunError, match="b: killed; c: killed"):
        boards.check(100.0)
    assert boards.check(100.0, joining=1) == math.inf  # while boards are gathered, those that never came may still come
    boards.admit(11, "b", 4)
    boards.admit(12, "c", 5)
    assert boards.absent == [] and not boards.lost
    boards.observe([BoardPresence(0, 0.0)])
    assert boards.absent == ["b", "c"]  # their next processes may come back


def test_a_share_of_the_boards_is_drawn_anew_each_round_and_everyone_gets_a_turn() -> None:
    boards = list(range(100, 110))
    rounds = [sample(boards, wanted(0.3, 1, 10), 1, r) for r in range(40)]
    assert {len(r) for r in rounds} == {3} and len({tuple(r) for r in rounds}) > 20
    assert set().union(*rounds) == set(boards)
    assert rounds == [sample(boards, 3, 1, r) for r in range(40)]
    assert sample(boards, wanted(1.0, 1, 10), 1, 0) == boards
    assert len(sample(boards, wanted(0.0, 4, 10), 1, 0)) == 4
    assert sample(boards[:2], 3, 1, 0) == boards[:2]
