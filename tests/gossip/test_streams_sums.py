"""parallel-sgd: how large the sum of a stream may be that a full state brings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux
from edgegossip.gossip.scheme import Snapshot
from edgegossip.types import ConfigError, PeerError
from tests.gossip.streams import N

PULL = np.ones(N)  # of one board; another pulls back, as local gradients do at the optimum on uneven data


def grown(make_fleet: Any, rounds: int, **params: Any) -> Any:
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True, **params)
    fleet.say_hello()
    for _ in range(rounds):
        for k, sign in enumerate((1, -1, 0)):
            fleet.step(k, sign * PULL)
        fleet.deliver_all()
    return fleet


@pytest.mark.parametrize("params", [{"momentum": 0.9, "nesterov": True}, {}])
def test_a_board_comes_back_after_streams_have_outgrown_the_model(make_fleet: Any, params: dict[str, Any]) -> None:
    """With its disk and without."""
    fleet = grown(make_fleet, 1200, **params)
    norms = [np.linalg.norm(fleet.states[2].math.by_node[k].total) for k in range(2)]
    model = np.linalg.norm(fleet.algorithm.model(fleet.states[2]))
    assert min(norms) > 1000 * model
    for kept in (fleet.states[0], None):
        fleet.restart(0, kept)
        fleet.deliver_all()
        fleet.play(2)
        for other in fleet.states[1:]:
            np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), fleet.algorithm.model(other))


def full_of(size: float, count: float, known: float = 0.0, theirs: float = 0.0) -> Snapshot:
    vectors = [np.full(N, v, np.float32) for v in (size, 0.0, theirs, 0.0)]
    return Snapshot(vectors, {Aux.EXAMPLES: count, Aux.STEPS: known}, 3)


@pytest.mark.parametrize("size", [1e6, 1e12, 1e30])
def test_a_sum_that_its_messages_cannot_have_made_is_refused(make_fleet: Any, size: float) -> None:
    fleet = grown(make_fleet, 3)
    s = fleet.states[0]
    with pytest.raises(PeerError, match="board-1 sent values that are too large"):
        fleet.algorithm.scheme.adopt(s.math, 1, 0, full_of(size, 3), s.ctx)
    assert fleet.algorithm.scheme.adopt(s.math, 1, 0, full_of(1e3, 3), s.ctx).by_node[1].total[0] == 1e3


@pytest.mark.parametrize("size", [1e5, 1e12, 3e38])
def test_an_own_sum_that_the_others_would_refuse_is_not_believed(make_fleet: Any, size: float) -> None:
    """And not held against who brings it, whose own stream is good: it may hold what this board
    said when it lied."""
    fleet = grown(make_fleet, 3)
    fleet.restart(0, fleet.states[0])
    s = fleet.states[0]
    own = s.math.by_node[0]
    taken = fleet.algorithm.scheme.adopt(s.math, 1, 0, full_of(1.0, 3, known=5, theirs=size), s.ctx)
    assert taken.by_node[0] is own and taken.by_node[1].total[0] == 1.0


def test_a_graph_that_changes_is_refused_though_everybody_hears_everybody(make_fleet: Any) -> None:
    """Two boards of random pairs do; but a period has as many sessions, and one sum."""
    with pytest.raises(ConfigError, match="parallel-sgd needs topology = 'complete'"):
        make_fleet("random-pairs", nodes=2, algorithm="parallel-sgd", alike=True)
