"""Streams against old processes, late hellos and neighbours that lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import Message, Send
from edgegossip.gossip.messages import control
from edgegossip.types import PeerError
from tests.gossip.streams import asked, assert_replicas_are_equal, lies, total

N = 12


def rounds(fleet: Any, numbers: range) -> None:
    """Rounds with local updates; whoever waits in vain gets its deadline."""
    for k in numbers:
        for i, s in enumerate(fleet.states):
            if s.stepped is None:
                fleet.step(i, np.random.default_rng(k * 10 + i).normal(size=N) * 0.1)
        fleet.deliver_all()
        for i, s in enumerate(fleet.states):
            if s.stepped is not None:
                fleet.tick(i)
        fleet.deliver_all()


def level(fleet: Any) -> None:
    """Lets everybody reach the same round, so that nobody's last message is under way."""
    for _ in range(30):
        low = min(fleet.rounds)
        if low == max(fleet.rounds) and not any(s.stepped for s in fleet.states):
            return
        for i, s in enumerate(fleet.states):
            if s.stepped is None and s.round == low:
                fleet.step(i, np.zeros(N))
        fleet.deliver_all()
        for i, s in enumerate(fleet.states):
            if s.stepped is not None and s.round == low:
                fleet.tick(i)
        fleet.deliver_all()


@pytest.mark.parametrize("name", ["choco-sgd", "quant-sgp", "sgp", "bagua-lp"])
def test_a_late_hello_that_reaches_the_next_process(make_fleet: Any, name: str) -> None:
    """It opened the established session; the new process answers in it, and has said something else
    since."""
    fleet = make_fleet("complete", nodes=3, algorithm=name, alike=True)
    for i, s in enumerate(fleet.states):
        fleet.states[i], actions = fleet.algorithm.start(s)
        fleet.carry_out(i, actions)
    late = next((to, m) for to, m in fleet.mail if to == 1 and m.sender == "board-0")
    fleet.deliver_all()
    rounds(fleet, range(1))
    kept = fleet.states[1]
    rounds(fleet, range(1, 3))
    fleet.restart(1, kept)
    fleet.hand(*late)
    fleet.deliver_all()
    rounds(fleet, range(3, 10))
    level(fleet)
    assert_replicas_are_equal(fleet)
    if name in ("sgp", "quant-sgp"):
        assert total(fleet)[1] == pytest.approx(3.0, rel=1e-12)


def test_bagua_newcomer_is_not_pulled_to_the_initial_model(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, algorithm="bagua-lp", alike=True)
    fleet.say_hello()
    for _ in range(30):
        for i in range(4):
            fleet.step(i, np.ones(N))
        fleet.deliver_all()
    fleet.restart(2)
    fleet.deliver_all()
    fleet.step_all()
    fleet.mail = [m for m in fleet.mail if not (m[0] == 2 and m[1].sender == "board-3")]
    fleet.deliver_all()
    fleet.tick(2)
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[2]), fleet.start[0] + 30, rtol=0, atol=1e-3)


@pytest.mark.parametrize("incarnation", [None, -0.5, 0.0, 1e300])
def test_a_state_without_an_incarnation_is_refused(make_fleet: Any, incarnation: float | None) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="sgp")
    fleet.say_hello()
    fleet.play(2)
    (m, _) = lies(fleet, 2)
    aux = {t: v for t, v in m.frame.aux.items() if t != Aux.INCARNATION}
    aux |= {} if incarnation is None else {Aux.INCARNATION: incarnation}
    with pytest.raises(PeerError, match="INCARNATION"):
        fleet.hand(0, replace(m, frame=replace(m.frame, aux=aux)))


@pytest.mark.parametrize("weight", [-1.0, 1e6, 1.7e308])
def test_a_state_that_brings_more_weight_than_there_can_be_is_refused(make_fleet: Any, weight: float) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="sgp")
    fleet.say_hello()
    fleet.play(2)
    first, last = lies(fleet, 2, PUSH_SUM_WEIGHT=weight)
    fleet.hand(0, first)
    before = fleet.states[0]
    with pytest.raises(PeerError, match="push-sum weight of"):
        fleet.hand(0, last)
    assert fleet.states[0] is before


def test_who_has_a_part_of_a_full_state_asks_a_sender_that_began_anew_in_another_session(make_fleet: Any) -> None:
    """The rest would be of the new process, which may have said something else."""
    fleet = make_fleet("directed-ring", nodes=2, algorithm="quant-sgp", alike=True)
    fleet.say_hello()
    fleet.play(2)
    part = lies(fleet, 3, PUSH_SUM_WEIGHT=1.0)[0]
    session = part.frame.aux[Aux.SESSION]
    assert asked(fleet, 0, 1, 2) == session  # nothing of it is here
    fleet.hand(0, part)
    assert asked(fleet, 0, 1, 2) != session


def test_a_state_whose_replica_is_out_of_all_proportion_is_refused(make_fleet: Any) -> None:
    """What is handed over may look like anybody's: differences would be added to that replica."""
    fleet = make_fleet("directed-ring", nodes=2, algorithm="quant-sgp", alike=True)
    fleet.say_hello()
    fleet.play(2)
    *parts, last = lies(fleet, 3, PUSH_SUM_WEIGHT=1.0)
    for part in parts:
        fleet.hand(0, part)
    before, huge = fleet.states[0], np.full(N, 1e12, "<f4").tobytes()
    with pytest.raises(PeerError, match="too large to average"):
        fleet.hand(0, replace(last, frame=replace(last.frame, body=huge)))
    assert fleet.states[0] is before


def test_a_board_that_holds_more_weight_than_the_fleet_began_with_is_believed(make_fleet: Any) -> None:
    """After rollbacks, until what was counted twice is taken back elsewhere."""
    fleet = make_fleet("directed-ring", nodes=2, algorithm="sgp")
    fleet.say_hello()
    fleet.play(1)
    fleet.states[0] = replace(fleet.states[0], math=replace(fleet.states[0].math, u=10.0))
    fleet.step(0, np.zeros(N))
    fleet.deliver_all()
    assert fleet.algorithm.audit(fleet.states[1]).weight == pytest.approx(6.0)


def test_a_refused_early_message_does_not_make_its_receiver_look_fresh(make_fleet: Any) -> None:
    """The receiver holds a replica: its next hello must not say that it begins with nothing."""
    fleet = make_fleet("ring", nodes=3, algorithm="choco-sgd")
    fleet.say_hello()
    rounds(fleet, range(3))
    level(fleet)
    fleet.step(1, np.ones(N))
    message = next(m for to, m in fleet.mail if to == 0)
    fleet.mail.clear()
    early = replace(message.frame, round=message.frame.round + 1, sequence=message.frame.sequence + 1)
    fleet.hand(0, message)
    fleet.hand(0, Message("board-1", replace(early, body=b"short")))
    fleet.step(0, np.zeros(N))
    fleet.tick(0)
    fleet.mail.clear()
    edge = fleet.states[0].in_edge((1, 0))
    assert edge.established and edge.epoch == 0
    hello = fleet.hand(0, Message("board-1", replace(early, round=early.round + 1, sequence=early.sequence + 1)))
    asked = [a.frame.aux for a in hello if isinstance(a, Send) and a.frame.kind == Kind.HELLO]
    assert len(asked) == 1 and Aux.FRESH not in asked[0]
    rounds(fleet, range(3, 6))
    level(fleet)
    assert_replicas_are_equal(fleet)


def test_nobody_rewrites_an_own_stream_once_a_round_is_over(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.say_hello()
    rounds(fleet, range(2))
    key, own = (1, 0), fleet.states[0].math.by_node[0]
    s = fleet.states[0]
    s, _actions = fleet.algorithm.open_sessions(s, [key])
    fleet.states[0] = s
    for part, value in enumerate((0.0, 0.0, 5.0, 0.0)):
        aux = {Aux.SESSION: s.in_edge(key).opening, Aux.INCARNATION: 7, Aux.EPOCH: 9, Aux.PHASE: 0}
        aux |= {Aux.PARTS: 4, Aux.PART: part, Aux.EXAMPLES: 2, Aux.STEPS: 1000}
        frame = control(s.view, Kind.STATE, 2, 3, aux, np.full(N, value, np.float32))
        fleet.hand(0, Message("board-1", frame))
    assert fleet.states[0].math.by_node[1].count == 2  # the state was taken in
    assert fleet.states[0].math.by_node[0] is own


def test_a_parallel_stream_keeps_what_rounding_loses(make_fleet: Any) -> None:
    """Sums of one board's updates grow far beyond the model; small updates must still count."""
    fleet = make_fleet("complete", nodes=2, algorithm="parallel-sgd", alike=True)
    fleet.say_hello()
    start = fleet.algorithm.model(fleet.states[0]).astype(np.float64)
    updates = [np.full(N, v) for v in (*[50.0] * 20, *[1e-5] * 60, *[-50.0] * 20)]
    for delta in updates:
        fleet.step(0, delta), fleet.step(1, np.zeros(N))
        fleet.deliver_all()
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[1]) - start, np.full(N, 30e-5), rtol=0, atol=2e-5)


def test_a_late_hello_of_the_same_process_changes_nothing(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3, algorithm="choco-sgd")
    for i, s in enumerate(fleet.states):
        fleet.states[i], actions = fleet.algorithm.start(s)
        fleet.carry_out(i, actions)
    late = next((to, m) for to, m in fleet.mail if to == 1 and m.sender == "board-0")
    fleet.deliver_all()
    rounds(fleet, range(2))
    fleet.states[0], actions = fleet.algorithm.open_sessions(fleet.states[0], [(1, 0)])
    fleet.carry_out(0, actions)
    fleet.deliver_all()
    before = fleet.states[1]
    assert fleet.hand(*late) == [] and fleet.states[1] is before
    rounds(fleet, range(2, 4))
    level(fleet)
    assert_replicas_are_equal(fleet)
