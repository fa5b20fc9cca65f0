"""`edgegossip data`: fetch data sets."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def data() -> None:
    """Fetch the data sets that recipes name."""


@data.command()
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(file_okay=False), help="Where to put it; default: the data home.")
def download(name: str, folder: str | None) -> None:
    """Fetch NAME (cifar10, mnist, fashion-mnist) from its authors' site and check every file against its checksum.

    The data home is $EDGEGOSSIP_DATA, or ~/.local/share/edgegossip; recipes look there when data.dir is empty.
    """
    from edgegossip.training.download import download as fetch

    where = fetch(name, Path(folder) if folder else None, progress=click.echo)
    click.echo(f"{name} is in {where}")
