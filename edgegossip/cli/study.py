"""`edgegossip study`: accuracy tables over many variants of a recipe, on virtual nodes in one
process."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.options import JSON, PLOTS, SETTINGS


@click.command()
@click.argument("recipe")
@SETTINGS
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="KEY=A,B,C",
    help="Run with each of these values of a recipe key; several give all combinations.",
)
@click.option(
    "--sweep-file",
    default="",
    metavar="FILE",
    help="Cases listed in a TOML file, or one that the package carries (co3, elasticl, fashion-gossip). --sweep multiplies them.",
)
@click.option("--seeds", default="", metavar="1,2,3", help="Run every case with each of these seeds.")
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    help="Folder of the results; one that has some already is gone on with. Default: runs/NAME-study.",
)
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1, 256), help="Runs at a time.")
@click.option("--skip-invalid", is_flag=True, help="Leave out combinations that cannot run, instead of stopping.")
@PLOTS
@JSON
def study(
    recipe: str,
    settings: tuple[str, ...],
    sweeps: tuple[str, ...],
    sweep_file: str,
    seeds: str,
    out: str | None,
    jobs: int,
    skip_invalid: bool,
    plots: bool,
    as_json: bool,
) -> int:
    """Train RECIPE many times with some keys changed, and compare what comes out: accuracy, bits,
    consensus.

    All boards of a run are virtual nodes in one process, without sockets; bytes are those of the
    real frames. A study that was stopped, however hard, goes on where it was with the same command.

    \b
    Examples:
      edgegossip study quickstart-gossip --sweep codec.name=fp32,bf16,minmax8 --seeds 1,2,3
      edgegossip study quickstart-gossip --sweep run.mode=gossip,server --sweep data.partition=iid,sorted
      edgegossip study fashion-gossip --sweep-file fashion-gossip --jobs 2 --set data.dir=DIR
    """
    from edgegossip.lab.study.campaign import StudyOptions, run

    options = StudyOptions(
        recipe, settings, sweeps, sweep_file, seeds, Path(out) if out else None, jobs, skip_invalid, plots
    )

    def warn(text: str) -> None:
        click.echo(text, err=True)

    document, code = run(options, warn if as_json else click.echo, warn)
    if as_json:
        click.echo(json.dumps(document))
    return code
