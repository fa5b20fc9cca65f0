"""Single steps of the protocol, by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.protocol import (
    Ack,
    Changed,
    MemberEntry,
    Nack,
    Ping,
    PingReq,
    Refuted,
    SendMessage,
    Stalled,
    Status,
    View,
)


def detector(members: int = 4) -> Detector:
    known = tuple((k, MemberEntry(Status.ALIVE, 1, k + 1, f"10.0.0.{k}:7700")) for k in range(1, members))
    return Detector(members, 0, "10.0.0.0:7700", 1, Random(1), 100.0, known=known)


def settled(node: Detector, now_s: float) -> None:
    for k in range(len(node.table)):
        if k != node.me:
            node.receive(k, Ack(10**6, View(node.digest)), now_s)


def pings(outputs: list) -> dict[int, int]:
    return {o.to: o.message.number for o in outputs if isinstance(o, SendMessage) and isinstance(o.message, Ping)}


def test_who_takes_itself_for_slow_waits_for_a_probe_under_way_and_does_not_spin() -> None:
    node = detector(3)
    now_s = settled(node, 100.0) or 100.0
    node.health.note(node.settings.health_max)
    for member in (1, 2):
        node.suspect(member, now_s)  # nobody answers for long, since our own times are stretched
    for _ in range(40):
        now_s = node.wake_s
        node.tick(now_s)
        if any(entry.status is Status.SUSPECT for entry in node.table):
            return
    raise AssertionError(f"forty ticks, and it is only {now_s - 100.0:.2f} s later")


def test_who_takes_in_our_frames_is_not_asked() -> None:
    node = detector()
    settled(node, 100.0)
    node.tick(node.wake_s)
    for at_s in (102.0, 104.5, 107.0):
        for k in (1, 3):
            node.note_heard(k, at_s)
        assert node.wake_s == at_s + node.settings.quiet_s
    assert set(pings(node.tick(node.wake_s))) == {1, 3}
    for k in (1, 3):  # that is an answer, too
        node.note_heard(k, node.wake_s)
    assert not any(isinstance(o, SendMessage) and isinstance(o.message, PingReq) for o in node.tick(node.wake_s))


def test_whom_the_transport_reaches_is_told_though_it_was_known_to_be_here() -> None:
    node = detector()
    settled(node, 100.0)
    node.tick(node.wake_s)
    (told,) = node.mark_alive(1, 102.0)
    assert isinstance(told, SendMessage) and told.to == 1
    assert {k for k, _ in told.message.view.rows} == {0, 1, 2, 3}  # it may be another process, which knows nobody


def test_who_stood_still_takes_nobody_for_silent_meanwhile() -> None:
    node = detector()
    settled(node, 100.0)
    assert len(pings(node.tick(node.wake_s + 60.0))) == 1  # as it takes itself for slow: an answer shows that it is not


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.DEAD, Status.LEFT])
def test_a_process_does_not_share_the_fate_of_the_one_before_it(status: Status) -> None:
    """Killed, suspected, and started again before that suspicion was over."""
    known = (
        (0, MemberEntry(status, 3, 77, "10.0.0.0:7700")),
        *((k, MemberEntry(Status.ALIVE, 1, k + 1, f"10.0.0.{k}:7700")) for k in (1, 2)),
    )
    node, now_s, asked = Detector(3, 0, "10.0.0.0:7700", 1, Random(1), 100.0, known=known), 100.0, set[int]()
    while now_s < 130.0:
        now_s = max(now_s + 0.001, node.wake_s)
        asked |= pings(node.tick(now_s)).keys()
        for k in (1, 2):
            node.receive(k, Ack(10**6, View(node.digest)), now_s)
    assert node.table[0].status is Status.ALIVE and 0 not in asked


def test_a_farewell_from_before_a_members_last_life_changes_nothing() -> None:
    alive, dead = (MemberEntry(Status.ALIVE, 1, 2, "10.0.0.1:7700"), MemberEntry(Status.DEAD, 3, 3, "10.0.0.2:7700"))
    node = Detector(3, 0, "10.0.0.0:7700", 1, Random(1), 100.0, known=((1, alive), (2, dead)))
    farewell, before = replace(dead, status=Status.LEFT, incarnation=2), node.table[2]
    node.receive(1, Ack(10**6, View(node.digest, ((2, farewell),))), 100.0)
    assert node.table[2] == before


def test_who_is_said_to_be_dead_before_we_know_it_is_asked() -> None:
    alive, dead = (MemberEntry(Status.ALIVE, 1, 2, "10.0.0.1:7700"), MemberEntry(Status.DEAD, 3, 3, "10.0.0.2:7700"))
    node = Detector(3, 0, "10.0.0.0:7700", 1, Random(1), 100.0, known=((1, alive),))
    node.receive(1, Ack(10**6, View(node.digest, ((2, dead),))), 100.0)
    assert node.table[2].status is Status.SUSPECT
    asked = {k for _ in range(5) for k in pings(node.tick(node.wake_s))}
    assert 2 in asked


def test_whom_another_suspects_is_probed_before_the_next_turn() -> None:
    node = detector(18)
    settled(node, 100.0)
    told = ((9, replace(node.table[9], status=Status.SUSPECT)),)
    out, now_s = node.receive(1, Ack(10**6, View(node.digest, told)), 100.0), 100.0
    while node.wake_s < 100.0 + node.settings.interval_s / 2:
        now_s = max(now_s, node.wake_s)
        out += node.tick(now_s)
    assert 9 in pings(out)


def test_a_refused_probe_goes_to_others_at_once_and_their_no_makes_a_suspect() -> None:
    node = detector()
    settled(node, 100.0)
    out = node.suspect(2, 100.0)
    out = [*node.failed(2, pings(out)[2], 100.01), *node.tick(100.01)]
    asked = {o.to: o.message for o in out if isinstance(o, SendMessage) and isinstance(o.message, PingReq)}
    assert set(asked) == {1, 3} and all(m.target == 2 for m in asked.values())
    for helper, message in asked.items():
        node.receive(helper, Nack(message.number, View(node.digest)), 100.02)
    node.tick(100.02)
    assert node.table[2].status is Status.SUSPECT and node._asked(2)
    assert node.health.score == 0  # it was not our own fault


def test_helpers_that_keep_silent_are_a_sign_that_we_are_slow_ourselves() -> None:
    node = detector()
    settled(node, 100.0)
    node.suspect(2, 100.0)
    now = 100.0
    while node.table[2].status is Status.ALIVE:
        now = max(now, node.wake_s)
        node.tick(now)
    assert node.health.score >= 1 and now < 103


def test_an_indirect_probe_is_answered_either_way() -> None:
    node = detector()
    settled(node, 100.0)
    out = node.receive(1, PingReq(77, 2, 0.5, View(node.digest)), 100.0)
    number = pings(out)[2]
    out = node.receive(2, Ack(number, View(node.digest)), 100.1)
    assert [(o.to, o.message.number) for o in out if isinstance(o.message, Ack)] == [(1, 77)]
    out = node.receive(1, PingReq(78, 3, 0.5, View(node.digest)), 100.2)
    late = [o for t in (100.4, 100.71) for o in node.tick(t)]
    assert [(o.to, o.message.number) for o in late if isinstance(o, SendMessage) and isinstance(o.message, Nack)] == [
        (1, 78)
    ]


@pytest.mark.parametrize("reaction", ["answers", "refuses", "is silent"])
def test_indirect_probes_of_many_do_not_make_us_a_nuisance(reaction: str) -> None:
    """Members that ask about the same one on and on, as one that was taken over may: we ask it a
    few times a second, and each of them is told all the same."""
    node, asked, told, now_s = detector(), 0, 0, 100.0
    settled(node, now_s)
    before = len(node._pings)
    for k in range(200):
        now_s += 0.01
        out = node.receive(1 + 2 * (k % 2), PingReq(1000 + k, 2, 0.4, View(node.digest)), now_s)
        for number in [o.message.number for o in out if isinstance(o, SendMessage) and o.to == 2]:
            asked += 1
            if reaction == "answers":
                out += node.receive(2, Ack(number, View(node.digest)), now_s + 0.001)
            elif reaction == "refuses":
                out += node.failed(2, number, now_s + 0.001)
        told += sum(
            isinstance(o.message, Ack | Nack) for o in [*out, *node.tick(now_s + 0.002)] if isinstance(o, SendMessage)
        )
    told += sum(
        isinstance(o.message, Nack) for o in node.tick(now_s + 0.45) if isinstance(o, SendMessage) and o.to != 2
    )
    assert 9 <= asked <= 11 and told == 200
    assert not node._requests and len(node._pings) - before <= asked + 5


def test_a_suspect_is_told_by_the_very_next_message_and_objects() -> None:
    node = detector()
    accused = MemberEntry(Status.SUSPECT, node.table[0].incarnation, 1, "10.0.0.0:7700")
    out = node.receive(1, Ping(5, View(1, ((0, accused),))), 100.0)
    assert Refuted(1, accused) in out
    assert node.table[0].status is Status.ALIVE and node.table[0].incarnation == accused.incarnation + 1
    [answer] = [o.message for o in out if isinstance(o, SendMessage)]
    assert isinstance(answer, Ack) and dict(answer.view.rows)[0] == node.table[0]


def test_a_process_that_did_not_run_does_not_blame_the_others() -> None:
    node = detector()
    settled(node, 100.0)
    node.suspect(2, 100.0)
    out = node.tick(130.0)
    assert any(isinstance(o, Stalled) for o in out)
    assert not any(isinstance(o, Changed) for o in out)
    assert node.table[2].status is Status.ALIVE


@pytest.mark.parametrize("first", ["move", "evict", "leave"])
def test_a_pause_is_noticed_whatever_comes_first_after_it(first: str) -> None:
    node = detector(6)
    now_s = settled(node, 100.0) or 100.0
    suspect = replace(node.table[2], status=Status.SUSPECT)
    node.receive(1, Ping(5, View(1, ((2, suspect),))), now_s)
    calls = {
        "move": lambda at_s: node.move("10.0.0.99:1", at_s),
        "evict": lambda at_s: node.evict(5, at_s),
        "leave": node.leave,
    }
    out = calls[first](now_s + 30.0)
    out += node.tick(now_s + 30.002)
    assert sum(isinstance(o, Stalled) for o in out) == 1
    assert node.table[2].status is Status.SUSPECT


def test_a_pause_is_noticed_once_however_much_waits_to_be_read_after_it() -> None:
    node = detector()
    now_s = settled(node, 100.0) or 100.0
    suspect = replace(node.table[2], status=Status.SUSPECT)
    node.receive(1, Ping(5, View(1, ((2, suspect),))), now_s)
    ends_s = node._suspicion_ends_s(2, now_s) - now_s
    outs = [node.receive(1, Ping(6 + i, View(1, ())), now_s + 31.0) for i in range(5)]
    assert sum(isinstance(o, Stalled) for out in outs for o in out) == 1
    assert node.health.score == 1
    assert node._suspicion_ends_s(2, now_s + 31.0) - (now_s + 31.0) <= ends_s + node.settings.stall_s


def test_what_others_say_of_an_earlier_process_of_ours_is_outdone_without_an_objection() -> None:
    node = detector()
    earlier = MemberEntry(Status.ALIVE, node.table[0].incarnation + 4, 99, "10.0.0.77:1")
    out = node.receive(1, Ping(5, View(1, ((0, earlier),))), 100.0)
    assert node.table[0].incarnation == earlier.incarnation + 1 and node.table[0].session == 1
    assert not any(isinstance(o, Refuted) for o in out)


def test_what_others_say_never_stands_for_our_own_probe() -> None:
    """One that lies names a board suspect again and again: we ask it ourselves."""
    node, now_s = detector(), 100.0
    settled(node, now_s)
    told = ((2, replace(node.table[2], status=Status.SUSPECT)),)
    out = node.receive(3, Ping(9, View(1, told)), now_s)
    longest_s = node._suspicion_ends_s(2, now_s) - now_s
    assert longest_s == node.settings.suspicion_factor * node.settings.suspicion_time_s(4, True)
    for number in range(5):
        out += node.receive(3, Ping(10 + number, View(1, told)), now_s)
    assert node._suspicion_ends_s(2, now_s) - now_s == longest_s and not node._asked(2)
    while 2 not in pings(out):
        now_s = max(now_s + 0.001, node.wake_s)
        out += node.tick(now_s)
    assert now_s < 101.0
    while node.table[2].status is Status.SUSPECT:
        now_s = max(now_s + 0.001, node.wake_s)
        out += node.tick(now_s)
    assert [o.asked for o in out if isinstance(o, Changed) and o.after.status is Status.DEAD] == [True]


@pytest.mark.parametrize("refutes", [True, False])
def test_a_probe_in_vain_says_nothing_once_the_member_is_heard(refutes: bool) -> None:
    node, now_s = detector(3), 100.0
    settled(node, now_s)
    node.suspect(2, now_s)
    while node.table[2].status is not Status.SUSPECT:
        now_s = node.wake_s
        for out in node.tick(now_s):  # its neighbour answers, and does not reach it either
            if isinstance(out, SendMessage) and out.to == 1:
                answer = Nack if isinstance(out.message, PingReq) else Ack
                node.receive(1, answer(out.message.number, View(node.digest)), now_s)
    assert node._suspicion_ends_s(2, now_s) - now_s == node.settings.suspicion_time_s(3, True)
    suspect = node.table[2]
    if refutes:  # another member brings it
        refuted = replace(suspect, status=Status.ALIVE, incarnation=suspect.incarnation + 1)
        for row in (refuted, replace(refuted, status=Status.SUSPECT)):
            node.receive(1, Ping(8, View(1, ((2, row),))), now_s)
    else:
        node.note_heard(2, now_s)
    assert node._suspicion_ends_s(2, now_s) - now_s == node.settings.suspicion_time_s(3, False)
