"""An outer optimiser around gossip: DiLoCo, FedOpt and NoLoCo by references of their own, and the
laws of what goes around an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs, gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Adopted, Checkpoint, Message, Says, Send
from edgegossip.gossip.outer import OuterOptimizer, make, with_outer
from edgegossip.types import ConfigError, UsageError
from tests.gossip.test_momentum import CALLS, GRAPH, LAYOUT, ONE, TRAINED, N, Nodes, Scripted, done, update, view

MEAN = ("dpsgd", "deep-squeeze", "choco-sgd", "sgp", "sparse-push", "quant-sgp", "parallel-sgd")
IDENTITY = OuterOptimizer("nesterov", lr=1.0, momentum=0.0)


class Boards:
    """Boards with quadratic losses, (x - b_i) A (x - b_i) / 2 on trained values, that take H steps
    of an optimiser of their own in torch, which they keep."""

    def __init__(self, boards: int, steps: int, inner: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(TRAINED, TRAINED))
        self.a = torch.tensor(root @ root.T / TRAINED)
        self.b = [torch.tensor(rng.normal(size=TRAINED)) for _ in range(boards)]
        self.steps = steps
        self.x = [torch.zeros(TRAINED, dtype=torch.float64, requires_grad=True) for _ in range(boards)]
        made: dict[str, Callable[[Any], Any]] = {
            "sgd": lambda x: torch.optim.SGD([x], lr=0.1),
            "adamw": lambda x: torch.optim.AdamW([x], lr=0.05),
        }
        self.inner = [made[inner](x) for x in self.x]

    def delta(self, i: int, model: np.ndarray) -> np.ndarray:
        """What board i's steps from a model change, float64[TRAINED]."""
        x = self.x[i]
        with torch.no_grad():
            x.copy_(torch.tensor(model[:TRAINED].astype(np.float64)))
        for _ in range(self.steps):
            x.grad = self.a @ (x.detach() - self.b[i])  # autograd would take longer than all the rest
            self.inner[i].step()
        moved: np.ndarray = x.detach().numpy() - model[:TRAINED]
        return moved


def diloco(boards: Boards, x: np.ndarray, rounds: int, lr: float, momentum: float) -> np.ndarray:
    """Douillard et al. 2023, algorithm 1, with torch's own optimiser outside: the models of every
    round."""
    theta = torch.tensor(x[:TRAINED].astype(np.float64), requires_grad=True)
    outer = torch.optim.SGD([theta], lr=lr, momentum=momentum, nesterov=True)
    models = []
    for _ in range(rounds):
        deltas = [boards.delta(i, theta.detach().numpy()) for i in range(len(boards.b))]
        theta.grad = torch.tensor(-np.mean(deltas, axis=0))  # line 12: theta^(t-1) - theta_i^(t)
        outer.step()  # line 14
        models.append(theta.detach().numpy().copy())
    return np.stack(models)


def fedadam(boards: Boards, x: np.ndarray, rounds: int, lr: float, b1: float, b2: float, tau: float) -> np.ndarray:
    """Reddi et al. 2021, algorithm 2, FedAdam."""
    x = x[:TRAINED].astype(np.float64)
    m, v, models = np.zeros(TRAINED), np.zeros(TRAINED), []
    for _ in range(rounds):
        delta = np.mean([boards.delta(i, x) for i in range(len(boards.b))], axis=0)
        m = b1 * m + (1 - b1) * delta
        v = b2 * v + (1 - b2) * delta**2
        x = x + lr * m / (np.sqrt(v) + tau)
        models.append(x)
    return np.stack(models)


def noloco(boards: Boards, x: np.ndarray, rounds: int, graph: Any, alpha: float, beta: float, gamma: float) -> Any:
    """Kolehmainen et al. 2025: delta <- alpha delta + beta mean(Delta) - gamma (phi_i - mean(phi)),
    phi <- phi + delta, means over the board and the peer that this round gives it."""
    phi = x[:, :TRAINED].astype(np.float64)
    step, models = np.zeros_like(phi), []
    for t in range(rounds):
        moved = np.stack([boards.delta(i, phi[i]) for i in range(len(phi))])
        pairs = [[i, *graph.neighbours(i, t).in_] for i in range(len(phi))]
        mean_moved, mean_phi = (np.stack([what[pair].mean(axis=0) for pair in pairs]) for what in (moved, phi))
        step = alpha * step + beta * mean_moved - gamma * (phi - mean_phi)
        phi = phi + step
        models.append(phi)
    return np.stack(models)


def played(algorithm: Any, graph: Any, start: np.ndarray, boards: Boards, rounds: int) -> np.ndarray:
    """The models after every round, float64[rounds, nodes, TRAINED]."""
    fleet, rng, models = Nodes(algorithm, graph, start), np.random.default_rng(1), []
    for _ in range(rounds):
        deltas = np.zeros((len(start), N))
        deltas[:, :TRAINED] = [boards.delta(i, x) for i, x in enumerate(fleet.models())]
        fleet.round([update(d, lr=0.0) for d in deltas], rng)
        models.append(fleet.models()[:, :TRAINED])
    return np.stack(models)


def alike(nodes: int, seed: int = 3) -> np.ndarray:
    return np.tile(np.random.default_rng(seed).normal(size=N), (nodes, 1)).astype(np.float32)


@pytest.mark.parametrize(("name", "inner"), [(name, ("sgd", "adamw")[k % 2]) for k, name in enumerate(MEAN)])
def test_on_a_complete_graph_it_is_diloco(name: str, inner: str) -> None:
    nodes, rounds, start = 4, 12, alike(4)
    algorithm = with_outer(gossip.get(name), OuterOptimizer("nesterov", lr=0.7, momentum=0.9))
    found = played(algorithm, topologies.get("complete", nodes), start, Boards(nodes, 5, inner, 7), rounds)
    expected = diloco(Boards(nodes, 5, inner, 7), start[0], rounds, 0.7, 0.9)
    np.testing.assert_allclose(found, np.repeat(expected[:, None], nodes, axis=1), rtol=0, atol=2e-5)


def test_adam_around_sums_of_updates_is_fedadam() -> None:
    nodes, rounds, start = 4, 12, alike(4)
    algorithm = with_outer(gossip.get("parallel-sgd"), make("adam", lr=0.1, betas=[0.8, 0.95], epsilon=0.01))
    found = played(algorithm, topologies.get("complete", nodes), start, Boards(nodes, 5, "adamw", 7), rounds)
    expected = fedadam(Boards(nodes, 5, "adamw", 7), start[0], rounds, 0.1, 0.8, 0.95, 0.01)
    np.testing.assert_allclose(found, np.repeat(expected[:, None], nodes, axis=1), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("nodes", "gamma"), [(6, 0.9), (6, 0.0), (5, 0.6)])
def test_heavy_ball_over_random_pairs_is_noloco(nodes: int, gamma: float) -> None:
    rounds, graph = 16, topologies.get("random-pairs", nodes, rounds=8, seed=2)
    start = np.random.default_rng(5).normal(size=(nodes, N)).astype(np.float32)
    algorithm = with_outer(gossip.get("dpsgd"), make("heavy-ball", lr=0.7, momentum=0.5, consensus=gamma))
    found = played(algorithm, graph, start, Boards(nodes, 4, "adamw", 9), rounds)
    expected = noloco(Boards(nodes, 4, "adamw", 9), start, rounds, graph, 0.5, 0.7, gamma or 0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5)


def both(name: str, codec: str, topology: str, seed: int) -> tuple[list[bytes], list[bytes]]:
    """All frames and models of an algorithm alone, and with what changes nothing around it."""
    graph, told = topologies.get(topology, 4), []
    for algorithm in (gossip.get(name), with_outer(gossip.get(name), IDENTITY)):
        rng, seen = np.random.default_rng(seed), []
        fleet = Nodes(algorithm, graph, alike(4, seed))
        fleet.states = [
            algorithm.init(x, view(i, graph, codec=codecs.get(codec))) for i, x in enumerate(alike(4, seed))
        ]
        for i, s in enumerate(fleet.states):
            fleet.states[i], hellos = algorithm.start(s)
            for a in hellos:
                to = fleet.members.index(a.to)
                fleet.states[to], _ = algorithm.receive(fleet.states[to], Message(fleet.members[i], a.frame))
        for _ in range(6):
            fleet.round([update(rng.normal(size=N) * rng.choice([0.0, -0.0, 1.0], size=N)) for _ in range(4)], rng)
            seen.append(b"".join(algorithm.model(s).tobytes() for s in fleet.states))
        told.append(seen)
    return told[0], told[1]


@settings(max_examples=12)
@given(
    name=st.sampled_from([name for name in MEAN if name != "dpsgd"]),
    codec=st.sampled_from(["fp32", "minmax8", "elastiquant", "topk"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_step_of_the_whole_way_without_momentum_changes_nothing_by_a_bit(name: str, codec: str, seed: int) -> None:
    alone, around = both(name, codec, "complete", seed)
    assert alone == around


def test_values_that_are_not_trained_are_as_the_algorithm_left_them() -> None:
    start, rng = alike(3), np.random.default_rng(1)
    fleets = [
        Nodes(around, topologies.get("complete", 3), start)
        for around in (gossip.get("deep-squeeze"), with_outer(gossip.get("deep-squeeze"), make("nesterov")))
    ]
    for _ in range(5):
        deltas = rng.normal(size=(3, N))
        for fleet in fleets:
            fleet.round([update(d) for d in deltas], np.random.default_rng(0))
    plain, outer = (fleet.models() for fleet in fleets)
    np.testing.assert_array_equal(outer[:, TRAINED:], plain[:, TRAINED:])
    assert (outer[:, :TRAINED] != plain[:, :TRAINED]).all()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("forward", "actions"),
    [(2, [Checkpoint(), done(1)]), (0, [Adopted("board-1", 0)]), (1, [Adopted("board-1", 1), done(0)])],
)
def test_a_round_that_was_not_gone_through_ends_the_memory(call: str, forward: int, actions: list[Any]) -> None:
    inner = Scripted((1, 1.0, [done(0)]))
    inner.asynchronous, inner.says = False, Says.MODELS  # type: ignore[attr-defined]
    algorithm: Any = with_outer(inner, make("nesterov"))  # type: ignore[arg-type]
    s, _ = algorithm.step(algorithm.init(ONE * 2, view(0, GRAPH)), update(-ONE))
    assert (algorithm.model(s)[:TRAINED] < 1.0).all() and (s.memory[0] == -1.0).all()
    inner.next = (forward, 9.0, actions)
    s, seen = CALLS[call](algorithm, s)
    assert seen == actions and not s.memory[0].any()
    np.testing.assert_array_equal(algorithm.model(s), 9 * ONE)


def test_a_node_that_stops_goes_on_with_what_it_remembers() -> None:
    """Between two rounds from the model that it showed; from the middle of one with its own update
    and without the others', as the algorithm inside does."""
    algorithm: Any = with_outer(gossip.get("deep-squeeze"), make("nesterov"))
    rng = np.random.default_rng(0)
    fleet = Nodes(algorithm, GRAPH, alike(2))
    fleet.round([update(d) for d in rng.normal(size=(2, N))], rng)
    s, shown = fleet.states[0], algorithm.model(fleet.states[0])
    again = algorithm.resume(s, view(0, GRAPH, boot=7))
    np.testing.assert_array_equal(algorithm.model(again), shown)
    np.testing.assert_array_equal(again.memory[0], s.memory[0])
    stepped, actions = algorithm.step(s, update(ONE))
    assert any(isinstance(a, Send) for a in actions)
    again = algorithm.resume(stepped, view(0, GRAPH, boot=7))
    np.testing.assert_allclose(algorithm.model(again), shown + 1, atol=1e-6)
    assert algorithm.round(again) == 2 and again.lead is None
    np.testing.assert_array_equal(again.x, algorithm.model(again))  # the next round's way begins here


def test_a_refused_update_changes_nothing() -> None:
    algorithm: Any = with_outer(gossip.get("dpsgd"), make("nesterov"))
    s = algorithm.init(ONE, view(0, GRAPH))
    with pytest.raises(UsageError, match="float32"):
        algorithm.step(s, update(np.ones(3)))
    with pytest.raises(UsageError, match="w"):
        algorithm.step(s, update(np.where(np.arange(N) == 1, np.nan, 1.0)))


@pytest.mark.parametrize(
    ("kind", "topology", "cure"),
    [("nesterov", "directed-ring", 0.42), ("heavy-ball", "random-pairs", 0.73), ("heavy-ball", "exponential", 0.2)],
)
def test_a_momentum_that_drives_boards_apart_is_refused_with_one_that_does_not(
    kind: str, topology: str, cure: float
) -> None:
    """The bound is where differences of boards that do not train begin to grow."""
    graph = topologies.get(topology, 8 if topology != "directed-ring" else 4)
    words = rf"outer.momentum = 0.9 of {kind} drives boards apart on topology '{topology}': at most {cure:g} holds"
    with pytest.raises(ConfigError, match=words):
        with_outer(gossip.get("dpsgd"), make(kind)).init(ONE, view(0, graph))
    start = np.random.default_rng(0).normal(size=(graph.n, N)).astype(np.float32)
    fleet = Nodes(with_outer(gossip.get("dpsgd"), make(kind, momentum=cure)), graph, start)
    for _ in range(80):
        fleet.round([update(0 * ONE)] * graph.n, np.random.default_rng(0))
    assert np.ptp(fleet.models(), axis=0)[:TRAINED].max() < 3 * np.ptp(start, axis=0).max()


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("d2", {"optimizer": "nesterov"}, "nesterov cannot be around d2.*use gossip.algorithm = dpsgd"),
        ("bagua-lp", {"optimizer": "heavy-ball"}, "cannot be around bagua-lp"),
        ("ad-psgd", {"optimizer": "nesterov"}, "cannot be around ad-psgd.*use gossip.algorithm = dpsgd"),
        ("motef", {"optimizer": "nesterov"}, "cannot be around motef.*for the gradient.*use gossip.algorithm = dpsgd"),
        ("choco-sgd", {"optimizer": "adam"}, "adam cannot be around choco-sgd.*use gossip.algorithm = parallel-sgd"),
        ("dpsgd", {"optimizer": "nestrov"}, "unknown outer.optimizer 'nestrov'; did you mean nesterov"),
        (
            "dpsgd",
            {"optimizer": "nesterov", "momentum": 1.0},
            "outer.momentum = 1.0 must be a number from 0 to 0.9999",
        ),
        ("dpsgd", {"optimizer": "nesterov", "lr": float("nan")}, "outer.lr = nan must be a number above 0"),
        ("parallel-sgd", {"optimizer": "adam", "betas": [0.9]}, r"outer.betas = \[0.9\] must be two numbers"),
        ("parallel-sgd", {"optimizer": "adam", "consensus": 0.5}, "outer.consensus is for heavy-ball and nesterov"),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_outer(gossip.get(name), make(**values))


def test_old_news_is_refused() -> None:
    with pytest.raises(ConfigError, match="gossip.params.staleness of sgp must be 0 with outer.optimizer = nesterov"):
        with_outer(gossip.get("sgp", staleness=1), make("nesterov"))


def test_none_is_the_algorithm_itself() -> None:
    inner = gossip.get("dpsgd")
    assert with_outer(inner, make("none")) is inner
    around = with_outer(inner, make("nesterov"))
    assert (around.name, around.asynchronous) == ("dpsgd+outer-nesterov", False) and LAYOUT.size == N


@pytest.mark.parametrize("name", ["sgp", "sparse-push"])
def test_momentum_fades_though_a_board_took_push_sum_weight_with_it(make_fleet: Any, name: str) -> None:
    fleet = make_fleet("ring", nodes=4, algorithm=name, alike=True)
    left, fleet.algorithm = range(3), with_outer(fleet.algorithm, make("heavy-ball"))
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    fleet.say_hello()
    fleet.step_all()
    fleet.mail = [(to, m) for to, m in fleet.mail if m.sender != "board-3"]  # which dies with what it was handed
    fleet.deliver_all()
    for node in left:
        gone = fleet.view(node).with_down(frozenset({"board-3"}))
        fleet.states[node], actions = fleet.algorithm.membership(fleet.states[node], gone)
        fleet.carry_out(node, actions)
    assert sum(fleet.algorithm.audit(fleet.states[k]).weight for k in left) < 2.5
    for node in left:
        fleet.step(node, 10.0**node * np.ones(12))
    fleet.deliver_all()
    models = []
    for _ in range(100):
        fleet.play(1, left)
        models.append(np.stack([fleet.algorithm.model(fleet.states[k]) for k in left]))
    moved = np.abs(np.diff(models, axis=0)).max(axis=(1, 2))
    assert moved[-1] < moved[0]
