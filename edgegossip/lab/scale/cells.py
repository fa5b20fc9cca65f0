"""The cells of a scalability run: a scheme on so many boards. Each is a recipe of its own and has a
key by which it is resumed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.lab.scale.schemes import Scheme
from edgegossip.recipe import Recipe, with_settings
from edgegossip.types import ConfigError

WARM_UP = 2  # rounds that are not counted: memory is allocated, connections come up, and the pace is found in them
MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Cell:
    """`recipe` has all rounds, the uncounted ones included; `epoch_rounds` is how many rounds an
    epoch has."""

    scheme: Scheme
    devices: int
    on: str
    recipe: Recipe
    epoch_rounds: float
    how: Mapping[str, Any]  # whatever else decides the result, such as the rate of the link

    @property
    def name(self) -> str:
        return f"{self.scheme.name} on {self.devices}"

    @property
    def key(self) -> str:
        text = json.dumps([recipes.essence(self.recipe), self.on, dict(self.how)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_devices(text: str) -> tuple[int, ...]:
    """`2,4,7,18`, each once, from few to many. Raises ConfigError."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--devices {text}: write counts with commas between them, such as 2,4,7,18") from None
    for count in counts:
        if not 2 <= count <= MOST_DEVICES:
            nearest = 2 if count < 2 else MOST_DEVICES
            raise ConfigError(f"--devices {count}: a run has 2 to {MOST_DEVICES} boards; the nearest is {nearest}")
    return tuple(counts)


def make_cells(
    base: Recipe,
    schemes: Sequence[Scheme],
    devices: Sequence[int],
    on: str,
    how: Mapping[str, Any],
    examples: int,
    max_rounds: int,
) -> list[Cell]:
    """Scheme by scheme, from few boards to many. `examples`: of an epoch; `max_rounds`: so many are
    counted at most, 0: the whole epoch. Raises ConfigError."""
    return [
        _cell(scheme.of(base, count), scheme, on, how, examples, max_rounds) for scheme in schemes for count in devices
    ]


def _cell(recipe: Recipe, scheme: Scheme, on: str, how: Mapping[str, Any], examples: int, max_rounds: int) -> Cell:
    training = recipe.training
    epoch_rounds = examples / (recipe.run.nodes * training.batch_size * training.local_steps)
    counted = max(1, round(epoch_rounds))
    counted = min(counted, max_rounds) if max_rounds else counted
    wanted = {"run.rounds": counted + WARM_UP, "evaluation.every": counted + WARM_UP, "checkpoint.every": 0}
    recipe = with_settings(recipe, wanted)
    network = replace(recipe.network, grace_s=max(recipe.network.grace_s, 120.0), restarts=0)
    gossip = replace(recipe.gossip, deadline_s=max(recipe.gossip.deadline_s, 1800.0))
    server = replace(recipe.server, deadline_s=max(recipe.server.deadline_s, 1800.0))
    recipe = replace(recipe, network=network, gossip=gossip, server=server)
    if "boards" in how:  # the first ones are in it: one that is added later makes no other cell of this one
        how = {**how, "boards": how["boards"][: recipe.run.nodes]}
    return Cell(scheme, recipe.run.nodes, on, recipe, epoch_rounds, how)
