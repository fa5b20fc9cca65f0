"""`run`: check the recipe, make the run folder, train in its mode, sum up."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.files import seen_from_here
from edgegossip.fleet.launch.alone import alone as without_exchange
from edgegossip.fleet.launch.alone import join_scores
from edgegossip.fleet.launch.gossip import LocalRun, run_gossip
from edgegossip.fleet.launch.identities import identities
from edgegossip.fleet.launch.outputs import Outputs
from edgegossip.fleet.launch.preflight import (
    check_sizes,
    notices,
    own_boards,
    preflight,
    tell,
)
from edgegossip.fleet.launch.probe import Joined, misfit, probe
from edgegossip.fleet.launch.run_folders import conclude, make_folder, shown_when_it_fails
from edgegossip.frame import RUN_ID_BYTES
from edgegossip.node.spec import default_members
from edgegossip.recipe import Recipe
from edgegossip.report.units import seconds_text
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import COORDINATOR, summarise
from edgegossip.telemetry.verdict import causes
from edgegossip.training.check import data_doubts
from edgegossip.types import ConfigError, DataError, NodeId, RunError


def run_fleet(
    recipe: Recipe,
    runs_dir: Path,
    *,
    plots: bool,
    as_json: bool,
    outputs: Outputs = Outputs(),
    alone: bool = False,
) -> int:
    """Train on local processes and show the result. Returns the exit code; raises as `trained`
    does."""
    as_json = as_json or outputs.as_json
    with trained(recipe, runs_dir, quiet=as_json, as_json=as_json, outputs=outputs, alone=alone) as folder:
        return _concluded(folder, plots=plots, as_json=as_json)


def planned(recipe: Recipe, runs_dir: Path, *, alone: bool = False) -> dict[str, Any]:
    """Check that the recipe can be run here on each board's data, and return what would be: boards,
    rounds, model, bytes and what a user should know. Nothing is started or written, except by a
    script, which every board runs up to its first round: `each` is what came of that by board, and
    `problem` what the run would fail with. Raises an EdgegossipError."""
    members = default_members(recipe.run.nodes)
    preflight(recipe, members)
    if alone:
        preflight(without_exchange(recipe), members)
    joined = _joined(recipe, members) if recipe.run.script else {}
    layout = next((one.layout for one in joined.values() if one.layout), None)
    if not recipe.run.script:
        layout = training.layout_of(recipe)
    return {
        "run": recipe.run.name,
        "mode": recipe.run.mode,
        "boards": list(members),
        "rounds": recipe.run.rounds,
        "model": Path(recipe.run.script).name or recipe.model.name,
        "values": layout.size if layout else None,
        "codec": recipe.codec.name,
        "runs": str(runs_dir),
        "notices": [
            *notices(recipe),
            *data_doubts(recipe, own_boards(recipe, members)),
            *(notice for one in joined.values() for notice in one.notices),
        ],
        "each": [
            {
                "board": name,
                "values": one.layout.size if one.layout else None,
                "memory_bytes": one.peak_rss_bytes or None,
                "problem": one.problem,
            }
            for name, one in joined.items()
        ],
        "problem": _problem(joined),
    }


def _joined(recipe: Recipe, members: tuple[NodeId, ...]) -> Mapping[NodeId, Joined]:
    """What the script comes to on every board, and at a coordinator, before its first round."""
    server = recipe.run.mode == "server"
    joined = probe(recipe, [*([COORDINATOR] if server else []), *members], members, "first round")
    for one in joined.values():
        if one.layout is not None:
            check_sizes(recipe, one.layout)
    return joined


def _problem(joined: Mapping[NodeId, Joined]) -> str:
    """Return what a run would fail with, all causes; empty where nothing is wrong."""
    failed = {name: one.problem for name, one in joined.items() if one.problem}
    text = f"{len(failed)} of {len(joined)} would end before the run: {causes(failed)}" if failed else ""
    return "; ".join(filter(None, [text, misfit(joined)]))


@contextmanager
def trained(
    recipe: Recipe,
    runs_dir: Path,
    *,
    quiet: bool,
    as_json: bool = False,
    lasting: bool = True,
    outputs: Outputs = Outputs(),
    alone: bool = False,
) -> Iterator[RunFolder]:
    """Train on local processes, and yield the folder of the run that has ended. Raises an
    EdgegossipError when nothing was trained. Nothing is written before the recipe has been checked.
    `quiet`: nothing is printed either, but with `as_json` the summary of a run that failed.
    `lasting`: its script will still be there when somebody wants to go on with it. `alone`: first
    each board trains by itself, in a run of its own. At the end of that, and of each recipe's run,
    boards test the average of all models, and the folder tells what came of it."""
    members = default_members(recipe.run.nodes)
    preflight(recipe, members)
    by_itself = _train_alone(recipe, runs_dir, outputs, quiet=quiet, lasting=lasting) if alone else None
    run_id = secrets.token_bytes(RUN_ID_BYTES)
    folder = make_folder(recipe, runs_dir, members)
    folder.write_run(run_id, members)
    try:
        if by_itself is not None:
            join_scores(folder, by_itself)  # at once: the run may be stopped, and resumed
        if not quiet:
            into = seen_from_here(folder.path)
            click.echo(f"{recipe.run.name}: {len(members)} boards, {recipe.run.rounds} rounds, into {into}")
            if by_itself is None:  # else it was said before
                tell(recipe)
        resumable = lasting and recipe.checkpoint.every > 0
        with shown_when_it_fails(folder, as_json=as_json, quiet=quiet and not as_json, resumable=resumable):
            _train(recipe, members, run_id, folder, outputs, quiet=quiet, averages=alone or not recipe.run.script)
        yield folder
    finally:
        folder.close()


def _train_alone(recipe: Recipe, runs_dir: Path, outputs: Outputs, *, quiet: bool, lasting: bool) -> Path:
    """Train each board by itself. This comes first: what a script writes to files of its own is
    then of the run together in the end. Returns the run folder. Raises
    ConfigError where no board tests its model: there is nothing to compare then."""
    with trained(without_exchange(recipe), runs_dir, quiet=quiet, lasting=lasting, outputs=outputs) as folder:
        summary = summarise(read_run(folder.path))
        folder.write_summary(summary)
        lost = {row["node"]: row["why"] for row in summary["boards"] if row["state"] == "lost"}
        if len(lost) == summary["nodes"]:
            raise RunError(f"--alone: all boards were lost in training by themselves: {causes(lost)}")
        if summary["score"] is None:
            raise ConfigError("--alone: no board has tested its model, so nothing can be compared: give it a test set")
        return folder.path


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
        averages = not recipe.run.script or any(e.name == "trained-alone" for e in read_run(path).events())
        for name in members:
            folder.event(name, "resumed", f"{name} goes on: the run is resumed")
        with shown_when_it_fails(folder, as_json=as_json, quiet=quiet and not as_json, resumable=True):
            _train(recipe, members, run_id, folder, outputs, quiet=quiet, resumed=True, averages=averages)
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
    averages: bool = False,
) -> None:
    """Train with a live display. Records are in the folder as they come, however it ends."""
    with identities(recipe, members) as folders:
        sink = outputs.open(folder, recipe, members, quiet=quiet, start_s=folder.start_s if resumed else None)
        try:
            age_s = sink.elapsed_s() if resumed else 0.0
            run = LocalRun(recipe, members, run_id, folder, sink, resumed, age_s, folders, averages=averages)
            if recipe.run.mode == "gossip":
                run_gossip(run)
            else:
                from edgegossip.fleet.launch.coordinator import run_server  # here: it loads Flower

                run_server(run)
        finally:
            sink.close()  # what was written is in the folder then
