"""`edgegossip image`: cards for boards, from Debian's packages to a file that can be written to
one."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.options import JSON


@click.group()
def image() -> None:
    """Make images of boards' cards, give one a board's kit, look one through.

    On Debian or a relative of it; `build` needs root, a cross compiler and an emulator, and names
    what is missing.

    \b
    Examples:
      sudo edgegossip image build --board raspberry-pi-4 -o base.img
      edgegossip image configure base.img --kit pi-01.kit -o pi-01.img
      edgegossip image verify pi-01.img
      sudo edgegossip flash pi-01.img /dev/sdX --yes sdX
    """


_FOLDER = click.Path(file_okay=False, path_type=Path)
BOARD = click.option("--board", required=True, help="Such as raspberry-pi-4; docs/images.md lists them.")
MIRROR = click.option(
    "--mirror", metavar="ADDRESS[,SECURITY]", help="Debian's archive; default: that of this machine's apt."
)
SOURCE = click.option(
    "--source", type=_FOLDER, metavar="DIR", help="A checkout of edgegossip; default: the one this command runs from."
)
CACHE = click.option(
    "--cache", type=_FOLDER, metavar="DIR", help="Where finished steps are kept; default: ~/.cache/edgegossip/images."
)


@image.command()
@BOARD
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The image to make."
)
@MIRROR
@SOURCE
@CACHE
@click.option("--fresh", is_flag=True, help="Fetch Debian's packages again: the cache does not know of updates.")
@JSON
def build(
    board: str, output: Path, mirror: str | None, source: Path | None, cache: Path | None, fresh: bool, as_json: bool
) -> int:
    """Make a base image for a kind of board: Debian, the client, no names and no keys. Finished
    steps are kept."""
    from edgegossip.fleet.image.build import build_image

    built = build_image(board, output, mirror, source, cache, lambda text: click.echo(text, err=as_json), fresh=fresh)
    if as_json:
        click.echo(json.dumps(built.document(), indent=2))
    else:
        click.echo(
            f"{built.image}: {built.about['size'] / 1e6:.0f} MB, sha256 {built.about['sha256']}, {built.seconds:.0f} s"
        )
        click.echo(f"next: edgegossip image configure {built.image} --kit pi-01.kit -o pi-01.img")
    return 0


@image.command()
@BOARD
@click.option("-o", "--output", default=".", show_default=True, type=_FOLDER, help="Folder to put it in.")
@MIRROR
@SOURCE
@CACHE
def wheel(board: str, output: Path, mirror: str | None, source: Path | None, cache: Path | None) -> int:
    """Make our wheel alone for a kind of board, cross-compiled: for cards with another system."""
    from edgegossip.fleet.image.build import build_wheel

    click.echo(build_wheel(board, output, mirror, source, cache, click.echo))
    return 0


@image.command()
@BOARD
@click.option("-o", "--output", required=True, type=_FOLDER, help="New folder to put it in.")
@click.option("--with-packages", is_flag=True, help="With all Python packages: for boards that have other ones.")
@MIRROR
@SOURCE
@CACHE
def release(
    board: str, output: Path, with_packages: bool, mirror: str | None, source: Path | None, cache: Path | None
) -> int:
    """Make a folder that `edgegossip fleet release build` signs: the client alone, for boards that
    run already."""
    from edgegossip.fleet.image.build import build_release

    build_release(board, output, mirror, source, cache, click.echo, with_packages=with_packages)
    click.echo(f"next: edgegossip fleet release build {output} -o {output.name}.bundle")
    return 0


@image.command()
@click.argument("base", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--kit", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Of `edgegossip fleet kit`."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="The card's image to make.")
@click.option(
    "--cloud-init",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Instead of an image: the mounted boot partition of a stock Raspberry Pi OS card.",
)
@click.option(
    "--wheel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --cloud-init: of `edgegossip image wheel`.",
)
@SOURCE
@JSON
def configure(
    base: Path | None,
    kit: Path,
    output: Path | None,
    folder: Path | None,
    wheel: Path | None,
    source: Path | None,
    as_json: bool,
) -> int:
    """Make BASE the card of one board: its kit goes onto the boot partition, and first boot takes
    it from there.

    \b
    Examples:
      edgegossip image configure base.img --kit pi-01.kit -o pi-01.img
      edgegossip image configure --cloud-init /media/me/bootfs --kit pi-01.kit --wheel edgegossip-*.whl
    """
    if folder is not None:
        if base is not None or output is not None or wheel is None:
            raise click.UsageError("--cloud-init DIR goes with --kit and --wheel, and with no image")
        from edgegossip.fleet.image import build as builds
        from edgegossip.fleet.image import cloud_init

        name = cloud_init.prepare(folder, kit, wheel, builds.source_of(source)).name
        said = {"name": name, "folder": str(folder)}
        words = f"{folder} makes the card {name}'s: unmount it and put it into the board"
    else:
        if base is None or output is None:
            raise click.UsageError("say which image, and the one to make of it: BASE -o OUTPUT")
        from edgegossip.fleet.image.configure import configure as make
        from edgegossip.fleet.image.tools import with_sudo

        done = make(base, kit, output)
        name, said = (
            done.bundle.name,
            {"name": done.bundle.name, "image": str(output), "seconds": f"{done.seconds:.1f}"},
        )
        words = f"{output} is the card of {name} ({done.seconds:.1f} s); it holds a key: it is for you alone"
        words += f"\nnext: {with_sudo(f'flash {output} /dev/sdX --yes sdX')}   (lsblk says which sdX)"
    click.echo(json.dumps(said, indent=2) if as_json else words)
    return 0


@image.command()
@click.argument("image", type=click.Path(dir_okay=False, path_type=Path))
@JSON
def verify(image: Path, as_json: bool) -> int:
    """Look an image through: hash, partitions, what a board needs to start, and that no key is in
    it but a kit's."""
    from dataclasses import asdict

    from edgegossip.fleet.image.verify import verify as look
    from edgegossip.types import EXIT_DATA

    checks = look(image, lambda text: None if as_json else click.echo(text))
    if as_json:
        click.echo(json.dumps({"image": str(image), "checks": [asdict(check) for check in checks]}, indent=2))
    return EXIT_DATA if any(check.fault for check in checks) else 0
