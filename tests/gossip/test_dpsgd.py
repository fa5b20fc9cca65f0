"""D-PSGD as a state machine: one round, the order of messages, and states that never change."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Kind
from edgegossip.gossip.base import Checkpoint, RoundDone, Send, SetTimer
from edgegossip.layout import Layout, TensorSpec

N = 12
ZERO = np.zeros(N, np.float32)
ONE = np.ones(N, np.float32)


def kinds(actions: list[Any]) -> list[type]:
    return [type(a) for a in actions]


def test_step_sends_the_model_to_every_out_neighbour_and_sets_the_deadline(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, codec="fp16")
    actions = fleet.step(0, ONE)
    assert kinds(actions) == [Send, Send, SetTimer] and actions[2].after_s == 5.0
    first, second = actions[0].frame, actions[1].frame
    assert [a.to for a in actions[:2]] == ["board-1", "board-3"]
    assert first.body is second.body and first == second  # both edges carry their first frame
    assert (first.kind, first.round, first.sequence, first.run_id) == (Kind.MODEL, 0, 1, b"r" * 16)
    assert (first.codec_id, first.codec_params) == (fleet.codec.wire_id, fleet.codec.wire_params())
    assert first.layout_hash == fleet.layout.hash
    np.testing.assert_array_equal(fleet.codec.decode(first.body, fleet.layout), fleet.start[0].astype(np.float16))
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-1", "board-3")


def test_the_last_message_mixes_and_ends_the_round(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    fleet.step_all()
    to_0 = [m for to, m in fleet.mail if to == 0]
    assert fleet.hand(0, to_0[0]) == [] and fleet.algorithm.waiting_for(fleet.states[0]) == ("board-2",)
    actions = fleet.hand(0, to_0[1])
    assert actions[:2] == [SetTimer(None), Checkpoint()] and kinds(actions[2:]) == [RoundDone]
    x = fleet.start.astype(np.float64)
    assert actions[2].round == 0 and actions[2].relative_error == 0.0
    distance = math.sqrt((np.sum((x[1] - x[0]) ** 2) + np.sum((x[2] - x[0]) ** 2)) / 2)
    assert actions[2].consensus_distance == pytest.approx(distance, rel=1e-6)
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[0]), x.mean(axis=0), rtol=0, atol=1e-6)
    assert fleet.algorithm.round(fleet.states[0]) == 1 and fleet.algorithm.waiting_for(fleet.states[0]) == ()


def test_the_round_ends_in_step_when_all_messages_were_there_before(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    fleet.step_all([1, 2])
    fleet.deliver_all()
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ()
    assert kinds(fleet.step(0, ZERO)) == [Send, Send, Checkpoint, RoundDone]


def test_init_copies_the_model_and_step_the_update(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=2)
    x, delta = fleet.start[0].copy(), ONE.copy()
    fleet.states[0] = fleet.algorithm.init(x, fleet.view(0))
    x[:] = 9
    fleet.step(0, delta)
    delta[:] = 9
    fleet.step(1, ZERO)
    fleet.deliver_all()
    expected = (fleet.start[0] + fleet.start[1]) / 2 + 1
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[0]), expected, rtol=0, atol=1e-6)


def test_keys_differ_by_node_and_round_and_follow_the_seed(make_fleet: Any) -> None:
    keys = []
    for seed in (0, 0, 1):
        fleet = make_fleet("ring", nodes=3, seed=seed)
        fleet.run(4, lambda round, node, x: ZERO, np.random.default_rng(seed))
        keys.append(fleet.keys)
    assert len(set(keys[0].values())) == 12 and keys[0] == keys[1]
    assert not set(keys[0].values()) & set(keys[2].values())


def test_late_messages_and_duplicates_are_counted_and_change_nothing_else(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    fleet.step_all()
    mail = [m for to, m in fleet.mail if to == 0]
    fleet.hand(0, mail[0])
    before = fleet.states[0]
    assert fleet.hand(0, mail[0]) == []
    assert fleet.states[0].duplicates == 1 and fleet.states[0].math is before.math
    fleet.hand(0, mail[1])
    model = fleet.algorithm.model(fleet.states[0])
    assert fleet.hand(0, mail[0]) == [] and fleet.states[0].late == 1
    assert fleet.algorithm.model(fleet.states[0]) is model
    early = replace(mail[0], frame=replace(mail[0].frame, round=3))
    fleet.hand(0, early)
    fleet.hand(0, early)
    assert fleet.states[0].duplicates == 2 and fleet.states[0].inbox.newest(1) == 3


def test_older_news_does_not_take_the_place_of_newer(make_fleet: Any) -> None:
    """However old news may be: a sender that goes on from an older checkpoint says it again."""
    fleet = make_fleet("ring", nodes=3, staleness=3)
    fleet.step_all()
    older = next(m for to, m in fleet.mail if to == 0)
    fleet.deliver_all()
    fleet.play(1)
    fleet.step(0, np.ones(12))
    before = fleet.states[0]
    assert fleet.hand(0, older) == []
    assert fleet.states[0].late == before.late + 1 and fleet.states[0].math is before.math


def shown(actions: Any) -> str:
    """Actions as text, because nan != nan; bodies by what they hold, not by where they lie."""
    held = [replace(a, frame=replace(a.frame, body=bytes(a.frame.body))) if isinstance(a, Send) else a for a in actions]
    return repr(held)


def test_replaying_an_input_on_an_old_state_gives_the_same_result(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, codec="fp16")
    algorithm, history = fleet.algorithm, []

    def record(state: Any, call: Any) -> Any:
        kept = copy.deepcopy((state.math.x, state.math.gathered.total, state.math.base))
        kept = (*kept, dict(state.inbox.frames))
        after, actions = call(state)
        history.append((state, call, after, actions, kept))
        return after, actions

    fleet.algorithm = type(
        "Recorded",
        (),
        {
            "step": lambda self, s, u: record(s, lambda s: algorithm.step(s, u)),
            "receive": lambda self, s, m: record(s, lambda s: algorithm.receive(s, m)),
            "model": lambda self, s: algorithm.model(s),
            "round": lambda self, s: algorithm.round(s),
        },
    )()
    fleet.run(5, lambda round, node, x: -0.3 * x + round, np.random.default_rng(2))
    assert len(history) > 60
    for state, call, after, actions, (x, total, base, inbox) in history:
        again, same = call(state)
        assert shown(same) == shown(actions)
        np.testing.assert_array_equal(again.math.x, after.math.x)
        np.testing.assert_array_equal(state.math.x, x)
        assert (again.round, again.late, again.duplicates) == (after.round, after.late, after.duplicates)
        assert dict(state.inbox.frames) == inbox
        if total is not None:
            np.testing.assert_array_equal(state.math.gathered.total, total)
        if base is not None:
            np.testing.assert_array_equal(state.math.base, base)


@pytest.mark.parametrize("buffers", [3, 12], ids=["some statistics", "statistics alone"])
def test_what_training_overwrites_is_averaged_and_does_not_run_away(make_fleet: Any, buffers: int) -> None:
    """Each board sets its statistics to its own, round after round, as batch norm does on skewed
    data."""
    fleet = make_fleet("ring", nodes=4)
    trained = TensorSpec("weight", (N - buffers,), trainable=True)
    fleet.layout = Layout.of([trained, TensorSpec("running_mean", (buffers,), trainable=False)])
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    own = np.random.default_rng(5).normal(size=(4, buffers)).astype(np.float32)
    for _ in range(60):
        for k in range(4):
            x = fleet.algorithm.model(fleet.states[k])
            delta = np.zeros(N, np.float32)
            delta[-buffers:] = own[k] - x[-buffers:]
            fleet.step(k, delta)
        fleet.deliver_all()
    weights = np.array([[1 / 3 if (i - j) % 4 in (0, 1, 3) else 0.0 for j in range(4)] for i in range(4)])
    found = np.stack([fleet.algorithm.model(s)[-buffers:] for s in fleet.states])
    np.testing.assert_allclose(found, weights @ own, atol=1e-5)
