"""A least-squares workload in numpy: small, deterministic, and its FedAvg can be computed by
hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate, Metrics, Round, Vec

LAYOUT = Layout.of(
    [TensorSpec("weight", (10, 5)), TensorSpec("bias", (10,)), TensorSpec("mean", (10,), trainable=False)]
)
LR = 0.1


class Toy:
    """Pulls x towards a target that differs from board to board; board k has 10 * (k + 1)
    examples."""

    def __init__(self, index: int) -> None:
        self.layout = LAYOUT
        self.examples = 10 * (index + 1)
        self._target = np.random.default_rng(index).normal(size=LAYOUT.size).astype(np.float32)

    def initial(self, seed: int) -> Vec:
        return np.random.default_rng(1000 + seed).normal(size=LAYOUT.size).astype(np.float32)

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        gap = self._target - x
        return LocalUpdate(np.float32(LR) * gap, LR, float(np.mean(gap**2)), self.examples, 1)

    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics:
        return Metrics(float(np.mean(x**2)), examples or 100, {"accuracy": 0.5})


def fedavg(boards: int, rounds: int, x: Vec) -> NDArray[np.float64]:
    """What exact FedAvg of these workloads gives, float64[n]."""
    workloads = [Toy(k) for k in range(boards)]
    y = x.astype(np.float64)
    total = sum(w.examples for w in workloads)
    for round in range(rounds):
        deltas = [w.examples / total * w.local_update(y, round).delta.astype(np.float64) for w in workloads]  # type: ignore[arg-type]
        y = y + sum(deltas)
    return y
