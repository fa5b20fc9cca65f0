"""`edgegossip fleet`: who may take part. A folder on your laptop, one folder for each board."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgegossip.cli import fleet_release
from edgegossip.cli.fleet_profile import profile_options
from edgegossip.cli.options import FLEET, JSON
from edgegossip.types import EdgegossipError

if TYPE_CHECKING:
    from edgegossip.fleet.store import Fleet

YEARS = click.option("--years", type=float, default=20.0, show_default=True, help="How long certificates are valid.")


@click.group()
def fleet() -> None:
    """Make identities for boards, list them, and revoke them.

    Do this on your laptop. The fleet's folder holds the key that decides who is in: keep it there.
    Each board gets its own kit, which goes onto its card, or its own folder below boards/, which it
    names with --identity.

    \b
    Examples:
      edgegossip fleet init home
      edgegossip fleet add pi-01 pi-02 pi-03 --board raspberry-pi-4 --wifi garden --coordinator 10.0.0.9:8000
      edgegossip fleet kit pi-01 -o pi-01.kit
      scp -r fleet/boards/pi-01 pi-01:identity          # a board that was set up by hand
      edgegossip fleet revoke pi-03
    """


@fleet.command()
@click.argument("name", default="home")
@FLEET
@click.option("--name", "also_name", hidden=True)
@YEARS
@JSON
def init(name: str, folder: Path, also_name: str | None, years: float, as_json: bool) -> int:
    """Make a new fleet called NAME: its authority, and the operator's identity. A path, such as
    ./fleets/lab, says where."""
    store = _store()
    if "/" in name:
        folder, name = Path(name), "home"
    name = also_name or name
    made = store.Fleet.create(folder, name, years)
    if as_json:
        click.echo(json.dumps(_document(made), indent=2))
    else:
        click.echo(
            f"fleet {made.name} ({made.fleet_id}) is in {folder}; {folder}/{store.CA_KEY} is its secret: keep it here"
        )
        click.echo(f"next: edgegossip fleet add --fleet {folder} pi-01 pi-02 ...")
    return 0


@fleet.command()
@click.argument("names", nargs=-1, required=True)
@FLEET
@click.option(
    "--role",
    type=click.Choice(["board", "coordinator", "operator"]),
    default="board",
    show_default=True,
    help="What it is: a board trains, a coordinator serves, an operator signs runs.",
)
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST", help="Coordinator: an address that clients use; repeat."
)
@click.option("--again", is_flag=True, help="Revoke its present certificate and issue a new one.")
@profile_options
@YEARS
@JSON
def add(
    names: tuple[str, ...],
    folder: Path,
    role: str,
    hosts: tuple[str, ...],
    again: bool,
    given: dict[str, Any],
    years: float,
    as_json: bool,
) -> int:
    """Issue a certificate and make a folder for each of NAMES, and keep what their kits will
    have."""
    from edgegossip.fleet import provisioning

    store, asked = _store(), {key: value for key, value in given.items() if value is not None}
    if asked and role != "board":
        raise click.UsageError(f"--{next(iter(asked)).replace('_', '-')} is for boards, which have kits")
    present = store.Fleet.open(folder)
    if asked:  # a mistake must not leave certificates behind
        _provisioning().check_others(present, asked, names)
        for name in names:
            (provisioning.load_profile(folder, name) if again else provisioning.Profile()).changed(**asked)
    present = present.add_all(names, role, years, hosts, again=again)
    if asked:
        _provisioning().set_profiles(present, names, asked)
    new = [m for m in present.members if m.name in names and m.revoked is None]
    if as_json:
        click.echo(json.dumps([m.document() for m in new], indent=2))
    else:
        with_kit = bool(asked) or all(provisioning.load_profile(folder, name).runs for name in names)
        for m in new:
            use = (
                "`fleet kit` makes one file of it"
                if with_kit
                else f"copy it to that {m.role}, which names it with --identity"
            )
            click.echo(f"{m.name}: {folder / m.folder} ({use})")
        if with_kit:
            click.echo(f"next: edgegossip fleet kit --fleet {folder} {names[0]} -o {names[0]}.kit")
    return 0


@fleet.command(name="set")
@click.argument("names", nargs=-1, required=True)
@FLEET
@profile_options
def set_(names: tuple[str, ...], folder: Path, given: dict[str, Any]) -> int:
    """Change what the kits of NAMES will have: network, keys, what they run. Certificates stay as
    they are.

    Boards that check in with `fleet serve` take over what they run within a minute, and begin with
    it at once.
    """
    asked = {key: value for key, value in given.items() if value is not None}
    if not asked:
        raise click.UsageError("say what to change, such as --coordinator HOST:PORT")
    _provisioning().set_profiles(_store().Fleet.open(folder), names, asked)
    click.echo(
        f"kept for {', '.join(names)}; what they run, boards take over when they check in; the rest needs a new kit"
    )
    return 0


@fleet.command()
@click.argument("name")
@FLEET
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="[default: NAME.kit]"
)
def kit(name: str, folder: Path, output: Path | None) -> int:
    """Write the kit of the board NAME: all that its card needs, signed, for your eyes only.

    It holds the board's private key: put it on that board's card and nowhere else
    (`edgegossip image configure`, or copy it onto the boot partition as edgegossip.kit). The board
    moves it to where only root can read it, and wipes it from the card.
    """
    from edgegossip.fleet import provisioning

    output = output or Path(f"{name}.kit")

    provisioning.write_bundle(output, provisioning.make_bundle(_store().Fleet.open(folder), name, time.time()))
    click.echo(f"{output}: the kit of {name}, with its private key; only you can read it")
    if provisioning.in_repository(output):
        click.echo(f"mind that {output} lies in a git repository: it must not be committed", err=True)
    click.echo(f"next: {_use_of(output, name, provisioning.load_profile(folder, name).board)}")
    return 0


@fleet.command(name="list")
@FLEET
@JSON
def list_(folder: Path, as_json: bool) -> int:
    """Show every certificate that was issued and whether it is valid."""
    present = _store().Fleet.open(folder)
    if as_json:
        click.echo(json.dumps(_document(present), indent=2))
        return 0
    rows = [("name", "role", "state", "until", "serial")]
    rows += [(m.name, m.role, m.state, m.not_after[:10], m.serial) for m in present.members]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    click.echo(f"fleet {present.name} ({present.fleet_id}), revocation list {present.crl_number}")
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


@fleet.command()
@click.argument("names", nargs=-1)
@FLEET
@click.option(
    "--tell",
    "boards",
    multiple=True,
    metavar="HOST:PORT",
    help="A running board, which tells the others, or a coordinator.",
)
@JSON
def revoke(names: tuple[str, ...], folder: Path, boards: tuple[str, ...], as_json: bool) -> int:
    """Take the certificates of NAMES back, and tell running boards or a coordinator.

    Boards pass the news on to one another, so one that runs is enough. Without NAMES only tells. A
    board that does not run now hears it from the first peer that it meets, or from a copy of
    crl.pem in its identity folder. A coordinator that serves from this very folder sees it by
    itself. Ends with 0 only if everybody who was to be told goes by this folder's list then.
    """
    if not names and not boards:
        raise click.UsageError("say which boards to revoke, or whom to tell with --tell HOST:PORT")
    present = _store().Fleet.open(folder).revoke(*names)
    from edgegossip.fleet.revocation import tell_all
    from edgegossip.flower.connection import send_revocations

    if names and not as_json:
        click.echo(f"revoked {', '.join(names)}: {folder / 'crl.pem'} is list {present.crl_number}")
    told = tell_all(present, boards, send_revocations)
    failed = {board: error for board, error in told.items() if isinstance(error, EdgegossipError)}
    done = {board: answer for board, answer in told.items() if not isinstance(answer, EdgegossipError)}
    if as_json:
        answers = {board: {"name": n, "crl_number": k} for board, (n, k) in done.items()}
        document = {
            **_document(present),
            "told": {**answers, **{board: {"error": str(error)} for board, error in failed.items()}},
        }
        click.echo(json.dumps(document, indent=2))
    else:
        for board, (name, number) in done.items():
            click.echo(f"{name} at {board} goes by list {number}")
        if names and not boards:
            click.echo(
                "tell a running board: edgegossip fleet revoke --tell HOST:PORT, or copy crl.pem into its identity folder"
            )
    for error in failed.values():
        click.echo(f"edgegossip: {error}", err=True)
    if len(told) > 1 and failed:
        click.echo(f"edgegossip: {len(failed)} of {len(told)} were not told: {', '.join(failed)}", err=True)
    return max((error.exit_code for error in failed.values()), default=0)


for command in (fleet_release.serve, fleet_release.status, fleet_release.release):
    fleet.add_command(command)


def _document(present: Fleet) -> dict[str, object]:
    return {
        "name": present.name,
        "fleet_id": present.fleet_id,
        "folder": str(present.folder),
        "crl_number": present.crl_number,
        "members": [m.document() for m in present.members],
    }


def _use_of(kit: Path, name: str, board: str) -> str:
    if board.startswith("jetson-"):
        return f"copy it to {name}, and there: sudo deploy/jetson/install.sh edgegossip-*.whl {kit.name} (deploy/README.md)"
    return f"edgegossip image configure base.img --kit {kit} -o {name}.img"


def _provisioning():  # type: ignore[no-untyped-def]
    from edgegossip.fleet import provisioning

    return provisioning


def _store():  # type: ignore[no-untyped-def]
    from edgegossip.fleet import store

    return store
