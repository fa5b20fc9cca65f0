"""A least-squares workload in numpy: small, deterministic, and its FedAvg can be computed by hand. Also a board's program.

`python -m tests.flower.toy NAME ADDRESS INDEX [FAULT]` is one board; it prints its records as JSON lines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import EdgegossipError, LocalUpdate, Metrics, NodeId, Round, Vec

LAYOUT = Layout.of(
    [TensorSpec("weight", (10, 5)), TensorSpec("bias", (10,)), TensorSpec("mean", (10,), trainable=False)]
)
LR = 0.1


class Toy:
    """Pulls x towards a target that differs from board to board; board k has 10 * (k + 1) examples."""

    def __init__(self, index: int, delay_s: float = 0.0) -> None:
        self.layout = LAYOUT
        self.examples = 10 * (index + 1)
        self._delay_s = delay_s
        self._target = np.random.default_rng(index).normal(size=LAYOUT.size).astype(np.float32)

    def initial(self, seed: int) -> Vec:
        return np.random.default_rng(1000 + seed).normal(size=LAYOUT.size).astype(np.float32)

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        time.sleep(self._delay_s)
        gap = self._target - x
        return LocalUpdate(np.float32(LR) * gap, LR, float(np.mean(gap**2)), self.examples, 1)

    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics:
        return Metrics(float(np.mean(x**2)), 0.5, examples or 100)

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        del snapshot


def fedavg(boards: int, rounds: int, x: Vec) -> NDArray[np.float64]:
    """What exact FedAvg of these workloads gives, float64[n]."""
    workloads = [Toy(k) for k in range(boards)]
    y = x.astype(np.float64)
    total = sum(w.examples for w in workloads)
    for round in range(rounds):
        deltas = [w.examples / total * w.local_update(y, round).delta.astype(np.float64) for w in workloads]  # type: ignore[arg-type]
        y = y + sum(deltas)
    return y


class Lines:
    """A sink that prints."""

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Any], ago_s: float = 0.0) -> None:
        print(json.dumps({"node": node, "step": step, **values}), flush=True)

    def event(self, node: NodeId, name: str, text: str, **fields: Any) -> None:
        print(json.dumps({"node": node, "event": name, "text": text, **fields}), flush=True)

    def close(self) -> None: ...


def main(name: str, address: str, index: str, delay_s: str = "0", fault: str = "") -> None:
    from edgegossip import codecs, flower
    from tests.flower.faults import faulty

    client = flower.NodeClient(
        name, address, lambda: Toy(int(index), float(delay_s)), codecs.get("fp32"), Lines(), patience_s=10.0
    )
    with faulty(fault):
        try:
            client.run()
        except EdgegossipError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
