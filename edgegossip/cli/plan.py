"""`edgegossip plan`: what a run will be like on a fleet, before anything runs."""

from __future__ import annotations

import json

import click

from edgegossip.cli.options import JSON, SETTINGS


@click.command()
@click.argument("recipe")
@click.option(
    "--fleet", required=True, metavar="NAME|FILE", help="A fleet of the package, such as paper-18, or a TOML file."
)
@click.option("--devices", "count", type=click.IntRange(2, 64), help="Only the fleet's first so many boards.")
@SETTINGS
@JSON
def plan(recipe: str, fleet: str, count: int | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Bytes and seconds of a round of RECIPE on a fleet, memory of a board, what limits it, and the
    codec that is faster.

    \b
    Examples:
      edgegossip plan cifar10-gossip --fleet pi4-wifi
      edgegossip plan elastiquant --fleet paper-18 --devices 7 --set model.name=resnet34
      edgegossip calibrate -o me.toml       a profile of the board it runs on, to name in a fleet of your own

    Frames are really encoded; seconds and memory are modelled from the boards' profiles.
    """
    from edgegossip import recipe as recipes
    from edgegossip.lab.scale.devices import load_fleet
    from edgegossip.lab.scale.plan import plan as make
    from edgegossip.lab.scale.plan import plan_text

    document = make(recipes.load(recipe, settings), load_fleet(fleet), count)
    click.echo(json.dumps(document) if as_json else plan_text(document))
    return 0
