"""`edgegossip run`: a whole fleet as processes of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from edgegossip.cli.options import JSON, PLOTS, RUNS, SCRIPT_ARGS, SETTINGS, command, with_script_args
from edgegossip.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Options of `edgegossip run`."""

    recipe: str | None = option(None, argument=True, metavar="[RECIPE|SCRIPT]")
    script_args: tuple[str, ...] = SCRIPT_ARGS()
    settings: tuple[str, ...] = SETTINGS()
    nodes: int | None = option(None, "Number of boards; the same as --set run.nodes=N.")
    resume: Path | None = option(
        None,
        "In place of RECIPE: go on with the run in this folder, each board from its newest checkpoint.",
        path="folder",
        metavar="FOLDER",
    )
    runs: Path = RUNS()
    plots: bool = PLOTS()
    as_json: bool = JSON()


@command(Run)
def run(options: Run) -> int:
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
      edgegossip run quickstart-gossip --nodes 8 \\
          --set codec.name=minmax8 --set gossip.topology=torus
      edgegossip run cifar10-gossip --set data.dir=DIR --set model.name=cnn
      edgegossip run train.py --nodes 4 --set gossip.algorithm=choco-sgd -- --data data/{board}
      edgegossip run train.py --nodes 4 --set run.mode=server
      edgegossip run --resume runs/20261121-101500-quickstart-gossip
    """
    from edgegossip.fleet.launch.run import resume_fleet, run_fleet
    from edgegossip.recipe import load

    if (options.recipe is None) == (options.resume is None):
        raise click.UsageError("name a RECIPE (see `edgegossip recipe list`), or a run folder with --resume FOLDER")
    settings = options.settings
    if options.resume is not None:
        if settings or options.nodes is not None:
            raise click.UsageError("--resume goes on with the recipe of the run folder: leave --set and --nodes out")
        return resume_fleet(options.resume, plots=options.plots, as_json=options.as_json)
    assert options.recipe is not None
    if options.nodes is not None:
        settings = (*settings, f"run.nodes={options.nodes}")
    recipe = load(options.recipe, with_script_args(settings, options.script_args))
    return run_fleet(recipe, options.runs, plots=options.plots, as_json=options.as_json)
