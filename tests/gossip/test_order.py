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
