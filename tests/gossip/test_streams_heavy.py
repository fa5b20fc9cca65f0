"""Push-sum: a board may come to more weight than the fleet began with; no neighbour refuses it for
that, and nobody hands over more in one go than an honest board can have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import Adopted, Message, Send
from edgegossip.gossip.messages import control
from edgegossip.gossip.push import HEAVY
from edgegossip.types import PeerError
from tests.gossip.streams import ZERO, lies, play_rounds, total

ALGORITHMS = [("sgp", "fp32"), ("quant-sgp", "8-bit-elastiquant"), ("sparse-push", "8-bit-elastiquant")]


def together(make_fleet: Any, algorithm: str = "sgp", codec: str = "fp32", rounds: int = 3) -> Any:
    fleet = make_fleet("complete", algorithm=algorithm, codec=codec, alike=True)
    fleet.say_hello()
    fleet.play(rounds)
    return fleet


def weights(fleet: Any) -> list[float]:
    return [s.math.u for s in fleet.states]


@pytest.mark.parametrize(("algorithm", "codec"), ALGORITHMS)
def test_a_board_with_an_old_checkpoint_is_refused_by_nobody(make_fleet: Any, algorithm: str, codec: str) -> None:
    """It takes in a second time what it has handed on, and the others are below zero meanwhile.
    `Fleet` raises what is refused."""
    fleet = together(make_fleet, algorithm, codec)
    kept = fleet.states[0]
    fleet.play(300)
    fleet.restart(0, kept)
    fleet.deliver_all()
    play_rounds(fleet, 3)
    assert max(weights(fleet)) > HEAVY * 4
    play_rounds(fleet, 40)
    assert weights(fleet) == pytest.approx([1.0] * 4, rel=1e-6)
    assert total(fleet)[1] == pytest.approx(4.0, rel=1e-12)


@pytest.mark.parametrize(("algorithm", "codec"), ALGORITHMS)
def test_honest_boards_that_a_liar_made_heavy_do_not_refuse_each_other(
    make_fleet: Any, algorithm: str, codec: str
) -> None:
    """It hands on no more than is believed, and keeps the rest."""
    fleet = together(make_fleet, algorithm, codec)
    math = fleet.states[0].math
    fleet.states[0] = replace(fleet.states[0], math=replace(math, x=math.x * 1000.0, u=1000.0))
    mass, weight = total(fleet)
    fleet.play(80)
    assert weights(fleet) == pytest.approx([weight - 3 * HEAVY * 4] + [HEAVY * 4] * 3, rel=1e-6)
    assert total(fleet)[1] == pytest.approx(weight, rel=1e-12)
    np.testing.assert_allclose(total(fleet)[0], mass, rtol=1e-9)
    for s in fleet.states:
        np.testing.assert_allclose(fleet.algorithm.model(s), fleet.start[0], atol=0.2)


def tells(fleet: Any, round: int, weight: float) -> PeerError | None:
    """Have board-1 hand so much more over to board-0 by a full state; return its refusal."""
    told = fleet.states[0].math.seen[1, 0]
    parts = lies(fleet, 2, PUSH_SUM_WEIGHT=told.weight + weight, INCARNATION=told.incarnation)
    first, last = (replace(m, frame=replace(m.frame, round=round)) for m in parts)
    fleet.hand(0, first)
    before = fleet.states[0]
    try:
        fleet.hand(0, last)
    except PeerError as error:
        assert fleet.states[0] is before
        return error
    return None


def test_a_full_state_brings_what_messages_can_have_in_those_rounds(make_fleet: Any) -> None:
    """A quarter of HEAVY times the fleet's in each, from the earliest round that its sender may be
    in, 5 before ours, to the state's."""
    fleet = together(make_fleet, rounds=10)
    assert "a push-sum weight of" in str(tells(fleet, 12, 7.1 * HEAVY))
    assert tells(fleet, 12, 6.99 * HEAVY) is None
    assert fleet.algorithm.audit(fleet.states[0]).weight == pytest.approx(1.0 + 6.99 * HEAVY)


@pytest.mark.parametrize(("round", "taken"), [(8, True), (9, False), (1000, False)])
def test_a_full_state_of_a_round_that_is_far_is_asked_for_again(make_fleet: Any, round: int, taken: bool) -> None:
    """An honest sender gives its model with it, unless it came there since it was asked."""
    fleet = together(make_fleet)
    assert tells(fleet, round, 5.0) is None
    assert fleet.algorithm.audit(fleet.states[0]).weight == 1.0 + 5.0 * taken
    fleet.step(0, ZERO)
    fleet.tick(0)
    asked = [a.to for a in fleet.step(0, ZERO) if isinstance(a, Send) and a.frame.kind == Kind.HELLO]
    assert ("board-1" in asked) != taken


def test_who_says_that_we_are_far_behind_hands_nothing_over_until_others_say_so_too(make_fleet: Any) -> None:
    fleet = together(make_fleet)
    before = fleet.algorithm.audit(fleet.states[0]).weight

    def says(peer: int) -> list[Any]:
        hello = control(fleet.view(peer), Kind.HELLO, 3, 1, {}, None)
        (ask,) = [a for a in fleet.hand(0, Message(fleet.members[peer], hello)) if isinstance(a, Send)]
        aux = {Aux.SESSION: ask.frame.aux[Aux.SESSION], Aux.PARTS: 3, Aux.PHASE: 0, Aux.INCARNATION: 7, Aux.EPOCH: 8}
        aux |= {Aux.PUSH_SUM_WEIGHT: 1000.0, Aux.MODEL: 1}
        for part in range(3):
            frame = control(fleet.view(peer), Kind.STATE, 1000, 2, {**aux, Aux.PART: part}, ZERO)
            actions = fleet.hand(0, Message(fleet.members[peer], frame))
        return actions

    assert not says(1) and not fleet.states[0].in_edge((1, 0)).parts and fleet.algorithm.round(fleet.states[0]) == 3
    assert any(isinstance(a, Adopted) for a in says(2)) and fleet.algorithm.round(fleet.states[0]) == 1000
    assert fleet.algorithm.audit(fleet.states[0]).weight == before
    asked = [a.to for a in fleet.step(0, ZERO) if isinstance(a, Send) and a.frame.kind == Kind.HELLO]
    assert {"board-1", "board-2"} <= set(asked)
