"""`run`: check the recipe, make the run folder, train in its mode, sum up."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.launch.gossip import LocalRun, run_gossip
from edgegossip.launch.outcome import exit_code, show
from edgegossip.launch.preflight import preflight
from edgegossip.node.spec import default_members
from edgegossip.profiling.environment import environment
from edgegossip.profiling.run_folder import RunFolder, read_run
from edgegossip.profiling.sinks import Tee
from edgegossip.profiling.summary import summarise
from edgegossip.recipe import Recipe
from edgegossip.report.live import Live, LiveSink



def run_fleet(recipe: Recipe, runs_dir: Path, *, plots: bool, as_json: bool) -> int:
    """Train on local processes and show the result. Returns the exit code; raises an EdgegossipError when nothing was
    trained. Nothing is written before the recipe has been checked."""
    members = default_members(recipe.run.nodes)
    preflight(recipe, members)
    folder = RunFolder.create(runs_dir, recipe.run.name, recipes.to_toml(recipe), environment())
    folder.write_partition(members, *_classes(recipe))
    if not as_json:
        click.echo(f"{recipe.run.name}: {len(members)} boards, {recipe.run.rounds} rounds, into {folder.path}")
    summary = _train(LocalRun(recipe, members, secrets.token_bytes(16), folder, folder), as_json)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        show(summary, folder.path, plots=plots)
    return exit_code(summary)


def _train(run: LocalRun, quiet: bool) -> Mapping[str, Any]:
    """Train with a live display; the run folder is complete afterwards, however it ends."""
    live = Live(run.members, run.recipe.run.rounds, stream=sys.stderr, enabled=not quiet)
    sink = Tee(run.folder, LiveSink(live))
    try:
        _mode(run.recipe.run.mode)(LocalRun(run.recipe, run.members, run.run_id, run.folder, sink))
        summary = summarise(read_run(run.folder.path))
        run.folder.write_summary(summary)
        return summary
    finally:
        live.close()
        run.folder.close()


def _mode(name: str) -> Any:
    if name == "gossip":
        return run_gossip
    from edgegossip.launch.server import run_server

    return run_server


def _classes(recipe: Recipe) -> tuple[list[str], Any]:
    counts = training.partition_counts(recipe)
    return [str(k) for k in range(counts.shape[1])], counts


