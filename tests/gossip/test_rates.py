"""Messages of their own for each neighbour: what one edge is allowed does not change what all
know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, gossip
from edgegossip.codecs import auto
from edgegossip.layout import Layout, TensorSpec
from tests.gossip.pairs import Net, update

LAYOUT = Layout.of([TensorSpec("w", (600,))])
LEAST, FINE = 90, 400


class RatedNet(Net):
    """A fleet whose messages may take `allowed` bytes by receiver."""

    def view(self, index: int, **changes: Any) -> Any:
        says = self.algorithm.says
        codec = auto.for_scheme(codecs.get("auto"), repaired=says.repaired)
        return Net.view(self, index, codec=codec, layout=LAYOUT, **changes)

    def __post_init__(self) -> None:
        self.members = tuple(f"board-{i}" for i in range(len(self.start)))
        self.topology = gossip.topologies.get("ring", len(self.start))
        self.states = [self.algorithm.init(x, self.view(i)) for i, x in enumerate(self.start)]
        self.total = self.start.astype(np.float64).sum(axis=0)
        for i, state in enumerate(self.states):
            self.carry_out(i, self.algorithm.start(state))
        self.deliver_all()

    def step_rated(self, node: int, delta: np.ndarray, allowed: dict[str, int]) -> list[Any]:
        self.total += delta.astype(np.float32).astype(np.float64)
        local = replace(update(delta), allowed=allowed)
        return self.carry_out(node, self.algorithm.step(self.states[node], local))


def fleet(name: str, nodes: int = 4) -> tuple[RatedNet, np.random.Generator]:
    rng = np.random.default_rng(7)
    start = np.repeat(rng.standard_normal((1, LAYOUT.size)).astype(np.float32), nodes, axis=0)
    return RatedNet(start, algorithm=gossip.get(name)), rng


def play(net: RatedNet, rng: np.random.Generator, rounds: int = 6) -> list[dict[str, int]]:
    """Return the bytes of each node's messages by receiver, of the last round."""
    sizes: list[dict[str, int]] = []
    for _ in range(rounds):
        sizes = []
        for node in range(len(net.states)):
            neighbours = net.topology.neighbours(node, 0).out
            allowed = {net.members[k]: LEAST if k > node else FINE for k in neighbours}
            before = len(net.mail)
            net.step_rated(node, 0.1 * rng.standard_normal(net.start.shape[1]), allowed)
            sizes.append({net.members[to]: len(m.frame.body) for to, m in net.mail[before:]})
        net.deliver_all()
    return sizes


@pytest.mark.parametrize("name", ["dpsgd", "d2"])
def test_the_mean_of_the_models_moves_by_updates_only(name: str) -> None:
    net, rng = fleet(name)
    play(net, rng)
    mean = np.mean([net.algorithm.model(s) for s in net.states], axis=0)
    np.testing.assert_allclose(mean, net.total / len(net.states), atol=1e-4)


@pytest.mark.parametrize("name", ["dpsgd", "sgp", "d2"])
def test_a_neighbour_gets_what_its_link_is_allowed(name: str) -> None:
    net, rng = fleet(name)
    sizes = play(net, rng, rounds=1)
    assert sizes[1]["board-2"] <= LEAST < sizes[1]["board-0"] <= FINE


@pytest.mark.parametrize("name", ["choco-sgd", "deep-squeeze", "bagua-lp", "sparse-push", "quant-sgp"])
def test_where_all_get_the_same_the_smallest_allowance_decides(name: str) -> None:
    net, rng = fleet(name)
    assert net.algorithm.says.repaired
    sizes = play(net, rng)
    assert sizes[1]["board-2"] == sizes[1]["board-0"] <= LEAST
