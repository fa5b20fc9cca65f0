"""A receiver that opens more sessions in a round than a sender answers in one: the last one is
answered in the next round."""

from __future__ import annotations

from typing import Any

from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import Send
from edgegossip.gossip.streams import STATES_A_ROUND
from tests.gossip.streams import ZERO, assert_replicas_are_equal, check, play_rounds, take_mail


def edge_of(fleet: Any) -> tuple[int, int, tuple[int, int]]:
    """Sender, receiver and key at the receiver of a stream that is used in every fourth round at
    least."""
    sender = next(j for j, phase in fleet.algorithm.in_keys(fleet.states[1]) if not phase)
    return sender, 1, (sender, 0)


def open_again(fleet: Any, times: int) -> int:
    """The receiver opens new sessions; what the sender answers is lost. How many full states it
    sent."""
    sender, receiver, key = edge_of(fleet)
    sent = 0
    for _ in range(times):
        fleet.states[receiver], hellos = fleet.algorithm.open_sessions(fleet.states[receiver], [key])
        fleet.carry_out(receiver, hellos)
        for to, m in take_mail(fleet, sender):
            fleet.hand(to, m)
        answers = take_mail(fleet, receiver)
        sent += any(m.frame.kind == Kind.STATE for _, m in answers)
    return sent


def states_of(actions: list[Any], session: int) -> list[Send]:
    sends = [a for a in actions if isinstance(a, Send) and a.frame.kind == Kind.STATE]
    return [a for a in sends if a.frame.aux[Aux.SESSION] == session]


def test_a_session_beyond_what_a_round_answers_is_answered_in_the_next(fleet: Any) -> None:
    sender, receiver, key = edge_of(fleet)
    assert open_again(fleet, STATES_A_ROUND + 2) == STATES_A_ROUND
    session = fleet.states[receiver].in_edge(key).opening
    fleet.step(sender, ZERO)
    actions = fleet.tick(sender)
    assert len(states_of(actions, session)) == fleet.algorithm.scheme.parts
    assert {a.frame.round for a in states_of(actions, session)} == {fleet.rounds[sender]}
    fleet.deliver_all()
    edge = fleet.states[receiver].in_edge(key)
    assert edge.session == session and not edge.opening
    play_rounds(fleet, 8)
    check(fleet)


def test_one_that_is_gone_by_then_is_told_to_ask_again(fleet: Any) -> None:
    sender, receiver, key = edge_of(fleet)
    open_again(fleet, STATES_A_ROUND + 1)
    session = fleet.states[receiver].in_edge(key).opening
    fleet.step(sender, ZERO)
    fleet.down(sender, receiver)
    if fleet.states[sender].stepped is not None:
        assert not states_of(fleet.tick(sender), session)
    assert not fleet.states[sender].out_edge((receiver, 0)).session
    back = fleet.down(sender)
    assert [a.frame.kind for a in back if isinstance(a, Send) and a.to == fleet.members[receiver]] == [Kind.HELLO]
    play_rounds(fleet, 8)
    assert_replicas_are_equal(fleet)


def test_a_new_process_answers_at_once_however_often_the_one_before_it_has(fleet: Any) -> None:
    sender, _, _ = edge_of(fleet)
    assert open_again(fleet, STATES_A_ROUND + 1) == STATES_A_ROUND
    fleet.restart(sender, fleet.states[sender])
    fleet.mail.clear()
    assert open_again(fleet, 1) == 1
