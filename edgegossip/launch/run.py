"""`run`: check the recipe, make the run folder, train in its mode, sum up."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.launch.gossip import LocalRun, run_gossip
from edgegossip.launch.outcome import conclude, shown_when_it_fails
from edgegossip.launch.preflight import notices, preflight
from edgegossip.node.spec import default_members
from edgegossip.profiling.environment import environment
from edgegossip.profiling.run_folder import RunFolder
from edgegossip.profiling.sinks import Tee
from edgegossip.recipe import Recipe
from edgegossip.report.live import Live, LiveSink
from edgegossip.types import NodeId


def run_fleet(recipe: Recipe, runs_dir: Path, *, plots: bool, as_json: bool) -> int:
    """Train on local processes and show the result. Returns the exit code; raises an EdgegossipError when nothing was
    trained. Nothing is written before the recipe has been checked."""
    members = default_members(recipe.run.nodes)
    preflight(recipe, members)
    folder = make_folder(recipe, runs_dir, members)
    try:
        if not as_json:
            click.echo(f"{recipe.run.name}: {len(members)} boards, {recipe.run.rounds} rounds, into {folder.path}")
            for notice in notices(recipe):
                click.echo(f"!! {notice}", err=True)
        with shown_when_it_fails(folder, as_json=as_json):
            _train(recipe, members, folder, quiet=as_json)
        return conclude(folder, plots=plots, as_json=as_json)
    finally:
        folder.close()


def make_folder(recipe: Recipe, runs_dir: Path, members: tuple[NodeId, ...]) -> RunFolder:
    """A new run folder that says what is going to run, and on whose data."""
    counts = training.partition_counts(recipe)
    folder = RunFolder.create(runs_dir, recipe.run.name, recipes.to_toml(recipe), environment())
    folder.write_partition(members, [str(k) for k in range(counts.shape[1])], counts)
    return folder


def _train(recipe: Recipe, members: tuple[NodeId, ...], folder: RunFolder, *, quiet: bool) -> None:
    """Train with a live display. Records are in the folder as they come, however it ends."""
    live = Live(members, recipe.run.rounds, stream=sys.stderr, enabled=not quiet)
    run = LocalRun(recipe, members, secrets.token_bytes(16), folder, Tee(folder, LiveSink(live)))
    try:
        _mode(recipe.run.mode)(run)
    finally:
        live.close()


def _mode(name: str) -> Callable[[LocalRun], Mapping[NodeId, str]]:
    if name == "gossip":
        return run_gossip
    from edgegossip.launch.server import run_server

    return run_server
