"""Exchanges under way while the next round is computed: Streaming DiLoCo by a reference of its own,
and what becomes of what was under way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Adopted, Checkpoint, Message, RoundDone, Send, SetTimer
from edgegossip.gossip.outer import make, with_outer
from edgegossip.types import ConfigError, UsageError
from tests.gossip.test_momentum import GRAPH, LAYOUT, ONE, TRAINED, N, Nodes, Scripted, done, update, view
from tests.gossip.test_outer import Boards, alike

PLAIN = ("dpsgd", "choco-sgd", "deep-squeeze")


def around(name: str = "dpsgd", **values: Any) -> Any:
    return with_outer(gossip.get(name), make(**{"optimizer": "nesterov", "overlap": True, **values}))


def streaming_diloco(
    boards: Boards, x: np.ndarray, rounds: int, lr: float, momentum: float, alpha: float
) -> list[np.ndarray]:
    """Douillard et al. 2025, algorithm 2, of one fragment with tau = H: the boards' own models after
    every round, float64[boards, TRAINED]. What was sent at the end of a round comes at the end of
    the next one."""
    n = len(boards.b)
    theta = torch.tensor(x[:TRAINED].astype(np.float64), requires_grad=True)
    outer = torch.optim.SGD([theta], lr=lr, momentum=momentum, nesterov=True)
    local = np.tile(x[:TRAINED].astype(np.float64), (n, 1))
    sent, models = None, []
    for _ in range(rounds):
        local = local + np.stack([boards.delta(i, local[i]) for i in range(n)])
        if sent is not None:
            theta.grad = torch.tensor(sent)
            outer.step()
            local = alpha * local + (1 - alpha) * theta.detach().numpy()
        sent = np.mean(theta.detach().numpy() - local, axis=0)
        models.append(local)
    return models


def played(algorithm: Any, graph: Any, start: np.ndarray, boards: Boards, rounds: int) -> list[np.ndarray]:
    fleet, rng, models = Nodes(algorithm, graph, start), np.random.default_rng(1), []
    for _ in range(rounds):
        deltas = np.zeros((len(start), N))
        deltas[:, :TRAINED] = [boards.delta(i, x) for i, x in enumerate(fleet.models())]
        fleet.round([update(d, lr=0.0) for d in deltas], rng)
        models.append(fleet.models()[:, :TRAINED])
    return models


@pytest.mark.parametrize("alpha", [0.5, 0.2])
@pytest.mark.parametrize("inner", ["sgd", "adamw"])
@pytest.mark.parametrize("name", PLAIN)
def test_on_a_complete_graph_it_is_streaming_diloco(name: str, inner: str, alpha: float) -> None:
    nodes, rounds, start = 4, 20, alike(4)
    algorithm = around(name, lr=0.7, momentum=0.6, merge=alpha)
    found = played(algorithm, topologies.get("complete", nodes), start, Boards(nodes, 5, inner, 7), rounds)
    expected = streaming_diloco(Boards(nodes, 5, inner, 7), start[0], rounds, 0.7, 0.6, alpha)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), alpha=st.sampled_from([0.2, 0.5, 0.8]))
def test_when_messages_come_makes_no_difference(seed: int, alpha: float) -> None:
    """At once, or only when the next update is there: the models are the same to the bit."""
    graph, start = topologies.get("complete", 2), alike(2)
    runs = []
    for late in (False, True):
        algorithm, rng = around(merge=alpha), np.random.default_rng(seed)
        states = [algorithm.start(algorithm.init(x, view(i, graph)))[0] for i, x in enumerate(start)]
        mail: list[tuple[int, Message]] = []
        for _ in range(6):
            deltas = rng.normal(size=(2, N))
            for i in range(2):
                states[i], actions = algorithm.step(states[i], update(deltas[i]))
                sent = [(1 - i, Message(f"board-{i}", a.frame)) for a in actions if isinstance(a, Send)]
                if late:  # the other's of the round before comes once this board waits for it
                    for to, message in [m for m in mail if m[0] == i]:
                        states[to], more = algorithm.receive(states[to], message)
                        sent += [(1 - i, Message(f"board-{i}", a.frame)) for a in more if isinstance(a, Send)]
                    mail = [m for m in mail if m[0] != i]
                mail += sent
            if not late:
                for to, message in mail:
                    states[to], _ = algorithm.receive(states[to], message)
                mail = []
        runs.append(np.stack([algorithm.model(s) for s in states]))
    np.testing.assert_array_equal(*runs)


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
    s, actions = algorithm.tick(s, 5.0)  # and goes on without
    assert [a.round for a in actions if isinstance(a, RoundDone)] == [1] and algorithm.round(s) == 2


def test_the_last_exchange_of_a_run_is_waited_for() -> None:
    algorithm = around(lr=1.0, momentum=0.0)
    fleet = Nodes(algorithm, GRAPH, np.stack([ONE, 3 * ONE]))
    mail = []
    for i, s in enumerate(fleet.states):
        from dataclasses import replace

        fleet.states[i], actions = algorithm.step(s, replace(update(0 * ONE), last=True))
        assert not any(isinstance(a, RoundDone) for a in actions) and algorithm.round(fleet.states[i]) == 0
        mail += [(1 - i, Message(f"board-{i}", a.frame)) for a in actions if isinstance(a, Send)]
    for to, message in mail:
        fleet.states[to], actions = algorithm.receive(fleet.states[to], message)
        assert [a.round for a in actions if isinstance(a, RoundDone)] == [0]
        assert algorithm.round(fleet.states[to]) == 1
    np.testing.assert_allclose(fleet.models(), np.stack([1.5 * ONE, 2.5 * ONE]), atol=1e-6)  # halfway to 2
