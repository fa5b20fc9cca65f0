"""`run`: check the recipe, make the run folder, train in its mode, sum up."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.files import seen_from_here
from edgegossip.fleet.launch.gossip import LocalRun, run_gossip
from edgegossip.fleet.launch.identities import identities
from edgegossip.fleet.launch.outputs import Outputs
from edgegossip.fleet.launch.preflight import notices, preflight, remark
from edgegossip.fleet.launch.run_folders import conclude, make_folder, shown_when_it_fails
from edgegossip.frame import RUN_ID_BYTES
from edgegossip.node.spec import default_members
from edgegossip.recipe import Recipe
from edgegossip.report.units import seconds_text
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import summarise
from edgegossip.types import ConfigError, DataError, NodeId


def run_fleet(recipe: Recipe, runs_dir: Path, *, plots: bool, as_json: bool, outputs: Outputs = Outputs()) -> int:
    """Train on local processes and show the result. Returns the exit code; raises as `trained`
    does."""
    as_json = as_json or outputs.as_json
    with trained(recipe, runs_dir, quiet=as_json, as_json=as_json, outputs=outputs) as folder:
        return _concluded(folder, plots=plots, as_json=as_json)


def planned(recipe: Recipe, runs_dir: Path) -> dict[str, Any]:
    """Check that the recipe can be run here, and return what would be: boards, rounds, model, bytes
    and what a user should know. Nothing is started or written. Raises an EdgegossipError."""
    members = default_members(recipe.run.nodes)
    preflight(recipe, members)
    layout = training.layout_of(recipe)
    return {
        "run": recipe.run.name,
        "mode": recipe.run.mode,
        "boards": list(members),
        "rounds": recipe.run.rounds,
        "model": recipe.model.name,
        "values": layout.size,
        "codec": recipe.codec.name,
        "runs": str(runs_dir),
        "notices": notices(recipe),
    }


@contextmanager
def trained(
    recipe: Recipe,
    runs_dir: Path,
    *,
    quiet: bool,
    as_json: bool = False,
    lasting: bool = True,
    outputs: Outputs = Outputs(),
) -> Iterator[RunFolder]:
    """Train on local processes, and yield the folder of the run that has ended. Raises an
    EdgegossipError when nothing was trained. Nothing is written before the recipe has been checked.
    `quiet`: nothing is printed either, but with `as_json` the summary of a run that failed.
    `lasting`: its script will still be there when somebody wants to go on with it."""
    members = default_members(recipe.run.nodes)
    preflight(recipe, members)
    run_id = secrets.token_bytes(RUN_ID_BYTES)
    folder = make_folder(recipe, runs_dir, members)
    folder.write_run(run_id, members)
    try:
        if not quiet:
            into = seen_from_here(folder.path)
            click.echo(f"{recipe.run.name}: {len(members)} boards, {recipe.run.rounds} rounds, into {into}")
            for notice in notices(recipe):
                click.echo(f"!! {notice}", err=True)
            if said := remark(recipe):
                click.echo(said, err=True)
        resumable = lasting and recipe.checkpoint.every > 0
        with shown_when_it_fails(folder, as_json=as_json, quiet=quiet and not as_json, resumable=resumable):
            _train(recipe, members, run_id, folder, outputs, quiet=quiet)
        yield folder
    finally:
        folder.close()


def resume_fleet(path: Path, *, plots: bool, as_json: bool, outputs: Outputs = Outputs()) -> int:
    """Go on with a run and show the result. Returns the exit code; raises as `resumed` does."""
    as_json = as_json or outputs.as_json
    with resumed(path, quiet=as_json, as_json=as_json, outputs=outputs) as folder:
        return _concluded(folder, plots=plots, as_json=as_json)


def _concluded(folder: RunFolder, *, plots: bool, as_json: bool) -> int:
    """Show the result, and how long a user waited for it. Returns the exit code."""
    code = conclude(folder, plots=plots, as_json=as_json)
    if not as_json:
        took = seconds_text(time.time() - psutil.Process().create_time())
        click.echo(f"this command took {took}, start and end included")
    return code


@contextmanager
def resumed(path: Path, *, quiet: bool, as_json: bool = False, outputs: Outputs = Outputs()) -> Iterator[RunFolder]:
    """Go on with a run of this machine that ended early, each board from its newest checkpoint, and
    yield its folder when it has ended. Raises an EdgegossipError when there is nothing to go on
    with. `quiet` is as for `trained`."""
    recipe, members, run_id = _resumable(path)
    preflight(recipe, members)
    folder = RunFolder.reopen(path)
    try:
        if not quiet:
            click.echo(f"{recipe.run.name}: {len(members)} boards go on with {seen_from_here(folder.path)}")
        for name in members:
            folder.event(name, "resumed", f"{name} goes on: the run is resumed")
        with shown_when_it_fails(folder, as_json=as_json, quiet=quiet and not as_json, resumable=True):
            _train(recipe, members, run_id, folder, outputs, quiet=quiet, resumed=True)
        yield folder
    finally:
        folder.close()


def _resumable(path: Path) -> tuple[Recipe, tuple[NodeId, ...], bytes]:
    """Return recipe, boards and run id of a run that can be gone on with. Raises DataError and
    ConfigError."""
    data = read_run(path)
    if data.recipe_toml is None:
        raise DataError(f"{path} cannot be resumed: its recipe.toml is missing")
    recipe = recipes.load(str(path / "recipe.toml"))
    if not recipe.checkpoint.every:
        raise ConfigError(f"{path} cannot be resumed: its checkpoint.every = 0, so it kept none")
    try:
        document = data.run or {}
        members, run_id = tuple(map(str, document["members"])), bytes.fromhex(document["run_id"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} cannot be resumed: its run.json is missing or incomplete") from None
    if len(members) != recipe.run.nodes or len(run_id) != RUN_ID_BYTES:
        raise DataError(f"{path} cannot be resumed: its run.json does not fit its recipe.toml")
    summary = summarise(data)
    if not summary["failed_nodes"] and not summary["unfinished_nodes"]:
        raise ConfigError(f"{path} cannot be resumed: all of its boards have finished")
    return recipe, members, run_id


def _train(
    recipe: Recipe,
    members: tuple[NodeId, ...],
    run_id: bytes,
    folder: RunFolder,
    outputs: Outputs,
    *,
    quiet: bool,
    resumed: bool = False,
) -> None:
    """Train with a live display. Records are in the folder as they come, however it ends."""
    with identities(recipe, members) as folders:
        sink = outputs.open(folder, recipe, members, quiet=quiet, start_s=folder.start_s if resumed else None)
        try:
            run = LocalRun(recipe, members, run_id, folder, sink, resumed, folders)
            if recipe.run.mode == "gossip":
                run_gossip(run)
            else:
                from edgegossip.fleet.launch.coordinator import run_server  # here: it loads Flower

                run_server(run)
        finally:
            sink.close()  # what was written is in the folder then
