"""What a board does every minute beside training (`python3 -m edgegossip.update.agent`,
edgegossip-checkin.service): it checks in with the machine from which its fleet is run. That tells
it the time and news of revoked boards, and hands on the operator's orders: what the board runs and
which release it has. A new release is put beside the running one, and the image's guard takes it
from there (deploy/rootfs/usr/lib/edgegossip/guard.py).

A board whose provisioning bundle names no such machine, or that does not reach it, trains all the
same.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import edgegossip
from edgegossip.files import refused_as, write_file
from edgegossip.security.identity import Identity
from edgegossip.types import DecodeError, EdgegossipError, PeerError, UsageError
from edgegossip.update.bundle import ReleaseManifest
from edgegossip.update.client import Client
from edgegossip.update.install import OTHER_PACKAGES, OsTree, about, install, packages_of, running_from
from edgegossip.update.order import Order
from edgegossip.version import VERSION

CONFIG, HOME = Path("/etc/edgegossip"), Path("/opt/edgegossip")
SYNCHRONISED = Path("/run/systemd/timesync/synchronized")
NODE, GUARD = "edgegossip-node.service", "edgegossip-guard.service"
PATIENCE_S = 45.0  # for the first check-in after a boot: the board's clock comes with it
ORDER = "order.json"  # below the configuration: the newest order, as the operator signed it
RENEW = "say `edgegossip fleet renew`; if you have, the machine of `edgegossip fleet serve` keeps orders back"
APART_S = 2.0  # a clock that differs by less is right
YEAR_S = 365.25 * 86_400.0
WELL_S = 30.0  # so long a board has been at work with a new release before that counts


class ThisBoard:
    """Is the machine that this process runs on, with systemd: what the agent needs of it."""

    def now(self) -> float:
        """Return the wall clock, in Unix seconds."""
        return time.clock_gettime(time.CLOCK_REALTIME)  # `time.time` fails from the year 2262 on

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock. Raises OSError."""
        time.clock_settime(time.CLOCK_REALTIME, seconds)

    def synchronised(self) -> bool:
        """Return whether NTP has set the clock since the boot."""
        return SYNCHRONISED.exists()

    def node(self) -> Mapping[str, str]:
        """Return properties of the service that trains, as systemd names them: ActiveState,
        NRestarts, StatusText, ActiveEnterTimestampMonotonic (microseconds)."""
        names = "ActiveState,NRestarts,StatusText,ActiveEnterTimestampMonotonic"
        said = _systemctl("show", NODE, f"--property={names}")
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    def start_guard(self) -> None:
        """Start the image's guard, which switches to the new release and back."""
        _systemctl("start", "--no-block", GUARD)

    def restart_node(self) -> None:
        """Start the service that trains anew."""
        _systemctl("restart", "--no-block", NODE)


def _systemctl(*arguments: str) -> str:
    """Return what it printed; nothing when systemd is too busy."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=30, check=False).stdout
    return ""


@dataclass(frozen=True, slots=True)
class Places:
    """Says where things are; elsewhere in tests."""

    config: Path = CONFIG
    home: Path = HOME
    module: str = edgegossip.__file__
    root: Path = Path("/")

    def release(self, name: str) -> str:
        """Return the folder of a release."""
        return str(self.home / "releases" / name)


def check_in(machine: ThisBoard, places: Places, say: Callable[[str], None], *, fetch: bool = True) -> bool:
    """Check in once, and do what the answer asks for; return whether there is a machine to check in
    with at all. Without `fetch` no release is taken: training waits for the first check-in after a
    boot. `say` takes lines for the log. Raises EdgegossipError."""
    identity, board = Identity.load(places.config), _board(places.config)
    where = str(board.get("check_in", ""))
    if not where:
        return False
    kept = _kept(places, board)
    running, node = running_from(places.module), machine.node()
    with Client(identity, where) as client:
        before_s = machine.now()
        report = _report(places, running, node)
        # With a new bundle that has the same number the order comes once more: it has the release.
        number = kept.number if kept else max(0, int(board.get("number", 0)) - 1)
        answer = client.check_in({**report, "number": number, "clock_s": before_s})
        here_s = (before_s + machine.now()) / 2
        if answer.crl_number > identity.revocations.number:
            client.update_revocations()
        ends_s = min(identity.certificate.valid[1], client.coordinator.valid[1])
        # It was later than this already; and in the last year a mistake could take the board to
        # where no certificate counts.
        begins_s = max(float(board.get("issued_s", 0)), kept.signed_s if kept else 0.0)
        _set_clock(machine, answer.time_s, here_s, (begins_s, ends_s - YEAR_S), say)
        client.check_dates(machine.now())
        new, refused = None, None
        try:
            if answer.order is not None:
                new = Order.read(answer.order, identity, identity.name)
                _check(new, number, identity.revocations.number, machine.now())
        except PeerError as error:  # the board is at work all the same
            new, refused = None, error
        if new is not None and _obey(new, kept, board, places, say):
            machine.restart_node()
        elif running and well(node):
            _write(places.home / "checked-in", running)
        if new is not None:  # last: one that was half taken over is given again
            _write(places.config / ORDER, json.dumps(answer.order) + "\n")
        present = new or kept
        if present is not None:
            _tell_of_silence(present, places, machine.now(), say)
            if fetch and wanted(places, running, present.release):
                _take(client, identity, board, places, running, present, say)
                machine.start_guard()
    if refused is not None:
        raise refused
    return True


def well(node: Mapping[str, str]) -> bool:
    """Return whether this board is at work: its service has been running for a while, and did not
    have to be started again."""
    since_s = float(node.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    lasts_s = time.monotonic() - since_s
    return node.get("ActiveState") == "active" and node.get("NRestarts", "0") == "0" and lasts_s >= WELL_S


def wanted(places: Places, running: str, sequence: int) -> bool:
    """Return whether this board should fetch that release now."""
    if not running or not sequence or (places.home / "trial").exists():
        return False
    present = int(about(OsTree(), places.release(running)).get("sequence", 0))
    return sequence > present and str(sequence) not in _failed(places)


def _take(
    client: Client,
    identity: Identity,
    board: Mapping[str, Any],
    places: Places,
    running: str,
    order: Order,
    say: Callable[[str], None],
) -> None:
    sequence = order.release
    head, fetch = client.head(sequence)
    manifest = head.manifest(identity)
    if (manifest.sequence, head.digest) != (sequence, order.manifest):
        raise PeerError(
            f"asked for release {sequence}, and got another than the operator's order names: {manifest.sequence}"
        )
    if why := _unfit(manifest, packages_of(OsTree(), places.release(running))):
        _give_up(places, sequence, why)
        raise PeerError(f"release {manifest.version} is for another kind of board: {why}")
    if not about(OsTree(), places.release(running)) and _is_of_before(manifest, board):
        why = (
            f"it is older than version {VERSION}, which the card brought, and was pushed before that was "
            "made: build and push it again if it is meant"
        )
        _give_up(places, sequence, why)
        raise PeerError(f"release {manifest.version} is not taken: {why}")
    say(f"release {manifest.version} (number {sequence}) is fetched")
    try:
        name = install(OsTree(), str(places.home), running, head.digest, manifest, fetch)
    except OSError as error:
        raise UsageError(
            f"release {manifest.version}: {error.filename}: {(error.strerror or str(error)).lower()}"
        ) from error
    _write(places.home / "wanted", json.dumps({"name": name, "sequence": sequence}))
    say(f"release {manifest.version} is whole in releases/{name}")


def _unfit(manifest: ReleaseManifest, packages: str) -> str:
    """Say why this release cannot start on this board, which has these packages; empty when it
    can."""
    here = (platform.machine(), f"{sys.version_info[0]}.{sys.version_info[1]}")
    if (manifest.machine, manifest.python) != here:
        return f"it is for {manifest.machine} and Python {manifest.python}, this board has {' and '.join(here)}"
    return f"it {OTHER_PACKAGES}" if manifest.packages not in ("", packages) else ""


def _is_of_before(manifest: ReleaseManifest, board: Mapping[str, Any]) -> bool:
    """Return whether a release is older than the card's, and was pushed before that was made.
    Numbers of releases begin anew on a card that was made anew. What had been pushed until then
    counts only if it is not older than what the card brings."""
    return manifest.signed_s < int(board.get("issued_s", 0)) and _in_order(manifest.version) < _in_order(VERSION)


def _in_order(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _report(places: Places, running: str, node: Mapping[str, str]) -> dict[str, Any]:
    """Return what the fleet's machine gets to know."""
    present = about(OsTree(), places.release(running)) if running else {}
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return {
        "version": VERSION,
        "release": running,
        "sequence": int(present.get("sequence", 0)),
        "packages": packages_of(OsTree(), places.release(running)) if running else "",
        "trial": (places.home / "trial").exists(),
        "failed": _failed(places),
        "state": node.get("ActiveState", "unknown"),
        "restarts": int(node.get("NRestarts") or 0),
        "status": node.get("StatusText", "")[:300],
        "uptime_s": round(uptime_s),
        **_system(places),
    }


def _system(places: Places) -> dict[str, Any]:
    """Return what the board runs beside us: its system, kernel, and how its security updates stand
    (deploy/rootfs/usr/lib/edgegossip/upgrades.py)."""
    about = dict(re.findall(r'^(\w+)="?([^"\n]*)', _text(places.root / "etc/os-release"), re.MULTILINE))
    point = _text(places.root / "etc/debian_version").strip()
    is_debian = about.get("ID") == "debian" and point
    try:
        pending = json.loads(_text(places.home / "upgrades"))["pending"]
    except (ValueError, KeyError, TypeError):
        pending = None
    try:
        upgraded_s = (places.root / "var/lib/apt/periodic/upgrade-stamp").stat().st_mtime
    except OSError:
        upgraded_s = 0.0
    return {
        "system": f"Debian {point}" if is_debian else about.get("PRETTY_NAME", ""),
        "kernel": platform.release(),
        "pending": pending,
        "upgraded_s": round(upgraded_s),
        "restart_due": (places.root / "run/reboot-required").exists(),
    }


def _text(path: Path) -> str:
    """Return the whole of a small file; nothing when it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _set_clock(
    machine: ThisBoard, told_s: float, here_s: float, believed: tuple[float, float], say: Callable[[str], None]
) -> None:
    """Set the clock by the fleet's machine, which has the time where NTP does not come through: it
    said `told_s` when ours was `here_s`. It is of our fleet: its certificate says so. Its clock may
    be wrong all the same, and is believed only within bounds. Beyond them NTP, for which anybody
    may answer, is not believed either."""
    (first_s, last_s), ahead_s = believed, told_s - here_s
    if abs(ahead_s) <= APART_S or (machine.synchronised() and first_s <= here_s <= last_s):
        return
    if not first_s <= told_s <= last_s:
        say(
            f"the coordinator's clock says {_day(told_s)}, which is not between {_day(first_s)}, when this board's "
            f"provisioning bundle was made, and {_day(last_s)}, a year before its certificate or the coordinator's ends: "
            "set the clock of the coordinator's machine; if that is right, issue certificates with `edgegossip fleet add "
            "--again` and make the bundle again"
        )
        return
    try:
        machine.set_clock(machine.now() + ahead_s)
        say(f"the clock was {abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead'}: set to the coordinator's")
    except (OSError, OverflowError) as error:  # a board of 32 bits counts no further than 2038
        say(f"the clock is {abs(ahead_s):.0f} s off and cannot be set: {error}")


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def _board(config: Path) -> dict[str, Any]:
    """Return what first boot took from the provisioning bundle."""
    try:
        found = json.loads((config / "board.json").read_bytes())
        if not isinstance(found, dict):
            raise ValueError("board.json is damaged")
        return found
    except (OSError, ValueError) as error:
        raise UsageError(f"{config}: {error}; this board has no provisioning bundle yet") from error


def _kept(places: Places, board: Mapping[str, Any]) -> Order | None:
    """Return the order that this board goes by; None before the first, and where its provisioning
    bundle is newer. Its signature was checked when it came; an operator who was revoked since said
    it all the same, and no older one counts."""
    try:
        order = Order.parse(json.loads((places.config / ORDER).read_bytes())["body"])
    except (OSError, ValueError, TypeError, KeyError, DecodeError):
        return None
    return order if order.number >= int(board.get("number", 0)) else None


def _check(new: Order, last: int, revocations: int, now_s: float) -> None:
    """Refuse an order that may be somebody's who keeps newer ones back. Raises PeerError."""
    if new.number <= last:
        raise PeerError(f"an order of number {new.number}, which is not newer than this board's")
    if new.until_s < now_s:
        raise PeerError(f"an order that counted until {_day(new.until_s)} only: {RENEW}")
    if new.revocations > revocations:
        raise PeerError(
            f"an order from when revocation list {new.revocations} was there, and no list after {revocations}: "
            "bring the fleet's folder to the machine of `edgegossip fleet serve` again"
        )


def _obey(new: Order, kept: Order | None, board: Mapping[str, Any], places: Places, say: Callable[[str], None]) -> bool:
    """Write the command line for the service if an order has another; return whether it has."""
    before = kept.arguments if kept else () if new.number > int(board.get("number", 0)) else new.arguments
    if new.arguments in ((), before):
        return False
    lines = ["# One argument of `edgegossip node` a line; a new bundle, or `edgegossip fleet set`, replaces this file."]
    _write(places.config / "node.args", "\n".join([*lines, *new.arguments]) + "\n")
    say(f"this board runs something else from now on: {' '.join(new.arguments)}")
    return True


def _tell_of_silence(order: Order, places: Places, now_s: float, say: Callable[[str], None]) -> None:
    """Say each day that an order has ended, and no newer one has come."""
    day = _day(now_s)
    if now_s > order.until_s and _text(places.home / "silence") != day:
        say(f"the operator's last order is of {_day(order.signed_s)} and counted until {_day(order.until_s)}: {RENEW}")
        _write(places.home / "silence", day)


def _failed(places: Places) -> dict[str, str]:
    try:
        found = json.loads((places.home / "failed").read_bytes())
        return {str(k): str(v) for k, v in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _give_up(places: Places, sequence: int, why: str) -> None:
    _write(places.home / "failed", json.dumps({**_failed(places), str(sequence): why}))


def _write(path: Path, text: str) -> None:
    with refused_as(UsageError, path):
        if not path.is_file() or path.read_text() != text:
            write_file(path, text.encode())


def main(machine: ThisBoard | None = None) -> int:
    """Check in, and return the exit status: 0 also when nobody was reached, for that is no fault of
    this board's."""
    os.umask(0o022)
    runtime = os.environ.get("RUNTIME_DIRECTORY")
    tried = Path(runtime) / "tried" if runtime else None
    first = tried is not None and not tried.exists()
    until = time.monotonic() + (PATIENCE_S if first else 0.0)
    while True:
        try:
            check_in(machine or ThisBoard(), Places(), lambda text: print(text, flush=True), fetch=not first)
            trouble: EdgegossipError | None = None
        except EdgegossipError as error:
            trouble = error
        if trouble is None or isinstance(trouble, UsageError) or time.monotonic() >= until:
            break
        time.sleep(3.0)
    if tried is not None:
        with suppress(OSError):
            tried.touch()
    if trouble is not None:
        print(trouble, file=sys.stderr, flush=True)
    return 1 if isinstance(trouble, UsageError) else 0


if __name__ == "__main__":
    sys.exit(main())
