"""`edgegossip run`, `demo` and `kill`: a whole fleet as processes of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edgegossip.cli.options import JSON, PLOTS, RUNS, SCRIPT_ARGS, SETTINGS, command, with_script_args
from edgegossip.fleet.launch.outputs import Outputs
from edgegossip.options import REQUIRED, option
from edgegossip.types import EXIT_OK, EXIT_RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """Options of `edgegossip run`."""

    recipe: str | None = option(None, argument=True, metavar="[RECIPE|SCRIPT]")
    script_args: tuple[str, ...] = SCRIPT_ARGS()
    settings: tuple[str, ...] = SETTINGS()
    nodes: int | None = option(None, "Number of boards; the same as --set run.nodes=N.", flag="--boards", metavar="N")
    resume: Path | None = option(
        None,
        "In place of RECIPE: go on with the run in this folder, each board from its newest checkpoint.",
        path="folder",
        metavar="FOLDER",
    )
    alone: bool = option(
        False,
        "First train each board by itself, with the same rounds, seed and data and no exchange. The table then has, by "
        "board, the score alone, together, and of the average of the models.",
    )
    dry_run: bool = option(
        False,
        "Check all that can be checked, say what would run, and end. Every board runs a script up to its first round.",
    )
    runs: Path = RUNS()
    outputs: Outputs = Outputs()
    plots: bool = PLOTS()
    as_json: bool = JSON()


@command(RunCommand)
def run(options: RunCommand) -> int:
    """Train RECIPE, or your own SCRIPT, on boards that are processes of this machine, with real
    sockets between them.

    RECIPE is a packaged recipe (`edgegossip recipe list`) or a TOML file. SCRIPT is a Python file
    that calls edgegossip.join; what follows -- are its arguments, in which {board} and {index}
    become the board's name and number. Afterwards prints what every board reached, sent and spent
    its time on, and leaves all of it in a run folder.

    \b
    Examples:
      edgegossip run quickstart-gossip
      edgegossip run quickstart-gossip --set network.restarts=3
      edgegossip run quickstart-gossip --boards 8 \\
          --set codec.name=minmax8 --set gossip.topology=torus
      edgegossip run cifar10-gossip --set data.dir=DIR --set model.name=cnn
      edgegossip run train.py --boards 4 --set gossip.algorithm=choco-sgd -- --data data/{board}
      edgegossip run train.py --boards 4 --set run.mode=server
      edgegossip run train.py --boards 4 --alone -- --data data/{board}
      edgegossip run cifar10-gossip --set data.dir=DIR --dry-run
      edgegossip run train.py --boards 4 --dry-run -- --data data/{board}
      edgegossip run --resume runs/20261121-101500-quickstart-gossip
    """
    from edgegossip.fleet.launch.run import planned, resume_fleet, run_fleet
    from edgegossip.recipe import load

    if (options.recipe is None) == (options.resume is None):
        raise click.UsageError("name a RECIPE (see `edgegossip recipe list`), or a run folder with --resume FOLDER")
    settings = options.settings
    if options.resume is not None:
        if settings or options.nodes is not None or options.dry_run or options.alone:
            raise click.UsageError(
                "--resume goes on with the recipe of the run folder: leave --set, --boards, --alone and --dry-run out"
            )
        return resume_fleet(options.resume, plots=options.plots, as_json=options.as_json, outputs=options.outputs)
    assert options.recipe is not None
    if options.nodes is not None:
        settings = (*settings, f"run.nodes={options.nodes}")
    recipe = load(options.recipe, with_script_args(settings, options.script_args))
    if options.dry_run:
        plan = planned(recipe, options.runs, alone=options.alone)
        _say(plan, options.as_json)
        return EXIT_RUN if plan["problem"] else EXIT_OK
    return run_fleet(
        recipe,
        options.runs,
        plots=options.plots,
        as_json=options.as_json,
        outputs=options.outputs,
        alone=options.alone,
    )


def _say(plan: Mapping[str, Any], as_json: bool) -> None:
    from edgegossip.report.units import bytes_text

    if as_json:
        click.echo(json.dumps(plan))
        return
    size = "" if plan["values"] is None else f" of {plan['values']:,} values"
    click.echo(
        f"{plan['run']}: {len(plan['boards'])} boards ({plan['mode']}), {plan['rounds']} rounds, "
        f"{plan['model']}{size}, codec {plan['codec']}, into {plan['runs']}"
    )
    for one in plan["each"]:
        joins = (
            f"{one['values']:,} values, {bytes_text(one['memory_bytes'])} before its first round"
            if one["values"]
            else ""
        )
        click.echo(f"{one['board']}: {one['problem'] or joins}")
    for notice in plan["notices"]:
        click.echo(f"!! {notice}")
    if plan["problem"]:
        click.echo(f"edgegossip: {plan['problem']}", err=True)
        return
    untried = f" up to its first round; what {plan['model']} does after that was not tried" if plan["each"] else ""
    sound = "it can be run" if plan["notices"] else "nothing is wrong with it"
    click.echo(
        f"{sound}{untried}; `edgegossip plan {'SCRIPT' if untried else 'RECIPE'} --profile pi4-wifi` "
        "predicts seconds and bytes on boards"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Options of `edgegossip demo`."""

    settings: tuple[str, ...] = SETTINGS()
    runs: Path = RUNS()
    plots: bool = PLOTS()


@command(Demo)
def demo(options: Demo) -> int:
    """Train four boards on this machine in both ways, peer to peer and through a coordinator; then
    say what came of it, where the pages lie, and what to try next.

    Takes about half a minute. --set changes both runs.

    \b
    Examples:
      edgegossip demo
      edgegossip demo --set codec.name=minmax8
    """
    from edgegossip.fleet.launch.demo import run_demo

    return run_demo(options.runs, options.settings, plots=options.plots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Options of `edgegossip kill`."""

    words: tuple[str, ...] = option(REQUIRED, argument=True, metavar="[RUN] BOARD")
    runs: Path = option(Path("runs"), "Folder of the run folders.", flag="--runs", path="folder")


@command(Kill)
def kill(options: Kill) -> None:
    """End the process of BOARD in RUN at once, as a crash or a power cut would, and see what the
    others do. RUN is a run folder, or its name; without it, the newest run that goes on.

    \b
    Examples:
      edgegossip kill board-2
      edgegossip kill 20260102-030405-quickstart-gossip board-2
      edgegossip kill coordinator

    A board of `run` comes back where network.restarts allows it. With a coordinator all of its
    boards end; `run --resume` goes on.
    """
    from edgegossip.fleet.launch import processes

    *run, board = options.words
    if len(run) > 1:
        raise click.UsageError("kill takes one RUN, which may be left out, and one BOARD")
    folder = processes.running_run(run[0] if run else None, options.runs)
    click.echo(f"killed {board} of {folder.name}, process {processes.kill(folder, board)}")
