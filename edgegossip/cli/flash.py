"""`edgegossip flash`: write an image to a card, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.options import JSON


@click.command()
@click.argument("image", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("device")
@click.option(
    "--yes", "confirmed", default="", metavar="NAME", help="The device's name, such as sdb: all on it is lost."
)
@click.option("--allow-fixed", is_flag=True, help="Also a disk that is not removable (or says so).")
@click.option("--verify/--no-verify", default=True, help="Read the card back afterwards and compare.")
@click.option("--dry-run", is_flag=True, help="Only say whether it would be written.")
@JSON
def flash(
    image: Path, device: str, confirmed: str, allow_fixed: bool, verify: bool, dry_run: bool, as_json: bool
) -> int:
    """Write IMAGE (also .xz or .gz) to the whole card DEVICE, and read it back.

    Refuses whatever is mounted, holds this machine's system or swap, is part of something larger,
    is no removable card or is too small, and writes nothing unless --yes names the device.

    \b
    Examples:
      lsblk
      sudo edgegossip flash pi-01.img /dev/sdb --yes sdb
    """
    from edgegossip.fleet.image.flashing import flash_card
    from edgegossip.fleet.image.refusals import Wish

    tell = lambda text: click.echo(text, err=as_json)  # noqa: E731
    done = flash_card(image, device, Wish(0, confirmed, allow_fixed), tell, verify=verify, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(done, indent=2))
    elif dry_run:
        click.echo(f"{done['device']} ({done['model']}) would be written: {done['size']} bytes")
    else:
        how = "written and verified" if verify else "written, not verified"
        then = f"put it into {done['name'] or 'the board'}"
        if done["base"]:
            then = "it is a base image, which is no board's until its boot partition has a kit as edgegossip.kit"
        click.echo(f"{done['device']} is {how} ({done['write_s']:.0f} + {done['verify_s']:.0f} s): {then}")
    return 0
