"""The protocol on a virtual network."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.mesh.membership.agent import CALLS_PER_S
from edgegossip.mesh.membership.protocol import (
    MAX_INCARNATION,
    MAX_STEP,
    Changed,
    MemberEntry,
    Message,
    Ping,
    PingReq,
    Refuted,
    Stalled,
    Status,
    View,
)
from tests.mesh.membership.world import World, refutations

NAMED_S = 10.0  # the promise


# A question, its answer and TCP's acknowledgement on an Ethernet link, over TLS.
PROBE_BYTES = 193 + 161 + 66


def seeds(count: int) -> list[Any]:
    """So many; all but the first are slow, as a fleet of eighteen takes a second or two."""
    return [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))]


def all_alive(world: World) -> bool:
    return all(e.status is Status.ALIVE for node in world.nodes.values() for e in node.table)


def check_named(world: World, *dead: int) -> None:
    """Every member that is left names the dead in time, and nobody else."""
    killed_s = world.clock.now
    world.kill(*dead)
    world.run(NAMED_S)
    for k in world.nodes:
        assert all(world.status(d, at=k) is Status.DEAD for d in dead), (k, world.nodes[k].table)
    assert not world.false_deaths(dead)
    assert all(when >= killed_s for when, _, _ in world.named_dead)


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("refuses", [False, True], ids=["silent", "refuses"])
def test_three_of_eighteen_that_die_at_once_are_named_by_all(seed: int, refuses: bool) -> None:
    check_named(World(18, seed, refuses=refuses), 3, 7, 8)


def test_three_neighbours_that_die_at_once_are_named_by_all() -> None:
    check_named(World(10, 5), 5, 6, 7)  # nobody is left who watches 7


@pytest.mark.parametrize("members", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", seeds(3))
def test_a_dead_member_is_named_in_small_fleets_too(members: int, seed: int) -> None:
    check_named(World(members, seed), 1)


def test_deaths_are_named_in_spite_of_loss() -> None:
    check_named(World(10, 4, loss=0.1), 3, 7, 8)


def test_nobody_is_named_dead_by_mistake_when_a_third_of_all_messages_is_lost() -> None:
    world = World(10, 1, loss=0.3)
    world.run(45.0)
    assert refutations(world) > 10  # there were suspicions
    assert not world.named_dead


def test_an_overloaded_member_is_not_dead_and_blames_nobody() -> None:
    world = World(10, 1)
    world.slow[4] = 2.0
    world.run(60.0)
    assert not world.named_dead


def test_a_slow_network_is_no_death() -> None:
    world = World(8, 1, delay_s=(0.3, 0.6))
    world.run(60.0)
    assert not world.named_dead and world.agree()


def test_a_fleet_that_is_slow_altogether_is_not_dead() -> None:
    world = World(18, 1, delay_s=(0.3, 2.0))  # eighteen boards that share two cores
    world.run(90.0)
    assert not world.named_dead


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize(("members", "dead"), [(2, (1,)), (8, (3,)), (10, (3, 7, 8))])
def test_a_fleet_that_was_slow_once_names_its_dead_in_time(members: int, dead: tuple[int, ...], seed: int) -> None:
    world = World(members, seed, delay_s=(0.4, 1.0))  # all start at once, on a busy machine
    world.run(10.0)
    world.delay_s = (0.001, 0.02)
    world.run(40.0)
    check_named(world, *dead)


@pytest.mark.parametrize("members", [2, 4, 10])
def test_who_was_held_up_is_well_again_although_it_is_always_asked_first(members: int) -> None:
    world = World(members, 1)
    last = world.nodes[members - 1]
    last.health.note(last.settings.health_max)
    world.run(30.0)
    assert [node.health.score for node in world.nodes.values()] == [0] * members
    check_named(world, 0)


@pytest.mark.parametrize("seconds", [2.0, 3.0])
def test_a_member_that_is_held_up_for_a_short_time_is_not_lost(seconds: float) -> None:
    world = World(10, 2)
    world.pause(4, seconds)
    world.run(seconds + 10)
    assert not world.named_dead and all_alive(world) and world.agree()


def test_a_member_that_sleeps_long_is_named_comes_back_and_blames_nobody() -> None:
    world = World(10, 2)
    world.pause(4, 30.0)
    world.run(NAMED_S)
    assert {(k, 4) for k in world.nodes if k != 4} == {(by, who) for _, by, who in world.named_dead}
    world.run(25.0)
    assert all_alive(world) and world.agree()
    assert not world.false_deaths([4])
    assert any(k == 4 and isinstance(output, Stalled) for _, k, output in world.outputs)
    assert any(k == 4 and isinstance(output, Refuted) for _, k, output in world.outputs)


@pytest.mark.parametrize("half", [5, 3])
def test_the_parts_of_a_split_name_each_other_and_find_each_other_again(half: int) -> None:
    world = World(10, 3)
    world.cut = lambda a, b: (a < half) != (b < half)
    world.run(15.0)
    for a in world.nodes:
        for b in world.nodes:
            wanted = Status.ALIVE if (a < half) == (b < half) else Status.DEAD
            assert world.status(b, at=a) is wanted
    before = len(world.named_dead)
    world.cut = lambda a, b: False
    world.run(5.0)
    assert all_alive(world) and world.agree() and len(world.named_dead) == before


@pytest.mark.parametrize("mute", [False, True])
@pytest.mark.parametrize("members", [3, 6])
def test_nobody_believes_the_deaths_of_a_member_that_hears_nobody(members: int, mute: bool) -> None:
    world = World(members, 1)
    world.cut = lambda a, b: b == 2 or (mute and a == 2)
    world.run(30.0)
    assert {who for _, by, who in world.named_dead if by == 2} == {*world.nodes} - {2}
    world.cut = lambda a, b: False
    world.run(10.0)
    assert {who for _, by, who in world.named_dead if by != 2} == {2}
    assert all_alive(world) and world.agree()


def test_a_cut_between_two_members_is_no_death_while_others_reach_both() -> None:
    world = World(8, 3)
    world.cut = lambda a, b: (a, b) == (2, 5)  # one direction only: what 2 says, and its answers, never reach 5
    world.run(60.0)
    assert not world.named_dead


def test_a_member_that_comes_back_has_a_higher_incarnation_and_may_have_moved() -> None:
    world = World(6, 5)
    world.kill(2)
    world.run(NAMED_S)
    before = world.nodes[0].table[2].incarnation
    world.start(2, seed_member=0)
    assert world.nodes[2].table[2].incarnation > before, "from the start: it refutes nothing"
    world.nodes[2].move("10.9.9.9:1", world.clock.now)
    world._perform(2, [])
    world.run(2.0)
    assert all_alive(world) and world.agree()
    assert {node.table[2].address for node in world.nodes.values()} == {"10.9.9.9:1"}


def test_a_member_that_restarts_before_it_was_missed_is_told_apart_by_its_life() -> None:
    world = World(6, 5)
    session = world.nodes[0].table[2].session
    world.kill(2)
    world.start(2, seed_member=0)
    world.run(2.0)
    assert all_alive(world) and world.agree() and world.nodes[0].table[2].session != session


def test_who_leaves_is_not_dead() -> None:
    world = World(8, 6)
    world.leave(3, 0.5)
    world.run(20.0)
    assert {world.status(3, at=k) for k in world.nodes} == {Status.LEFT}
    assert not world.named_dead


def test_a_quiet_fleet_says_little() -> None:
    world = World(18, 7)
    world.run(20.0)
    sent, rows = world.sent, world.sent_rows
    world.run(60.0)
    assert (world.sent - sent) / 60 / 18 < 1.2  # a ping and an answer every two seconds
    assert world.sent_rows == rows  # a hash is all they carry


def test_a_quiet_fleet_is_woken_to_ask_and_for_nothing_else() -> None:
    world = World(18)
    world.run(20.0)
    before, asked = dict(world.ticks), world.sent
    world.run(120.0)
    ticks, pings = sum(world.ticks.values()) - sum(before.values()), (world.sent - asked) / 2
    assert 0.8 * 18 * 120 / 3 < pings <= 18 * 120 / 3  # each pair once in quiet_s
    assert ticks <= 1.1 * pings
    assert pings * PROBE_BYTES / 120 / 18 <= 150  # a board and second


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        world = World(9, 11, loss=0.2)
        world.run(10.0)
        world.kill(4)
        world.run(10.0)
        runs.append((world.sent, world.named_dead, [str(o) for _, _, o in world.outputs]))
    assert runs[0] == runs[1]


HIGHEST = MAX_INCARNATION - 1  # that passes the wire


def lie(world: World, to: int, about: int, incarnation: int, status: Status = Status.DEAD) -> None:
    """Member 3 was taken over."""
    entry = MemberEntry(status, incarnation, world.nodes[about].table[about].session, "10.0.0.66:1")
    world._perform(to, world.nodes[to].receive(3, Ping(10**6, View(1, ((about, entry),))), world.clock.now))


@pytest.mark.parametrize("status", [Status.DEAD, Status.SUSPECT, Status.LEFT])
@pytest.mark.parametrize("to", [0, 1])
def test_a_lie_that_cannot_be_outdone_is_outdone(status: Status, to: int) -> None:
    world = World(5, 1, wire=True)
    lie(world, to, 0, HIGHEST, status)
    world.run(8.0)
    assert all_alive(world) and world.agree() and not world.refused and not world.named_dead
    assert {node.table[0].address for node in world.nodes.values()} == {"10.0.0.0:7700"}
    assert world.nodes[0].table[0].incarnation <= 2 * MAX_STEP


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.LEFT])
@pytest.mark.parametrize("members", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_one_member_cannot_have_honest_boards_ask_each_other_too_often(members: int, status: Status) -> None:
    """So often that they refuse each other, and in the end put each other into quarantine."""
    world = World(members, 1, wire=True, delay_s=(0.001, 0.003))
    asked, deliver, seconds = Counter[tuple[int, int]](), world._deliver, 5

    def counted(a: int, b: int, message: Message) -> None:
        if isinstance(message, Ping | PingReq):
            asked[a, b] += 1
        if b == 3 and isinstance(message, Ping | PingReq):  # it was taken over, and answers with lies
            for about in world.nodes.keys() - {a, 3}:
                lie(world, a, about, HIGHEST, status)
        deliver(a, b, message)

    world._deliver = counted  # type: ignore[method-assign]
    for _ in range(19 * seconds):
        for k in world.nodes.keys() - {3}:
            for about in world.nodes.keys() - {k, 3}:
                lie(world, k, about, HIGHEST, status)
        world.run(1 / 19)
    assert max(asked.values()) <= CALLS_PER_S * seconds


@pytest.mark.parametrize("members", [4, 6])
def test_one_member_cannot_part_the_others_however_often_it_says_that_they_left(members: int) -> None:
    """As often as it may ask, about each to all others, and in answer to what it is asked."""
    world, gone = World(members, 1, wire=True), set()
    del world.nodes[3]  # it was taken over
    for _ in range(19 * 12):
        for k in world.nodes:
            for about in world.nodes.keys() - {k}:
                lie(world, k, about, HIGHEST, Status.LEFT)
        world.run(1 / 19)
        gone |= {(k, of) for k in world.nodes for of in world.nodes if not world.nodes[k].table[of].here}
    assert not gone and not world.refused
    world.run(10.0)
    assert all(world.status(of, at=k) is Status.ALIVE for k in world.nodes for of in world.nodes)


def test_who_leaves_is_known_at_once_to_whom_it_tells_and_to_all_others_once_it_does_not_answer() -> None:
    world = World(8, 6)
    left_s = world.clock.now
    world._perform(3, world.nodes[3].leave(left_s))
    world.kill(3)
    world.run(0.05)
    told = {k for k in world.nodes if world.status(3, at=k) is Status.LEFT}
    assert len(told) == world.settings.spread_to
    world.run(NAMED_S)
    assert {world.status(3, at=k) for k in world.nodes} == {Status.LEFT} and world.agree() and not world.named_dead
    changes = [(at_s, o) for at_s, _, o in world.outputs if isinstance(o, Changed) and o.member == 3 and at_s >= left_s]
    assert {o.after.status for _, o in changes} == {Status.SUSPECT, Status.LEFT}
    assert max(at_s for at_s, _ in changes) < left_s + 8.0


def test_of_whom_we_know_that_it_is_not_here_it_is_believed_that_it_had_left() -> None:
    world = World(4, 1)
    world.kill(0)
    world.run(NAMED_S)
    left = replace(world.nodes[1].table[0], status=Status.LEFT)
    world._deliver(3, 1, Ping(10**6, View(1, ((0, left),))))
    assert world.nodes[1].table[0] == left


def test_boards_that_were_told_different_lies_agree_again() -> None:
    world = World(5, 1, wire=True)
    for k, lies in ((1, 9), (2, 1), (0, 3), (4, 5)):
        for _ in range(lies):
            lie(world, k, 0, HIGHEST)
    world.run(12.0)
    assert all_alive(world) and world.agree() and not world.refused
    world.kill(0)
    world.run(NAMED_S)
    assert {world.status(0, at=k) for k in world.nodes} == {Status.DEAD}


def test_a_newcomer_that_is_told_a_lie_comes_in_all_the_same() -> None:
    """About itself and another one, by the member through which it joins."""
    world = World(5, 1, wire=True)
    world.kill(0)
    world.run(NAMED_S)
    for k in (0, 1):
        world.nodes[3].table[k] = MemberEntry(Status.DEAD, HIGHEST, 1, "10.0.0.66:1")
    world.start(0, seed_member=3)
    world.nodes[3].table[0] = world.nodes[3].table[1] = MemberEntry()  # it told nobody else
    world.nodes[3]._digest = None
    world.run(12.0)
    assert all_alive(world) and world.agree() and not world.refused


def test_a_member_that_tells_everybody_that_they_are_suspected_delays_no_verdict() -> None:
    world = World(7, 1)
    for second in range(14):
        for k in list(world.nodes)[1:]:
            accused = replace(world.nodes[k].table[k], status=Status.SUSPECT)
            world._deliver(0, k, Ping(10**6, View(1, ((k, accused),))))
        if second == 4:
            assert {node.health.score for node in world.nodes.values()} == {0}
            world.kill(5)
        world.run(1.0)
    assert all(world.status(5, at=k) is Status.DEAD for k in world.nodes)
    assert max(when for when, _, _ in world.named_dead) <= world.clock.now - 10 + NAMED_S
    assert not world.false_deaths([5])


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("members", [3, 10])
def test_changes_of_the_fleet_are_not_taken_for_stalls_of_ones_own(members: int, seed: int) -> None:
    world = World(members, seed)
    world.run(120.0)  # members that are not next to each other have hardly heard of each other since
    world.leave(1, 1.0)
    world.run(20.0)
    world.kill(2)
    world.run(20.0)
    world.start(2)
    world.start(1)
    world.run(20.0)
    assert all_alive(world)
    assert not any(isinstance(output, Stalled) for _, _, output in world.outputs)


def test_with_better_health_members_are_asked_sooner_which_is_no_stall() -> None:
    world = World(8, 2, loss=0.3)
    until_s = world.clock.now + 600.0
    while not any(node.health.score > 1 for node in world.nodes.values()) and world.clock.now < until_s:
        world.run(0.5)
    before = {k: node.health.score for k, node in world.nodes.items()}
    world.loss = 0.0
    world.run(60.0)
    assert any(node.health.score < before[k] for k, node in world.nodes.items())
    assert not any(isinstance(output, Stalled) for _, _, output in world.outputs)


@pytest.mark.parametrize("seed", seeds(4))
def test_who_dies_when_its_neighbours_have_just_left_is_named_in_time(seed: int) -> None:
    world = World(10, seed)
    world.run(120.0)
    world.leave(4, 0.05)
    world.leave(6, 0.45)
    check_named(world, 5)


@pytest.mark.parametrize("seed", seeds(4))
def test_who_dies_when_its_neighbours_have_just_come_back_is_named_in_time(seed: int) -> None:
    world = World(10, seed)
    world.kill(4, 6)
    world.run(120.0)
    world.start(4, seed_member=9)
    world.start(6, seed_member=9)
    world.run(0.5)
    killed_s = world.clock.now
    world.kill(5)
    world.run(NAMED_S)
    assert all(world.status(5, at=k) is Status.DEAD for k in world.nodes)
    assert not [death for death in world.named_dead if death[0] >= killed_s and death[2] != 5]


def test_an_expelled_member_stays_dead_until_it_talks_to_us_again() -> None:
    world = World(3, 1)
    a, now_s = world.nodes[0], world.clock.now
    entry = a.table[2]
    [changed] = [o for o in a.evict(2, now_s) if isinstance(o, Changed)]
    assert (changed.after.status, changed.revoked) == (Status.DEAD, True)
    refutation = replace(entry, incarnation=entry.incarnation + 5)
    a.receive(1, Ping(1, View(1, ((2, refutation),))), now_s)  # somebody who does not know yet passes it on
    assert a.table[2] == replace(refutation, status=Status.DEAD)
    a.receive(2, Ping(1, View(1, ((2, replace(entry, incarnation=entry.incarnation + 6)),))), now_s)
    assert a.table[2].status is Status.ALIVE  # it came in, with a new certificate


def test_another_process_of_an_expelled_member_may_come_back() -> None:
    world = World(3, 1)
    a, now_s = world.nodes[0], world.clock.now
    a.evict(2, now_s)
    back = replace(a.table[2], status=Status.ALIVE, incarnation=a.table[2].incarnation + 1, session=77)
    a.receive(1, Ping(1, View(1, ((2, back),))), now_s)
    assert a.table[2] == back


@pytest.mark.parametrize("away_s", [1.0, 20.0, 300.0])
def test_a_founder_that_left_and_knows_nobodys_address_is_found(away_s: float) -> None:
    world = World(4, 1)
    world.leave(0, 1.0)
    world.run(away_s)
    assert all(world.status(0, at=k) is Status.LEFT for k in (1, 2, 3))
    others, world.nodes = world.nodes, {}
    world.start(0)  # its own command: nothing is known
    world.nodes |= others
    world.run(66.0)
    assert world.agree() and all_alive(world)


def test_who_left_costs_little() -> None:
    world = World(2, 1)
    world.leave(0, 1.0)
    world.run(300.0)
    before = world.sent
    world.run(600.0)
    assert 8 <= world.sent - before <= 12


LIES = st.lists(st.tuples(*[st.integers(0, 3)] * 2, st.sampled_from(list(Status)[1:]), st.integers(0, 3)), max_size=20)


@given(LIES)
@settings(deadline=None, max_examples=20)
def test_one_that_lies_makes_nobody_dead_who_answers(lies: list[tuple[int, int, Status, int]]) -> None:
    """Member 4 tells each other one whatever it likes; all of them are up and answer."""
    world = World(5, 1)
    for to, about, status, ahead in lies:
        entry = world.nodes[to].table[about]
        told = replace(entry, status=status, incarnation=entry.incarnation + ahead)
        world._perform(to, world.nodes[to].receive(4, Ping(10**6, View(1, ((about, told),))), world.clock.now))
        world.run(0.3)
    world.run(10.0)
    assert not [death for death in world.named_dead if death[2] != 4]
    assert not [o for _, _, o in world.outputs if isinstance(o, Changed) and o.asked]
    assert all_alive(world)
