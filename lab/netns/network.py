"""Boards as network namespaces of this machine, which share one access point or have a slow link
each. Namespaces are gone when their owner is, however it ended.

Every owner has a tag of its own: its namespaces are named eg<tag>-<name>, and it holds a lock on
/run/edgegossip/<tag>.lock for as long as it lives. Whoever makes namespaces first removes those
whose lock nobody holds.

A router joins the boards (`AccessPoint`). Shared: whatever one board sends to another goes once
through the cell, a pair of interfaces in the router with a token bucket (`tc ... tbf`) before
it, in whichever direction. So all boards share its rate, as they share the air of a Wi-Fi access
point. A byte is charged once; over the air it is sent twice, up and down, so `rate` is half of
what the radio moves.

    board --port-- [rule: what comes from a port] -> cell0 [tbf] -> cell1 -> [routes] --port-- board

Each: the router hands on at once, and every board has a bucket for what it sends and one for
what it gets."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from edgegossip.types import ConfigError, HostError

LOCKS = Path("/run/edgegossip")
NAMES = Path("/run/netns")  # where iproute2 keeps them
# Many boards send at the same moment, and the kernel drops what a processor has not looked at yet
# beyond 1000 packets.
BACKLOG, BACKLOG_PACKETS = Path("/proc/sys/net/core/netdev_max_backlog"), 30_000
BEFORE = LOCKS / "netdev_max_backlog"
COMMAND_S = 20.0  # an `ip` or `tc` that takes longer hangs
LINKS = ("shared", "each")
# A full queue is so long at most: more than an exchange of compressed gradients piles up, so that
# nothing is lost. What TCP waits before it sends a lost segment again, 0.2 s of the wall, would be
# seconds on clocks that run faster.
QUEUE_S = 4.0
BURST_S = 0.005
_MOST = 4096  # boards; addresses are 10.79.0.0/16 in fours
_CELL = "10.79.255.252"


def check_host() -> None:
    """Raise HostError where no namespaces can be made."""
    if os.geteuid() != 0:
        raise HostError("network namespaces need root: say `sudo $(which edgegossip) ...`")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise HostError(f"network namespaces need the command {tool}: install iproute2")


def command(*words: str, text: str | None = None) -> str:
    """Run a command, with `text` as its input; return its output. Raises HostError with what it
    said when it fails."""
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
    """Run `ip`; return its output. Raises HostError."""
    return command("ip", *words)


class Namespaces:
    """Makes the namespaces of one owner. Use as a context manager, or `close` it."""

    def __init__(self) -> None:
        """Removes what dead owners have left. Raises HostError."""
        check_host()
        remove_stale()
        self.tag, self._lock = _new_lock()
        self._made: list[str] = []

    def add(self, name: str) -> str:
        """Make a namespace with its loopback up; return its full name. Raises HostError."""
        full = self.named(name)
        ip("netns", "add", full)
        self._made.append(full)
        ip("-n", full, "link", "set", "lo", "up")
        return full

    def named(self, name: str) -> str:
        """Return the full name."""
        return f"eg{self.tag}-{name}"

    def close(self) -> None:
        """Remove them; a second time nothing happens."""
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
    """Put the kernel's backlog back as it was, if nobody has namespaces any more."""
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
    """Remove the namespaces of owners that are gone; return their names."""
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


class AccessPoint(Namespaces):
    """Makes machines 1 to `size` and what joins them."""

    def __init__(self, size: int, rate_bps: float, link: str = "shared") -> None:
        """Raises HostError when it cannot be made; nothing is left then."""
        if link not in LINKS:
            raise ConfigError(f"--link {link}: one of {', '.join(LINKS)}")
        if not 1 <= size < _MOST:
            raise ConfigError(f"{size} boards: an access point takes 1 to {_MOST - 1}")
        super().__init__()
        self.size, self.rate_bps, self.link = size, rate_bps, link
        raise_backlog()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def address(self, machine: int) -> str:
        """Return a machine's address, without a port."""
        return _address(machine, 2)

    def namespace(self, machine: int) -> str:
        """Return the full name of a machine's namespace."""
        return self.named(f"m{machine}")

    def inside(self, machine: int) -> tuple[str, ...]:
        """Return what comes before a command that is to run on this machine."""
        return ("ip", "netns", "exec", self.namespace(machine))

    def slow_down(self, factor: float) -> None:
        """Give every link 1/factor of its rate from now on; below 1 that is more."""
        self._shape_all(self.rate_bps / factor)

    def carried_bytes(self) -> tuple[int, ...]:
        """Return the bytes that each link has let through since the beginning, headers of
        Ethernet, IP and TCP included: the cell, or up and down of every board's own."""
        rows = json.loads(ip("-n", self._router, "-s", "-j", "link", "show"))
        counters = {row["ifname"]: row["stats64"] for row in rows}
        if self.link == "shared":
            return (int(counters["cell0"]["tx"]["bytes"]),)
        ports = [counters[f"port{k}"] for k in range(1, self.size + 1)]
        return tuple(int(port[way]["bytes"]) for port in ports for way in ("tx", "rx"))

    def _open(self) -> None:
        self._router = self.add("router")
        for k in range(1, self.size + 1):
            self.add(f"m{k}")
        _batch(self._router, self._links())
        router = ("ip", "netns", "exec", self._router, "sh", "-c")
        command(
            *router,
            "echo 1 >/proc/sys/net/ipv4/ip_forward; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done",
        )
        for k in range(1, self.size + 1):
            _batch(self.namespace(k), _board(k))
        if self.link == "shared":
            _batch(self._router, self._cell())
        self._shape_all(self.rate_bps)

    def _shape_all(self, rate_bps: float) -> None:
        if self.link == "shared":
            _shape(self._router, "cell0", rate_bps, self.rate_bps)
            return
        for k in range(1, self.size + 1):
            _shape(self._router, f"port{k}", rate_bps, self.rate_bps)
            _shape(self.namespace(k), "wire", rate_bps, self.rate_bps)

    def _links(self) -> list[str]:
        lines = ["link add cell0 type veth peer name cell1"] if self.link == "shared" else []
        for k in range(1, self.size + 1):
            lines += [
                f"link add port{k} type veth peer name wire netns {self.namespace(k)}",
                f"address add {_address(k, 1)}/30 dev port{k}",
                f"link set port{k} gso_max_segs 1 up",
            ]
        return lines

    def _cell(self) -> list[str]:
        """What comes in from a port leaves through cell0, comes in again from cell1, and goes to
        its port from there."""
        (link,) = json.loads(ip("-n", self._router, "-j", "link", "show", "cell1"))
        return [
            "link set cell0 up",
            "link set cell1 up",
            f"address add {_CELL}/31 dev cell0",
            f"neigh replace 10.79.255.253 lladdr {link['address']} dev cell0 nud permanent",
            "route add default via 10.79.255.253 dev cell0 table 100",
            *(f"rule add iif port{k} table 100" for k in range(1, self.size + 1)),
        ]


def _board(machine: int) -> list[str]:
    # Packets are cut before they are counted and delayed, as on a wire, not by a card behind it.
    return [
        f"address add {_address(machine, 2)}/30 dev wire",
        "link set wire gso_max_segs 1 up",
        f"route add default via {_address(machine, 1)}",
    ]


def _address(machine: int, end: int) -> str:
    return f"10.79.{machine // 64}.{machine % 64 * 4 + end}"


def _batch(namespace: str, lines: Sequence[str]) -> None:
    command("ip", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def _shape(namespace: str, interface: str, rate_bps: float, full_bps: float) -> None:
    """The queue is that of the full rate: it is bytes, and as many of them in dilated time. What
    passes at once is of the rate there is: in dilated time that of the full one would be a good
    part of a small exchange."""
    limit_bytes = max(256_000, round(full_bps / 8 * QUEUE_S))
    shape = f"handle 1: tbf rate {rate_bps:.0f}bit burst {burst_bytes(rate_bps)} limit {limit_bytes}"
    command("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *shape.split())


def burst_bytes(rate_bps: float) -> int:
    """Return what passes in BURST_S of the wall, by which the kernel has looked again; ten
    packets at least."""
    return max(16_000, round(rate_bps / 8 * BURST_S))
