"""What a recipe makes of its gossip section."""

from __future__ import annotations

from dataclasses import replace
from typing import get_type_hints

import numpy as np
import pytest

from edgegossip import recipe as recipes
from edgegossip.gossip.momentum import KINDS, WithMomentum
from edgegossip.gossip.outer import WithOuter
from edgegossip.layout import Layout, TensorSpec
from edgegossip.node.spec import NodeSpec, make_algorithm, make_view
from edgegossip.recipe import GossipSection
from edgegossip.types import ConfigError


def test_the_recipe_knows_every_kind_of_momentum() -> None:
    assert get_type_hints(GossipSection)["momentum"] is str
    assert GossipSection.__dataclass_fields__["momentum"].metadata["choices"] == KINDS


def test_momentum_is_put_around_the_algorithm() -> None:
    sets = ["gossip.momentum=quasi-global", "gossip.momentum_factor=0.8", "training.momentum=0"]
    algorithm = make_algorithm(recipes.load("quickstart-gossip", sets))
    assert isinstance(algorithm, WithMomentum)
    assert (algorithm.name, algorithm.factor) == ("dpsgd+quasi-global", 0.8)
    assert make_algorithm(recipes.load("quickstart-gossip")).name == "dpsgd"


def test_step_and_mixing_go_in_the_order_that_the_recipe_says() -> None:
    sets = ["gossip.order=adapt-then-combine", "gossip.momentum=quasi-global", "training.momentum=0"]
    assert make_algorithm(recipes.load("quickstart-gossip", sets)).name == "dpsgd+quasi-global"
    sets = ["gossip.order=adapt-with-combine", "gossip.algorithm=sgp"]
    with pytest.raises(ConfigError, match="gossip.order = adapt-with-combine is not for sgp: the mass .* say auto"):
        make_algorithm(recipes.load("quickstart-gossip", sets))


def test_a_script_trains_many_steps_a_round_and_is_mixed_after_them() -> None:
    by_recipe = recipes.load("quickstart-gossip", ["gossip.algorithm=dpsgd"])
    by_script = replace(by_recipe, run=replace(by_recipe.run, script="train.py"))
    asked = replace(by_recipe, gossip=replace(by_recipe.gossip, order="adapt-then-combine"))
    assert make_algorithm(by_script) == make_algorithm(asked) != make_algorithm(by_recipe)


def test_two_momenta_are_refused_with_the_way_out() -> None:
    chosen = recipes.load("quickstart-gossip", ["gossip.momentum=nesterov"])
    with pytest.raises(
        ConfigError, match=r"gossip.momentum = nesterov and training.momentum = 0.9.*say training.momentum = 0"
    ):
        make_algorithm(chosen)


def test_an_outer_optimiser_is_around_the_algorithm_whatever_the_local_one() -> None:
    recipe = recipes.load("quickstart-gossip", ["outer.optimizer=nesterov", "training.optimizer=adamw"])
    algorithm = make_algorithm(recipe)
    assert isinstance(algorithm, WithOuter)
    assert (algorithm.name, algorithm.optimizer.lr, algorithm.scale) == ("dpsgd+outer-nesterov", 0.7, 1.0)
    layout, members = Layout.of([TensorSpec("w", (2,))]), ("a", "b", "c", "d")
    state = algorithm.init(np.ones(2, np.float32), make_view(NodeSpec(recipe, "a", members, bytes(16)), layout))
    assert algorithm.model(state).tolist() == [1.0, 1.0]
    sets = ["outer.optimizer=heavy-ball", "outer.lr=0.6", "outer.consensus=0.8", "outer.momentum=0.5"]
    algorithm = make_algorithm(recipes.load("quickstart-gossip", sets))
    assert isinstance(algorithm, WithOuter)
    assert (algorithm.optimizer.lr, algorithm.optimizer.momentum, algorithm.scale) == (0.8, 0.5, 0.6 / 0.8)
    sets = ["outer.optimizer=nesterov", "gossip.momentum=quasi-global", "training.momentum=0"]
    with pytest.raises(ConfigError, match="quasi-global and outer.optimizer = nesterov: a run has one of the two"):
        make_algorithm(recipes.load("quickstart-gossip", sets))


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["gossip.momentum=quasi-global", "training.optimizer=adamw"], "gossip.momentum = quasi-global .*adamw is not"),
        (["gossip.algorithm=d2", "training.optimizer=adam"], "gossip.algorithm = d2 .*say training.optimizer = sgd"),
        (
            ["gossip.algorithm=parallel-sgd", "gossip.params.momentum=0.9", "training.optimizer=own:rule"],
            "the momentum of parallel-sgd .*gossip.params.momentum = 0",
        ),
    ],
)
def test_an_optimiser_that_the_algorithm_does_not_take_it_for_is_named(sets: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_algorithm(recipes.load("quickstart-gossip", sets))


@pytest.mark.parametrize("algorithm", ["dpsgd", "choco-sgd", "sgp", "ad-psgd", "parallel-sgd"])
def test_algorithms_that_add_whatever_a_board_did_take_any_optimiser(algorithm: str) -> None:
    sets = [f"gossip.algorithm={algorithm}", "training.optimizer=adam"]
    assert make_algorithm(recipes.load("quickstart-gossip", sets)).name == algorithm


def test_d2_takes_momentum() -> None:
    assert make_algorithm(recipes.load("quickstart-gossip", ["gossip.algorithm=d2"])).name == "d2"
