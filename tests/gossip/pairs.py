"""Nodes that exchange in pairs, and an independent ledger that says at any time what the sum of all
models must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgegossip import codecs, gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Action, Adopted, Message, Suspect
from tests.gossip.conftest import Fleet

N = 8
ZERO = np.zeros(N, np.float32)


class Net(Fleet):
    """A fleet of `ad-psgd`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.adopted: list[tuple[int, Adopted]] = []
        self.suspected: list[tuple[int, str]] = []
        self.total = self.start.astype(np.float64).sum(axis=0)

    def carry_out(self, node: int, actions: list[Action]) -> None:
        super().carry_out(node, actions)
        self.suspected += [(node, action.node) for action in actions if isinstance(action, Suspect)]

    def step(self, node: int, delta: np.ndarray = ZERO) -> list[Action]:
        self.total += delta.astype(np.float32).astype(np.float64)
        return super().step(node, delta)

    def hand(self, to: int, message: Message) -> list[Action]:
        before = self.now()[to]
        actions = super().hand(to, message)
        for action in actions:
            if isinstance(action, Adopted):  # a model in the place of another: what they differ by is no update
                self.adopted.append((to, action))
                self.total += self.now()[to] - before
        return actions

    def now(self) -> np.ndarray:
        """The models, float64[nodes, N]."""
        return np.stack([self.algorithm.model(s) for s in self.states]).astype(np.float64)

    def waits(self) -> bool:
        """Whether a timer is set."""
        return any(after_s is not None for after_s in self.timers.values())

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
    graph = topologies.get(topology, nodes) if isinstance(topology, str) else topology
    return Net(gossip.get("ad-psgd", **params), graph, codecs.get(codec), start, seed)
