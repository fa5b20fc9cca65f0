"""`edgegossip fleet serve`, `fleet status` and `fleet release`: boards that are far away, and new
releases for them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from edgegossip.cli.options import FLEET, JSON
from edgegossip.types import EdgegossipError


@click.command()
@FLEET
@click.option("--listen", default="0.0.0.0:7710", show_default=True, metavar="HOST:PORT", help="Where boards check in.")
@click.option("--identity", type=click.Path(file_okay=False, path_type=Path), help="[default: the fleet's coordinator]")
def serve(folder: Path, listen: str, identity: Path | None) -> int:
    """Let boards check in: they get the time, news of revoked boards, and their release. Runs until
    Ctrl-C.

    Only boards of this fleet come in, with their certificates. Kits name this machine with
    `fleet add --check-in HOST:PORT`.
    """
    from edgegossip.fleet.checkins import serve as run

    run(folder, listen, identity, lambda text: click.echo(text))
    return 0


@click.command()
@FLEET
@click.option(
    "--ask", "places", multiple=True, metavar="HOST:PORT", help="Also ask a board of the mesh, or a coordinator, there."
)
@click.option("--watch", is_flag=True, help="Show it again every 2 s, until Ctrl-C.")
@JSON
def status(folder: Path, places: tuple[str, ...], watch: bool, as_json: bool) -> int:
    """Show which boards have checked in, when, with which version, and what they do.

    Boards check in with `fleet serve`, whether they train through a coordinator or in a mesh. With
    --ask also one that does not: it says who it is, by its certificate, and takes over the fleet's
    revocation list.
    """
    while True:
        if watch and not as_json and sys.stdout.isatty():
            click.clear()
        elif watch and not as_json:
            click.echo(time.strftime("-- %H:%M:%S"))
        code = _show_status(folder, places, as_json)
        if not watch:
            return code
        time.sleep(2.0)


def _show_status(folder: Path, places: tuple[str, ...], as_json: bool) -> int:
    from edgegossip.fleet.checkins import status as look
    from edgegossip.fleet.checkins import table
    from edgegossip.fleet.store import Fleet
    from edgegossip.report.units import seconds_text

    fleet = Fleet.open(folder)
    rows, told = look(fleet, time.time()), {}
    if places:
        from edgegossip.fleet.revocation import tell_all
        from edgegossip.flower.connection import send_revocations

        told = dict(tell_all(fleet, places, send_revocations))
    failed = {place: error for place, error in told.items() if isinstance(error, EdgegossipError)}
    answers = {place: answer for place, answer in told.items() if not isinstance(answer, EdgegossipError)}
    if as_json:
        asked: dict[str, object] = {place: {"name": n, "crl_number": k} for place, (n, k) in answers.items()}
        asked |= {place: {"error": str(error)} for place, error in failed.items()}
        click.echo(json.dumps({"boards": [row.document() for row in rows], "asked": asked}, indent=2))
    else:
        lines = [f"{name} answers at {place}, and goes by revocation list {n}" for place, (name, n) in answers.items()]
        click.echo("\n".join([*table(rows, seconds_text), *lines]))
        for error in failed.values():
            click.echo(f"edgegossip: {error}", err=True)
    return max((error.exit_code for error in failed.values()), default=0)


@click.group()
def release() -> None:
    """Give boards a new release of the program: signed, pulled when they check in, and undone if it
    does not work.

    \b
    Examples:
      sudo edgegossip image release --board raspberry-pi-4 -o 0.4.0
      edgegossip fleet release build 0.4.0 -o 0.4.0.bundle
      edgegossip fleet release push 0.4.0.bundle pi-01          # try it on one board
      edgegossip fleet release status
      edgegossip fleet release push 0.4.0.bundle                # then on all
    """


@release.command()
@click.argument("site", type=click.Path(exists=True, file_okay=False, path_type=Path))
@FLEET
@click.option("--release", "version", metavar="VERSION", help="[default: that of the package in SITE]")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE")
def build(site: Path, folder: Path, version: str | None, output: Path) -> int:
    """Pack SITE, a folder that `edgegossip image release` made, as a signed bundle.

    Boards keep their Python packages (torch, numpy, ...): a release is a few megabytes. One with
    other packages must bring them (`image release --with-packages`); boards still fetch only what
    differs from the release they run.
    """
    from dataclasses import replace

    from edgegossip.fleet import releases
    from edgegossip.fleet.releases import examine
    from edgegossip.fleet.store import Fleet

    found = examine(site)
    made = releases.build(Fleet.open(folder), replace(found, version=version or found.version), output)
    size = output.stat().st_size
    click.echo(
        f"{output}: release {made.version}, number {made.sequence}, {len(made.entries)} files, {size / 1e6:.1f} MB, signed; "
        f"for {made.machine} and Python {made.python}, {'with' if found.whole else 'without'} packages"
    )
    click.echo(f"next: edgegossip fleet release push --fleet {folder} {output} [BOARD ...]")
    return 0


@release.command()
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("boards", nargs=-1)
@FLEET
def push(bundle: Path, boards: tuple[str, ...], folder: Path) -> int:
    """Have BOARDS (none named: all) take this release when they next check in with
    `fleet serve`."""
    from edgegossip.fleet import releases
    from edgegossip.fleet.store import Fleet

    number, names = releases.push(Fleet.open(folder), bundle, boards)
    click.echo(f"release number {number} is for {', '.join(names)}; they fetch it when they check in")
    click.echo("next: edgegossip fleet release status")
    return 0


@release.command(name="status")
@FLEET
@JSON
def release_status(folder: Path, as_json: bool) -> int:
    """Show which release each board has, and which it should have."""
    from edgegossip.fleet.checkins import status as look
    from edgegossip.fleet.store import Fleet

    rows = [row for row in look(Fleet.open(folder), time.time()) if row.seen != "revoked"]
    if as_json:
        click.echo(json.dumps({"boards": [row.document() for row in rows]}, indent=2))
        return 0
    for row in rows:
        has = f"has release {row.release} ({row.version})" if row.ago_s is not None else "has never checked in"
        click.echo(f"{row.name}: {has}{f'; {row.update}' if row.update else ''}")
    return 0
