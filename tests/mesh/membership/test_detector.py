"""The protocol on a virtual network, and single steps of it by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.messages import Ack, Changed, Healed, Nack, Objected, Ping, PingFor, Send, Stalled, View
from edgegossip.mesh.membership.table import MAX_INCARNATION, MAX_STEP, Entry, Status
from tests.mesh.membership.world import World, objections

NAMED_S = 10.0  # the promise


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("refuses", [False, True], ids=["silent", "refuses"])
def test_three_of_eighteen_that_die_at_once_are_named_by_all(seed: int, refuses: bool) -> None:
    check_named(World(18, seed, refuses=refuses), 3, 7, 8)


def test_three_neighbours_that_die_at_once_are_named_by_all() -> None:
    check_named(World(18, 5), 7, 8, 9)  # nobody is left who watches 9


@pytest.mark.parametrize("members", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_dead_member_is_named_in_small_fleets_too(members: int, seed: int) -> None:
    check_named(World(members, seed), 1)


def test_deaths_are_named_in_spite_of_loss() -> None:
    check_named(World(18, 4, loss=0.1), 3, 7, 8)


def test_nobody_is_named_dead_by_mistake_when_a_third_of_all_messages_is_lost() -> None:
    world = World(18, 1, loss=0.3)
    world.run(45.0)
    assert objections(world) > 10  # there were doubts
    assert not world.named_dead


def test_an_overloaded_member_is_not_dead_and_blames_nobody() -> None:
    world = World(18, 1)
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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("members", "dead"), [(2, (1,)), (8, (3,)), (18, (3, 7, 8))])
def test_a_fleet_that_was_slow_once_names_its_dead_in_time(members: int, dead: tuple[int, ...], seed: int) -> None:
    world = World(members, seed, delay_s=(0.4, 1.0))  # all start at once, on a busy machine
    world.run(10.0)
    world.delay_s = (0.001, 0.02)
    world.run(40.0)
    check_named(world, *dead)


@pytest.mark.parametrize("members", [2, 4, 18])
def test_who_was_held_up_is_well_again_although_it_is_always_asked_first(members: int) -> None:
    world = World(members, 1)
    last = world.nodes[members - 1]
    last.health.note(last.settings.health_max)
    world.run(30.0)
    assert [node.health.score for node in world.nodes.values()] == [0] * members
    check_named(world, 0)


def test_who_takes_itself_for_slow_waits_for_a_probe_under_way_and_does_not_spin() -> None:
    node = detector(3)
    now_s = settled(node, 100.0) or 100.0
    node.health.note(node.settings.health_max)
    for member in (1, 2):
        node.doubt(member, now_s)  # nobody answers for long, since our own times are stretched
    for _ in range(40):
        now_s = node.wake_s
        node.tick(now_s)
        if any(entry.status is Status.SUSPECT for entry in node.table):
            return
    raise AssertionError(f"forty ticks, and it is only {now_s - 100.0:.2f} s later")


@pytest.mark.parametrize("seconds", [2.0, 3.0])
def test_a_member_that_is_held_up_for_a_short_time_is_not_lost(seconds: float) -> None:
    world = World(18, 2)
    world.pause(4, seconds)
    world.run(seconds + 10)
    assert not world.named_dead and all_alive(world) and world.agree()


def test_a_member_that_sleeps_long_is_named_comes_back_and_blames_nobody() -> None:
    world = World(18, 2)
    world.pause(4, 30.0)
    world.run(NAMED_S)
    assert {(k, 4) for k in world.nodes if k != 4} == {(by, who) for _, by, who in world.named_dead}
    world.run(25.0)
    assert all_alive(world) and world.agree()
    assert not world.false_deaths([4])
    assert any(k == 4 and isinstance(output, Stalled) for _, k, output in world.outputs)
    assert any(k == 4 and isinstance(output, Objected) for _, k, output in world.outputs)


@pytest.mark.parametrize("half", [9, 6])
def test_the_parts_of_a_split_name_each_other_and_find_each_other_again(half: int) -> None:
    world = World(18, 3)
    world.cut = lambda a, b: (a < half) != (b < half)
    world.run(15.0)
    for a in world.nodes:
        for b in world.nodes:
            wanted = Status.ALIVE if (a < half) == (b < half) else Status.DEAD
            assert world.status(b, at=a) is wanted
    world.cut = lambda a, b: False
    world.run(5.0)
    assert all_alive(world) and world.agree()
    assert any(isinstance(output, Healed) for _, _, output in world.outputs)


def test_a_cut_between_two_members_is_no_death_while_others_reach_both() -> None:
    world = World(8, 3)
    world.cut = lambda a, b: (a, b) == (2, 5)  # one direction only: what 2 says, and its answers, never reach 5
    world.run(60.0)
    assert not world.named_dead


def test_a_member_that_comes_back_has_a_higher_incarnation_and_may_have_moved() -> None:
    world = World(6, 5)
    world.kill(2)
    world.run(NAMED_S)
    world.start(2, seed_member=0)
    world.nodes[2].move("10.9.9.9:1", world.clock.now)
    world._perform(2, [])
    world.run(2.0)
    assert all_alive(world) and world.agree()
    assert {node.table[2].address for node in world.nodes.values()} == {"10.9.9.9:1"}


def test_a_member_that_restarts_before_it_was_missed_is_told_apart_by_its_life() -> None:
    world = World(6, 5)
    life = world.nodes[0].table[2].life
    world.kill(2)
    world.start(2, seed_member=0)
    world.run(2.0)
    assert all_alive(world) and world.agree() and world.nodes[0].table[2].life != life


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.DEAD, Status.LEFT])
def test_a_process_does_not_share_the_fate_of_the_one_before_it(status: Status) -> None:
    """Killed, suspected, and started again before that suspicion was over."""
    known = (
        (0, Entry(status, 3, 77, "10.0.0.0:7700", accusers=2)),
        *((k, Entry(Status.ALIVE, 1, k + 1, f"10.0.0.{k}:7700")) for k in (1, 2)),
    )
    node, now_s, asked = Detector(3, 0, "10.0.0.0:7700", 1, Random(1), 100.0, known=known), 100.0, set[int]()
    while now_s < 130.0:
        now_s = max(now_s + 0.001, node.wake_s)
        asked |= pings(node.tick(now_s)).keys()
        for k in (1, 2):
            node.receive(k, Ack(10**6, View(node.digest)), now_s)
    assert node.table[0].status is Status.ALIVE and 0 not in asked


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
    entry = Entry(status, incarnation, world.nodes[about].table[about].life, "10.0.0.66:1", accusers=8)
    world._perform(to, world.nodes[to].receive(3, Ping(10**6, View(1, ((about, entry),))), world.clock.now))


@pytest.mark.parametrize("status", [Status.DEAD, Status.SUSPECT, Status.LEFT])
@pytest.mark.parametrize("to", [0, 1])
def test_a_lie_that_cannot_be_outdone_is_outdone(status: Status, to: int) -> None:
    world = World(5, 1, wire=True)
    lie(world, to, 0, HIGHEST, status)
    world.run(8.0)
    assert all_alive(world) and world.agree() and not world.refused
    assert {node.table[0].address for node in world.nodes.values()} == {"10.0.0.0:7700"}
    assert world.nodes[0].table[0].incarnation <= 2 * MAX_STEP


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
        world.nodes[3].table[k] = Entry(Status.DEAD, HIGHEST, 1, "10.0.0.66:1", accusers=8)
    world.start(0, seed_member=3)
    world.nodes[3].table[0] = world.nodes[3].table[1] = Entry()  # it told nobody else
    world.nodes[3]._digest = None
    world.run(12.0)
    assert all_alive(world) and world.agree() and not world.refused


def test_a_member_that_tells_everybody_that_they_are_suspected_delays_no_verdict() -> None:
    """As the word of others, too: it does not have to name itself as the accuser."""
    world = World(7, 1)
    for second in range(14):
        for k in list(world.nodes)[1:]:
            accused = replace(world.nodes[k].table[k], status=Status.SUSPECT, accusers=1 << second % 7)
            world._deliver(0, k, Ping(10**6, View(1, ((k, accused),))))
        if second == 4:
            assert {node.health.score for node in world.nodes.values()} == {0}
            world.kill(5)
        world.run(1.0)
    assert all(world.status(5, at=k) is Status.DEAD for k in world.nodes)
    assert max(when for when, _, _ in world.named_dead) <= world.clock.now - 10 + NAMED_S
    assert not world.false_deaths([5])


# -- single steps ------------------------------------------------------------------------------------------------


def detector(members: int = 4, me: int = 0, now_s: float = 100.0) -> Detector:
    known = tuple((k, Entry(Status.ALIVE, 1, k + 1, f"10.0.0.{k}:7700")) for k in range(members) if k != me)
    return Detector(members, me, f"10.0.0.{me}:7700", me + 1, Random(1), now_s, known=known)


def settled(node: Detector, now_s: float) -> None:
    for k in range(len(node.table)):
        if k != node.me:
            node.receive(k, Ack(10**6, View(node.digest)), now_s)


def pings(outputs: list) -> dict[int, int]:
    return {o.to: o.message.number for o in outputs if isinstance(o, Send) and isinstance(o.message, Ping)}


def test_a_refused_probe_goes_to_others_at_once_and_their_no_makes_a_suspect() -> None:
    node = detector()
    settled(node, 100.0)
    out = node.doubt(2, 100.0)
    out = [*node.failed(2, pings(out)[2], 100.01), *node.tick(100.01)]
    asked = {o.to: o.message for o in out if isinstance(o, Send) and isinstance(o.message, PingFor)}
    assert set(asked) == {1, 3} and all(m.target == 2 for m in asked.values())
    for helper, message in asked.items():
        node.receive(helper, Nack(message.number, View(node.digest)), 100.02)
    node.tick(100.02)
    assert node.table[2].status is Status.SUSPECT and node.table[2].accusers == 1
    assert node.health.score == 0  # it was not our own fault


def test_helpers_that_keep_silent_are_a_sign_that_we_are_slow_ourselves() -> None:
    node = detector()
    settled(node, 100.0)
    node.doubt(2, 100.0)
    now = 100.0
    while node.table[2].status is Status.ALIVE:
        now = max(now, node.wake_s)
        node.tick(now)
    assert node.health.score >= 1 and now < 103


def test_an_errand_is_answered_either_way() -> None:
    node = detector()
    settled(node, 100.0)
    out = node.receive(1, PingFor(77, 2, 0.5, View(node.digest)), 100.0)
    number = pings(out)[2]
    out = node.receive(2, Ack(number, View(node.digest)), 100.1)
    assert [(o.to, o.message.number) for o in out if isinstance(o.message, Ack)] == [(1, 77)]
    out = node.receive(1, PingFor(78, 3, 0.5, View(node.digest)), 100.2)
    late = [o for t in (100.4, 100.71) for o in node.tick(t)]
    assert [(o.to, o.message.number) for o in late if isinstance(o, Send) and isinstance(o.message, Nack)] == [(1, 78)]


@pytest.mark.parametrize("reaction", ["answers", "refuses", "is silent"])
def test_errands_of_many_do_not_make_us_a_nuisance(reaction: str) -> None:
    """Members that ask about the same one on and on, as one that was taken over may: we ask it a few times a second, and each of
    them is told all the same."""
    node, asked, told, now_s = detector(), 0, 0, 100.0
    settled(node, now_s)
    before = len(node._pings)
    for k in range(200):
        now_s += 0.01
        out = node.receive(1 + 2 * (k % 2), PingFor(1000 + k, 2, 0.4, View(node.digest)), now_s)
        for number in [o.message.number for o in out if isinstance(o, Send) and o.to == 2]:
            asked += 1
            if reaction == "answers":
                out += node.receive(2, Ack(number, View(node.digest)), now_s + 0.001)
            elif reaction == "refuses":
                out += node.failed(2, number, now_s + 0.001)
        told += sum(isinstance(o.message, Ack | Nack) for o in [*out, *node.tick(now_s + 0.002)] if isinstance(o, Send))
    told += sum(isinstance(o.message, Nack) for o in node.tick(now_s + 0.45) if isinstance(o, Send) and o.to != 2)
    assert 9 <= asked <= 11 and told == 200
    assert not node._errands and len(node._pings) - before <= asked + 5


def test_a_suspect_is_told_by_the_very_next_message_and_objects() -> None:
    node = detector()
    accused = Entry(Status.SUSPECT, node.table[0].incarnation, 1, "10.0.0.0:7700", accusers=2)
    out = node.receive(1, Ping(5, View(1, ((0, accused),))), 100.0)
    assert Objected(1, accused) in out
    assert node.table[0].status is Status.ALIVE and node.table[0].incarnation == accused.incarnation + 1
    [answer] = [o.message for o in out if isinstance(o, Send)]
    assert isinstance(answer, Ack) and dict(answer.view.rows)[0] == node.table[0]


def test_a_process_that_did_not_run_does_not_blame_the_others() -> None:
    node = detector()
    settled(node, 100.0)
    node.doubt(2, 100.0)
    out = node.tick(130.0)
    assert any(isinstance(o, Stalled) for o in out)
    assert not any(isinstance(o, Changed) for o in out)
    assert node.table[2].status is Status.ALIVE


@pytest.mark.parametrize("first", ["move", "expel", "leave"])
def test_a_pause_is_noticed_whatever_comes_first_after_it(first: str) -> None:
    node = detector(6)
    now_s = settled(node, 100.0) or 100.0
    suspect = replace(node.table[2], status=Status.SUSPECT, accusers=1 << 1)
    node.receive(1, Ping(5, View(1, ((2, suspect),))), now_s)
    calls = {
        "move": lambda at_s: node.move("10.0.0.99:1", at_s),
        "expel": lambda at_s: node.expel(5, at_s),
        "leave": node.leave,
    }
    out = calls[first](now_s + 30.0)
    out += node.tick(now_s + 30.002)
    assert sum(isinstance(o, Stalled) for o in out) == 1
    assert node.table[2].status is Status.SUSPECT


def test_a_pause_is_noticed_once_however_much_waits_to_be_read_after_it() -> None:
    node = detector()
    now_s = settled(node, 100.0) or 100.0
    suspect = replace(node.table[2], status=Status.SUSPECT, accusers=1 << 1)
    node.receive(1, Ping(5, View(1, ((2, suspect),))), now_s)
    ends_s = node._suspicion_ends_s(2, now_s) - now_s
    outs = [node.receive(1, Ping(6 + i, View(1, ())), now_s + 31.0) for i in range(5)]
    assert sum(isinstance(o, Stalled) for out in outs for o in out) == 1
    assert node.health.score == 1
    assert node._suspicion_ends_s(2, now_s + 31.0) - (now_s + 31.0) <= ends_s + node.settings.stall_s


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("members", [3, 18])
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


@pytest.mark.parametrize("seed", range(4))
def test_who_dies_when_its_neighbours_have_just_left_is_named_in_time(seed: int) -> None:
    world = World(18, seed)
    world.run(120.0)
    world.leave(4, 0.05)
    world.leave(6, 0.45)
    check_named(world, 5)


@pytest.mark.parametrize("seed", range(4))
def test_who_dies_when_its_neighbours_have_just_come_back_is_named_in_time(seed: int) -> None:
    world = World(18, seed)
    world.kill(4, 6)
    world.run(120.0)
    world.start(4, seed_member=13)
    world.start(6, seed_member=13)
    world.run(0.5)
    killed_s = world.clock.now
    world.kill(5)
    world.run(NAMED_S)
    assert all(world.status(5, at=k) is Status.DEAD for k in world.nodes)
    assert not [death for death in world.named_dead if death[0] >= killed_s and death[2] != 5]


def test_what_others_say_of_an_earlier_process_of_ours_is_outdone_without_an_objection() -> None:
    node = detector()
    earlier = Entry(Status.ALIVE, node.table[0].incarnation + 4, 99, "10.0.0.77:1")
    out = node.receive(1, Ping(5, View(1, ((0, earlier),))), 100.0)
    assert node.table[0].incarnation == earlier.incarnation + 1 and node.table[0].life == 1
    assert not any(isinstance(o, Objected) for o in out)


def test_an_expelled_member_stays_dead_until_it_talks_to_us_again() -> None:
    world = World(3, 1)
    a, now_s = world.nodes[0], world.clock.now
    entry = a.table[2]
    [changed] = [o for o in a.expel(2, now_s) if isinstance(o, Changed)]
    assert (changed.after.status, changed.after.accusers) == (Status.DEAD, 0)
    objection = replace(entry, incarnation=entry.incarnation + 5)
    a.receive(1, Ping(1, View(1, ((2, objection),))), now_s)  # somebody who does not know yet passes it on
    assert a.table[2] == replace(objection, status=Status.DEAD)
    a.receive(2, Ping(1, View(1, ((2, replace(entry, incarnation=entry.incarnation + 6)),))), now_s)
    assert a.table[2].status is Status.ALIVE  # it came in, with a new certificate


def test_another_process_of_an_expelled_member_may_come_back() -> None:
    world = World(3, 1)
    a, now_s = world.nodes[0], world.clock.now
    a.expel(2, now_s)
    back = replace(a.table[2], status=Status.ALIVE, incarnation=a.table[2].incarnation + 1, life=77)
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
