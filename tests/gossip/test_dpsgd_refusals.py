"""D-PSGD: what it refuses from peers and from its own caller, with the state untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import gossip
from edgegossip.frame import Kind
from edgegossip.gossip.base import Message
from edgegossip.gossip.messages import LARGEST, require_proportion
from edgegossip.gossip.topologies import build
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, DecodeError, PeerError, UsageError

N = 12
ZERO = np.zeros(N, np.float32)
ONE = np.ones(N, np.float32)


@pytest.mark.parametrize(
    ("sender", "change", "message"),
    [
        ("board-0", {}, "board-0 is not an in-neighbour of board-0 in round 0"),
        ("board-1", {"kind": Kind.DIFFERENCE}, r"kind 2, where model \(1\) is expected"),
        ("board-1", {"codec_id": 77}, r"board-1 sent codec id 77 where fp32 \(id 1\) is expected"),
        ("board-1", {"body": b"123"}, "."),
        ("board-1", {"body": np.full(N, np.nan, np.float32).tobytes()}, "."),
        ("board-1", {"body": np.full(N, 3e38, np.float32).tobytes()}, "board-1 sent values that are too large"),
    ],
)
def test_what_does_not_belong_is_refused_with_the_state_untouched(
    make_fleet: Any, sender: str, change: dict[str, Any], message: str
) -> None:
    fleet = make_fleet("ring", nodes=4)
    fleet.step(0, ZERO)
    fleet.step(1, ZERO)
    good = next(m for to, m in fleet.mail if to == 0)
    before = fleet.states[0]
    with pytest.raises(PeerError, match=message) as caught:
        fleet.hand(0, Message(sender, replace(good.frame, **change)))
    assert isinstance(caught.value, DecodeError) == (message == ".")
    assert fleet.states[0] is before
    fleet.hand(0, good)
    assert fleet.states[0].in_edge((1, 0)).round == 0


def test_an_in_neighbour_of_another_round_only_is_refused(make_fleet: Any) -> None:
    fleet = make_fleet("one-peer-exponential", nodes=4)
    fleet.step(3, ZERO)  # 3 -> 0 in even rounds
    (_, message), *_ = fleet.mail
    with pytest.raises(PeerError, match="board-3 is not an in-neighbour of board-0 in round 1"):
        fleet.hand(0, replace(message, frame=replace(message.frame, round=1)))


def test_a_second_step_in_a_round_is_refused(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    fleet.step(0, ZERO)
    with pytest.raises(UsageError, match="round 0 of board-0 has its local update already"):
        fleet.step(0, ZERO)


def test_an_update_that_is_not_finite_names_the_tensor(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    delta = ZERO.copy()
    delta[-1] = np.nan
    before = fleet.states[0]
    with pytest.raises(UsageError, match="tensor b "):
        fleet.step(0, delta)
    assert fleet.states[0] is before
    with pytest.raises(UsageError, match=r"float32\[12\]"):
        fleet.step(0, ZERO[:-1])


def test_init_refuses_a_view_that_does_not_fit(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    algorithm, x = fleet.algorithm, fleet.start[0]
    with pytest.raises(ConfigError, match="topology 'ring' has 4 nodes, the run has 3"):
        algorithm.init(x, fleet.view(0, topology=gossip.topologies.get("ring", 4)))
    with pytest.raises(ConfigError, match="must be distinct"):
        algorithm.init(x, fleet.view(0, members=("board-0", "a", "a")))
    with pytest.raises(ConfigError, match="'x' is not a member of the run \\(board-0, board-1, board-2\\)"):
        algorithm.init(x, fleet.view(0, node="x"))
    with pytest.raises(UsageError, match=r"float32\[12\]"):
        algorithm.init(x[:5], fleet.view(0))
    with pytest.raises(UsageError, match="tensor w "):
        algorithm.init(np.full(N, np.inf, np.float32), fleet.view(0))


def test_init_refuses_weights_that_are_not_doubly_stochastic(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    star = gossip.topologies.get("star", 3, weights="column")
    with pytest.raises(
        ConfigError, match=r"topology 'star' do not in round 0; use an undirected one .* or one of: ring"
    ):
        fleet.algorithm.init(fleet.start[0], fleet.view(0, topology=star))
    cycle = [(0, 1), (1, 2), (2, 0)]
    later = build("later", 3, [cycle, [*cycle, (0, 2)]], directed=True, weights=None)
    with pytest.raises(ConfigError, match="topology 'later' do not in round 1"):
        fleet.algorithm.init(fleet.start[0], fleet.view(0, topology=later))


@pytest.mark.parametrize("values", [[3e19, 3e19], [np.inf, 1.0], [np.nan, 1.0], [LARGEST * 2, 0.0]])
def test_values_that_overflow_are_refused_without_a_word_of_numpy(values: list[float]) -> None:
    with np.errstate(all="raise"), pytest.raises(PeerError, match="too large to average"):
        require_proportion(
            "board-1", np.array(values, np.float32), np.ones(2, np.float32), Layout.of([TensorSpec("w", (2,))])
        )
