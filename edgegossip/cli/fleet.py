"""`edgegossip fleet`: who may take part. A folder on your laptop, one folder for each board; boards
that are far away, and new releases for them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from edgegossip.cli.options import FLEET, JSON, OUTPUT, command
from edgegossip.mesh import address as addresses
from edgegossip.options import REQUIRED, option
from edgegossip.types import ConfigError, EdgegossipError

if TYPE_CHECKING:
    from edgegossip.fleet.store import Fleet

PASSWORD = "EDGEGOSSIP_WIFI_PASSWORD"
_YEARS = partial(option, 20.0, "How long certificates are valid.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """Says what a board's kit has besides its identity: options of `fleet add` and `fleet set`."""

    board: str | None = option(None, "Which board it is, such as raspberry-pi-4.", metavar="BOARD")
    wifi: str | None = option(
        None, f"Wi-Fi; the password is asked for, or comes from a file or ${PASSWORD}.", metavar="SSID"
    )
    wifi_password_file: Path | None = option(
        None, "First line: the password; - is standard input.", path="file", exists=True, dash=True, metavar="FILE"
    )
    wifi_country: str = option("", "Where the radio is used, such as DE.", metavar="CC")
    ssh_keys: tuple[Path, ...] = option(
        (),
        "Public key of who may log in; repeat.",
        flag="--ssh-key",
        path="file",
        exists=True,
        dash=True,
        metavar="FILE",
    )
    recipe: str | None = option(None, "With --join: what it runs; default quickstart-gossip.", metavar="NAME")
    settings: tuple[str, ...] = option(
        (),
        "Change a key of the recipe; repeat. With --coordinator only what is the board's own matter.",
        flag="--set",
        metavar="KEY=VALUE",
    )
    coordinator: str | None = option(
        None, "It is a client of this coordinator, which tells it the recipe.", metavar="HOST:PORT"
    )
    join: tuple[str, ...] = option((), "It joins the mesh there: the founder's place first.", metavar="HOST:PORT")
    founder: str | None = option(None, "With --join: the board that begins the run.", metavar="NAME")
    boards: str | None = option(None, "With --join: of the run; default: all of the fleet.", metavar="A,B,...")
    listen: str | None = option(None, "Where it listens for peers.  [default: 0.0.0.0:7700]", metavar="HOST:PORT")
    check_in: str | None = option(
        None, "Where `edgegossip fleet serve` listens: time, status, updates.", metavar="HOST:PORT"
    )

    def given(self) -> dict[str, Any]:
        """Return what was said, as keywords for `changed` of a kit's profile.

        Raises ConfigError."""
        from edgegossip.fleet.kitfile import Wifi

        if self.wifi is None and (self.wifi_password_file or self.wifi_country):
            raise ConfigError("--wifi-password-file and --wifi-country go with --wifi SSID")
        wifi = None
        if self.wifi is not None:
            wifi = (Wifi.of(self.wifi, _password(self.wifi, self.wifi_password_file), self.wifi_country),)
        _require_reachable("--coordinator", self.coordinator)
        for place in self.join:
            _require_reachable("--join", place)
        _require_reachable("--check-in", self.check_in)
        said = {
            "board": self.board or None,
            "ssh_keys": tuple(line for key in self.ssh_keys for line in _lines(key)) if self.ssh_keys else None,
            "recipe": self.recipe or None,
            "settings": self.settings or None,
            "coordinator": self.coordinator or None,
            "join": self.join or None,
            "founder": self.founder or None,
            "boards": tuple(filter(None, self.boards.split(","))) if self.boards else None,
            "listen": self.listen or None,
            "check_in": self.check_in or None,
            "wifi": wifi,
        }
        return {key: value for key, value in said.items() if value is not None}


@click.group()
def fleet() -> None:
    """Make identities for boards, list them, and revoke them.

    Do this on your laptop. The fleet's folder holds the key that decides who is in: keep it there.
    Each board gets its own kit, which goes onto its card, or its own folder below boards/, which it
    names with --identity.

    \b
    Examples:
      edgegossip fleet init home
      edgegossip fleet add pi-01 pi-02 pi-03 --board raspberry-pi-4 \\
          --wifi garden --coordinator 10.0.0.9:8000
      edgegossip fleet kit pi-01 -o pi-01.kit
      scp -r fleet/boards/pi-01 pi-01:identity          # a board that was set up by hand
      edgegossip fleet revoke pi-03
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """Options of `edgegossip fleet init`."""

    name: str = option("home", argument=True)
    folder: Path = FLEET()
    years: float = _YEARS()
    as_json: bool = JSON()


@command(Init, fleet)
def init(options: Init) -> int:
    """Make a new fleet called NAME: its authority, and the operator's identity. A path, such as
    ./fleets/lab, says where."""
    from edgegossip.fleet import store

    folder, name = options.folder, options.name
    if "/" in name:
        folder, name = Path(name), "home"
    made = store.Fleet.create(folder, name, options.years)
    if options.as_json:
        click.echo(json.dumps(_document(made), indent=2))
    else:
        click.echo(
            f"fleet {made.name} ({made.fleet_id}) is in {folder}; {folder}/{store.CA_KEY} is its secret: keep it here"
        )
        click.echo(f"next: edgegossip fleet add --fleet {folder} pi-01 pi-02 ...")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Options of `edgegossip fleet add`."""

    names: tuple[str, ...] = option(REQUIRED, argument=True)
    folder: Path = FLEET()
    role: Literal["board", "coordinator", "operator"] = option(
        "board", "What it is: a board trains, a coordinator serves, an operator signs runs."
    )
    hosts: tuple[str, ...] = option(
        (), "Coordinator: an address that clients use; repeat.", flag="--host", metavar="HOST"
    )
    again: bool = option(False, "Revoke its present certificate and issue a new one.")
    profile: ProfileOptions
    years: float = _YEARS()
    as_json: bool = JSON()


@command(Add, fleet)
def add(options: Add) -> int:
    """Issue a certificate and make a folder for each of NAMES, and keep what their kits will
    have."""
    from edgegossip.fleet import orders, provisioning
    from edgegossip.fleet.store import Fleet

    names, folder, role, again = options.names, options.folder, options.role, options.again
    given = options.profile.given()
    if given and role != "board":
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} is for boards, which have kits")
    present = Fleet.open(folder)
    if given:  # a mistake must not leave certificates behind
        provisioning.check_others(present, given, names)
        for name in names:
            (provisioning.load_profile(folder, name) if again else provisioning.Profile()).changed(**given)
    present = present.add_all(names, role, options.years, options.hosts, again=again)
    if given:
        orders.change(present, names, given)
    new = [m for m in present.members if m.name in names and m.revoked is None]
    if options.as_json:
        click.echo(json.dumps([m.document() for m in new], indent=2))
    else:
        with_kit = bool(given) or all(provisioning.load_profile(folder, name).runs for name in names)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Options of `edgegossip fleet set`."""

    names: tuple[str, ...] = option(REQUIRED, argument=True)
    folder: Path = FLEET()
    profile: ProfileOptions


@command(Set, fleet, name="set")
def set_(options: Set) -> int:
    """Change what the kits of NAMES will have: network, keys, what they run. Certificates stay as
    they are.

    Boards that check in with `fleet serve` take over what they run within a minute, and begin with
    it at once.
    """
    from edgegossip.fleet import orders
    from edgegossip.fleet.store import Fleet

    given = options.profile.given()
    if not given:
        raise click.UsageError("say what to change, such as --coordinator HOST:PORT")
    orders.change(Fleet.open(options.folder), options.names, given)
    click.echo(
        f"kept for {', '.join(options.names)}; what they run, boards take over when they check in; the rest needs a "
        "new kit"
    )
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Options of `edgegossip fleet renew`."""

    names: tuple[str, ...] = option((), argument=True)
    folder: Path = FLEET()


@command(Renew, fleet)
def renew(options: Renew) -> int:
    """Sign anew what NAMES (none: all) run and which release they have.

    An order counts for 90 days. After that a board goes on as it is, and says each day in its log
    that it has heard nothing newer: somebody may keep orders back. `fleet set`, `fleet release
    push` and `fleet revoke` sign anew, too.
    """
    from edgegossip.fleet import orders
    from edgegossip.fleet.store import Fleet

    present = Fleet.open(options.folder)
    names = orders.renew(present, options.names or present.boards)
    click.echo(f"signed for {orders.DAYS} days: {', '.join(names) or 'nothing, for nothing says what boards run'}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Options of `edgegossip fleet kit`."""

    name: str = option(REQUIRED, argument=True)
    folder: Path = FLEET()
    output: Path | None = OUTPUT(None, "[default: NAME.kit]", path="file", metavar="FILE")


@command(Kit, fleet)
def kit(options: Kit) -> int:
    """Write the kit of the board NAME, its provisioning bundle: all that its card needs, signed.

    It holds the board's private key: put it on that board's card and nowhere else
    (`edgegossip image configure`, or copy it onto the boot partition as edgegossip.kit). The board
    moves it to where only root can read it, and wipes it from the card.
    """
    from edgegossip.fleet import orders, provisioning
    from edgegossip.fleet.store import Fleet

    name, output = options.name, options.output or Path(f"{options.name}.kit")
    provisioning.write_bundle(output, orders.make_bundle(Fleet.open(options.folder), name, time.time()))
    click.echo(f"{output}: the kit of {name}, with its private key; only you can read it")
    if provisioning.in_repository(output):
        click.echo(f"mind that {output} lies in a git repository: it must not be committed", err=True)
    if provisioning.load_profile(options.folder, name).board.startswith("jetson-"):
        use = f"copy it to {name}, and there: sudo deploy/jetson/install.sh edgegossip-*.whl {output.name} (docs/deploy.md)"
    else:
        use = f"edgegossip image configure base.img --kit {output} -o {name}.img"
    click.echo(f"next: {use}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """Options of `edgegossip fleet list`."""

    folder: Path = FLEET()
    as_json: bool = JSON()


@command(List, fleet, name="list")
def list_(options: List) -> int:
    """Show every certificate that was issued and whether it is valid."""
    from edgegossip.fleet.store import Fleet
    from edgegossip.report.table import in_columns

    present = Fleet.open(options.folder)
    if options.as_json:
        click.echo(json.dumps(_document(present), indent=2))
        return 0
    rows = [("name", "role", "state", "until", "serial")]
    rows += [(m.name, m.role, m.state, m.not_after[:10], m.serial) for m in present.members]
    click.echo(f"fleet {present.name} ({present.fleet_id}), revocation list {present.crl_number}")
    click.echo("\n".join(in_columns(rows)))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Options of `edgegossip fleet revoke`."""

    names: tuple[str, ...] = option((), argument=True)
    folder: Path = FLEET()
    boards: tuple[str, ...] = option(
        (),
        "A running board, which tells the others, or a coordinator.",
        flag="--tell",
        metavar="HOST:PORT",
    )
    as_json: bool = JSON()


@command(Revoke, fleet)
def revoke(options: Revoke) -> int:
    """Take the certificates of NAMES back, and tell running boards or a coordinator.

    Boards pass the news on to one another, so one that runs is enough. Without NAMES only tells. A
    board that does not run now hears it from the first peer that it meets, or from a copy of
    crl.pem in its identity folder. A coordinator that serves from this very folder sees it by
    itself. Ends with 0 only if everybody who was to be told goes by this folder's list then.
    """
    from edgegossip.fleet import orders
    from edgegossip.fleet.store import Fleet

    names, boards = options.names, options.boards
    if not names and not boards:
        raise click.UsageError("say which boards to revoke, or whom to tell with --tell HOST:PORT")
    present = Fleet.open(options.folder).revoke(*names)
    if names and not options.as_json:
        click.echo(f"revoked {', '.join(names)}: {options.folder / 'crl.pem'} is list {present.crl_number}")
    if names:  # orders name the list, so that nobody can keep it back from boards
        for name in present.boards:
            try:
                orders.renew(present, (name,))
            except EdgegossipError as error:  # of one board's, or for all: there is no operator any more
                click.echo(f"edgegossip: {name} has no order that names the list: {error}", err=True)
    told = _tell(present, boards)
    if options.as_json:
        click.echo(json.dumps({**_document(present), "told": told.document()}, indent=2))
    else:
        for board, (name, number) in told.answers.items():
            click.echo(f"{name} at {board} goes by list {number}")
        if names and not boards:
            click.echo(
                "tell a running board: edgegossip fleet revoke --tell HOST:PORT, or copy crl.pem into its identity folder"
            )
    code = told.show_failures()
    number = len(told.answers) + len(told.failures)
    if number > 1 and told.failures:
        count = f"{len(told.failures)} of {number}"
        click.echo(f"edgegossip: {count} were not told: {', '.join(told.failures)}", err=True)
    return code


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Options of `edgegossip fleet serve`."""

    folder: Path = FLEET()
    listen: str = option("0.0.0.0:7710", "Where boards check in.", metavar="HOST:PORT")
    identity: Path | None = option(None, "[default: the fleet's coordinator]", path="folder")


@command(Serve, fleet)
def serve(options: Serve) -> int:
    """Let boards check in: they get the time, news of revoked boards, and their release. Runs until
    Ctrl-C.

    Only boards of this fleet come in, with their certificates. Kits name this machine with
    `fleet add --check-in HOST:PORT`.
    """
    from edgegossip.fleet.checkins import serve as run

    run(options.folder, options.listen, options.identity, lambda text: click.echo(text))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCommand:
    """Options of `edgegossip fleet status`."""

    folder: Path = FLEET()
    places: tuple[str, ...] = option(
        (), "Also ask a board of the mesh, or a coordinator, there.", flag="--ask", metavar="HOST:PORT"
    )
    as_json: bool = JSON()


@command(StatusCommand, fleet)
def status(options: StatusCommand) -> int:
    """Show which boards have checked in, when, with which version, and what they do.

    Boards check in with `fleet serve`, whether they train through a coordinator or in a mesh. With
    --ask also one that does not: it says who it is, by its certificate, and takes over the fleet's
    revocation list.
    """
    from edgegossip.fleet.checkins import status as look
    from edgegossip.fleet.checkins import table
    from edgegossip.fleet.store import Fleet
    from edgegossip.report.units import seconds_text

    present = Fleet.open(options.folder)
    rows, told = look(present, time.time()), _tell(present, options.places)
    if options.as_json:
        click.echo(json.dumps({"boards": [row.document() for row in rows], "asked": told.document()}, indent=2))
        return told.code
    lines = [f"{name} answers at {place}, and goes by revocation list {n}" for place, (name, n) in told.answers.items()]
    click.echo("\n".join([*table(rows, seconds_text), *lines]))
    return told.show_failures()


@fleet.group()
def release() -> None:
    """Give boards a new release of the program: signed, pulled when they check in, and undone if it
    does not work.

    \b
    Examples:
      sudo edgegossip image release --board raspberry-pi-4 -o 0.4.0
      edgegossip fleet release build 0.4.0 -o 0.4.0.bundle
      edgegossip fleet release push 0.4.0.bundle pi-01          # try it on one board
      edgegossip fleet status
      edgegossip fleet release push 0.4.0.bundle                # then on all
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Options of `edgegossip fleet release build`."""

    site: Path = option(REQUIRED, argument=True, path="folder", exists=True)
    folder: Path = FLEET()
    version: str | None = option(None, "[default: that of the package in SITE]", flag="--release", metavar="VERSION")
    output: Path = OUTPUT(REQUIRED, path="file", metavar="FILE")


@command(Build, release)
def build(options: Build) -> int:
    """Pack SITE, a folder that `edgegossip image release` made, as a signed bundle.

    Boards keep their Python packages (torch, numpy, ...): a release is a few megabytes. One with
    other packages must bring them (`image release --with-packages`); boards still fetch only what
    differs from the release they run.
    """
    from edgegossip.fleet import releases
    from edgegossip.fleet.releases import examine
    from edgegossip.fleet.store import Fleet

    folder, output = options.folder, options.output
    found = examine(options.site)
    made = releases.build(Fleet.open(folder), replace(found, version=options.version or found.version), output)
    size = output.stat().st_size
    click.echo(
        f"{output}: release {made.version}, number {made.sequence}, {len(made.entries)} files, {size / 1e6:.1f} MB, signed; "
        f"for {made.machine} and Python {made.python}, {'with' if found.whole else 'without'} packages"
    )
    click.echo(f"next: edgegossip fleet release push --fleet {folder} {output} [BOARD ...]")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCommand:
    """Options of `edgegossip fleet release push`."""

    bundle: Path = option(REQUIRED, argument=True, path="file", exists=True)
    boards: tuple[str, ...] = option((), argument=True)
    folder: Path = FLEET()


@command(PushCommand, release)
def push(options: PushCommand) -> int:
    """Have BOARDS (none named: all) take this release when they next check in with
    `fleet serve`."""
    from edgegossip.fleet import orders
    from edgegossip.fleet.store import Fleet

    number, names = orders.push(Fleet.open(options.folder), options.bundle, options.boards)
    click.echo(f"release number {number} is for {', '.join(names)}; they fetch it when they check in")
    click.echo(f"next: edgegossip fleet status --fleet {options.folder}")
    return 0


@dataclass(frozen=True, slots=True)
class _Pushed:
    """What those who were told of the revocation list said: (name, list's number), or an error."""

    answers: Mapping[str, tuple[str, int]]
    failures: Mapping[str, EdgegossipError]

    def document(self) -> dict[str, object]:
        answers = {place: {"name": name, "crl_number": number} for place, (name, number) in self.answers.items()}
        return {**answers, **{place: {"error": str(error)} for place, error in self.failures.items()}}

    @property
    def code(self) -> int:
        return max((error.exit_code for error in self.failures.values()), default=0)

    def show_failures(self) -> int:
        for error in self.failures.values():
            click.echo(f"edgegossip: {error}", err=True)
        return self.code


def _tell(present: Fleet, places: tuple[str, ...]) -> _Pushed:
    if not places:
        return _Pushed({}, {})
    from edgegossip.fleet.revocation import tell_all
    from edgegossip.flower.connection import send_revocations

    told = tell_all(present, places, send_revocations)
    return _Pushed(
        {place: answer for place, answer in told.items() if not isinstance(answer, EdgegossipError)},
        {place: error for place, error in told.items() if isinstance(error, EdgegossipError)},
    )


def _document(present: Fleet) -> dict[str, object]:
    return {
        "name": present.name,
        "fleet_id": present.fleet_id,
        "folder": str(present.folder),
        "crl_number": present.crl_number,
        "members": [m.document() for m in present.members],
    }


def _require_reachable(option: str, place: str | None) -> None:
    """Raise ConfigError for a place that is another on each machine: a kit's board would look for
    it on itself."""
    if not place:
        return
    address = addresses.parse(place, option)
    if address.is_loopback or address.host in ("localhost", "0.0.0.0", "::"):
        raise ConfigError(
            f"{option} {place}: that is each board itself: name this machine as boards reach it, such as 192.168.1.10"
        )


def _password(ssid: str, file: Path | None) -> str:
    """Never from the command line, which others on the machine can see."""
    if file is not None:
        lines = _lines(file)
        if not lines:
            raise ConfigError(f"--wifi-password-file {file}: it is empty")
        return lines[0]
    if PASSWORD in os.environ:
        return os.environ[PASSWORD]
    if not sys.stdin.isatty():
        raise ConfigError(f"--wifi {ssid}: say its password with --wifi-password-file FILE, or in ${PASSWORD}")
    return str(click.prompt(f"Password of the Wi-Fi {ssid}", hide_input=True, err=True))


def _lines(file: Path) -> list[str]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    return [line for line in text.splitlines() if line.strip()]
