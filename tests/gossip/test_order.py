"""The order of a round's step and its mixing: what travels, who has both, what is refused in one
sentence. That it is the papers' arithmetic is tested in paper/."""

from __future__ import annotations

from typing import get_type_hints

import numpy as np
import pytest

from edgegossip import codecs, gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.order import ORDERS, with_order
from edgegossip.gossip.outer import make, with_outer
from edgegossip.recipe import GossipSection
from edgegossip.types import ConfigError
from tests.gossip.conftest import Fleet

NODES, N = 4, 9
BOTH = ("dpsgd", "choco-sgd")


def fleet_of(name: str, order: str, codec: str = "fp32") -> Fleet:
    start = np.random.default_rng(0).normal(size=(NODES, N)).astype(np.float32)
    fleet = Fleet(with_order(gossip.get(name), order), topologies.get("ring", NODES), codecs.get(codec), start)
    fleet.say_hello()
    return fleet


def test_the_recipe_knows_every_order() -> None:
    assert get_type_hints(GossipSection)["order"] is str
    assert GossipSection.__dataclass_fields__["order"].metadata["choices"] == ORDERS


@pytest.mark.parametrize(("order", "shared"), [("adapt-with-combine", 0.0), ("adapt-then-combine", 1 / 3)])
def test_neighbours_hear_of_a_step_in_its_own_round_or_in_the_next(order: str, shared: float) -> None:
    """On a ring with weights 1/3, from equal models: a third of a neighbour's step, or nothing."""
    fleet = fleet_of("dpsgd", order)
    fleet.states = [fleet.algorithm.init(np.zeros(N, np.float32), fleet.view(i)) for i in range(NODES)]
    for node in range(NODES):
        fleet.step(node, np.full(N, float(node == 0)))
    fleet.deliver_all()
    np.testing.assert_allclose(fleet.models[1][1], shared, atol=1e-6)
    np.testing.assert_allclose(fleet.models[1].sum(axis=0), 1.0, atol=1e-6)


@pytest.mark.parametrize(("name", "own"), [("dpsgd", "adapt-with-combine"), ("choco-sgd", "adapt-then-combine")])
def test_an_algorithm_is_its_papers_unless_another_order_is_said(name: str, own: str) -> None:
    rng = np.random.default_rng(1)
    deltas = rng.normal(size=(5, NODES, N)).astype(np.float32)
    models = {}
    for order in ORDERS:
        fleet = fleet_of(name, order, "minmax8")
        for row in deltas:
            for node, delta in enumerate(row):
                fleet.step(node, delta)
            fleet.deliver_all()
        models[order] = fleet.models[5]
    np.testing.assert_array_equal(models["auto"], models[own])
    assert sum(np.array_equal(models["auto"], found) for found in models.values()) == 2


@pytest.mark.parametrize("name", gossip.names())
def test_many_steps_a_round_are_mixed_after_them_where_both_orders_are(name: str) -> None:
    algorithm = gossip.get(name)
    expected = with_order(algorithm, "adapt-then-combine") if name in BOTH else algorithm
    assert with_order(algorithm, "auto", many_steps=True) == expected
    for order in ORDERS[1:] if name in BOTH else ():
        assert with_order(algorithm, order, many_steps=True) == with_order(algorithm, order), "what is asked for counts"


def test_steps_that_are_right_for_each_board_overshoot_where_they_are_mixed_before_them() -> None:
    """Many steps at a rate that is right for each: to -1/2 of what a model is off its optimum. On
    a ring of four, W has the eigenvalue -1/3, and W - 3/2 one of -11/6."""
    optimum = np.random.default_rng(2).normal(size=N).astype(np.float32)
    ends = {}
    for order in ("adapt-with-combine", "adapt-then-combine"):
        fleet = fleet_of("dpsgd", order)
        for _ in range(12):
            for node, state in enumerate(fleet.states):
                fleet.step(node, -1.5 * (fleet.algorithm.model(state) - optimum))
            fleet.deliver_all()
        ends[order] = np.abs(fleet.models[12] - optimum).max()
    assert ends["adapt-with-combine"] > 10 and ends["adapt-then-combine"] < 1e-2


@pytest.mark.parametrize("name", [name for name in gossip.names() if name not in BOTH])
def test_others_have_one_and_say_why(name: str) -> None:
    own = ORDERS[1:2] if name in ("motef", "bagua-lp") else ORDERS[2:]
    own = () if name in ("parallel-sgd", "ad-psgd") else own
    for order in own:
        algorithm = gossip.get(name)
        assert with_order(algorithm, order) is algorithm
    for order in {*ORDERS[1:]} - {*own}:
        words = f"gossip.order = {order} is not for {name}: .*use gossip.algorithm = dpsgd or choco-sgd$"
        with pytest.raises(ConfigError, match=words):
            with_order(gossip.get(name), order)


def test_an_unknown_order_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="adapt-then-combine"):
        with_order(gossip.get("dpsgd"), "adapt-than-combine")


@pytest.mark.parametrize("name", BOTH)
def test_an_outer_optimiser_is_around_models_from_after_the_steps_alone(name: str) -> None:
    with_outer(with_order(gossip.get(name), "adapt-then-combine"), make("nesterov"))
    with pytest.raises(ConfigError, match=r"adapt-with-combine does not go with outer.optimizer = nesterov"):
        with_outer(with_order(gossip.get(name), "adapt-with-combine"), make("nesterov"))
