"""Momentum as the papers have it, float64, one value a node. `direction` is what gamma multiplies
in the local update.

Lin et al., "Quasi-global momentum: accelerating decentralized deep learning on heterogeneous data"
(2021), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


class Momentum(Protocol):
    def direction(self, node: int, g: np.ndarray) -> np.ndarray: ...

    def mixed(self, node: int, before: np.ndarray, after: np.ndarray, lr: float) -> None:
        """The node's models before the local update and after mixing."""


@dataclass
class Plain:
    """SGD."""

    def direction(self, node: int, g: np.ndarray) -> np.ndarray:
        return g

    def mixed(self, node: int, before: np.ndarray, after: np.ndarray, lr: float) -> None:
        pass


@dataclass
class HeavyBall:
    """m <- beta m + g; x <- x - gamma m. Polyak 1964, in the form of Sutskever et al. 2013 with
    gamma outside."""

    beta: float
    m: dict[int, np.ndarray] = field(default_factory=dict)

    def direction(self, node: int, g: np.ndarray) -> np.ndarray:
        self.m[node] = self.beta * self.m.get(node, 0.0) + g
        return self.m[node]

    def mixed(self, node: int, before: np.ndarray, after: np.ndarray, lr: float) -> None:
        pass


@dataclass
class Nesterov(HeavyBall):
    """m <- beta m + g; x <- x - gamma (g + beta m)."""

    def direction(self, node: int, g: np.ndarray) -> np.ndarray:
        self.m[node] = self.beta * self.m.get(node, 0.0) + g
        return g + self.beta * self.m[node]


@dataclass
class QuasiGlobal:
    """Algorithm 1, QG-DSGDm; with `nesterov` QG-DSGDm-N."""

    beta: float  # mu = beta
    nesterov: bool = False
    mhat: dict[int, np.ndarray] = field(default_factory=dict)

    def direction(self, node: int, g: np.ndarray) -> np.ndarray:
        m = self.beta * self.mhat.get(node, 0.0) + g  # line 4
        return g + self.beta * m if self.nesterov else m  # line 5: x^(t+1/2) = x^t - gamma m

    def mixed(self, node: int, before: np.ndarray, after: np.ndarray, lr: float) -> None:
        d = (before - after) / lr  # line 7
        self.mhat[node] = self.beta * self.mhat.get(node, 0.0) + (1 - self.beta) * d  # line 8


def rule(kind: str, beta: float) -> Momentum:
    """By the name that it has here."""
    rules = {"none": Plain(), "heavy-ball": HeavyBall(beta), "nesterov": Nesterov(beta)}
    return rules.get(kind) or QuasiGlobal(beta, nesterov="nesterov" in kind)
