"""A tiny deterministic mesh in memory: it carries out the actions of algorithms and delivers
messages in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, gossip
from edgegossip.gossip.base import Action, Message, NodeView, RoundDone, Send, SetTimer
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate
from tests.gossip.streams import STREAMS

DEADLINE_S = 5.0
Delta = Callable[[int, int, np.ndarray], np.ndarray]  # (round, node, model) -> float32[n]


def update(delta: np.ndarray) -> LocalUpdate:
    return LocalUpdate(delta=delta.astype(np.float32), lr=0.1, loss=1.0, examples=1, steps=1)


@dataclass
class Fleet:
    """Nodes on one topology. `mail` holds (receiver, message) in flight; `models[round][node]` the
    models as rounds begin."""

    algorithm: Any
    topology: Any
    codec: Any
    start: np.ndarray  # float32[nodes, n]
    seed: int = 0
    mail: list[tuple[int, Message]] = field(default_factory=list)
    keys: dict[tuple[int, int], int] = field(default_factory=dict)  # (round, node) -> codec key seen on the wire
    timers: dict[int, float | None] = field(default_factory=dict)
    done: list[tuple[int, RoundDone]] = field(default_factory=list)
    boots: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        nodes, n = self.start.shape
        self.layout = Layout.of([TensorSpec("w", (n - n // 3,)), TensorSpec("b", (n // 3,))])
        self.members = tuple(f"board-{i}" for i in range(nodes))
        self.boots = [1000 + i for i in range(nodes)]
        self.states = [self.algorithm.init(x, self.view(i)) for i, x in enumerate(self.start)]
        self.models = {0: self.start.copy()}

    def view(self, index: int, /, **changes: Any) -> NodeView:
        fields = {
            "node": self.members[index],
            "members": self.members,
            "topology": self.topology,
            "layout": self.layout,
            "codec": self.codec,
            "run_id": b"r" * 16,
            "seed": self.seed,
            "deadline_s": DEADLINE_S,
            "boot": self.boots[index] if self.boots else 0,
        }
        return NodeView(**{**fields, **changes})

    def carry_out(self, node: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self.keys[action.frame.round, node] = action.frame.key
                    self.mail.append((self.members.index(action.to), Message(self.members[node], action.frame)))
                case SetTimer():
                    self.timers[node] = action.after_s
                case RoundDone():
                    self.done.append((node, action))
                    row = self.models.setdefault(action.round + 1, np.full_like(self.start, np.nan))
                    row[node] = self.algorithm.model(self.states[node])

    def say_hello(self, *nodes: int) -> None:
        """Starts these nodes, or all, and delivers what they say."""
        for node in nodes or range(len(self.members)):
            self.states[node], actions = self.algorithm.start(self.states[node])
            self.carry_out(node, actions)
        self.deliver_all()

    def restart(self, node: int, kept: Any = None) -> list[Action]:
        """A new process of this node, from a state that was kept or from nothing."""
        self.boots[node] += 100
        view = self.view(node, bare=kept is None)
        kept = self.algorithm.init(self.start[node], view) if kept is None else self.algorithm.resume(kept, view)
        self.states[node], actions = self.algorithm.start(kept)
        self.carry_out(node, actions)
        return actions

    def play(self, rounds: int, nodes: Any = None) -> None:
        """Rounds without local updates in which every message arrives."""
        for _ in range(rounds):
            self.step_all(nodes)
            self.deliver_all()

    def step(self, node: int, delta: np.ndarray) -> list[Action]:
        self.states[node], actions = self.algorithm.step(self.states[node], update(delta))
        self.carry_out(node, actions)
        return actions

    def deliver(self, k: int = 0) -> list[Action]:
        to, message = self.mail.pop(k)
        return self.hand(to, message)

    def draw(self, rng: np.random.Generator) -> int:
        """One of the messages that may come next: an edge keeps its order, as a transport does."""
        edges = [(to, message.sender) for to, message in self.mail]
        return edges.index(edges[int(rng.integers(len(edges)))])

    def hand(self, to: int, message: Message) -> list[Action]:
        self.states[to], actions = self.algorithm.receive(self.states[to], message)
        self.carry_out(to, actions)
        return actions

    def tick(self, node: int) -> list[Action]:
        self.timers[node] = None
        self.states[node], actions = self.algorithm.tick(self.states[node], 0.0)
        self.carry_out(node, actions)
        return actions

    def down(self, node: int, *gone: int) -> list[Action]:
        view = self.states[node].view.with_down(frozenset(self.members[j] for j in gone))
        self.states[node], actions = self.algorithm.membership(self.states[node], view)
        self.carry_out(node, actions)
        return actions

    def step_all(self, nodes: Any = None) -> None:
        for node in range(len(self.members)) if nodes is None else nodes:
            self.step(node, np.zeros(self.start.shape[1]))

    def deliver_all(self) -> None:
        while self.mail:
            self.deliver()

    @property
    def rounds(self) -> list[int]:
        return [self.algorithm.round(s) for s in self.states]

    def run(self, rounds: int, delta: Delta, rng: np.random.Generator) -> None:
        """Random order of steps and of deliveries between edges, with duplicates; nodes run as far
        ahead as they may."""
        ready = set(range(len(self.members)))
        while ready or self.mail:
            if ready and (not self.mail or rng.random() < 0.3):
                node = int(rng.choice(sorted(ready)))
                ready.discard(node)
                round = self.algorithm.round(self.states[node])
                self.step(node, delta(round, node, self.algorithm.model(self.states[node])))
            else:
                k = self.draw(rng)
                node = self.mail[k][0]
                if rng.random() < 0.2:
                    self.mail.append(self.mail[k])
                self.deliver(k)
            if self.states[node].stepped is None and self.algorithm.round(self.states[node]) < rounds:
                ready.add(node)


@pytest.fixture(scope="session")
def make_fleet() -> Callable[..., Fleet]:
    def make(
        topology: Any = "ring",
        nodes: int = 4,
        n: int = 12,
        codec: str = "fp32",
        seed: int = 0,
        algorithm: str = "dpsgd",
        alike: bool = False,
        **params: Any,
    ) -> Fleet:
        if isinstance(topology, str):
            topology = gossip.topologies.get(topology, nodes)
        start = np.random.default_rng(seed).normal(size=(topology.n, n)).astype(np.float32)
        start = np.repeat(start[:1], len(start), axis=0) if alike else start
        return Fleet(gossip.get(algorithm, **params), topology, codecs.get(codec), start, seed)

    return make


@pytest.fixture(params=STREAMS, ids=lambda p: f"{p[0]}-{p[1]}")
def fleet(request: Any, make_fleet: Any) -> Any:
    """Four nodes that have said hello to each other and played three rounds."""
    name, topology = request.param
    made = make_fleet(topology, nodes=4, algorithm=name, codec="8-bit-elastiquant", alike=name == "parallel-sgd")
    made.say_hello()
    made.play(3)
    assert made.rounds == [3] * 4
    return made
