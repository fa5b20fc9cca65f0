"""`edgegossip study`: accuracy tables over many variants of a recipe, on virtual nodes in one
process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click

from edgegossip.cli.options import JSON, OUTPUT, SETTINGS, chosen, command
from edgegossip.options import REQUIRED, option
from edgegossip.report.style import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCommand:
    """Options of `edgegossip study`."""

    recipe: str = option(REQUIRED, argument=True)
    settings: tuple[str, ...] = SETTINGS()
    sweeps: tuple[str, ...] = option(
        (),
        "Run with each of these values of a recipe key; several give all combinations.",
        flag="--sweep",
        metavar="KEY=A,B,C",
    )
    sweep_file: str = option(
        "",
        "Cases listed in a TOML file, or one that the package carries (co3, elasticl, fashion-gossip). --sweep "
        "multiplies them.",
        metavar="FILE",
    )
    seeds: str = option("", "Run every case with each of these seeds.", metavar="1,2,3")
    out: Path | None = OUTPUT(
        None,
        "Folder of the results; one that has some already is gone on with. Default: runs/NAME-study.",
        path="folder",
    )
    jobs: int = option(1, "Runs at a time.", low=1, high=256)
    target: float = option(
        0.0,
        "Add columns: rounds and bytes up to the first test with this accuracy, such as 0.68.",
        low=0.0,
        high=1.0,
    )
    skip_invalid: bool = option(False, "Leave out combinations that cannot run, instead of stopping.")
    figures: Figures
    as_json: bool = JSON()


@command(StudyCommand)
def study(options: StudyCommand) -> int:
    """Train RECIPE many times with some keys changed, and compare what comes out: accuracy, bits,
    consensus.

    All boards of a run are virtual nodes in one process, without sockets; bytes are those of the
    real frames. A study that was stopped, however hard, goes on where it was with the same command.

    \b
    Examples:
      edgegossip study quickstart-gossip --sweep codec.name=fp32,bf16,minmax8 --seeds 1,2,3
      edgegossip study quickstart-gossip --sweep run.mode=gossip,server \\
          --sweep data.partition=iid,sorted
      edgegossip study fashion-gossip --sweep-file fashion-gossip --jobs 2 --set data.dir=DIR
    """
    from edgegossip import recipe as recipes
    from edgegossip.studies.campaign import StudyOptions, run
    from edgegossip.studies.cases import StudyPlan, of_recipe, parse_seeds, parse_sweep, read_file

    def warn(text: str) -> None:
        click.echo(text, err=True)

    asked = chosen(
        options,
        StudyOptions,
        recipe=recipes.load(options.recipe, of_recipe(options.settings)),
        sweeps=[parse_sweep(text) for text in options.sweeps],
        listed=(read_file(options.sweep_file) if options.sweep_file else StudyPlan()).below(
            dict(recipes.parse_setting(setting) for setting in options.settings)
        ),
        seeds=parse_seeds(options.seeds) if options.seeds else (),
    )
    document, code = run(asked, warn if options.as_json else click.echo, warn)
    if options.as_json:
        click.echo(json.dumps(document))
    return code
