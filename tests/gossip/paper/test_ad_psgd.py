"""AD-PSGD against Lian et al., "Asynchronous decentralized parallel stochastic gradient descent"
(2018), algorithm 1:

    take the model x_i as it is and compute the gradient g of it; meanwhile average with a random
    neighbour j, x_i, x_j <- (x_i + x_j) / 2; then x_i <- x_i - gamma g.

The reference is float64 and does these three things in the order in which the implementation did
them. Where an exchange is not cut by anything else, its two halves are the paper's average: W_k,
which is 1/2 at (i, i), (i, j), (j, i), (j, j) and I elsewhere.

Momentum, where there is some, is that of tests/gossip/paper/momentum.py, a node's round going from
one end of a round of its own to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, gossip
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.base import Action, Message, RoundDone, Send
from edgegossip.gossip.momentum import KINDS, with_momentum
from edgegossip.types import LocalUpdate
from tests.gossip.conftest import Fleet
from tests.gossip.paper import graphs
from tests.gossip.paper.cases import TOLERANCE, N
from tests.gossip.paper.compression import Compression
from tests.gossip.paper.momentum import Momentum, Plain, rule
from tests.gossip.paper.problem import Problem

NODES, ROUNDS, FACTOR = 6, 20, 0.8


@dataclass
class Reference:
    """All models, and what the open exchanges have seen of them."""

    x: np.ndarray  # float64[nodes, n]
    problem: Problem
    eta: float
    c: Compression
    momentum: Momentum = field(default_factory=Plain)
    before: dict[int, np.ndarray] = field(default_factory=dict)  # by node: its model when its round began
    taken: dict[int, np.ndarray] = field(default_factory=dict)  # by node: the model that its gradient is of
    asked: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)  # C(x_i) by (i, j, number)
    answered: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)  # C(x_j)
    averages: int = 0

    def take(self, i: int) -> None:
        self.taken[i] = self.x[i].copy()

    def update(self, i: int, round: int) -> None:
        g = self.problem.gradient(round, i, self.taken[i])
        self.x[i] -= self.problem.rate(round) * self.momentum.direction(i, g)

    def round_over(self, i: int, round: int) -> None:
        self.momentum.mixed(i, self.before[i], self.x[i], self.problem.rate(round))
        self.before[i] = self.x[i].copy()

    def ask(self, i: int, j: int, frame: Frame) -> None:
        self.asked[i, j, frame.sequence] = self.c.checked(self.x[i], frame.key, bytes(frame.body), (frame.round, i))

    def answer(self, j: int, i: int, frame: Frame) -> None:
        """The peer's half of the average."""
        exchange = (i, j, frame.sequence)
        q = self.c.checked(self.x[j], frame.key, bytes(frame.body), (frame.round, j))
        self.answered[exchange] = q
        self.x[j] += self.eta * (self.asked[exchange] - q) / 2

    def finish(self, i: int, j: int, number: int) -> None:
        """The other half."""
        exchange = (i, j, number)
        self.x[i] += self.eta * (self.answered.pop(exchange) - self.asked.pop(exchange)) / 2
        self.averages += 1


class Replay(Fleet):
    """The fleet, with the reference beside it: every event goes to both, and both agree after
    it."""

    def begin(self, reference: Reference) -> None:
        self.reference = reference
        self.models_taken: dict[int, np.ndarray] = {}
        reference.before = {node: reference.x[node].copy() for node in range(NODES)}
        for node in range(NODES):
            self.states[node], actions = self.algorithm.start(self.states[node])
            self.carry_out(node, actions)
            self.take(node)

    def take(self, node: int) -> None:
        """The node begins to compute."""
        self.models_taken[node] = self.algorithm.model(self.states[node]).copy()
        self.reference.take(node)

    def train(self, node: int) -> None:
        """The gradient is there; the node begins with the next one when the round is over."""
        round, problem = self.algorithm.round(self.states[node]), self.reference.problem
        lr = problem.rate(round)
        delta = (-lr * problem.gradient(round, node, self.models_taken[node])).astype(np.float32)
        self.reference.update(node, round)
        local = LocalUpdate(delta=delta, lr=lr, loss=1.0, examples=1, steps=1)
        self.states[node], actions = self.algorithm.step(self.states[node], local)
        self.carry_out(node, actions)

    def hand(self, to: int, message: Message) -> list[Action]:
        if message.frame.kind == Kind.MODEL and Aux.ANSWER in message.frame.aux:
            self.reference.finish(to, self.members.index(message.sender), message.frame.sequence)
        return super().hand(to, message)

    def carry_out(self, node: int, actions: list[Action]) -> None:
        super().carry_out(node, actions)
        for action in actions:
            if isinstance(action, Send) and action.frame.kind == Kind.MODEL:
                heard = self.reference.answer if Aux.ANSWER in action.frame.aux else self.reference.ask
                heard(node, self.members.index(action.to), action.frame)
        model = self.algorithm.model(self.states[node])
        np.testing.assert_allclose(model, self.reference.x[node], rtol=0, atol=TOLERANCE)
        for action in actions:
            if isinstance(action, RoundDone):
                self.reference.round_over(node, action.round)
                self.take(node)

    def is_computing(self, node: int) -> bool:
        return not self.algorithm.waiting_for(self.states[node])


def make(
    graph: str, codec: tuple[str, Any], eta: float, seed: int, kind: str = "none"
) -> tuple[Replay, np.random.Generator]:
    rng = np.random.default_rng(seed)
    topology = graphs.undirected(NODES, rng) if graph == "undirected" else graphs.named(graph)(NODES, rng)
    x0 = rng.uniform(-1.0, 1.0, size=(NODES, N)).astype(np.float32)
    algorithm = with_momentum(gossip.get("ad-psgd", eta=eta), kind, FACTOR)
    fleet = Replay(algorithm, topology, codecs.get(codec[0], **codec[1]), x0, seed)
    compression = Compression(fleet.codec, fleet.layout, fleet.view(0), {})
    fleet.begin(Reference(x0.astype(np.float64), Problem.of(NODES, N, seed), eta, compression, rule(kind, FACTOR)))
    return fleet, rng


@pytest.mark.parametrize(
    ("graph", "codec", "eta"),
    [
        ("undirected", ("fp32", {}), 1.0),
        ("ring", ("fp32", {}), 1.0),
        ("complete", ("fp32", {}), 0.5),
        ("undirected", ("8-bit-qsgd", {}), 0.7),
        ("ring", ("minmax8", {}), 0.7),
        ("complete", ("fp16", {}), 1.0),
    ],
)
def test_any_order_of_exchanges_is_the_papers_in_that_order(graph: str, codec: Any, eta: float) -> None:
    """Nodes of very different speed, messages that take their time: exchanges cross each other and
    the gradients."""
    play(*make(graph, codec, eta, seed=len(graph)))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_momentum_is_the_papers_in_that_order_too(kind: str) -> None:
    play(*make("undirected", ("fp32", {}), 1.0, seed=7, kind=kind))


def play(fleet: Replay, rng: np.random.Generator) -> None:
    speed = rng.uniform(0.1, 1.0, NODES)
    done = [0] * NODES
    while min(done) < ROUNDS:
        ready = [i for i in range(NODES) if fleet.is_computing(i)]
        if ready and (not fleet.mail or rng.random() < 0.4):
            weights = speed[ready] / speed[ready].sum()
            node = int(rng.choice(ready, p=weights))
            fleet.train(node)
            done[node] += 1
        else:
            fleet.deliver(fleet.draw(rng))
    assert fleet.reference.averages > NODES * ROUNDS / 3
