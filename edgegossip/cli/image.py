"""`edgegossip image` and `flash`: cards for boards, from Debian's packages to a file, and from that
to a card."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from edgegossip.cli.options import JSON, OUTPUT, command
from edgegossip.fleet.image.boards import BuildFrom
from edgegossip.options import REQUIRED, option
from edgegossip.types import EXIT_DATA


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCommand:
    """Options of `edgegossip image build`."""

    asked: BuildFrom
    output: Path = OUTPUT(REQUIRED, "The image to make.", path="file")
    fresh: bool = option(False, "Fetch Debian's packages again: the cache does not know of updates.")
    as_json: bool = JSON()


@command(BuildCommand, image)
def build(options: BuildCommand) -> int:
    """Make a base image for a kind of board: Debian, the client, no names and no keys. Finished
    steps are kept."""
    from edgegossip.fleet.image.build import build_image

    built = build_image(
        options.asked,
        options.output,
        lambda text: click.echo(text, err=options.as_json),
        fresh=options.fresh,
    )
    if options.as_json:
        click.echo(json.dumps(built.document(), indent=2))
    else:
        click.echo(
            f"{built.image}: {built.about['size'] / 1e6:.0f} MB, sha256 {built.about['sha256']}, {built.seconds:.0f} s"
        )
        click.echo(f"next: edgegossip image configure {built.image} --kit pi-01.kit -o pi-01.img")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """Options of `edgegossip image wheel`."""

    asked: BuildFrom
    output: Path = OUTPUT(Path("."), "Folder to put it in.", path="folder")


@command(Wheel, image)
def wheel(options: Wheel) -> int:
    """Make our wheel alone for a kind of board, cross-compiled: for cards with another system."""
    from edgegossip.fleet.image.build import build_wheel

    click.echo(build_wheel(options.asked, options.output, click.echo))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Options of `edgegossip image release`."""

    asked: BuildFrom
    output: Path = OUTPUT(REQUIRED, "New folder to put it in.", path="folder")
    with_packages: bool = option(False, "With all Python packages: for boards that have other ones.")


@command(Release, image)
def release(options: Release) -> int:
    """Make a folder that `edgegossip fleet release build` signs: the client alone, for boards that
    run already."""
    from edgegossip.fleet.image.build import build_release

    output = options.output
    build_release(options.asked, output, click.echo, with_packages=options.with_packages)
    click.echo(f"next: edgegossip fleet release build {output} -o {output.name}.bundle")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Options of `edgegossip image configure`."""

    base: Path = option(REQUIRED, argument=True, path="file")
    kit: Path = option(REQUIRED, "Of `edgegossip fleet kit`.", path="file")
    output: Path = OUTPUT(REQUIRED, "The card's image to make.", path="file")
    as_json: bool = JSON()


@command(Configure, image)
def configure(options: Configure) -> int:
    """Make BASE the card of one board: its kit goes onto the boot partition, and first boot takes
    it from there.

    \b
    Examples:
      edgegossip image configure base.img --kit pi-01.kit -o pi-01.img
    """
    from edgegossip.fleet.image.configure import configure as make
    from edgegossip.fleet.image.tools import with_sudo

    output = options.output
    done = make(options.base, options.kit, output)
    name, seconds = done.bundle.name, f"{done.seconds:.1f}"
    if options.as_json:
        click.echo(json.dumps({"name": name, "image": str(output), "seconds": seconds}, indent=2))
    else:
        click.echo(f"{output} is the card of {name} ({seconds} s); it holds a key: it is for you alone")
        click.echo(f"next: {with_sudo(f'flash {output} /dev/sdX --yes sdX')}   (lsblk says which sdX)")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCommand:
    """Options of `edgegossip image verify`."""

    image: Path = option(REQUIRED, argument=True, path="file")
    as_json: bool = JSON()


@command(VerifyCommand, image)
def verify(options: VerifyCommand) -> int:
    """Look an image through: hash, partitions, what a board needs to start, and that no key is in
    it but a kit's."""
    from edgegossip.fleet.image.verify import verify as look

    checks = look(options.image, lambda text: None if options.as_json else click.echo(text))
    if options.as_json:
        click.echo(json.dumps({"image": str(options.image), "checks": [asdict(check) for check in checks]}, indent=2))
    return EXIT_DATA if any(check.fault for check in checks) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """Options of `edgegossip flash`."""

    image: Path = option(REQUIRED, argument=True, path="file")
    device: str = option(REQUIRED, argument=True)
    confirmed: str = option("", "The device's name, such as sdb: all on it is lost.", flag="--yes", metavar="NAME")
    allow_fixed: bool = option(False, "Also a disk that is not removable (or says so).")
    verify: bool = option(True, "Read the card back afterwards and compare.")
    dry_run: bool = option(False, "Only say whether it would be written.")
    as_json: bool = JSON()


@command(Flash)
def flash(options: Flash) -> int:
    """Write IMAGE to the whole card DEVICE, and read it back.

    Refuses whatever is in use, is part of something larger, is no removable card or is too small,
    and writes nothing unless --yes names the device.

    \b
    Examples:
      lsblk
      sudo edgegossip flash pi-01.img /dev/sdb --yes sdb
    """
    from edgegossip.fleet.image.flashing import flash_card
    from edgegossip.fleet.image.refusals import Wish

    o, say = options, lambda text: click.echo(text, err=options.as_json)
    wish = Wish(0, o.confirmed, o.allow_fixed)
    done = flash_card(o.image, o.device, wish, say, verify=o.verify, dry_run=o.dry_run)
    if o.as_json:
        click.echo(json.dumps(done, indent=2))
    elif o.dry_run:
        click.echo(f"{done['device']} ({done['model']}) would be written: {done['size']} bytes")
    else:
        how = "written and verified" if o.verify else "written, not verified"
        then = f"put it into {done['name'] or 'the board'}"
        if done["base"]:
            then = "it is a base image, which is no board's until its boot partition has a kit as edgegossip.kit"
        click.echo(f"{done['device']} is {how} ({done['write_s']:.0f} + {done['verify_s']:.0f} s): {then}")
    return 0
