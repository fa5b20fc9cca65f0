"""Messages of their own for each neighbour: what one edge is allowed does not change what all
know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs import auto
from tests.gossip.conftest import Fleet, update

N, LEAST, FINE = 600, 90, 400


def fleet_of(make_fleet: Any, name: str) -> Fleet:
    """Boards whose messages may take `allowed` bytes by receiver."""
    fleet: Fleet = make_fleet("ring", nodes=4, n=N, algorithm=name, alike=True)
    fleet.codec = auto.for_scheme(codecs.get("auto"), repaired=fleet.algorithm.says.repaired)
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    fleet.say_hello()
    return fleet


def play(fleet: Fleet, rounds: int = 6) -> tuple[list[dict[str, int]], np.ndarray]:
    """Return the bytes of each node's messages by receiver, of the last round, and what the sum of
    all models is to be."""
    rng, total = np.random.default_rng(7), fleet.start.astype(np.float64).sum(axis=0)
    sizes: list[dict[str, int]] = []
    for _ in range(rounds):
        sizes = []
        for node, state in enumerate(fleet.states):
            neighbours = fleet.topology.neighbours(node, 0).out
            allowed = {fleet.members[k]: LEAST if k > node else FINE for k in neighbours}
            local = replace(update(0.1 * rng.standard_normal(N)), allowed=allowed)
            total += local.delta
            before = len(fleet.mail)
            fleet.states[node], actions = fleet.algorithm.step(state, local)
            fleet.carry_out(node, actions)
            sizes.append({fleet.members[to]: len(m.frame.body) for to, m in fleet.mail[before:]})
        fleet.deliver_all()
    return sizes, total


@pytest.mark.parametrize("name", ["dpsgd", "d2"])
def test_the_mean_of_the_models_moves_by_updates_only(make_fleet: Any, name: str) -> None:
    fleet = fleet_of(make_fleet, name)
    total = play(fleet)[1]
    mean = np.mean([fleet.algorithm.model(s) for s in fleet.states], axis=0)
    np.testing.assert_allclose(mean, total / len(fleet.states), atol=1e-4)


@pytest.mark.parametrize("name", ["dpsgd", "sgp", "d2"])
def test_a_neighbour_gets_what_its_link_is_allowed(make_fleet: Any, name: str) -> None:
    sizes, _ = play(fleet_of(make_fleet, name), rounds=1)
    assert sizes[1]["board-2"] <= LEAST < sizes[1]["board-0"] <= FINE


@pytest.mark.parametrize("name", ["choco-sgd", "deep-squeeze", "bagua-lp", "sparse-push", "quant-sgp"])
def test_where_all_get_the_same_the_smallest_allowance_decides(make_fleet: Any, name: str) -> None:
    fleet = fleet_of(make_fleet, name)
    assert fleet.algorithm.says.repaired
    sizes, _ = play(fleet)
    assert sizes[1]["board-2"] == sizes[1]["board-0"] <= LEAST
