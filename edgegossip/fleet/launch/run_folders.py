"""The run folders of this machine: made for a new run, found again after kill -9, and summed up and
shown at the end, with the exit code that says how it went."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.files import seen_from_here
from edgegossip.mesh.membership.manifest import is_instance
from edgegossip.recipe import Recipe
from edgegossip.telemetry.machine import environment
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import summarise
from edgegossip.types import EXIT_DEGRADED, EXIT_OK, EXIT_RUIN, EXIT_RUN, EdgegossipError, HostError, NodeId, StartError

if TYPE_CHECKING:
    from edgegossip.report.style import Figures


def make_folder(recipe: Recipe, runs_dir: Path, members: tuple[NodeId, ...]) -> RunFolder:
    """Make a new run folder that says what is going to run, and on whose data."""
    shared = training.partition_counts(recipe)
    folder = RunFolder.create(runs_dir, recipe.run.name, recipes.to_toml(recipe), environment())
    if shared is not None:
        folder.write_partition(members, *shared)
    return folder


def unfinished(
    runs_dir: Path, run_id: bytes, members: Sequence[NodeId], name: NodeId, instance: str = ""
) -> Path | None:
    """Find the run folder that the same command goes on with after kill -9: the newest one of that
    run, if it is not over. `name`: whose checkpoints, and nobody else's: a folder of `edgegossip
    run` is for `run --resume`. None when the newest folder is one of a run that ended: then
    checkpoints were removed, or the model is there. Folders that cannot be read are passed over,
    and those of another `instance` of the run (empty: of any)."""
    found = []
    for document in runs_dir.glob("*/run.json"):
        try:
            run = json.loads(document.read_bytes())
            same = run["run_id"] == run_id.hex() and list(run["members"]) == list(members)
            other = instance and run.get("instance", "") not in ("", instance)
            if same and not other and _is_of(document.parent, name):
                found.append((document.stat().st_mtime_ns, document.parent))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    newest = max(found)[1] if found else None
    return newest if newest is not None and has_checkpoints(newest, name) and not _model(newest, name) else None


def instance_of(folder: Path) -> str:
    """Return which of several runs of the same recipe and members it is of; empty: not known."""
    try:
        found = json.loads((folder / "run.json").read_bytes())["instance"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if is_instance(found) else ""


def has_checkpoints(folder: Path, name: NodeId) -> bool:
    """Return whether the board's, or the coordinator's, checkpoints are there."""
    return any((folder / "checkpoint" / name).glob("*.ckpt"))


def _is_of(folder: Path, name: NodeId) -> bool:
    return [p.name for p in (folder / "checkpoint").iterdir() if p.is_dir()] == [name]


def _model(folder: Path, name: NodeId) -> bool:
    """Return whether its model is there, which a gossip board saves when it has finished. Its last
    checkpoint stays."""
    from edgegossip.modelfile import SUFFIXES  # here: a board that waits has no use for it

    return any((folder / "checkpoint" / f"{name}{suffix}").is_file() for suffix in SUFFIXES)


def exit_code(summary: Mapping[str, Any]) -> int:
    """Return 0 when every board finished, EXIT_DEGRADED when some were lost, EXIT_RUN when all
    were; EXIT_RUIN when the verdict is that the run failed its purpose, lost boards or not."""
    failed = len(summary["failed_nodes"])
    if failed and failed == summary["nodes"]:
        return EXIT_RUN
    if any(finding["ruin"] for finding in summary["verdict"]):
        return EXIT_RUIN
    return EXIT_DEGRADED if failed else EXIT_OK


def conclude(folder: RunFolder, *, plots: bool, as_json: bool) -> int:
    """Write summary.json, print it or the table, draw the plots. Returns the exit code."""
    data, path = read_run(folder.path), seen_from_here(folder.path)
    summary = summarise(data)
    drawable = data.partition is not None or any(True for _ in data.metrics())  # not where no board did a round
    trouble: HostError | None = None
    try:
        folder.write_summary(summary)
    except HostError as error:  # such as a full disk: what was trained is shown all the same
        trouble = error
    if as_json:
        click.echo(json.dumps(summary))
    else:
        from edgegossip.report.style import Figures  # here: a board that waits needs none

        show(summary, path, Figures(plots=plots and drawable and trouble is None))
        if plots and trouble is None:
            from edgegossip.report.web.page import write_page

            try:
                click.echo(f"page {write_page([path], path / 'report.html')}")
            except HostError as error:
                click.echo(f"no page: {error}", err=True)
    if trouble is not None:
        raise trouble
    return exit_code(summary)


@contextmanager
def shown_when_it_fails(
    folder: RunFolder, *, as_json: bool, quiet: bool = False, resumable: bool = False
) -> Iterator[None]:
    """Let a run that fails after boards have trained still show what they reached, before its error
    goes on. `quiet`: it is only written to summary.json. A run that was interrupted says where it
    is, with its page, its table where all rounds are done, and if it is `resumable` how to go on
    with it."""
    path = seen_from_here(folder.path)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(EdgegossipError):
            summary = summarise(read_run(folder.path))
            folder.write_summary(summary)
            if not quiet and not as_json:
                from edgegossip.report.table import run_table
                from edgegossip.report.web.page import write_page

                if all(row["rounds"] == summary["rounds_asked"] for row in summary["boards"]):
                    click.echo(run_table(summary))
                click.echo(f"page {write_page([folder.path], folder.path / 'report.html')}", err=True)
        click.echo(f"stopped: what there is lies in {path}{'; go on with it:' if resumable else ''}", err=True)
        if resumable:
            click.echo(f"  edgegossip run --resume {path}", err=True)
            click.echo(f"  edgegossip.resume({str(path)!r})  # in Python", err=True)
        raise
    except EdgegossipError as error:
        data = read_run(folder.path)
        if any(True for _ in data.metrics()):
            with suppress(HostError):  # such as a full disk: why the run failed is what counts
                if quiet or isinstance(error, StartError):
                    folder.write_summary(summarise(data))
                else:
                    conclude(folder, plots=False, as_json=as_json)
        raise


def show(summary: Mapping[str, Any], folder: Path, figures: Figures) -> None:
    """Print the table, and draw the plots when matplotlib is there."""
    from edgegossip.report.plots import write_plots  # here: a board that waits has no use for them
    from edgegossip.report.table import run_table

    click.echo(run_table(summary))
    if figures.plots:
        try:
            for path in write_plots(folder, figures):
                click.echo(f"plot {path}")
        except HostError as error:
            click.echo(f"no plots: {error}", err=True)
    click.echo(f"run folder {folder}")
