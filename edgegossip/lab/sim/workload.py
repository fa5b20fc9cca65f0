"""Training in miniature: node i pulls its model z towards its own optimum b_i, by -lr A_i (z - b_i)
with a positive diagonal A_i. `quadratic-alike`: all of them begin with the same model, as boards
do, so that streams of differences need no full state at first. `consensus`: no training at all,
from different models, so that what the nodes agree on is known."""

from __future__ import annotations

import numpy as np

from edgegossip.choices import unknown
from edgegossip.types import LocalUpdate, Vec

EQUAL_START = frozenset({"bagua-lp", "parallel-sgd"})  # algorithms whose definition starts from one model on all nodes
NAMES = ("quadratic", "quadratic-alike", "consensus")
DRAWN = ("quadratic", *("quadratic-alike",) * 4, "consensus", "consensus", "consensus")
LR = 0.1


def check(name: str) -> None:
    """Raises ConfigError unless it is one of NAMES."""
    if name not in NAMES:
        raise unknown("workload", name, NAMES)


class Workload:
    """`values` is the size of the model. `equal`: nodes start from one model whatever the name
    says."""

    def __init__(self, name: str, nodes: int, values: int, seed: int, equal: bool) -> None:
        check(name)
        rng, equal = np.random.default_rng(seed), equal or name == "quadratic-alike"
        starts = rng.normal(size=(1 if equal else nodes, values)).astype(np.float32)
        self.starts: list[Vec] = [starts[i % len(starts)] for i in range(nodes)]  # float32[values] each
        self.trains = name != "consensus"
        self._pull = -LR * rng.uniform(0.5, 1.5, (nodes, values)).astype(np.float32)  # -lr A_i
        self._optimum = rng.normal(1.0, 1.0, (nodes, values)).astype(np.float32)
        self.still = LocalUpdate(np.zeros(values, np.float32), 0.0, 0.0, 1, 1)  # changes nothing

    def update(self, node: int, z: Vec, quiet: bool) -> LocalUpdate:
        """One round's training at z; none when quiet."""
        if quiet or not self.trains:
            return self.still
        return LocalUpdate((z - self._optimum[node]) * self._pull[node], LR, 1.0, 1, 1)
