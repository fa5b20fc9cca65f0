"""parallel-sgd: how many messages a full state may say that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Kind
from edgegossip.gossip.messages import control
from edgegossip.types import PeerError
from tests.gossip.streams import N, lies


def test_nobody_rewrites_an_own_stream_with_more_than_there_were_rounds(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.say_hello()
    fleet.play(2)
    *first, last = lies(fleet, 4, EXAMPLES=2, STEPS=2.0**52)
    for message in first:
        fleet.hand(0, message)
    with pytest.raises(PeerError, match="holds 4503599627370496 messages of board-0"):
        fleet.hand(0, last)


@pytest.mark.parametrize("count", [2.0**32 + 1, 2e12, 0.5, -1.0, float("nan"), float("inf")])
def test_nobody_claims_more_own_messages_than_there_were_rounds(make_fleet: Any, count: float) -> None:
    """Believed, the claim would come back to a restarted liar from an honest board, whom it would
    refuse."""
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.say_hello()
    fleet.play(2)
    *first, last = lies(fleet, 4, EXAMPLES=count, STEPS=2)
    for message in first:
        fleet.hand(0, message)
    before = fleet.states[0]
    with pytest.raises(PeerError, match=r"a state that holds \S+ messages of board-1"):
        fleet.hand(0, last)
    assert fleet.states[0] is before


@pytest.mark.parametrize("count", [2.0**32 + 1, 2.0**33])
def test_nobody_believes_of_itself_what_the_others_would_refuse(make_fleet: Any, count: float) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.say_hello()
    fleet.play(2)
    fleet.restart(0, fleet.states[0])
    *first, last = lies(fleet, 4, EXAMPLES=2, STEPS=count)
    for message in first:
        fleet.hand(0, message)
    with pytest.raises(PeerError, match="messages of board-0"):
        fleet.hand(0, last)


@pytest.mark.parametrize("count", [2.0**32, 2.0**32 - 1, 2.0**32 - 3])
def test_a_board_that_a_liar_has_told_the_most_of_itself_is_not_refused(make_fleet: Any, count: float) -> None:
    """It counts on, and everybody who comes back later takes its full state and gives it its
    own."""
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.say_hello()
    fleet.play(2)
    kept = fleet.states[0]
    fleet.restart(0, kept)
    for message in lies(fleet, 4, EXAMPLES=2, STEPS=count):
        fleet.hand(0, message)
    assert fleet.states[0].math.by_node[0].count == count
    fleet.deliver_all()
    fleet.play(5)
    fleet.restart(2)
    fleet.deliver_all()
    assert fleet.states[2].math.by_node[0].count == 2**32
    fleet.restart(0)  # with nothing: the others give back what they hold of it
    fleet.deliver_all()
    fleet.play(2)
    assert len({s.math.by_node[0].count for s in fleet.states}) == 1
    for other in fleet.states[1:]:
        np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), fleet.algorithm.model(other))


def test_what_was_believed_of_a_liar_can_be_given_back_to_it(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.say_hello()
    fleet.play(2)
    for message in lies(fleet, 4, EXAMPLES=2.0**32, STEPS=2):
        fleet.hand(0, message)
    assert fleet.states[0].math.by_node[1].count == 2**32
    m, frame = fleet.states[0].math, control(fleet.view(1), Kind.GRADIENT, 3, 3, {}, np.zeros(N, np.float32))
    for _ in range(3):  # messages that came after it
        m = fleet.algorithm.scheme.take(m, 1, frame, fleet.states[0].ctx)
    given = fleet.algorithm.scheme.full(m, 1, 0)
    fleet.restart(1)
    fleet.mail.clear()
    s = fleet.states[1]
    taken = fleet.algorithm.scheme.adopt(s.math, 0, 0, given, s.ctx)
    assert taken.by_node[1].count == given.numbers[Aux.STEPS] == 2**32
