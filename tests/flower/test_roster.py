from __future__ import annotations

import pytest

from edgegossip.flower._private import NodeSeen
from edgegossip.flower.roster import SILENT_S, Roster
from edgegossip.types import PeerError


def _roster() -> Roster:
    roster = Roster(["board-0", "board-1"])
    roster.admit(10, "board-0")
    roster.admit(11, "board-1")
    return roster


def _seen(*silences: tuple[int, float], beats_fast: bool = True) -> list[NodeSeen]:
    return [NodeSeen(i, s, beats_fast) for i, s in silences]


def test_a_silent_board_goes_down_and_comes_back() -> None:
    roster = _roster()
    assert roster.observe(_seen((10, 1.0), (11, SILENT_S - 0.1))) == ([], [])
    (change,), _ = roster.observe(_seen((10, 1.0), (11, SILENT_S + 0.6)))
    assert (change.name, change.up, change.reason) == ("board-1", False, "no sign of life for 7 s")
    assert [m.name for m in roster.up()] == ["board-0"]
    (change,), _ = roster.observe(_seen((10, 1.0), (11, 0.1)))
    assert (change.name, change.up) == ("board-1", True)


def test_a_board_that_left_is_down_and_a_stock_node_may_beat_slowly() -> None:
    roster = _roster()
    (change,), _ = roster.observe(_seen((10, 25.0), beats_fast=False))
    assert (change.name, change.up) == ("board-1", False)
    assert [m.name for m in roster.up()] == ["board-0"]


def test_strangers_are_greeted_unless_refused_or_replaced() -> None:
    roster = _roster()
    assert roster.observe(_seen((10, 0.0), (11, 0.0), (12, 0.0)))[1] == [12]
    assert roster.admit(12, "board-1") == 11
    with pytest.raises(PeerError, match="no board of this run is named 'eve'; the names are board-0, board-1"):
        roster.admit(13, "eve")
    assert roster.observe(_seen((10, 0.0), (11, 0.0), (12, 0.0), (13, 0.0))) == ([], [])


def test_busy_boards_get_no_work_and_a_lost_one_is_named_once() -> None:
    roster = _roster()
    member = roster.by_name("board-0")
    assert member is not None
    member.busy = "message"
    assert [m.name for m in roster.idle()] == ["board-1"]
    assert roster.lose("board-0", "killed") is not None
    assert roster.lose("board-0", "killed") is None
    assert roster.missing() == []


def test_a_board_whose_process_has_ended_does_not_come_back_with_its_last_heartbeat() -> None:
    roster = _roster()
    member = roster.by_name("board-0")
    assert member is not None and roster.lose("board-0", "killed") is not None
    fresh = [NodeSeen(member.node_id, silent_s=0.2, beats_fast=True)]
    other = roster.by_name("board-1")
    assert other is not None
    changes, strangers = roster.observe([*fresh, NodeSeen(other.node_id, 0.1, True)])
    assert changes == [] and strangers == []
    roster.admit(member.node_id + 1000, "board-0")
    assert [m.name for m in roster.up()] == ["board-0", "board-1"]
