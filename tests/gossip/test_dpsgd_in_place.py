"""D-PSGD between two nodes adds what a neighbour sends into the next model: the same numbers as by
the textbook, from whichever end they come, and nothing of a message that is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.checkpoint.registry import RunContext
from edgegossip.codecs import relative_error
from edgegossip.codecs.base import Ctx
from edgegossip.gossip.base import Message, RoundDone
from edgegossip.gossip.order import THEN, WITH, with_order
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate, PeerError

N = 12
DELTA = np.linspace(-1, 1, N, dtype=np.float32)


def textbook(start: np.ndarray, sent: np.ndarray, deltas: np.ndarray, node: int) -> np.ndarray:
    """x + delta + W (p_j - p_i), W = 1/2, in float32 and in this order."""
    pull = (sent[1 - node] - sent[node]) * np.float32(0.5)
    return (start[node] + deltas[node]) + pull


@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("early", [False, True], ids=["after the step", "before the step"])
@pytest.mark.parametrize("order", [WITH, THEN])
def test_a_round_of_two_is_the_textbooks_to_the_bit(make_fleet: Any, codec: str, early: bool, order: str) -> None:
    fleet = make_fleet("complete", nodes=2, codec=codec)
    fleet.algorithm = with_order(fleet.algorithm, order)
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    start, deltas = fleet.start.copy(), np.stack([DELTA, -2 * DELTA])
    said = start if order == WITH else start + deltas
    sent = np.stack([fleet.codec.decode(fleet.codec.encode(x, fleet.layout, Ctx(0, 0))[0], fleet.layout) for x in said])
    fleet.step(1, deltas[1])
    if early:
        fleet.deliver_all()
        fleet.step(0, deltas[0])
    else:
        fleet.step(0, deltas[0])
    fleet.deliver_all()
    for node in range(2):
        found = fleet.algorithm.model(fleet.states[node])
        np.testing.assert_array_equal(found, textbook(start, sent, deltas, node))
        assert fleet.algorithm.audit(fleet.states[node]).row == {0: 0.5, 1: 0.5}
    distances = [done.consensus_distance for _, done in fleet.done]
    assert distances == pytest.approx([float(np.linalg.norm(sent[1] - sent[0]))] * 2, rel=1e-6)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("early", [False, True], ids=["after the step", "before the step"])
@pytest.mark.parametrize("buffers", [3, N], ids=["some statistics", "statistics alone"])
def test_statistics_are_said_as_training_left_them(make_fleet: Any, codec: str, early: bool, buffers: int) -> None:
    fleet = make_fleet("complete", nodes=2, codec=codec)
    tensors = [TensorSpec("w", (N - buffers,)), TensorSpec("mean", (buffers,), trainable=False)]
    fleet.layout = Layout.of([t for t in tensors if t.size])
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    start, deltas = fleet.start.copy(), np.stack([DELTA, -2 * DELTA])
    said = start.copy()
    said[:, N - buffers :] += deltas[:, N - buffers :]
    sent = np.stack([fleet.codec.decode(fleet.codec.encode(v, fleet.layout, Ctx(0, 0))[0], fleet.layout) for v in said])
    fleet.step(1, deltas[1])
    if early:
        fleet.deliver_all()
    fleet.step(0, deltas[0])
    fleet.deliver_all()
    for node in range(2):
        found = fleet.algorithm.model(fleet.states[node])
        np.testing.assert_array_equal(found, textbook(start, sent, deltas, node))
    lost = [done.relative_error for _, done in sorted(fleet.done, key=lambda d: d[0])]
    expected = [relative_error(v, s) for v, s in zip(said, sent, strict=True)]
    assert lost == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_a_large_message_is_made_where_the_board_says(make_fleet: Any, codec: str) -> None:
    fleet, asked = make_fleet("complete", nodes=2, codec=codec), []

    def room(size_bytes: int) -> np.ndarray:
        asked.append(np.empty(size_bytes, np.uint8))
        return asked[-1]

    fleet.states[0] = fleet.algorithm.init(fleet.start[0], fleet.view(0, room=room))
    fleet.step(0, DELTA)
    [body] = [m.frame.body for to, m in fleet.mail if to == 1]
    assert np.shares_memory(np.frombuffer(body, np.uint8), asked[0]) and len(asked) == 1
    assert bytes(body) == bytes(fleet.codec.encode(fleet.start[0], fleet.layout, Ctx(0, 0))[0])


@pytest.mark.parametrize("harm", ["not finite", "too large", "too short"])
def test_nothing_of_a_refused_message_is_in_the_model(make_fleet: Any, harm: str) -> None:
    fleet = make_fleet("complete", nodes=2)
    fleet.step(1, DELTA)
    fleet.step(0, DELTA)
    good = next(m for to, m in fleet.mail if to == 0)
    values = np.frombuffer(good.frame.body, np.float32).copy()
    values[-1] = {"not finite": np.nan, "too large": 1e30}.get(harm, 0.0)
    body = values.tobytes()[: -4 if harm == "too short" else None]
    with pytest.raises(PeerError):
        fleet.hand(0, Message(good.sender, replace(good.frame, body=body)))
    fleet.hand(0, good)
    x = fleet.start
    expected = (x[0] + DELTA) + (x[1] - x[0]) * np.float32(0.5)
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), expected)


def test_an_update_may_be_written_over_only_where_its_maker_says_so(make_fleet: Any) -> None:
    for consumable in (False, True):
        fleet = make_fleet("complete", nodes=2)
        delta, start = DELTA.copy(), fleet.start.copy()
        local = LocalUpdate(delta, 0.1, 1.0, 1, 1, consumable=consumable)
        fleet.states[0], _ = fleet.algorithm.step(fleet.states[0], local)
        assert np.array_equal(delta, DELTA) != consumable
        np.testing.assert_array_equal(fleet.start, start)


def test_a_message_that_came_before_the_step_outlives_a_restart(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=2)
    fleet.step(1, DELTA)
    fleet.deliver_all()
    view = fleet.view(0)
    state = from_bytes(to_bytes(fleet.states[0]), RunContext.of(view))
    state = fleet.algorithm.resume(state, view)
    np.testing.assert_array_equal(fleet.algorithm.model(state), fleet.start[0])


def test_a_neighbour_who_stays_silent_leaves_the_update(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=2)
    fleet.step(0, DELTA)
    fleet.states[0], actions = fleet.algorithm.tick(fleet.states[0], 99.0)
    assert any(isinstance(action, RoundDone) for action in actions)
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), fleet.start[0] + DELTA)


def test_a_message_of_the_next_round_counts_before_the_step_of_that_round(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=2)
    fleet.play(1)
    start, deltas = np.stack([fleet.algorithm.model(s) for s in fleet.states]), np.stack([DELTA, -2 * DELTA])
    fleet.step(1, deltas[1])
    fleet.deliver_all()
    fleet.step(0, deltas[0])
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), textbook(start, start, deltas, 0))
