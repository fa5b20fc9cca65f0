"""Network namespaces that are gone when their owner is, however it ended.

Every owner has a tag of its own: its namespaces are named eg<tag>-<name>, and it holds a lock on
/run/edgegossip/<tag>.lock for as long as it lives. Whoever makes namespaces first removes those
whose lock nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

from edgegossip.types import HostError

LOCKS = Path("/run/edgegossip")
NAMES = Path("/run/netns")  # where iproute2 keeps them
# Many boards send at the same moment, and the kernel drops what a processor has not looked at yet
# beyond 1000 packets.
BACKLOG, BACKLOG_PACKETS = Path("/proc/sys/net/core/netdev_max_backlog"), 30_000
BEFORE = LOCKS / "netdev_max_backlog"
COMMAND_S = 20.0  # an `ip` or `tc` that takes longer hangs


def check_host() -> None:
    """Raises HostError where no namespaces can be made."""
    if os.geteuid() != 0:
        raise HostError("network namespaces need root: say `sudo $(which edgegossip) ...`")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise HostError(f"network namespaces need the command {tool}: install iproute2")


def command(*words: str, text: str | None = None) -> str:
    """Run it, with `text` as its input; its output. Raises HostError with what it said when it
    fails."""
    try:
        # In a session of its own: Ctrl-C is for who called, which then takes down in order what
        # there is.
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMMAND_S, input=text, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"{' '.join(words)} did not end within {COMMAND_S:.0f} s") from None
    except OSError as error:
        raise HostError(f"cannot run {words[0]}: {error.strerror}") from None
    if done.returncode:
        reason = done.stderr.strip() or f"it ended with exit code {done.returncode}"
        raise HostError(f"{' '.join(words)} failed: {reason}")
    return done.stdout


def ip(*words: str) -> str:
    """Run `ip`; its output. Raises HostError."""
    return command("ip", *words)


class Namespaces:
    """The namespaces of one owner. Use as a context manager, or `close` it."""

    def __init__(self) -> None:
        """Removes what dead owners have left. Raises HostError."""
        check_host()
        remove_stale()
        self.tag, self._lock = _new_lock()
        self._made: list[str] = []

    def add(self, name: str) -> str:
        """A namespace with its loopback up; its full name. Raises HostError."""
        full = self.named(name)
        ip("netns", "add", full)
        self._made.append(full)
        ip("-n", full, "link", "set", "lo", "up")
        return full

    def named(self, name: str) -> str:
        """The full name."""
        return f"eg{self.tag}-{name}"

    def close(self) -> None:
        """Remove them. Idempotent."""
        for full in self._made:
            with suppress(HostError):
                ip("netns", "del", full)
        self._made.clear()
        if self._lock >= 0:
            (LOCKS / f"{self.tag}.lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1
            restore_backlog()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def raise_backlog() -> None:
    """Let more packets wait for a processor of this machine, for as long as anybody here has
    namespaces. What it was is kept in a file, so that it is found again after a process that was
    killed. Nothing where it cannot be changed, as in a container."""
    with suppress(OSError, ValueError):
        before = int(BACKLOG.read_text())
        if before < BACKLOG_PACKETS:
            if not BEFORE.exists():
                BEFORE.write_text(f"{before}\n")
            BACKLOG.write_text(f"{BACKLOG_PACKETS}\n")


def restore_backlog() -> None:
    """As it was, if nobody has namespaces any more."""
    with suppress(OSError):
        if BEFORE.exists() and not any(LOCKS.glob("*.lock")):
            BACKLOG.write_text(BEFORE.read_text())
            BEFORE.unlink(missing_ok=True)


def _new_lock() -> tuple[str, int]:
    """A tag that nobody has, and the file that holds its lock."""
    try:
        LOCKS.mkdir(exist_ok=True)
        while True:
            tag = uuid.uuid4().hex[:8]
            lock = os.open(LOCKS / f"{tag}.lock", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:  # nobody took it for a dead one's before it was locked
                return tag, lock
            os.close(lock)
    except OSError as error:
        raise HostError(f"cannot write to {LOCKS}: {error.strerror}") from None


def remove_stale() -> list[str]:
    """Remove the namespaces of owners that are gone; their names."""
    removed: list[str] = []
    for path in LOCKS.glob("*.lock"):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for file in NAMES.glob(f"eg{path.stem}-*"):
                with suppress(HostError):
                    ip("netns", "del", file.name)
                    removed.append(file.name)
            path.unlink(missing_ok=True)
        except OSError:
            pass  # its owner lives
        finally:
            os.close(lock)
    return removed
