"""`node` started by hand: one board with a live line, a run folder and a table of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from edgegossip import codecs, training
from edgegossip import recipe as recipes
from edgegossip.fleet.launch.outputs import Outputs
from edgegossip.fleet.launch.preflight import FLEET, FLOWER_HINT, TORCH_HINT, require, tell
from edgegossip.fleet.launch.run_folders import conclude, instance_of, unfinished
from edgegossip.mesh import address as addresses
from edgegossip.node.main import (
    NodeOptions,
    check_coordinator,
    load_identity,
    load_security,
    parse_peers,
    peer_members,
    run_node,
)
from edgegossip.node.notify import ServiceSink, service
from edgegossip.node.spec import NodeSpec, check_names, default_members, make_algorithm
from edgegossip.recipe import Recipe
from edgegossip.telemetry.machine import environment
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.training.data import Board
from edgegossip.types import EXIT_OK, EXIT_RUIN, ConfigError, NodeId


def run_member(
    recipe: str | None,
    settings: Sequence[str],
    members: str | None,
    seeds: Sequence[str],
    options: NodeOptions,
    *,
    fresh: bool = False,
    outputs: Outputs = Outputs(),
) -> int:
    """Found a run of `recipe`, or join one through `seeds`; then be a board of it. As
    `run_board`."""
    from edgegossip.node import bootstrap

    require("torch", TORCH_HINT)
    _check_names(options)
    _check_how(recipe, members, seeds, options)
    security = load_security(options)
    if recipe is None:
        entry = bootstrap.join(seeds, options.name, security, settings, _waits)
    else:
        names = bootstrap.read_members(members or "")
        instance = partial(_instance, names, options, fresh)
        entry = bootstrap.found(recipes.load(recipe, settings), options.name, names, security, instance)
    options = replace(options, joined=entry)
    return run_board(entry.recipe, options, joins=recipe is None, fresh=fresh, outputs=outputs)


def run_follower(
    coordinator: str,
    settings: Sequence[str],
    options: NodeOptions,
    *,
    fresh: bool = False,
    outputs: Outputs = Outputs(),
) -> int:
    """Be a board of whatever the coordinator at HOST:PORT runs: it tells the recipe. As
    `run_board`."""
    from edgegossip.node.bootstrap import follow
    from edgegossip.node.server_node import PATIENCE_S

    require("torch", TORCH_HINT)
    require("flwr", FLOWER_HINT)
    _check_names(options)
    if options.members:
        raise ConfigError("--boards: without RECIPE the coordinator says which boards are in the run; leave it out")
    options = _with_identity(options)
    check_coordinator(coordinator, options)
    recipe, members = follow(coordinator, options.name, load_identity(options), settings, _waits, PATIENCE_S)
    return run_board(recipe, replace(options, members=members), fresh=fresh, outputs=outputs)


def _instance(members: Sequence[NodeId], options: NodeOptions, fresh: bool, run_id: bytes) -> str:
    """Say which run it is that this board founds: the one that it did not finish, else a new
    one."""
    before = None if fresh else unfinished(options.runs_dir, run_id, members, options.name)
    return os.urandom(8).hex() if before is None else instance_of(before)


def _waits(text: str) -> None:
    """Tell systemd and the user that the board waits for the run that it is to join."""
    service().alive()
    service().status(text)
    click.echo(text, err=True)


def _check_how(recipe: str | None, members: str | None, seeds: Sequence[str], options: NodeOptions) -> None:
    if options.peers:
        raise ConfigError(
            "--peer names every board by hand; with --members or --join they find each other: leave it out"
        )
    if seeds and (recipe or members is not None):
        raise ConfigError("--join takes recipe and members from the run: leave RECIPE and --members out")
    if not seeds and recipe is None:
        raise ConfigError("--members founds a run: say which RECIPE")
    if options.advertise:
        addresses.parse_host(options.advertise, "--advertise", 1)  # before a folder is made; the port comes later
    listen = addresses.listen_address(options.listen, insecure=options.insecure or options.identity is not None)
    shut = listen.is_loopback and not options.advertise
    away = [seed for seed in seeds if shut and not addresses.is_here(addresses.parse(seed, "--join"))]
    if away:
        raise ConfigError(
            f"--listen {options.listen}: only this machine reaches a board there, and with --join {away[0]} others would try: "
            "say --listen 0.0.0.0:7700"
        )


def _check_names(options: NodeOptions) -> None:
    check_names("--name", (options.name,))
    check_names("--boards", options.members)
    check_names("--peer", parse_peers(options.peers))


def run_board(
    recipe: Recipe, options: NodeOptions, *, joins: bool = True, fresh: bool = False, outputs: Outputs = Outputs()
) -> int:
    """Be one board until the run is over, then show what it did; go on where an earlier process of
    this command did not finish, unless `fresh`. `joins`: others run it, too, and the run is not
    founded here. Returns the exit code; raises an EdgegossipError."""
    require("torch", TORCH_HINT)
    _check_names(options)
    if recipe.run.mode == "server":
        options = _with_identity(options)
    codecs.get(recipe.codec.name, **recipe.codec.params)
    if recipe.run.mode == "gossip":
        make_algorithm(recipe)
    training.check(recipe, _own_board(recipe, options))
    tell(recipe, joins=joins)
    before = None if fresh else _before(recipe, options)
    if recipe.run.mode == "gossip":
        options = replace(options, resume=before)  # so that it is known that this board was in the run
    folders: list[RunFolder] = []

    def open_output(spec: NodeSpec) -> tuple[RecordSink, Path]:
        if before is not None:
            click.echo(f"going on with {before}; --fresh begins anew", err=True)
        name = f"{recipe.run.name}-{spec.name}"
        folders.append(
            RunFolder.create(options.runs_dir, name, recipes.to_toml(recipe), environment())
            if before is None
            else RunFolder.reopen(before)
        )
        folders[0].write_run(
            spec.run_id, spec.members, "" if options.joined is None else options.joined.manifest.instance
        )
        start_s = None if before is None else folders[0].start_s
        heard = (ServiceSink(service()),) if service().listens else ()
        save_to = folders[0].checkpoint_dir / f"{spec.name}.{recipe.checkpoint.format}"
        return outputs.open(folders[0], recipe, (spec.name,), *heard, start_s=start_s), save_to

    run_node(recipe, options, open_output)
    code = conclude(folders[0], plots=False, as_json=outputs.as_json)
    return EXIT_OK if code == EXIT_RUIN else code  # who started it asked for a board, and that did its part


def _own_board(recipe: Recipe, options: NodeOptions) -> list[Board]:
    """Return this board, if it has data of its own."""
    if recipe.data.partition != "local":
        return []
    if options.joined is not None:
        members = options.joined.manifest.members
    else:
        gossip = recipe.run.mode == "gossip"
        members = peer_members(options) if gossip else options.members or default_members(recipe.run.nodes)
    return [Board(options.name, members.index(options.name) if options.name in members else 0)]


def _before(recipe: Recipe, options: NodeOptions) -> Path | None:
    """Return the run folder of an earlier process of this board, of the same run, which it did not
    finish. Raises ConfigError."""
    if recipe.run.mode == "gossip" and not recipe.checkpoint.every:
        return None
    if options.joined is not None:
        run = options.joined.manifest
        return unfinished(options.runs_dir, run.run_id, run.members, options.name, run.instance)
    members = peer_members(options) if recipe.run.mode == "gossip" else options.members
    return unfinished(
        options.runs_dir, recipes.run_id(recipe), members or default_members(recipe.run.nodes), options.name
    )


def _with_identity(options: NodeOptions) -> NodeOptions:
    """Return the options with the board's identity on the machine of the fleet's folder itself, as
    a coordinator there does: it is in it."""
    own = Path(FLEET) / "boards" / options.name
    if options.identity is not None or options.insecure or not own.is_dir():
        return options
    return replace(options, identity=own)
