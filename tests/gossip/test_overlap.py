"""Fragments, and exchanges under way while the next round is computed: Streaming DiLoCo by a
reference of its own, and what becomes of what was under way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from edgegossip import gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Adopted, Checkpoint, Message, RoundDone, Send, SetTimer
from edgegossip.gossip.outer import make, with_outer
from edgegossip.types import ConfigError, UsageError
from tests.gossip.test_momentum import GRAPH, ONE, TRAINED, N, Nodes, Scripted, done, update, view
from tests.gossip.test_outer import Boards, alike, played

PLAIN = ("dpsgd", "choco-sgd", "deep-squeeze")


def around(name: str = "dpsgd", **values: Any) -> Any:
    return with_outer(gossip.get(name), make(**{"optimizer": "nesterov", "overlap": True, **values}))


def streaming_diloco(
    boards: Boards, x: np.ndarray, rounds: int, outer: dict[str, float], parts: Sequence[slice], alpha: float | None
) -> list[np.ndarray]:
    """Douillard et al. 2025, algorithm 2: the boards' own models after every round, float64[boards,
    TRAINED]. A round of H / P steps ends with sending one of the P parts; what was sent comes at
    the end of the next round (tau = H / P), or at once, without alpha."""
    n, start = len(boards.b), x[:TRAINED].astype(np.float64)
    theta = [torch.tensor(start[part], requires_grad=True) for part in parts]
    optimizers = [torch.optim.SGD([p], nesterov=True, **outer) for p in theta]
    local, models = np.tile(start, (n, 1)), []
    on_its_way: tuple[int, np.ndarray] | None = None

    def arrives(k: int, gradient: np.ndarray, own: float) -> None:
        theta[k].grad = torch.tensor(gradient)
        optimizers[k].step()
        local[:, parts[k]] = own * local[:, parts[k]] + (1 - own) * theta[k].detach().numpy()

    for t in range(rounds):
        local += np.stack([boards.delta(i, local[i]) for i in range(n)])
        if on_its_way is not None and alpha is not None:
            arrives(*on_its_way, alpha)
        k = t % len(parts)
        on_its_way = k, np.mean(theta[k].detach().numpy() - local[:, parts[k]], axis=0)
        if alpha is None:
            arrives(*on_its_way, 0.0)
        models.append(local.copy())
    return models


PARTS = {  # of LAYOUT: w, b, mean
    1: [slice(0, TRAINED)],
    2: [slice(0, 6), slice(6, TRAINED)],
    3: [slice(0, 6), slice(6, TRAINED), slice(TRAINED, TRAINED)],
}


def crossed() -> Iterator[Any]:
    """All fragments and merges, algorithms and inner optimisers in turn. The others are slow: what
    is around an algorithm sees updates, and not who made them."""
    for a, name in enumerate(PLAIN):
        for b, (fragments, alpha) in enumerate([(1, 0.5), (1, 0.2), (2, 0.5), (3, 0.8), (2, None), (3, None)]):
            for c, inner in enumerate(("sgd", "adamw")):
                marks = pytest.mark.slow if (a + b) % 3 or (b + c) % 2 else ()
                yield pytest.param(name, inner, fragments, alpha, marks=marks)


@pytest.mark.parametrize(("name", "inner", "fragments", "alpha"), [*crossed()])
def test_on_a_complete_graph_it_is_streaming_diloco(name: str, inner: str, fragments: int, alpha: float | None) -> None:
    nodes, rounds, start, outer = 4, 12, alike(4), {"lr": 0.7, "momentum": 0.6}
    streaming = {"overlap": False} if alpha is None else {"merge": alpha}
    algorithm = around(name, fragments=fragments, **outer, **streaming)
    found = played(algorithm, topologies.get("complete", nodes), start, Boards(nodes, 5, inner, 7), rounds)
    expected = streaming_diloco(Boards(nodes, 5, inner, 7), start[0], rounds, outer, PARTS[fragments], alpha)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5)


def test_a_round_ends_when_its_message_is_sent() -> None:
    algorithm = around()
    s, _ = algorithm.start(algorithm.init(ONE, view(0, GRAPH)))
    s, actions = algorithm.step(s, update(ONE))
    assert [type(a) for a in actions] == [Send, Checkpoint, RoundDone]
    assert (algorithm.round(s), algorithm.waiting_for(s)) == (1, ())
    np.testing.assert_array_equal(algorithm.model(s), 2 * ONE)
    s, actions = algorithm.step(s, update(ONE))  # now it waits for the other's message of round 0
    assert [type(a) for a in actions] == [SetTimer] and actions[0].after_s == 5.0
    assert (algorithm.round(s), algorithm.waiting_for(s)) == (1, ("board-1",))
    with pytest.raises(UsageError, match="round 1 has its local update already"):
        algorithm.step(s, update(ONE))
    with pytest.raises(UsageError, match="tensor w"):
        algorithm.step(algorithm.init(ONE, view(0, GRAPH)), update(ONE * np.nan))
    s, actions = algorithm.tick(s, 5.0)  # and goes on without
    assert [a.round for a in actions if isinstance(a, RoundDone)] == [1] and algorithm.round(s) == 2


def test_the_last_exchange_of_a_run_is_waited_for() -> None:
    algorithm = around(lr=1.0, momentum=0.0)
    fleet = Nodes(algorithm, GRAPH, np.stack([ONE, 3 * ONE]))
    mail = []
    for i, s in enumerate(fleet.states):
        fleet.states[i], actions = algorithm.step(s, replace(update(0 * ONE), last=True))
        assert not any(isinstance(a, RoundDone) for a in actions) and algorithm.round(fleet.states[i]) == 0
        mail += [(1 - i, Message(f"board-{i}", a.frame)) for a in actions if isinstance(a, Send)]
    for to, message in mail:
        fleet.states[to], actions = algorithm.receive(fleet.states[to], message)
        assert [a.round for a in actions if isinstance(a, RoundDone)] == [0]
        assert algorithm.round(fleet.states[to]) == 1
    np.testing.assert_allclose(fleet.models(), np.stack([1.5 * ONE, 2.5 * ONE]), atol=1e-6)  # halfway to 2


@pytest.mark.parametrize("stepped", [True, False])
def test_a_board_that_stops_goes_on_from_its_own_model(stepped: bool) -> None:
    """What was under way is lost to it, and no local step; what had come is merged later."""
    algorithm = around()
    fleet = Nodes(algorithm, GRAPH, alike(2))
    s, actions = algorithm.step(fleet.states[0], update(ONE))
    if not stepped:
        _, sends = algorithm.step(fleet.states[1], update(-ONE))
        for a in sends:
            if isinstance(a, Send):
                s, _ = algorithm.receive(s, Message("board-1", a.frame))
    shown = algorithm.model(s)
    again = algorithm.resume(s, view(0, GRAPH, boot=7))
    np.testing.assert_array_equal(algorithm.model(again), shown)
    assert (algorithm.round(again), again.span is None) == (1, stepped)
    again, actions = algorithm.step(again, update(ONE))
    assert any(isinstance(a, Send) for a in actions)
    own = algorithm.step(s, update(ONE))[0] if not stepped else None
    expected = shown + ONE if own is None else algorithm.model(own)
    np.testing.assert_allclose(algorithm.model(again), expected, atol=1e-6)


@pytest.mark.parametrize("waits", [False, True])
def test_a_model_that_is_taken_over_is_not_merged_with_the_own(waits: bool) -> None:
    inner = Scripted((0, 1.0, []))
    algorithm: Any = with_outer(gossip.get("dpsgd"), make("nesterov", overlap=True))
    algorithm = replace(algorithm, algorithm=inner)
    s, _ = algorithm.step(algorithm.init(ONE, view(0, GRAPH)), update(ONE))
    if waits:
        s, _ = algorithm.step(s, update(ONE))
    inner.next = (7, 9.0, [Adopted("board-1", 7), Checkpoint(), done(6)])
    s, actions = algorithm.receive(s, Message("board-1", None))  # type: ignore[arg-type]
    assert [type(a) for a in actions] == [Adopted, Checkpoint, *([RoundDone] if waits else [])]
    assert algorithm.round(s) == 7 and not s.waits
    np.testing.assert_array_equal(algorithm.model(s), 9 * ONE)
    inner.next = (0, 9.0, [])
    s, _ = algorithm.step(s, update(ONE))
    np.testing.assert_array_equal(algorithm.model(s), 10 * ONE)  # nor is it merged with itself


@pytest.mark.parametrize(("forward", "expected"), [(1, 6.0), (2, 10.0)])
def test_an_exchange_that_was_given_up_is_not_merged(forward: int, expected: float) -> None:
    """The own model is 2, and the exchange leads to 9, in its round or far behind others."""
    inner = Scripted((0, 1.0, []))
    algorithm: Any = replace(around(merge=0.5), algorithm=inner)
    s, _ = algorithm.step(algorithm.init(ONE, view(0, GRAPH)), update(ONE))
    inner.next = (forward, 9.0, [Checkpoint(), done(forward - 1)])
    s, _ = algorithm.receive(s, Message("board-1", None))  # type: ignore[arg-type]
    inner.next = (0, 9.0, [])
    s, _ = algorithm.step(s, update(ONE))
    np.testing.assert_array_equal(algorithm.model(s), expected * ONE)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("sgp", {}, "outer.overlap cannot be around sgp.*use gossip.algorithm = dpsgd, deep-squeeze or choco-sgd"),
        ("sgp", {"overlap": False, "fragments": 2}, "outer.fragments cannot be around sgp"),
        ("dpsgd", {"merge": 0.0}, "outer.merge = 0.0 must be a number above 0 and at most 0.95"),
        ("dpsgd", {"merge": 1.0}, "outer.merge = 1.0 must be a number above 0 and at most 0.95"),
        ("dpsgd", {"optimizer": "none"}, "outer.overlap goes with an outer optimiser"),
        (
            "dpsgd",
            {"optimizer": "heavy-ball", "consensus": 0.3},
            "outer.consensus = 0.3 does not go with outer.overlap",
        ),
        ("dpsgd", {"fragments": 65}, "outer.fragments = 65 must be an integer from 1 to 64"),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        around(name, **values)


def test_more_fragments_than_tensors_are_refused() -> None:
    with pytest.raises(ConfigError, match="outer.fragments = 4 must be at most 3: the model has no more tensors"):
        around(fragments=4).init(ONE, view(0, GRAPH))


@pytest.mark.parametrize(
    ("topology", "fragments"), [("directed-ring", 1), ("one-peer-exponential", 2), ("one-peer-exponential", 3)]
)
def test_a_momentum_that_drives_boards_apart_is_refused(topology: str, fragments: int) -> None:
    """The bound is where differences of boards that do not train begin to grow, with what is under
    way in it."""
    graph = topologies.get(topology, 4)
    with pytest.raises(ConfigError, match=r"drives boards apart .* at most ([0-9.]+) holds there") as refused:
        around(momentum=0.99, merge=0.3, fragments=fragments).init(ONE, view(0, graph))
    holds = float(str(refused.value).rsplit("at most ", 1)[1].split()[0])
    start = np.random.default_rng(0).normal(size=(4, N)).astype(np.float32)
    fleet = Nodes(around(momentum=holds, merge=0.3, fragments=fragments), graph, start)
    for _ in range(150):
        fleet.round([update(0 * ONE)] * 4, np.random.default_rng(0))
    assert np.ptp(fleet.models(), axis=0)[:TRAINED].max() < 3 * np.ptp(start, axis=0).max()
