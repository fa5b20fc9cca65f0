"""What a recipe fixes of a schedule: algorithm, topology, codec, boards and deadline, or what a
server run asks of its boards. Models and data are the simulator's own."""

from __future__ import annotations

from dataclasses import replace

from edgegossip.lab.sim.naming import Named
from edgegossip.lab.sim.schedule import Options
from edgegossip.recipe import Recipe
from edgegossip.types import ConfigError

JOIN_S = 120.0  # that `run` waits for boards where the recipe does not say


def fixed_by(recipe: Recipe, options: Options) -> Options:
    """Return `options` with the recipe's parts where they say nothing. Raises ConfigError for a
    server recipe's strategy."""
    if recipe.run.mode != "gossip":
        return _server(recipe, options)
    if options.mode == "server":
        raise ConfigError(f"{recipe.run.name} is a gossip recipe: leave --mode server away")
    gossip = recipe.gossip
    name, params = gossip.algorithm, dict(gossip.params)
    if gossip.momentum != "none":
        name, params = f"{name}+{gossip.momentum}", {**params, "momentum_factor": gossip.momentum_factor}
    places = dict(gossip.topology_params)
    if gossip.topology == "file":
        places["path"] = gossip.topology_file
    return replace(
        options,
        mode="gossip",
        algorithms=options.algorithms or (Named.of(name, params),),
        topology=options.topology or Named.of(gossip.topology, places),
        codec=options.codec or Named.of(recipe.codec.name, recipe.codec.params),
        nodes=options.nodes or recipe.run.nodes,
        deadline_s=options.deadline_s or recipe.gossip.deadline_s,
    )


def _server(recipe: Recipe, options: Options) -> Options:
    server, name = recipe.server, recipe.run.name
    if options.mode == "gossip":
        raise ConfigError(f"{name} is a server recipe: leave --mode gossip away")
    if server.strategy != "fedavg":
        raise ConfigError(
            f"{name} has server.strategy = {server.strategy}, which is Flower's; the simulator has fedavg"
        )
    downlink = str(Named.of(server.downlink, server.downlink_params))
    settings = {
        "downlink": f'"{downlink}"' if "," in downlink else downlink,
        "weighting": server.weighting,
        "quorum": server.quorum,
        "min_nodes": server.min_nodes,
        "fraction": server.fraction,
        "join_s": server.join_s or JOIN_S,
        "every": recipe.evaluation.every,
        "evaluates": recipe.evaluation.where,
        "combiner": "mean",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    return replace(
        options,
        mode="server",
        codec=options.codec or Named.of(recipe.codec.name, recipe.codec.params),
        nodes=options.nodes or recipe.run.nodes,
        deadline_s=options.deadline_s or server.deadline_s,
        server=",".join([*words, *([options.server] if options.server else [])]),
    )
