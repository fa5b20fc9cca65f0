"""`edgegossip data`: fetch data sets, and look at one's own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from edgegossip.cli.options import JSON, SETTINGS, command
from edgegossip.options import REQUIRED, option

# Of what `describe` says, names and values that are no matter of others.
_FOR_ITS_OWNER = ("folders", "skipped", "left_out", "range", "ranges", "target_range", "doubts")


@click.group()
def data() -> None:
    """Fetch the data sets that recipes name; say what a board's own data are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Options of `edgegossip data download`."""

    name: str = option(REQUIRED, argument=True)
    folder: Path | None = option(None, "Where to; default: the data home.", flag="--dir", path="folder")


@command(Download, data)
def download(options: Download) -> None:
    """Fetch NAME (cifar10, mnist, fashion-mnist) from its authors' site and check every file
    against its checksum.

    The data home is $EDGEGOSSIP_DATA, or ~/.local/share/edgegossip; recipes look there when
    data.dir is empty.
    """
    from edgegossip.training.data.download import download as fetch

    folder = fetch(options.name, str(options.folder or ""), _show if sys.stderr.isatty() else None)
    click.echo(f"{options.name} is in {folder}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """Options of `edgegossip data describe`."""

    recipe: str = option(REQUIRED, argument=True)
    settings: tuple[str, ...] = SETTINGS()
    board: str = option("board-0", "The board whose data these are: {board} in data.dir.", flag="--name")
    index: int = option(0, "Its number: {index} in data.dir.")
    as_json: bool = JSON()


@command(Describe, data)
def describe(options: Describe) -> None:
    """Open this machine's data as RECIPE names them, and say what one example is, how many there
    are of each class, and what the recipe of all boards may declare. With --json: counts and sums
    for `combine`."""
    from edgegossip import recipe as recipes
    from edgegossip.training.data import Board
    from edgegossip.training.data.overview import overview

    found = overview(recipes.load(options.recipe, options.settings).data, Board(options.board, options.index))
    if options.as_json:
        click.echo(
            json.dumps({key: value for key, value in found.items() if key.removeprefix("test_") not in _FOR_ITS_OWNER})
        )
        return
    if found["counts"] and found["labels"]:
        found["counts"] = dict(zip(found["labels"], found["counts"], strict=True))
    for key, value in found.items():
        if value in (None, [], {}, "") or key in ("count", "sum", "squares"):
            continue
        lines = [f"{of}: {what}" for of, what in value.items()] if isinstance(value, dict) else [f"{value}"]
        for k, line in enumerate(value if key == "doubts" else lines):
            click.echo(f"{'' if k else key:14} {line}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """Options of `edgegossip data combine`."""

    files: tuple[Path, ...] = option(REQUIRED, argument=True, path="file", exists=True)


@command(Combine, data)
def combine(options: Combine) -> None:
    """Add up what `describe --json` said on each board, and print the [data] keys that hold for all
    of them: shapes, classes, and the mean and standard deviation over the examples of all."""
    from edgegossip.training.data.overview import as_recipe, combine

    click.echo(as_recipe(combine(options.files)), nl=False)


def _show(file: str, received_bytes: int, total_bytes: int | None) -> None:
    of = f" of {total_bytes / 1e6:.1f}" if total_bytes else ""
    end = "\n" if received_bytes == total_bytes else ""
    click.echo(f"\r{file}: {received_bytes / 1e6:.1f}{of} MB{end}", err=True, nl=False)
