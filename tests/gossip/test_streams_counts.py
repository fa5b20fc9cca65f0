"""parallel-sgd: how many messages a full state may say that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux
from edgegossip.gossip.scheme import Full
from edgegossip.types import PeerError
from tests.gossip.streams import N, lies


def test_nobody_rewrites_an_own_stream_with_more_than_there_were_rounds(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.greet()
    fleet.play(2)
    *first, last = lies(fleet, 4, EXAMPLES=2, STEPS=2.0**52)
    for message in first:
        fleet.hand(0, message)
    with pytest.raises(PeerError, match="holds 4503599627370496 messages of board-0"):
        fleet.hand(0, last)


@pytest.mark.parametrize("count", [2.0**32 + 1, 2e12, 0.5, -1.0, float("nan"), float("inf")])
def test_nobody_claims_more_own_messages_than_there_were_rounds(make_fleet: Any, count: float) -> None:
    """Believed, the claim would come back to a restarted liar from an honest board, whom it would refuse."""
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.greet()
    fleet.play(2)
    *first, last = lies(fleet, 4, EXAMPLES=count, STEPS=2)
    for message in first:
        fleet.hand(0, message)
    before = fleet.states[0]
    with pytest.raises(PeerError, match=r"a state that holds \S+ messages of board-1"):
        fleet.hand(0, last)
    assert fleet.states[0] is before


def test_what_was_believed_of_a_liar_can_be_given_back_to_it(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True)
    fleet.greet()
    fleet.play(2)
    for message in lies(fleet, 4, EXAMPLES=2.0**32, STEPS=2):
        fleet.hand(0, message)
    assert fleet.states[0].math.by_node[1].count == 2**32
    fleet.restart(1)
    fleet.mail.clear()
    believed = {Aux.EXAMPLES: 2.0, Aux.STEPS: 2.0**32 + 1000}  # messages that came after it
    full, s = Full([np.zeros(N, np.float32)] * 4, believed), fleet.states[1]
    assert fleet.algorithm.scheme.adopt(s.math, 0, 0, full, s.here).by_node[1].count == 2**32 + 1000
