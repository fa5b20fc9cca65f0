"""parallel-sgd: how large the sum of a stream may be that a full state brings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux
from edgegossip.gossip.scheme import Snapshot
from edgegossip.types import ConfigError, PeerError
from tests.gossip.streams import N, lies

PULL = np.ones(N)  # of one board; another pulls back, as local gradients do at the optimum on uneven data


def grown(make_fleet: Any, rounds: int, **params: Any) -> Any:
    fleet = make_fleet("complete", nodes=3, algorithm="parallel-sgd", alike=True, **params)
    fleet.say_hello()
    for _ in range(rounds):
        for k, sign in enumerate((1, -1, 0)):
            fleet.step(k, sign * PULL)
        fleet.deliver_all()
    return fleet


@pytest.mark.no_cover
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


@pytest.mark.parametrize("size", [1e18, 3e38])
def test_however_many_messages_are_claimed_a_sum_is_bounded(make_fleet: Any, size: float) -> None:
    fleet = grown(make_fleet, 3)
    s = fleet.states[0]
    with pytest.raises(PeerError, match="too large"):
        fleet.algorithm.scheme.adopt(s.math, 1, 0, full_of(size, 2.0**32), s.ctx)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", range(4))
def test_values_that_are_none_are_refused(make_fleet: Any, value: float, part: int) -> None:
    fleet = grown(make_fleet, 2)
    fleet.restart(0, fleet.states[0])
    messages = lies(fleet, 4, EXAMPLES=2, STEPS=9)
    bad = replace(messages[part].frame, body=np.full(N, value, "<f4").tobytes())
    messages[part] = replace(messages[part], frame=bad)
    for message in messages[:part]:
        fleet.hand(0, message)
    with pytest.raises(PeerError, match="NaN or infinite"):
        fleet.hand(0, messages[part])


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


@pytest.mark.parametrize("count", [4, 2**20, 2**32])
def test_the_most_that_is_believed_of_oneself_the_others_take(make_fleet: Any, count: int) -> None:
    """Even of one whose model is ten times as large, and after more messages, however long the
    count has stood."""
    fleet = grown(make_fleet, 3)
    fleet.restart(0, fleet.states[0])
    scheme, s, other = fleet.algorithm.scheme, fleet.states[0], fleet.states[1]
    large = replace(s.math, x=s.math.x * np.float32(10))

    def believed(size: float) -> Any:
        return scheme.adopt(large, 1, 0, full_of(1.0, 3, known=count, theirs=size), s.ctx)

    low, high = 1.0, 1e18
    while high > low * 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if believed(middle).by_node[0].count == count else (low, middle)
    m = believed(low)
    assert m.by_node[0].count == count and m.by_node[0].total[0] > 50.0 * count
    for _ in range(20):
        m = scheme._with(m, 0, scheme._on(m.by_node[0], np.ones(N, np.float32)))
    full = scheme.full(m, 1, 0)
    taken = scheme.adopt(other.math, 0, 0, replace(full, numbers={**full.numbers, Aux.STEPS: 0.0}), other.ctx)
    assert taken.by_node[0].count == min(count + 20, 2**32) == full.numbers[Aux.EXAMPLES]


def test_a_graph_that_changes_is_refused_though_everybody_hears_everybody(make_fleet: Any) -> None:
    """Two boards of random pairs do; but a period has as many sessions, and one sum."""
    with pytest.raises(ConfigError, match="parallel-sgd needs topology = 'complete'"):
        make_fleet("random-pairs", nodes=2, algorithm="parallel-sgd", alike=True)
