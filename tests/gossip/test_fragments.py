"""How a model is cut into fragments, whose turn it is, and what a round of one sends and mixes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip import codecs, gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Message, Send
from edgegossip.gossip.fragments import cut, turn
from edgegossip.gossip.outer import make, with_outer
from edgegossip.layout import Layout, TensorSpec
from tests.gossip.test_momentum import LAYOUT, ONE, N, Nodes, update, view

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=9).filter(any)


@given(sizes=SIZES, data=st.data())
def test_fragments_are_all_of_the_model_in_order_and_the_largest_is_as_small_as_can_be(
    sizes: list[int], data: Any
) -> None:
    count = data.draw(st.integers(1, sum(size > 0 for size in sizes)))
    layout = Layout.of(TensorSpec(f"t{k}", (size,)) for k, size in enumerate(sizes))
    found = cut(layout, count)
    assert tuple(t for f in found for t in f.layout.tensors) == layout.tensors
    assert [f.start for f in found] == [0, *np.cumsum([f.layout.size for f in found])[:-1]]
    assert len(found) == count and all(f.layout.size for f in found)
    cuts = combinations(range(1, len(sizes)), count - 1)
    best = min(max(sum(sizes[a:b]) for a, b in zip((0, *c), (*c, len(sizes)), strict=True)) for c in cuts)
    assert max(f.layout.size for f in found) == best


@given(count=st.integers(1, 12), period=st.integers(1, 16))
def test_every_fragment_goes_over_every_edge_as_often(count: int, period: int) -> None:
    met = [(turn(r, count, period), r % period) for r in range(count * period)]
    assert sorted(met) == [(k, phase) for k in range(count) for phase in range(period)]


@pytest.mark.parametrize("codec", ["fp32", "minmax8", "topk", "error-feedback"])
@pytest.mark.parametrize("name", ["dpsgd", "choco-sgd", "deep-squeeze"])
def test_a_round_sends_and_mixes_one_fragment(name: str, codec: str) -> None:
    """All else has the local update alone, and neighbours' replicas hold what was sent."""
    algorithm = with_outer(gossip.get(name, eta=1.0), make("heavy-ball", lr=1.0, momentum=0.0, fragments=3))
    graph, rng = topologies.get("complete", 2), np.random.default_rng(3)
    start, spans = rng.normal(size=N).astype(np.float32), [slice(0, 6), slice(6, 9), slice(9, 11)]
    params: dict[str, Any] = {"codec": "topk"} if codec == "error-feedback" else {}
    fleet = Nodes(algorithm, graph, np.stack([start, start]))
    views = [view(i, graph, codec=codecs.get(codec, **params)) for i in range(2)]
    fleet.states = [algorithm.init(start, v) for v in views]
    for i, s in enumerate(fleet.states):
        fleet.states[i], hellos = algorithm.start(s)
        for a in hellos:
            if isinstance(a, Send):
                fleet.states[1 - i], _ = algorithm.receive(fleet.states[1 - i], Message(f"board-{i}", a.frame))
    local = fleet.models()
    for round in range(9):
        before, deltas = fleet.models(), rng.normal(size=(2, N))
        fleet.round([update(d) for d in deltas], rng)
        after, span = fleet.models(), spans[round % 3]
        rest = np.ones(N, bool)
        rest[span] = False
        np.testing.assert_allclose(after[:, rest], (before + deltas)[:, rest], atol=1e-5)
        if codec == "fp32":
            mean = (before + deltas)[:, span].mean(axis=0)
            np.testing.assert_allclose(after[:, span], np.stack([mean, mean]), atol=1e-5)
    assert np.abs(fleet.models() - local).max() > 0
    for i in range(2):
        mine, theirs = algorithm.audit(fleet.states[i]), algorithm.audit(fleet.states[1 - i])
        for (_, phase), (_, copy) in mine.replicas.items():
            np.testing.assert_array_equal(copy, theirs.public[phase][1])


def test_a_message_of_an_earlier_round_is_of_its_own_fragment() -> None:
    algorithm = with_outer(gossip.get("choco-sgd"), make("heavy-ball", momentum=0.0, fragments=3))
    fleet = Nodes(algorithm, topologies.get("complete", 2), np.stack([ONE, ONE]))
    late, _ = algorithm.step(fleet.states[0], update(ONE))
    late, _ = algorithm.tick(late, 5.0)  # its round ends without the other's message
    other, actions = algorithm.step(fleet.states[1], update(2 * ONE))
    for a in actions:
        if isinstance(a, Send):
            late, _ = algorithm.receive(late, Message("board-1", a.frame))
    ((_, replica),) = algorithm.audit(late).replicas.values()
    np.testing.assert_array_equal(replica, algorithm.audit(other).public[0][1])
    assert algorithm.round(late) == 1


def test_messages_are_as_large_as_the_fragment() -> None:
    algorithm = with_outer(gossip.get("dpsgd"), make("nesterov", fragments=3))
    graph, sent = topologies.get("complete", 2), []
    fleet = Nodes(algorithm, graph, np.stack([ONE, ONE]))
    for _ in range(4):
        s, actions = algorithm.step(fleet.states[0], update(ONE))
        sent.append([len(a.frame.body) for a in actions if isinstance(a, Send)])
        other, mail = algorithm.step(fleet.states[1], update(ONE))
        for a in mail:
            if isinstance(a, Send):
                s, _ = algorithm.receive(s, Message("board-1", a.frame))
        for a in actions:
            if isinstance(a, Send):
                other, _ = algorithm.receive(other, Message("board-0", a.frame))
        fleet.states = [s, other]
    assert sent == [[24], [12], [8], [24]] and LAYOUT.size == 11
