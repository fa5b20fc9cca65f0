"""D-PSGD against an independent dense-matrix reference, written from Lian et al. 2017, algorithm 1.

Every node i holds f_i(x) = ||A_i x - b_i||^2 / 2. The reference keeps all models as the rows of one float64 matrix X:
X <- W X - gamma G(X). With a codec, xhat = decode(encode(x)) stands for what neighbours see, and the line becomes
X <- X + eta (W - I) Xhat - gamma G(X).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.base import Ctx
from edgegossip.gossip import topologies
from edgegossip.gossip.topologies.graph import build

NODES, N, ROUNDS, GAMMA = 7, 9, 50, 0.02


def random_undirected(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    tree = [(i, int(rng.integers(i))) for i in range(1, NODES)]
    more = [tuple(map(int, rng.choice(NODES, 2, replace=False))) for _ in range(int(rng.integers(6)))]
    return build("random", NODES, [tree + more], directed=False, weights=None)


def random_circulant(seed: int) -> Any:
    """Directed, time-varying, doubly stochastic; 1 is among the offsets, so the union is connected."""
    rng = np.random.default_rng(seed)
    offsets = [{1}, *({int(k) for k in rng.integers(1, NODES, 2)} for _ in range(2))]
    rounds = [[(i, (i + k) % NODES) for i in range(NODES) for k in some] for some in offsets]
    return build("circulants", NODES, rounds, directed=True, weights="column")


def problem(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 + seed)
    return rng.normal(size=(NODES, N, N)) / np.sqrt(N), rng.normal(size=(NODES, N))


def gradients(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.stack([a[i].T @ (a[i] @ x[i] - b[i]) for i in range(len(x))])


def train(fleet: Any, seed: int) -> None:
    a, b = problem(seed)

    def delta(round: int, node: int, x: np.ndarray) -> np.ndarray:
        return -GAMMA * (a[node].T @ (a[node] @ x.astype(np.float64) - b[node]))

    fleet.run(ROUNDS, delta, np.random.default_rng(seed))


GRAPHS: dict[str, Callable[[int], Any]] = {
    "undirected": random_undirected,
    "circulant": random_circulant,
    "one-peer": lambda seed: topologies.get("one-peer-exponential", NODES),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("graph", GRAPHS)
def test_fifty_rounds_equal_the_papers_matrix_form(make_fleet: Any, graph: str, seed: int) -> None:
    fleet = make_fleet(GRAPHS[graph](seed), n=N, seed=seed)
    train(fleet, seed)
    a, b = problem(seed)
    x = fleet.start.astype(np.float64)
    for t in range(ROUNDS):
        x = fleet.topology.matrix(t) @ x - GAMMA * gradients(a, b, x)
        np.testing.assert_allclose(fleet.models[t + 1], x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("eta", [1.0, 0.4])
@pytest.mark.parametrize("codec", ["fp32", "fp16", "minmax8"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_with_a_codec_every_round_is_the_difference_form(make_fleet: Any, graph: str, codec: str, eta: float) -> None:
    """Each round starts from the models that the nodes have: a quantiser is not continuous, so two trajectories that
    differ by rounding would part by whole quantisation steps."""
    fleet = make_fleet(GRAPHS[graph](5), n=N, codec=codec, seed=5, eta=eta)
    train(fleet, 5)
    a, b = problem(5)
    scheme = codecs.get(codec)
    for t in range(ROUNDS):
        x = fleet.models[t]
        seen = []
        for i in range(NODES):
            body, _ = scheme.encode(x[i], scheme.init(fleet.layout), Ctx(fleet.keys[t, i], t, loss=1.0, lr=0.1))
            seen.append(scheme.decode(body, fleet.layout).astype(np.float64))
        wide = x.astype(np.float64)
        mixed = wide + eta * (fleet.topology.matrix(t) - np.eye(NODES)) @ np.stack(seen) - GAMMA * gradients(a, b, wide)
        np.testing.assert_allclose(fleet.models[t + 1], mixed, rtol=0, atol=1e-6)


@pytest.mark.parametrize("codec", ["fp16", "minmax8"])
def test_the_mean_moves_by_the_mean_update_alone(make_fleet: Any, codec: str) -> None:
    fleet = make_fleet("exponential", nodes=8, codec=codec, seed=3)
    total = np.zeros(fleet.start.shape[1])

    def delta(round: int, node: int, x: np.ndarray) -> np.ndarray:
        d = np.random.default_rng((round, node)).normal(size=x.size).astype(np.float32)
        total[:] += d
        return d

    fleet.run(ROUNDS, delta, np.random.default_rng(1))
    mean = fleet.start.mean(axis=0, dtype=np.float64) + total / 8
    np.testing.assert_allclose(fleet.models[ROUNDS].mean(axis=0, dtype=np.float64), mean, rtol=0, atol=1e-5)


def test_without_updates_all_nodes_come_to_the_mean(make_fleet: Any) -> None:
    fleet = make_fleet("one-peer-exponential", nodes=8)
    fleet.run(3, lambda round, node, x: np.zeros_like(x), np.random.default_rng(0))
    mean = np.broadcast_to(fleet.start.mean(axis=0), fleet.start.shape)
    np.testing.assert_allclose(fleet.models[3], mean, rtol=0, atol=1e-6)
