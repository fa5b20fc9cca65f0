"""`edgegossip run`: a whole fleet as processes of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from edgegossip.cli.options import JSON, PLOTS, RUNS, SCRIPT_ARGS, SETTINGS, with_script_args


@click.command()
@click.argument("recipe", required=False, metavar="[RECIPE|SCRIPT]")
@SCRIPT_ARGS
@SETTINGS
@click.option("--nodes", type=int, help="Number of boards; the same as --set run.nodes=N.")
@click.option(
    "--resume",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="In place of RECIPE: go on with the run in this folder, each board from its newest checkpoint.",
)
@RUNS
@PLOTS
@JSON
def run(
    recipe: str | None,
    script_args: tuple[str, ...],
    settings: tuple[str, ...],
    nodes: int | None,
    resume: str | None,
    runs_dir: str,
    plots: bool,
    as_json: bool,
) -> int:
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
      edgegossip run quickstart-gossip --nodes 8 --set codec.name=minmax8 --set gossip.topology=torus
      edgegossip run cifar10-gossip --set data.dir=DIR --set model.name=cnn
      edgegossip run train.py --nodes 4 --set gossip.algorithm=choco-sgd -- --data data/{board}
      edgegossip run train.py --nodes 4 --set run.mode=server
      edgegossip run --resume runs/20261121-101500-quickstart-gossip
    """
    from edgegossip.fleet.launch.run import resume_fleet, run_fleet
    from edgegossip.recipe import load

    if (recipe is None) == (resume is None):
        raise click.UsageError("name a RECIPE (see `edgegossip recipe list`), or a run folder with --resume FOLDER")
    if recipe is None:
        assert resume is not None
        if settings or nodes is not None:
            raise click.UsageError("--resume goes on with the recipe of the run folder: leave --set and --nodes out")
        return resume_fleet(Path(resume), plots=plots, as_json=as_json)

    if nodes is not None:
        settings = (*settings, f"run.nodes={nodes}")
    return run_fleet(
        load(recipe, with_script_args(settings, script_args)), Path(runs_dir), plots=plots, as_json=as_json
    )
