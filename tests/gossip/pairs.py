"""Nodes that exchange in pairs, in memory: messages may be lost, doubled and delivered in any
order, and an independent ledger says at any time what the sum of all models must be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgegossip import codecs, gossip
from edgegossip.gossip.base import Action, Adopted, Message, NodeView, RoundDone, Send, SetTimer, Suspect
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate

LAYOUT = Layout.of([TensorSpec("w", (5,)), TensorSpec("b", (3,))])
N = LAYOUT.size
ZERO = np.zeros(N, np.float32)
DEADLINE_S = 8.0


def update(delta: np.ndarray, lr: float = 0.1) -> LocalUpdate:
    return LocalUpdate(delta.astype(np.float32), lr, loss=1.0, examples=1, steps=1)


@dataclass
class Net:
    """`mail` holds (receiver, message) in flight. `start` is float32[nodes, N]."""

    start: np.ndarray
    topology: Any = "complete"
    codec: str = "fp32"
    algorithm: Any = field(default_factory=lambda: gossip.get("ad-psgd"))
    seed: int = 0
    mail: list[tuple[int, Message]] = field(default_factory=list)
    timers: dict[int, float] = field(default_factory=dict)
    done: list[tuple[int, RoundDone]] = field(default_factory=list)
    adopted: list[tuple[int, Adopted]] = field(default_factory=list)
    suspected: list[tuple[int, str]] = field(default_factory=list)
    boots: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.topology, str):
            self.topology = gossip.topologies.get(self.topology, len(self.start))
        self.members = tuple(f"board-{i}" for i in range(len(self.start)))
        self.states: list[Any] = [None] * len(self.start)
        self.total = np.zeros(N)
        for i, x in enumerate(self.start):
            self.states[i] = self.algorithm.init(x, self.view(i))
            self.total += x.astype(np.float64)

    def view(self, index: int, **changes: Any) -> NodeView:
        self.boots += 1
        fields: dict[str, Any] = {
            "node": self.members[index],
            "members": self.members,
            "topology": self.topology,
            "layout": LAYOUT,
            "codec": codecs.get(self.codec),
            "run_id": b"r" * 16,
            "seed": self.seed,
            "deadline_s": DEADLINE_S,
            "boot": self.boots * 1_000_003,
        }
        return NodeView(**{**fields, **changes})

    def carry_out(self, node: int, outcome: tuple[Any, list[Action]]) -> list[Action]:
        before, (self.states[node], actions) = self.states[node], outcome
        for action in actions:
            match action:
                case Send(to, frame):
                    self.mail.append((self.members.index(to), Message(self.members[node], frame)))
                case SetTimer(None):
                    self.timers.pop(node, None)
                case SetTimer(after_s):
                    self.timers[node] = after_s or 0.0
                case RoundDone():
                    self.done.append((node, action))
                case Adopted():  # a model in the place of another: what they differ by is no update
                    self.adopted.append((node, action))
                    new, old = (self.algorithm.model(state).astype(np.float64) for state in (self.states[node], before))
                    self.total += new - old
                case Suspect(peer):
                    self.suspected.append((node, peer))
        return actions

    def step(self, node: int, delta: np.ndarray = ZERO) -> list[Action]:
        self.total += delta.astype(np.float32).astype(np.float64)
        return self.carry_out(node, self.algorithm.step(self.states[node], update(delta)))

    def deliver(self, k: int = 0) -> list[Action]:
        return self.hand(*self.mail.pop(k))

    def hand(self, to: int, message: Message) -> list[Action]:
        return self.carry_out(to, self.algorithm.receive(self.states[to], message))

    def tick(self, node: int) -> list[Action]:
        self.timers.pop(node, None)
        return self.carry_out(node, self.algorithm.tick(self.states[node], 0.0))

    def down(self, node: int, *gone: int) -> list[Action]:
        view = self.states[node].view.with_down(frozenset(self.members[j] for j in gone))
        return self.carry_out(node, self.algorithm.membership(self.states[node], view))

    def restart(self, node: int, state: Any, *gone: int) -> list[Action]:
        """From a state that an earlier process kept."""
        view = self.view(node, down=frozenset(self.members[j] for j in gone))
        self.timers.pop(node, None)
        return self.carry_out(node, self.algorithm.start(self.algorithm.resume(state, view)))

    def deliver_all(self) -> None:
        while self.mail:
            self.deliver()

    def can_step(self, node: int) -> bool:
        return not self.states[node].stepped

    def models(self) -> np.ndarray:
        return np.stack([self.algorithm.model(s) for s in self.states]).astype(np.float64)

    def open_halves(self) -> np.ndarray:
        """What peers added to their models in exchanges of which the other half has not been
        done."""
        audits = [self.algorithm.audit(s) for s in self.states]
        halves = np.zeros(N)
        for j, audit in enumerate(audits):
            for i, (sequence, change) in audit.taken.items():
                if sequence > audits[i].finished[j]:
                    halves += change
        return halves

    def check_sum(self, tolerance: float = 1e-4) -> None:
        masses: Any = [self.algorithm.audit(s).mass for s in self.states]
        assert np.abs(sum(masses) - self.open_halves() - self.total).max() < tolerance


def make_net(nodes: int = 2, topology: Any = "complete", codec: str = "fp32", seed: int = 0, **params: Any) -> Net:
    start = np.random.default_rng(seed).normal(size=(nodes, N)).astype(np.float32)
    return Net(start, topology, codec, gossip.get("ad-psgd", **params), seed)
