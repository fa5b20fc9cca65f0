"""Who is still waited for when too few boards are left."""

from __future__ import annotations

import pytest

from edgegossip.flower._private import NodeSeen
from edgegossip.flower.quorum import Quorum
from edgegossip.flower.roster import Roster
from edgegossip.types import RunError


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def _three() -> tuple[Roster, Quorum, Clock]:
    roster, clock = Roster(["a", "b", "c"]), Clock()
    for k, name in enumerate(roster.expected):
        roster.admit(k, name)
    return roster, Quorum(roster, 2, return_s=60.0, now=clock), clock


def _silent(roster: Roster, quorum: Quorum, *names: str) -> None:
    there = [NodeSeen(k, 0.0, True) for k, name in enumerate(roster.expected) if name not in names]
    for change in roster.observe(there)[0]:
        quorum.down(change.name, change.reason)


def test_silent_boards_are_waited_for_and_may_come_back() -> None:
    roster, quorum, clock = _three()
    quorum.check()
    _silent(roster, quorum, "b", "c")
    assert quorum.short and quorum.absent == ["b", "c"]
    quorum.check()
    clock.s += 59.0
    quorum.check()
    _silent(roster, quorum, "b")  # c beats again
    quorum.back("c")
    quorum.check()
    assert not quorum.short and quorum.absent == ["b"]
    _silent(roster, quorum, "b", "c")
    clock.s += 59.0
    quorum.check()  # a new absence, and a new wait
    clock.s += 61.0
    with pytest.raises(RunError, match=r"1 of the 2 boards that server.min_nodes asks for are left \(b: it left"):
        quorum.check()


def test_a_board_whose_process_has_ended_is_not_waited_for() -> None:
    roster, quorum, _ = _three()
    _silent(roster, quorum, "b", "c")
    quorum.down("b", "killed", ended=True)
    quorum.check()
    quorum.down("c", "killed", ended=True)
    with pytest.raises(RunError, match="b: killed; c: killed"):
        quorum.check()
    quorum.check(expected=1)  # while boards are gathered, those that never came may still come
    quorum.back("c")
    assert quorum.absent == []
