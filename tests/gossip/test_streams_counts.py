"""parallel-sgd: how many messages a full state may say that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip.types import PeerError
from tests.gossip.streams import lies


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
