"""`edgegossip data`: fetch data sets."""

from __future__ import annotations

import sys

import click


@click.group()
def data() -> None:
    """Fetch the data sets that recipes name."""


@data.command()
@click.argument("name")
@click.option("--dir", "folder", default="", type=click.Path(file_okay=False), help="Where to; default: the data home.")
def download(name: str, folder: str) -> None:
    """Fetch NAME (cifar10, mnist, fashion-mnist) from its authors' site and check every file against its checksum.

    The data home is $EDGEGOSSIP_DATA, or ~/.local/share/edgegossip; recipes look there when data.dir is empty.
    """
    from edgegossip.training.download import download as fetch

    click.echo(f"{name} is in {fetch(name, folder, _show if sys.stderr.isatty() else None)}")


def _show(file: str, received_bytes: int, total_bytes: int | None) -> None:
    of = f" of {total_bytes / 1e6:.1f}" if total_bytes else ""
    end = "\n" if received_bytes == total_bytes else ""
    click.echo(f"\r{file}: {received_bytes / 1e6:.1f}{of} MB{end}", err=True, nl=False)
