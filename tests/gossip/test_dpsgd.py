"""D-PSGD as a state machine: order of messages, deadlines, membership, refusals, and states that never change."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs, gossip
from edgegossip.frame import Kind
from edgegossip.gossip.base import Checkpoint, Message, RoundDone, Send, SetTimer, Suspect
from edgegossip.gossip.topologies.graph import build
from edgegossip.types import ConfigError, DecodeError, LocalError, LocalUpdate, PeerError

N = 12
ZERO = np.zeros(N, np.float32)
ONE = np.ones(N, np.float32)


def kinds(actions: list[Any]) -> list[type]:
    return [type(a) for a in actions]


def step_all(fleet: Any, nodes: Any = None) -> None:
    for node in range(len(fleet.members)) if nodes is None else nodes:
        fleet.step(node, ZERO)


def deliver_all(fleet: Any, to: Any = None) -> None:
    """To everybody, or only to the nodes in `to`; the rest is lost."""
    while fleet.mail:
        node, message = fleet.mail.pop(0)
        if to is None or node in to:
            fleet.hand(node, message)


def rounds(fleet: Any) -> list[int]:
    return [fleet.algorithm.round(s) for s in fleet.states]


# ---- one round ----


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
    step_all(fleet)
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
    step_all(fleet, [1, 2])
    deliver_all(fleet)
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ()
    assert kinds(fleet.step(0, ZERO)) == [Send, Send, Checkpoint, RoundDone]


def test_relative_error_is_that_of_the_nodes_own_message(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=2, codec="fp16")
    step_all(fleet)
    deliver_all(fleet)
    x = fleet.start[0].astype(np.float64)
    expected = np.linalg.norm(x - x.astype(np.float16)) / np.linalg.norm(x)
    assert dict(fleet.done)[0].relative_error == pytest.approx(expected, rel=1e-3)


def test_relative_error_of_a_model_of_zeros_is_zero(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=2)
    fleet.states = [fleet.algorithm.init(ZERO, fleet.view(i)) for i in range(2)]
    step_all(fleet)
    deliver_all(fleet)
    assert [done.relative_error for _, done in fleet.done] == [0.0, 0.0]


def test_init_copies_the_model_and_step_the_update(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=2)
    x, delta = fleet.start[0].copy(), ONE.copy()
    fleet.states[0] = fleet.algorithm.init(x, fleet.view(0))
    x[:] = 9
    fleet.step(0, delta)
    delta[:] = 9
    fleet.step(1, ZERO)
    deliver_all(fleet)
    expected = (fleet.start[0] + fleet.start[1]) / 2 + 1
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[0]), expected, rtol=0, atol=1e-6)


def test_sequence_numbers_count_each_edge(make_fleet: Any) -> None:
    fleet = make_fleet("one-peer-exponential", nodes=4)
    seen: dict[tuple[str, int], list[int]] = {}
    for _ in range(6):
        step_all(fleet)
        for to, message in fleet.mail:
            seen.setdefault((message.sender, to), []).append(message.frame.sequence)
        deliver_all(fleet)
    assert len(seen) == 8 and all(numbers == [1, 2, 3] for numbers in seen.values())


def test_keys_differ_by_node_and_round_and_follow_the_seed(make_fleet: Any) -> None:
    keys = []
    for seed in (0, 0, 1):
        fleet = make_fleet("ring", nodes=3, seed=seed)
        fleet.run(4, lambda round, node, x: ZERO, np.random.default_rng(seed))
        keys.append(fleet.keys)
    assert len(set(keys[0].values())) == 12 and keys[0] == keys[1]
    assert not set(keys[0].values()) & set(keys[2].values())


# ---- order of messages ----


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["ring", "directed-ring", "star", "one-peer-exponential"]))
def test_any_order_of_delivery_gives_the_same_models(make_fleet: Any, seed: int, name: str) -> None:
    fleet = make_fleet(name, nodes=5)
    fleet.run(8, lambda round, node, x: -0.1 * x, np.random.default_rng(seed))
    x = fleet.start.astype(np.float64)
    for t in range(8):
        x = fleet.topology.matrix(t) @ x - 0.1 * x
    assert rounds(fleet) == [8] * 5
    np.testing.assert_allclose([fleet.algorithm.model(s) for s in fleet.states], x, rtol=0, atol=1e-6)


def test_a_neighbour_may_be_many_rounds_ahead_on_a_directed_ring(make_fleet: Any) -> None:
    """With n nodes, the predecessor of a slow node gets n - 1 rounds ahead; its messages are used, none twice."""
    fleet = make_fleet("directed-ring", nodes=6)
    held: list[Any] = []
    for _ in range(10):  # node 0 does not step
        for node in range(1, 6):
            if fleet.states[node].stepped is None:
                fleet.step(node, ZERO)
        while fleet.mail:
            to, message = fleet.mail.pop(0)
            held.append((to, message)) if to == 0 else fleet.hand(to, message)
    assert rounds(fleet) == [0, 0, 1, 2, 3, 4] and len(held) == 5
    for to, message in reversed(held):
        fleet.hand(to, message)
    for _ in range(5):
        fleet.step(0, ZERO)
    assert rounds(fleet)[0] == 5 and fleet.states[0].late == fleet.states[0].duplicates == 0
    assert fleet.states[0].inbox.size_bytes == 0


def test_late_messages_and_duplicates_are_counted_and_change_nothing_else(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    step_all(fleet)
    mail = [m for to, m in fleet.mail if to == 0]
    fleet.hand(0, mail[0])
    before = fleet.states[0]
    assert fleet.hand(0, mail[0]) == []
    assert fleet.states[0].duplicates == 1 and fleet.states[0].gathered is before.gathered
    fleet.hand(0, mail[1])
    model = fleet.algorithm.model(fleet.states[0])
    assert fleet.hand(0, mail[0]) == [] and fleet.states[0].late == 1
    assert fleet.algorithm.model(fleet.states[0]) is model
    early = replace(mail[0], frame=replace(mail[0].frame, round=3))
    fleet.hand(0, early)
    fleet.hand(0, early)
    assert fleet.states[0].duplicates == 2 and fleet.states[0].inbox.newest(1) == 3


def test_replaying_an_input_on_an_old_state_gives_the_same_result(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, codec="fp16")
    algorithm, history = fleet.algorithm, []

    def record(state: Any, call: Any) -> Any:
        kept = copy.deepcopy((state.x, state.gathered.total, state.stepped and state.stepped.base))
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
        assert repr(same) == repr(actions)  # nan != nan
        np.testing.assert_array_equal(again.x, after.x)
        np.testing.assert_array_equal(state.x, x)
        assert (again.round, again.late, again.duplicates) == (after.round, after.late, after.duplicates)
        assert dict(state.inbox.frames) == inbox
        if total is not None:
            np.testing.assert_array_equal(state.gathered.total, total)
        if base is not None:
            np.testing.assert_array_equal(state.stepped.base, base)


# ---- deadline and membership ----


def test_past_the_deadline_the_missing_weight_stays_with_the_node(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)
    step_all(fleet)
    fleet.hand(0, next(m for to, m in fleet.mail if to == 0 and m.sender == "board-1"))
    actions = fleet.tick(0)
    assert actions[0] == Suspect("board-3", "no message of round 0 within 5 s")
    assert kinds(actions) == [Suspect, Checkpoint, RoundDone]
    x = fleet.start.astype(np.float64)
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[0]), x[0] * 2 / 3 + x[1] / 3, rtol=0, atol=1e-6)
    assert actions[2].consensus_distance == pytest.approx(np.linalg.norm(x[1] - x[0]), rel=1e-6)


def test_a_deadline_with_nobody_heard_keeps_the_own_model(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, codec="fp16")
    fleet.step(0, ONE)
    actions = fleet.tick(0)
    assert kinds(actions) == [Suspect, Suspect, Checkpoint, RoundDone]
    assert math.isnan(actions[3].consensus_distance) and actions[3].relative_error > 0
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), fleet.start[0] + 1)


def test_a_tick_that_nobody_asked_for_does_nothing(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    before = fleet.states[0]
    assert fleet.tick(0) == [] and fleet.states[0] is before


def test_who_goes_down_is_not_waited_for_and_the_round_ends(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)
    step_all(fleet)
    fleet.hand(0, next(m for to, m in fleet.mail if to == 0 and m.sender == "board-1"))
    actions = fleet.down(0, 3)
    assert kinds(actions) == [SetTimer, Checkpoint, RoundDone] and actions[0].after_s is None
    sends = [a for a in fleet.step(0, ZERO) if isinstance(a, Send)]
    assert [a.to for a in sends] == ["board-1"]
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-1",)


def test_what_a_node_sent_before_it_went_down_counts(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    step_all(fleet, [1, 2])
    deliver_all(fleet)
    fleet.down(0, 2)
    fleet.step(0, ZERO)
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[0]), fleet.start.mean(axis=0), rtol=0, atol=1e-6)


def test_alone_rounds_complete_at_once(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3, codec="fp16")
    assert fleet.down(0, 1, 2) == []
    for _ in range(3):
        actions = fleet.step(0, ONE)
        assert kinds(actions) == [Checkpoint, RoundDone]
        assert math.isnan(actions[1].relative_error) and math.isnan(actions[1].consensus_distance)
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[0]), fleet.start[0] + 3, rtol=0, atol=1e-6)


def test_losing_everybody_while_waiting_ends_the_round(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=4)
    fleet.step(0, ZERO)
    assert fleet.down(0, 1, 2) == [] and fleet.algorithm.waiting_for(fleet.states[0]) == ("board-3",)
    assert kinds(fleet.down(0, 1, 2, 3)) == [SetTimer, Checkpoint, RoundDone]


def test_who_comes_back_gets_the_message_of_the_round_and_is_waited_for(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)
    fleet.down(0, 3)
    fleet.step(0, ZERO)
    actions = fleet.down(0)
    assert kinds(actions) == [Send] and actions[0].to == "board-3"
    assert (actions[0].frame.round, actions[0].frame.sequence) == (0, 1)
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-1", "board-3")
    step_all(fleet, [1, 2, 3])
    deliver_all(fleet)
    assert rounds(fleet) == [1] * 4
    x = fleet.start.astype(np.float64)
    np.testing.assert_allclose(
        [fleet.algorithm.model(s) for s in fleet.states], fleet.topology.matrix(0) @ x, rtol=0, atol=1e-6
    )


def test_a_return_counts_as_sent(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=3)
    fleet.down(0, 1)  # node 2 is up, so the round waits
    fleet.step(0, ZERO)
    fleet.mail.clear()
    fleet.down(0)
    assert [to for to, _ in fleet.mail] == [1]
    actions = fleet.tick(0)
    assert actions[-1].relative_error == 0.0


def test_only_down_may_change_during_a_run(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    with pytest.raises(LocalError, match="only change which members are down"):
        fleet.algorithm.membership(fleet.states[0], fleet.view(0, seed=9))


def test_after_one_dies_the_rest_stay_stochastic_and_agree(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=4)
    for node in range(3):
        fleet.down(node, 3)
    for _ in range(60):
        step_all(fleet, [0, 1, 2])
        deliver_all(fleet)
    mean = fleet.start[:3].mean(axis=0)
    for node in range(3):
        np.testing.assert_allclose(fleet.algorithm.model(fleet.states[node]), mean, rtol=0, atol=1e-5)


# ---- a node left behind ----


def ahead(fleet: Any, sender: int, round: int) -> Message:
    """What `sender` would send in a later round: its start model."""
    late = replace(fleet.states[sender], round=round)
    _, actions = fleet.algorithm.step(late, LocalUpdate(ZERO, 0.1, 1.0, 1, 1))
    return Message(fleet.members[sender], next(a.frame for a in actions if isinstance(a, Send)))


def test_a_node_left_behind_goes_on_in_its_neighbours_round(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)  # more than 4 + 1 rounds ahead counts as far
    fleet.step(0, ONE)
    assert fleet.hand(0, ahead(fleet, 1, 5)) == [] and rounds(fleet)[0] == 0
    actions = fleet.hand(0, ahead(fleet, 1, 6))
    assert kinds(actions) == [SetTimer, Checkpoint, RoundDone] and actions[0].after_s is None
    assert actions[2].round == 5 and rounds(fleet)[0] == 6
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), fleet.start[0] + 1)
    fleet.step(0, ZERO)
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-3",)  # the message of round 6 was kept


def test_a_node_left_behind_before_its_step_keeps_its_model(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, max_ahead=2)
    assert fleet.hand(0, ahead(fleet, 3, 3)) == [Checkpoint()]
    assert rounds(fleet)[0] == 3
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), fleet.start[0])


def test_one_neighbour_of_many_cannot_pull_a_node_ahead(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=4, max_ahead=1)
    for k in range(2, 12):
        assert fleet.hand(0, ahead(fleet, 1, k)) == []
    assert rounds(fleet)[0] == 0 and fleet.states[0].inbox.size_bytes == 2 * 4 * N  # only its newest are kept
    actions = fleet.hand(0, ahead(fleet, 2, 10))
    assert actions == [Checkpoint()] and rounds(fleet)[0] == 10


def test_who_is_down_has_no_say_in_catching_up(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, max_ahead=1)
    fleet.down(0, 1)
    assert fleet.hand(0, ahead(fleet, 1, 9)) == [] and rounds(fleet)[0] == 0


def test_early_messages_beyond_the_byte_limit_are_refused(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, early_bytes=4 * N)
    fleet.hand(0, ahead(fleet, 1, 1))
    before = fleet.states[0]
    with pytest.raises(PeerError, match="board-3: its message of round 1 came too early"):
        fleet.hand(0, ahead(fleet, 3, 1))
    assert fleet.states[0] is before


def test_an_early_message_that_turns_out_bad_is_suspect_and_not_waited_for(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    early = ahead(fleet, 1, 1)
    fleet.hand(0, replace(early, frame=replace(early.frame, body=b"short")))
    step_all(fleet)
    mail = [m for to, m in fleet.mail if to == 0]
    fleet.hand(0, mail[0])
    actions = fleet.hand(0, mail[1])
    assert kinds(actions) == [SetTimer, Checkpoint, RoundDone, Suspect]
    assert actions[3].node == "board-1" and actions[3].reason.startswith("message of round 1 refused: ")
    fleet.step(0, ZERO)
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-2",)


# ---- refusals ----


@pytest.mark.parametrize(
    ("sender", "change", "message"),
    [
        ("board-9", {}, "board-9 is not a member"),
        ("board-0", {}, "board-0 is not an in-neighbour of board-0 in round 0"),
        ("board-2", {}, "board-2 is not an in-neighbour of board-0 in round 0"),
        ("board-1", {"run_id": b"s" * 16}, "another run"),
        ("board-1", {"layout_hash": 5}, "another model: its layout hash is 0000000000000005"),
        ("board-1", {"kind": Kind.DIFFERENCE}, r"kind 2, where model \(1\) is expected"),
        ("board-1", {"codec_id": 77}, "another codec than fp32"),
        ("board-1", {"codec_params": b"x"}, "another codec than fp32"),
        ("board-1", {"body": b"123"}, "."),
        ("board-1", {"body": np.full(N, np.nan, np.float32).tobytes()}, "."),
        ("board-1", {"body": np.full(N, 3e38, np.float32).tobytes()}, "board-1 sent values that are too large"),
    ],
)
def test_what_does_not_belong_is_refused_with_the_state_untouched(
    make_fleet: Any, sender: str, change: dict[str, Any], message: str
) -> None:
    fleet = make_fleet("ring", nodes=4)
    fleet.step(1, ZERO)
    good = next(m for to, m in fleet.mail if to == 0)
    before = fleet.states[0]
    with pytest.raises(PeerError, match=message) as caught:
        fleet.hand(0, Message(sender, replace(good.frame, **change)))
    assert isinstance(caught.value, DecodeError) == (message == ".")
    assert fleet.states[0] is before and before.gathered.senders == frozenset()
    fleet.hand(0, good)
    assert fleet.states[0].gathered.senders == {1}


def test_an_in_neighbour_of_another_round_only_is_refused(make_fleet: Any) -> None:
    fleet = make_fleet("one-peer-exponential", nodes=4)
    fleet.step(3, ZERO)  # 3 -> 0 in even rounds
    (_, message), *_ = fleet.mail
    with pytest.raises(PeerError, match="board-3 is not an in-neighbour of board-0 in round 1"):
        fleet.hand(0, replace(message, frame=replace(message.frame, round=1)))


def test_a_second_step_in_a_round_is_refused(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    fleet.step(0, ZERO)
    with pytest.raises(LocalError, match="round 0 of board-0 has its local update already"):
        fleet.step(0, ZERO)


def test_an_update_that_is_not_finite_names_the_tensor(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    delta = ZERO.copy()
    delta[-1] = np.nan
    before = fleet.states[0]
    with pytest.raises(LocalError, match="tensor b "):
        fleet.step(0, delta)
    assert fleet.states[0] is before
    with pytest.raises(LocalError, match=r"float32\[12\]"):
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
    with pytest.raises(LocalError, match=r"float32\[12\]"):
        algorithm.init(x[:5], fleet.view(0))
    with pytest.raises(LocalError, match="tensor w "):
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


def test_codec_state_goes_from_message_to_message(make_fleet: Any) -> None:
    """A codec that counts its own encodings, around fp32."""

    class Counting:
        def __init__(self) -> None:
            self.inner: Any = codecs.get("fp32")
            self.seen: list[tuple[int, int, float | None, float]] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def init(self, layout: Any) -> tuple[int, Any]:
            return 0, self.inner.init(layout)

        def encode(self, x: Any, state: tuple[int, Any], ctx: Any) -> tuple[bytes, tuple[int, Any]]:
            count, inner = state
            self.seen.append((count, ctx.round, ctx.loss, ctx.lr))
            body, inner = self.inner.encode(x, inner, ctx)
            return body, (count + 1, inner)

    fleet = make_fleet("ring", nodes=2)
    fleet.codec = Counting()
    fleet.states = [fleet.algorithm.init(x, fleet.view(i)) for i, x in enumerate(fleet.start)]
    for _ in range(3):
        fleet.step(0, ZERO)
        fleet.tick(0)
    assert fleet.codec.seen == [(k, k, 1.0, 0.1) for k in range(3)]
