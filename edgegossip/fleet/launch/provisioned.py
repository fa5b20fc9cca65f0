"""`node --kit DIR`: a board whose identity and command line are in a folder, as first boot leaves
them (deploy/rootfs).

    ca.pem identity.pem identity.key crl.pem   as in any identity folder
    board.json                                 its name, for one
    node.args                                  one argument of `edgegossip node` a line; empty lines
                                               and those with # do not count

systemd hands these over read-only (LoadCredential=). What must outlive the process, the newest
revocation list, is kept in its state folder; what the board's check-in brings meanwhile comes
there, too (`CheckInRevocations`). After failures in a row the next process waits, longer each time:
older systemds cannot.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from edgegossip.files import refused_as, write_file
from edgegossip.node.notify import Service, service
from edgegossip.security.certificates import certificate_from_pem
from edgegossip.security.identity import CA, CERTIFICATE, CRL, KEY, Revocations, stamp
from edgegossip.types import ConfigError, DataError, EdgegossipError, HostError, RunError

ABOUT, ARGUMENTS = "board.json", "node.args"
MEMBERS = "--members"  # who says this founds a run
KEEP_RUNS = 20
FIRST_S, LONGEST_S = 10.0, 300.0  # waits after failures
WELL_S = 600.0  # a process that lasted so long did not fail in a row
HELD = Path("/etc/edgegossip")  # as first boot makes it (deploy/rootfs)
LOOK_S = 2.0


def command_line(home: Path, state: Path | None, runs: Path) -> list[str]:
    """Return the arguments of `edgegossip node` for the board of this folder. `state`: a folder
    that lasts, None when `home` itself can be written. Raises DataError, ConfigError, HostError."""
    try:
        name = str(json.loads((home / ABOUT).read_bytes())["name"])
        lines = (home / ARGUMENTS).read_text().splitlines()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{home}: {error}; --kit takes the folder that first boot makes of a provisioning bundle"
        ) from error
    arguments = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not arguments:
        raise ConfigError(f"{home / ARGUMENTS} is empty, so there is nothing to run: see `edgegossip fleet set --help`")
    identity = home if state is None else lasting_identity(home, state / "identity")
    return [*arguments, "--name", name, "--identity", str(identity), "--runs", str(runs)]


def lasting_identity(home: Path, folder: Path) -> Path:
    """Make an identity folder in `folder` with `home`'s certificate and the newest list of both;
    its key stays where it is. Raises DataError, HostError."""
    with refused_as(HostError, folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (CA, CERTIFICATE):
            if _content(folder / name) != (data := (home / name).read_bytes()):
                write_file(folder / name, data)
        key = folder / KEY
        key.unlink(missing_ok=True)
        key.symlink_to(home.absolute() / KEY)
        _newest_list(home, folder)
    return folder


def _newest_list(home: Path, folder: Path) -> None:
    """See that the folder has the newest list: a board that has heard of a newer one than its
    bundle's keeps it; what it has of another fleet, or damaged, gives way."""
    authority = certificate_from_pem((home / CA).read_bytes())
    offered = Revocations.load(home / CRL, authority).present
    try:
        Revocations.load(folder / CRL, authority).offer(offered.der)
    except EdgegossipError:
        write_file(folder / CRL, (home / CRL).read_bytes())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def make_room(runs: Path, keep: int = KEEP_RUNS) -> None:
    """Remove run folders but the newest: a board trains for years, and its card is small."""
    folders = sorted(runs.glob("*/run.json"), key=lambda file: (file.stat().st_mtime_ns, str(file)))
    for document in folders[: -keep or None]:
        shutil.rmtree(document.parent, ignore_errors=True)


class RestartBackoff:
    """Counts how many processes in a row have failed, in a file that lasts as long as the service
    is not stopped."""

    def __init__(
        self,
        folder: Path,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._sleep, self._clock = folder / "failures", sleep, clock
        self._began = clock()

    def wait(self, say: Callable[[str], None]) -> None:
        """Wait before anything is begun. Counts this process as failed until `ended` says
        otherwise."""
        failures = int(_content(self._file) or b"0")
        self._write(failures + 1)
        if failures > 1:  # once may be anything
            seconds = min(FIRST_S * 2.0 ** min(failures - 2, 10), LONGEST_S)
            say(f"failed {failures} times in a row: begins again in {seconds:.0f} s")
            self._sleep(seconds)
        self._began = self._clock()

    def ended(self, *, failed: bool) -> None:
        """Forget the failures, if this process did not fail or lasted long enough."""
        if not failed or self._clock() - self._began >= WELL_S:
            self._write(0)

    def _write(self, failures: int) -> None:
        with suppress(OSError):
            self._file.write_text(f"{failures}")


def run(home: Path, runs: Path, node: Callable[[list[str]], int], say: Callable[[str], None], held: Path = HELD) -> int:
    """Be the board of the folder `home`: `node` is called with its arguments, and gives its exit
    code. `held`: where the board's check-in keeps the newest revocation list. Raises
    EdgegossipError."""
    state, runtime = folders()
    arguments = command_line(home, state, runs)
    if state is not None:
        _follow_check_in(held, state / "identity", say)
    to = service()
    to.ready()
    over = None if state is None or MEMBERS not in arguments else FinishedRun(state / "over", arguments)
    if over is not None and over.is_before(boot_id()):
        _idle(to, say)
    backoff = None if runtime is None else RestartBackoff(runtime, sleep=partial(_sleep, to))
    if backoff is not None:
        backoff.wait(say)
    make_room(runs)
    anew = None if runtime is None else runtime / "anew"
    if anew is not None and anew.exists():
        anew.unlink()
        arguments = [*arguments, "--fresh"]
    failed = True
    try:
        code = node(arguments)
        failed = code != 0
    except KeyboardInterrupt:
        failed = False  # systemd stops it
        raise
    except RunError as error:  # that run is over, or went on without this board: it is not to be gone on with
        if over is not None:
            say(str(error))
            over.keep(boot_id())
            _idle(to, say)
        if anew is not None:
            anew.touch()
        raise
    finally:
        if backoff is not None:
            backoff.ended(failed=failed)
    if over is not None and not failed:
        over.keep(boot_id())
        _idle(to, say)
    return code


class FinishedRun:
    """Remembers that a run was finished: who founds one would else begin it again for ever. Another
    one begins when the service is restarted by hand, and with another command line; a board that
    only lost its power stays as it was."""

    def __init__(self, file: Path, arguments: Sequence[str]) -> None:
        self._file, self._digest = file, hashlib.sha256("\0".join(arguments).encode()).hexdigest()

    def keep(self, boot: str) -> None:
        """Remember that the run of this command line was finished in this boot."""
        with suppress(OSError):
            write_file(self._file, f"{self._digest} {boot}".encode())

    def is_before(self, boot: str) -> bool:
        """Return whether that run was finished before this boot."""
        digest, _, when = _content(self._file).decode(errors="replace").partition(" ")
        return digest == self._digest and when != boot


def boot_id() -> str:
    """Return the kernel's name of this boot: another one after each."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _idle(to: Service, say: Callable[[str], None]) -> NoReturn:
    say("this board's run is over; systemctl restart edgegossip-node begins another")
    to.status("the run is over")
    while True:
        _sleep(to, 3600.0)


def _sleep(to: Service, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        to.alive()
        time.sleep(min(left, 5.0))


def folders() -> tuple[Path | None, Path | None]:
    """Return the state and runtime folder that systemd gave to this service."""
    state, runtime = os.environ.get("STATE_DIRECTORY"), os.environ.get("RUNTIME_DIRECTORY")
    return (Path(state) if state else None, Path(runtime) if runtime else None)


class CheckInRevocations:
    """Takes over the revocation list that the board's check-in brings, for the node that runs.

    The check-in (update/agent.py) is root's and keeps the list in /etc/edgegossip. The node is
    another user, and what systemd gave it (LoadCredential=) is a copy of when it was started. So it
    looks at that folder, which everybody may read, and takes a newer list over into its own, where
    the mesh and the coordinator's clients look. Only what the fleet's authority signed counts.

    `held`: the folder that is looked at; `own`: the identity folder that the node runs with."""

    def __init__(self, held: Path, own: Path, say: Callable[[str], None]) -> None:
        self._held, self._own, self._say = held / CRL, own, say
        self._seen: object = None

    def look(self) -> bool:
        """Look now; return whether a newer list was taken over. One that cannot be used, half
        copied for example, is looked at again when it changes."""
        found = stamp(self._held)
        if found is None or found == self._seen:
            return False
        self._seen = found
        try:
            authority = certificate_from_pem((self._own / CA).read_bytes())
            offered = Revocations.load(self._held, authority).present
            return Revocations.load(self._own / CRL, authority).offer(offered.der)
        except (EdgegossipError, OSError) as error:
            self._say(f"the revocation list of the check-in is not taken over: {error}")
            return False


def _follow_check_in(held: Path, own: Path, say: Callable[[str], None]) -> None:
    """Look now, and from a thread of its own for as long as this process lives."""
    revocations = CheckInRevocations(held, own, say)
    revocations.look()

    def go_on() -> None:
        while True:
            time.sleep(LOOK_S)
            revocations.look()

    threading.Thread(target=go_on, daemon=True, name="revocations").start()
