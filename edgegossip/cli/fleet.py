"""`edgegossip fleet`: who may take part. A folder on your laptop, one folder for each board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgegossip.cli.options import JSON
from edgegossip.types import EdgegossipError

if TYPE_CHECKING:
    from edgegossip.fleet.store import Fleet

FOLDER = click.option(
    "--fleet",
    "folder",
    default="fleet",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The fleet's folder.",
)
YEARS = click.option("--years", type=float, default=20.0, show_default=True, help="How long certificates are valid.")


@click.group()
def fleet() -> None:
    """Make identities for boards, list them, and revoke them.

    Do this on your laptop (pip install 'edgegossip[fleet]'). The fleet's folder holds the key that decides who is in: keep it
    there. Each board gets its own folder below boards/, and names it with --identity.

    \b
    Examples:
      edgegossip fleet init
      edgegossip fleet add pi-01 pi-02 pi-03
      scp -r fleet/boards/pi-01 pi-01:identity
      edgegossip fleet revoke pi-03
    """


@fleet.command()
@click.argument("folder", default="fleet", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="home", show_default=True, help="The fleet's name, for people.")
@YEARS
@JSON
def init(folder: Path, name: str, years: float, as_json: bool) -> int:
    """Make a new fleet in FOLDER: its authority, and the operator's identity."""
    store = _store()
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
@FOLDER
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
@YEARS
@JSON
def add(
    names: tuple[str, ...], folder: Path, role: str, hosts: tuple[str, ...], again: bool, years: float, as_json: bool
) -> int:
    """Issue a certificate and make a folder for each of NAMES."""
    present = _store().Fleet.open(folder).add_all(names, role, years, hosts, again=again)
    new = [m for m in present.members if m.name in names and m.revoked is None]
    if as_json:
        click.echo(json.dumps([m.document() for m in new], indent=2))
    else:
        for m in new:
            click.echo(f"{m.name}: {folder / m.folder} (copy it to that {m.role}, which names it with --identity)")
    return 0


@fleet.command(name="list")
@FOLDER
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
@FOLDER
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

    Boards pass the news on to one another, so one that runs is enough. Without NAMES only tells. A board that does not run
    now hears it from the first peer that it meets, or from a copy of crl.pem in its identity folder. A coordinator that
    serves from this very folder sees it by itself. Ends with 0 only if everybody who was to be told goes by this folder's
    list then.
    """
    if not names and not boards:
        raise click.UsageError("say which boards to revoke, or whom to tell with --tell HOST:PORT")
    present = _store().Fleet.open(folder).revoke(*names)
    from edgegossip.fleet.telling import tell_all
    from edgegossip.flower.telling import give

    if names and not as_json:
        click.echo(f"revoked {', '.join(names)}: {folder / 'crl.pem'} is list {present.crl_number}")
    told = tell_all(present, boards, give)
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


def _document(present: Fleet) -> dict[str, object]:
    return {
        "name": present.name,
        "fleet_id": present.fleet_id,
        "folder": str(present.folder),
        "crl_number": present.crl_number,
        "members": [m.document() for m in present.members],
    }


def _store():  # type: ignore[no-untyped-def]
    """The module that needs `cryptography`. Raises HostError without it."""
    from edgegossip.types import HostError

    try:
        from edgegossip.fleet import store
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        raise HostError("`edgegossip fleet` needs the package cryptography: pip install 'edgegossip[fleet]'") from error
    return store
