"""`edgegossip data`: fetch data sets, and look at one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from edgegossip.cli.options import JSON, SETTINGS


@click.group()
def data() -> None:
    """Fetch the data sets that recipes name; say what a board's own data are."""


@data.command()
@click.argument("name")
@click.option("--dir", "folder", default="", type=click.Path(file_okay=False), help="Where to; default: the data home.")
def download(name: str, folder: str) -> None:
    """Fetch NAME (cifar10, mnist, fashion-mnist) from its authors' site and check every file
    against its checksum.

    The data home is $EDGEGOSSIP_DATA, or ~/.local/share/edgegossip; recipes look there when
    data.dir is empty.
    """
    from edgegossip.training.data.download import download as fetch

    click.echo(f"{name} is in {fetch(name, folder, _show if sys.stderr.isatty() else None)}")


@data.command()
@click.argument("recipe")
@SETTINGS
@click.option("--name", "board", default="board-0", help="The board whose data these are: {board} in data.dir.")
@click.option("--index", default=0, help="Its number: {index} in data.dir.")
@JSON
def describe(recipe: str, settings: tuple[str, ...], board: str, index: int, as_json: bool) -> None:
    """Open this machine's data as RECIPE names them, and say what one example is, how many there
    are of each class, and what the recipe of all boards may declare. With --json: counts and sums
    for `combine`."""
    from edgegossip import recipe as recipes
    from edgegossip.training.data import Board
    from edgegossip.training.data.overview import overview

    found = overview(recipes.load(recipe, settings).data, Board(board, index))
    if as_json:
        click.echo(json.dumps(found))
        return
    for key, value in found.items():
        if value not in (None, [], "") and key not in ("count", "sum", "squares"):
            click.echo(f"{key:14} {value}")


@data.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def combine(files: tuple[Path, ...]) -> None:
    """Add up what `describe --json` said on each board, and print the [data] keys that hold for all
    of them: shapes, classes, and the mean and standard deviation over the examples of all."""
    from edgegossip.training.data.overview import as_recipe, combine

    click.echo(as_recipe(combine(files)), nl=False)


def _show(file: str, received_bytes: int, total_bytes: int | None) -> None:
    of = f" of {total_bytes / 1e6:.1f}" if total_bytes else ""
    end = "\n" if received_bytes == total_bytes else ""
    click.echo(f"\r{file}: {received_bytes / 1e6:.1f}{of} MB{end}", err=True, nl=False)
