"""Streams: differences and mass survive loss, repetition, reordering, restarts from any checkpoint
and a lost disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import Adopted, Message, Send
from edgegossip.gossip.messages import control
from tests.gossip.streams import audits, check, play_rounds, take_mail, total


def test_a_message_of_a_session_that_is_over_changes_nothing(fleet: Any) -> None:
    fleet.step_all()
    to, old = fleet.mail[0]
    sender = fleet.members.index(old.sender)
    fleet.deliver_all()
    fleet.restart(to)
    before = fleet.states[to]
    fleet.hand(to, old)
    assert fleet.states[to].math is before.math and fleet.states[to].late == 1
    assert sender in [j for j, _ in fleet.states[to].in_]


def test_a_stream_that_was_broken_before_its_first_message_begins_with_a_full_state(make_fleet: Any) -> None:
    """Also for who says that it began with the same model: what it holds may be older."""
    fleet = make_fleet("ring", nodes=3, algorithm="bagua-lp", alike=True)
    fleet.say_hello()
    s, scheme = fleet.states[0], fleet.algorithm.scheme
    other = scheme.abandon(s.math, scheme.model(s.math) + np.float32(1.0), s.ctx)
    fleet.states[0] = replace(fleet.algorithm._break_streams(s, other), math=other)
    aux = {Aux.SESSION: 7, Aux.INCARNATION: 8, Aux.EPOCH: 9, Aux.FRESH: scheme.fingerprint(other)}
    hello = control(fleet.view(1), Kind.HELLO, 0, 1, aux, None)
    sends = [a for a in fleet.hand(0, Message("board-1", hello)) if isinstance(a, Send)]
    assert sends and {a.frame.kind for a in sends} == {Kind.STATE}


def test_a_late_hello_of_a_life_that_is_over_is_not_believed(fleet: Any) -> None:
    fleet.restart(1)
    hello = [(to, m) for to, m in fleet.mail if m.frame.kind == Kind.HELLO]
    fleet.deliver_all()
    fleet.restart(1)
    fleet.deliver_all()
    for to, m in hello:
        before = fleet.states[to]
        if fleet.algorithm.scheme.totals:
            assert fleet.hand(to, m) == [] and fleet.states[to] is before
        else:
            fleet.hand(to, m)  # a full state more, which is dropped
            fleet.deliver_all()
            assert fleet.states[1].in_edge((to, 0)).established


@pytest.mark.parametrize("name", ["sgp", "sparse-push", "quant-sgp"])
def test_who_lost_its_disk_has_a_new_account_with_those_before_and_after_it(make_fleet: Any, name: str) -> None:
    """What it had handed over stays there, and what it had been handed is not given to it again."""
    fleet = make_fleet("directed-ring", nodes=3, algorithm=name)
    fleet.say_hello()
    play_rounds(fleet, 2)
    others = sum(audit.weight for k, audit in enumerate(audits(fleet)) if k != 1)
    fleet.restart(1)
    fleet.deliver_all()
    play_rounds(fleet, 2)
    assert total(fleet)[1] == pytest.approx(others + 1.0, rel=1e-12)


@pytest.mark.parametrize("name", ["sgp", "quant-sgp"])
def test_a_late_hello_of_an_incarnation_that_was_never_heard_of_is_asked_back(make_fleet: Any, name: str) -> None:
    """It must not end the present incarnation: nobody would believe its hellos any more."""
    fleet = make_fleet("directed-ring", nodes=3, algorithm=name)
    fleet.say_hello()
    unknown = [fleet.states[k] for k in range(3)]
    fleet.restart(1)
    late = next((to, m) for to, m in fleet.mail if m.frame.kind == Kind.HELLO and to == 0)
    fleet.mail.clear()
    fleet.restart(1)
    fleet.deliver_all()
    incarnations = fleet.states[0].out_edge((1, 0)).incarnations
    assert len(incarnations) == 2 and unknown[0].out_edge((1, 0)).incarnations == incarnations[:1]
    (asked,) = fleet.hand(*late)
    assert asked.frame.kind == Kind.HELLO and Aux.CHALLENGE in asked.frame.aux
    fleet.deliver_all()
    assert fleet.states[0].out_edge((1, 0)).incarnations == incarnations
    fleet.restart(1, fleet.states[1])
    fleet.deliver_all()
    edge = fleet.states[0].out_edge((1, 0))
    assert edge.incarnations == incarnations and edge.session in (
        fleet.states[1].in_edge((0, 0)).opening,
        fleet.states[1].in_edge((0, 0)).session,
    )


@pytest.mark.parametrize("name", ["sgp", "quant-sgp"])
def test_a_challenge_that_is_lost_with_the_connection_is_asked_for_again(make_fleet: Any, name: str) -> None:
    """The hello of the new process outran the news that the old one is gone."""
    fleet = make_fleet("complete", nodes=3, algorithm=name)
    fleet.say_hello()
    fleet.play(30)
    fleet.restart(1)
    while hellos := [(to, m) for to, m in fleet.mail if to != 1]:
        fleet.mail.clear()
        for to, m in hellos:
            fleet.hand(to, m)
    assert [m.frame.kind for to, m in fleet.mail] == [Kind.HELLO] * 2
    fleet.mail.clear()
    for other in (0, 2):
        fleet.down(other, 1)
        fleet.down(other)
    actions = []
    while fleet.mail:
        actions += fleet.deliver()
    assert [type(a) for a in actions].count(Adopted) == 1 and fleet.rounds[1] >= 30


def test_a_full_state_that_comes_twice_or_late_counts_once(fleet: Any) -> None:
    fleet.step_all()
    take_mail(fleet, 1)
    states = []
    for _ in range(4):
        while fleet.mail:
            to, m = fleet.mail[0]
            if m.frame.kind == Kind.STATE:
                states.append((to, m))
            fleet.deliver()
        for i, state in enumerate(fleet.states):
            if state.stepped is not None:
                fleet.tick(i)
        fleet.step_all()
    fleet.deliver_all()
    assert states
    play_rounds(fleet)
    for to, m in states:
        before = fleet.states[to].math
        fleet.hand(to, m)
        assert fleet.states[to].math is before
    check(fleet)


def test_a_message_that_comes_twice_counts_once(fleet: Any) -> None:
    fleet.step_all()
    to, message = fleet.mail[0]
    fleet.deliver()
    before = fleet.states[to]
    assert fleet.hand(to, message) == []
    assert fleet.states[to].duplicates == before.duplicates + 1 and fleet.states[to].math is before.math
