"""A neighbour that does not send costs two deadlines, and one more each time that it has sent twice
as many messages; whoever is merely slow is waited for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edgegossip import gossip
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.checkpoint.registry import RunContext
from edgegossip.gossip.rounds import Reliance

SYNCHRONOUS = [name for name in gossip.names() if not gossip.get(name).asynchronous]
DEADLINE_S = 5.0  # the fleet's
ODD = 0  # the node that sends late or never


def play(fleet: Any, rounds: int, comes: Callable[[int, float], bool], behind: int = 0) -> list[float]:
    """Return how long node 1 waited in each round. `comes(round, waited_s)`: whether the odd node's
    messages arrive once the others have waited for so long, but for those of the last `behind`
    rounds; others' arrive at once."""
    waited, nodes = [], range(len(fleet.members))
    late: list[Any] = []
    for round in range(rounds):
        fleet.step_all()
        spent_s = 0.0
        while True:
            late += [mail for mail in fleet.mail if mail[1].sender == fleet.members[ODD]]
            fleet.mail[:] = [mail for mail in fleet.mail if mail not in late]
            if comes(round, spent_s):
                held = [m for m in late if behind and m[1].frame.round > round - behind]
                fleet.mail, late = fleet.mail + [m for m in late if m not in held], held
            if fleet.mail:
                fleet.deliver()
                continue
            waiting = [node for node in nodes if fleet.states[node].stepped is not None]
            if not waiting:
                break
            spent_s += fleet.timers[waiting[-1]]
            for node in waiting:
                fleet.tick(node)
        waited.append(spent_s)
    return waited


def fleet_of(make_fleet: Any, algorithm: str, **params: Any) -> Any:
    fleet = make_fleet("complete", nodes=4, algorithm=algorithm, alike=True, **params)
    fleet.say_hello()
    return fleet


@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_who_never_sends_costs_two_deadlines(make_fleet: Any, algorithm: str) -> None:
    waited = play(fleet_of(make_fleet, algorithm), 12, lambda _round, _s: False)
    assert waited == [DEADLINE_S] * 2 + [0.0] * 10


@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_who_always_sends_too_late_costs_a_logarithm_of_the_rounds(make_fleet: Any, algorithm: str) -> None:
    rounds = 32
    waited = play(fleet_of(make_fleet, algorithm), rounds, lambda _round, s: s >= DEADLINE_S)
    assert 2 < sum(s > 0 for s in waited) <= 3 + math.log2(rounds)


@pytest.mark.parametrize("behind", [1, 2])
@pytest.mark.parametrize("algorithm", ["dpsgd", "choco-sgd"])
def test_who_stays_a_few_rounds_behind_costs_no_more(make_fleet: Any, algorithm: str, behind: int) -> None:
    """What it makes up for in each deadline must bring it nearer."""
    rounds = 48
    waited = play(fleet_of(make_fleet, algorithm), rounds, lambda _round, _s: True, behind)
    assert 2 < sum(s > 0 for s in waited) <= 2 * (2 + math.log2(rounds))


@pytest.mark.parametrize("algorithm", ["dpsgd", "choco-sgd", "sgp"])
def test_who_comes_and_goes_costs_no_more(make_fleet: Any, algorithm: str) -> None:
    """Each time a round waits until it counts as gone, which takes a while."""
    fleet, waited, others = fleet_of(make_fleet, algorithm), 0, (1, 2, 3)
    for _ in range(32):
        fleet.step_all()
        fleet.mail[:] = [mail for mail in fleet.mail if mail[1].sender != fleet.members[ODD]]
        fleet.deliver_all()
        waited += fleet.states[1].stepped is not None
        for gone in ((ODD,), ()):
            for node in others:
                fleet.down(node, *gone)
            fleet.deliver_all()
        fleet.tick(ODD)
        fleet.deliver_all()
    assert waited <= 3 + math.log2(32)


def test_who_goes_away_once_its_message_is_here_has_cost_nothing(make_fleet: Any) -> None:
    fleet = fleet_of(make_fleet, "dpsgd")
    fleet.step_all()
    fleet.mail[:] = [mail for mail in fleet.mail if mail[1].sender != fleet.members[2]]  # who is waited for
    fleet.deliver_all()
    fleet.down(1, ODD)
    assert fleet.states[1].stepped is not None and ODD not in fleet.states[1].reliance
    fleet.down(1, ODD, 2)
    assert fleet.states[1].reliance[2].missed == 1


@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_who_was_away_for_a_while_is_waited_for_again(make_fleet: Any, algorithm: str) -> None:
    fleet = fleet_of(make_fleet, algorithm)
    assert play(fleet, 10, lambda _round, _s: False)[2:] == [0.0] * 8
    assert play(fleet, 10, lambda _round, _s: True) == [0.0] * 10
    assert play(fleet, 1, lambda _round, _s: False) == [DEADLINE_S]  # it is relied on


def test_with_nobody_to_rely_on_a_node_waits_no_longer_than_a_deadline(make_fleet: Any) -> None:
    """Whatever `linger_s` says."""
    fleet = fleet_of(make_fleet, "dpsgd", linger_s=100.0)
    for _ in range(4):
        fleet.step_all()
        fleet.mail.clear()
        assert set(fleet.timers.values()) == {DEADLINE_S}
        for node in range(4):
            fleet.tick(node)


def test_neither_repeats_nor_rounds_out_of_reach_count(make_fleet: Any) -> None:
    fleet = fleet_of(make_fleet, "dpsgd")
    play(fleet, 2, lambda _round, _s: False)
    play(fleet, 1, lambda _round, _s: True)
    play(fleet, 1, lambda _round, _s: False)
    fleet.step_all()
    message = next(m for to, m in fleet.mail if to == 1 and m.sender == fleet.members[ODD])
    for frame in (message.frame, message.frame, replace(message.frame, round=message.frame.round + 1000)):
        fleet.hand(1, replace(message, frame=frame))
    known = fleet.states[1].reliance[ODD]
    assert (known.missed, known.sent, known.holds) == (3, 1, False)


def test_each_deadline_has_to_be_earned_anew() -> None:
    known = Reliance(missed=3, sent=100, newest=9, began=9)
    assert not known.catches_up(10)
    known = known.miss()
    assert known.missed == 4 and not known.holds
    assert [replace(known, sent=sent).holds for sent in (3, 4)] == [False, True]


def test_who_comes_nearer_gets_as_many_deadlines_more_as_it_let_pass() -> None:
    """A board that is far behind comes nearer by two rounds in each: three go on, then it pays."""
    known, missed = Reliance(missed=3, sent=2, newest=3), []
    for round in range(30, 35):
        known = replace(known, newest=known.newest + 2, began=known.newest).cost(round)
        missed.append(known.missed)
    assert missed == [3, 3, 3, 4, 4] and not known.holds
    assert not Reliance(missed=1, newest=9, began=5).catches_up(10)  # the first two are free in any case


def test_who_stays_as_far_behind_pays() -> None:
    known = Reliance(missed=3, sent=2, newest=4, began=3).cost(9)
    assert known.missed == 3
    assert replace(known, newest=5, began=4).cost(10).missed == 4
    assert Reliance(missed=3, sent=2, newest=12, began=10).cost(10).missed == 4  # it was not behind
    assert replace(known, newest=4, began=4).cost(9).missed == 4


def test_with_nobody_to_rely_on_a_round_takes_the_linger(make_fleet: Any) -> None:
    """A node that hears nothing does not run away from those whom it does not hear."""
    fleet = make_fleet("ring", nodes=4, linger_s=0.5)
    for waits in (DEADLINE_S, DEADLINE_S, 0.5, 0.5):
        fleet.step_all()
        fleet.mail.clear()
        assert fleet.timers[1] == waits
        for node in range(4):
            fleet.tick(node)


@pytest.mark.parametrize(("why", "then"), [("silent", "restart"), ("refused", "restart"), ("refused", "next round")])
def test_after_a_restart_everybody_is_waited_for(make_fleet: Any, why: str, then: str) -> None:
    """So is, in the next round, whoever was refused in one."""
    fleet = fleet_of(make_fleet, "dpsgd")
    if why == "silent":
        play(fleet, 3, lambda _round, _s: False)
    else:  # what is of the next round, and was kept, turns out to be none
        fleet.step_all()
        early = next(m for to, m in fleet.mail if to == 1 and m.sender == fleet.members[ODD])
        fleet.hand(1, replace(early, frame=replace(early.frame, round=1, body=b"none")))
        fleet.deliver_all()
    kept = from_bytes(to_bytes(fleet.states[1]), RunContext.of(fleet.view(1)))
    for waits in (False, True):
        if waits and then == "restart":
            fleet.restart(1, kept)
        elif waits:
            fleet.step_all([0, 2, 3])
            fleet.deliver_all()
        fleet.step(1, 0 * fleet.start[1])
        assert (fleet.members[ODD] in fleet.algorithm.waiting_for(fleet.states[1])) == waits
