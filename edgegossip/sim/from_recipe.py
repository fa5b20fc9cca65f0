"""What a recipe fixes of a schedule: algorithm, topology, codec, boards and deadline. Models and data are the simulator's own."""

from __future__ import annotations

from dataclasses import replace

from edgegossip.recipe import Recipe
from edgegossip.sim.naming import Named
from edgegossip.sim.schedule import Options
from edgegossip.types import ConfigError


def fixed_by(recipe: Recipe, options: Options) -> Options:
    """`options` with the recipe's parts where they say nothing. Raises ConfigError for a server recipe."""
    if recipe.run.mode != "gossip":
        raise ConfigError(f"{recipe.run.name} is a server recipe: only gossip has anything to simulate")
    gossip = recipe.gossip
    name, params = gossip.algorithm, dict(gossip.params)
    if gossip.momentum != "none":
        name, params = f"{name}+{gossip.momentum}", {**params, "momentum_factor": gossip.momentum_factor}
    places = dict(gossip.topology_params)
    if gossip.topology == "file":
        places["path"] = gossip.topology_file
    return replace(
        options,
        algorithms=options.algorithms or (Named.of(name, params),),
        topology=options.topology or Named.of(gossip.topology, places),
        codec=options.codec or Named.of(recipe.codec.name, recipe.codec.params),
        nodes=options.nodes or recipe.run.nodes,
        deadline_s=options.deadline_s or recipe.gossip.deadline_s,
    )
