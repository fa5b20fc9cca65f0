"""What a stream's end refuses: strangers, sessions and parts that are none, weights that cannot
be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.base import Message, Send
from edgegossip.gossip.messages import control
from edgegossip.types import PeerError
from tests.gossip.streams import N, asked, lies


def stream_message(fleet: Any) -> tuple[int, Message]:
    fleet.step_all()
    return next((to, m) for to, m in fleet.mail if m.frame.kind not in (Kind.HELLO, Kind.STATE))


def without(frame: Frame, tag: Aux) -> Frame:
    return replace(frame, aux={t: v for t, v in frame.aux.items() if t != tag})


@pytest.mark.parametrize("value", [None, 0.0, 1.5, 2.0**48])
def test_a_session_that_is_no_number_of_one_is_refused(fleet: Any, value: float | None) -> None:
    to, m = stream_message(fleet)
    frame = without(m.frame, Aux.SESSION)
    if value is not None:
        frame = replace(frame, aux={**frame.aux, Aux.SESSION: value})
    before = fleet.states[to]
    with pytest.raises(PeerError, match="SESSION"):
        fleet.hand(to, replace(m, frame=frame))
    assert fleet.states[to] is before


def test_a_stranger_to_a_stream_is_refused(make_fleet: Any) -> None:
    fleet = make_fleet("directed-ring", nodes=4, algorithm="sgp")
    fleet.say_hello()
    fleet.restart(1)
    ((to, m),) = fleet.mail
    assert to == 0
    with pytest.raises(PeerError, match="opened a stream that board-3 does not send"):
        fleet.hand(3, m)
    with pytest.raises(PeerError, match="sends nothing to board-0"):
        fleet.hand(0, replace(m, frame=without(m.frame, Aux.SESSION)))


def test_more_than_a_few_full_states_a_round_are_not_given(fleet: Any) -> None:
    answers = 0
    for _ in range(6):
        fleet.restart(1)
        for to, m in list(fleet.mail):
            actions = fleet.hand(to, m)
            answers += any(isinstance(a, Send) and a.frame.kind == Kind.STATE for a in actions)
        fleet.mail.clear()
    senders = len({j for j, _ in fleet.states[1].in_})
    assert answers <= 3 * senders * fleet.topology.period


@pytest.mark.parametrize("tag", [Aux.PARTS, Aux.PART, Aux.PHASE])
def test_a_state_that_does_not_say_what_it_is_part_of_is_refused(fleet: Any, tag: Aux) -> None:
    fleet.restart(1)
    fleet.mail = [next(m for m in fleet.mail if m[1].frame.kind == Kind.HELLO)]
    while all(m.frame.kind == Kind.HELLO for _, m in fleet.mail):
        fleet.deliver()
    to, m = next((to, m) for to, m in fleet.mail if m.frame.kind == Kind.STATE)
    before = fleet.states[to]
    with pytest.raises(PeerError, match=tag.name):
        fleet.hand(to, replace(m, frame=without(m.frame, tag)))
    with pytest.raises(PeerError, match=r"board-\d sent codec id 7 where fp32 \(id 1\) is expected"):
        fleet.hand(to, replace(m, frame=replace(m.frame, codec_id=7)))
    assert fleet.states[to] is before


def test_weights_that_cannot_be_are_refused(make_fleet: Any) -> None:
    fleet = make_fleet("directed-ring", nodes=3, algorithm="sgp")
    fleet.say_hello()
    fleet.play(1)
    fleet.step_all()
    to, m = fleet.mail[0]
    aux = dict(m.frame.aux)
    for change, text in [
        ({Aux.SHARE: -0.1}, "share of -0.1"),
        ({Aux.SHARE: 1.5}, "share of 1.5"),
        ({Aux.PUSH_SUM_WEIGHT: 0.0}, "weight of 0 after"),
        ({Aux.PUSH_SUM_WEIGHT: -1.0}, "weight of -1 after"),
        ({Aux.PUSH_SUM_WEIGHT: 1e9}, r"weight of 1e\+09 after"),
        ({Aux.INCARNATION: aux[Aux.INCARNATION] + 1}, "new incarnation in the middle"),
    ]:
        before = fleet.states[to]
        with pytest.raises(PeerError, match=text):
            fleet.hand(to, replace(m, frame=replace(m.frame, aux={**aux, **change})))
        assert fleet.states[to] is before
    huge = np.full(N, 1e6, np.float32).tobytes()
    with pytest.raises(PeerError, match="too large to average"):
        fleet.hand(to, replace(m, frame=replace(m.frame, body=huge)))


def test_parts_of_full_states_with_and_without_a_model_do_not_add_up_to_one(make_fleet: Any) -> None:
    """One vector more than is due left `receive` as a ValueError, which ended the board."""
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    session = asked(fleet, 0, 1, 2)
    aux = {Aux.SESSION: session, Aux.PHASE: 0, Aux.INCARNATION: 7, Aux.EPOCH: 8, Aux.EXAMPLES: 0, Aux.STEPS: 5}
    for part, model in ((0, {}), (1, {}), (2, {}), (4, {Aux.MODEL: 1}), (3, {})):
        numbers = {**aux, **model, Aux.PART: part, Aux.PARTS: 4 + len(model)}
        vec = np.full(N, 0.1 * part, np.float32)
        fleet.hand(0, Message("board-1", control(fleet.view(1), Kind.STATE, 40, 1, numbers, vec)))
    assert fleet.states[0].in_edge((1, 0)).session == session
    streams = fleet.states[0].math.by_node
    assert [streams[j].total[0] for j in (1, 0)] == [0.0, np.float32(0.2)]
    assert [streams[j].low[0] for j in (1, 0)] == [np.float32(0.1), np.float32(0.3)]


def test_a_full_state_out_of_all_proportion_is_refused(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="choco-sgd")
    fleet.say_hello()
    fleet.play(2)
    (m,) = lies(fleet, 1)
    body = np.full(len(fleet.start[0]), 1e20, np.float32).tobytes()
    with pytest.raises(PeerError, match="too large"):
        fleet.hand(0, replace(m, frame=replace(m.frame, body=body)))
