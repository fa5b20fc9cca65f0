"""What a recipe makes of its gossip section."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from edgegossip import recipe as recipes
from edgegossip.gossip.momentum import KINDS, WithMomentum
from edgegossip.node.spec import make_algorithm
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


def test_two_momenta_are_refused_with_the_way_out() -> None:
    chosen = recipes.load("quickstart-gossip", ["gossip.momentum=nesterov"])
    with pytest.raises(
        ConfigError, match=r"gossip.momentum = nesterov and training.momentum = 0.9.*say training.momentum = 0"
    ):
        make_algorithm(chosen)
