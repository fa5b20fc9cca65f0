"""Findings from facts: what is wrong, and what to do about it. Everything before `visit` is pure;
that one gathers the facts of this machine, and asks its peers."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from edgegossip.fleet import link_test
from edgegossip.fleet.doctor.facts import Facts, gather, hostname
from edgegossip.fleet.link_test import LinkRate
from edgegossip.types import EdgegossipError, PeerError

Level = Literal["bad", "warning", "good"]  # bad: a run will fail or lie; warning: it will be slower or end sooner

HOT_C = 80.0
_CAPPED = 0.95  # share of its clock that a processor may use
MIN_MTU = 1280  # what IPv6 asks of every link (RFC 8200)
_MAX_MTU = 65_535  # of a path, as the kernel counts it; loopback has one byte more
WEAK_DBM = -70.0
CLOCK_S = 1.0  # between boards; certificates and records go by the clock
EXPIRES_S = 14 * 86_400.0
_FIRST_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()  # before this program was written
_LITTLE_MEMORY = 300_000_000  # a board with torch takes 230 MB before it has a model
_LITTLE_DISK = 500_000_000
# What a Raspberry Pi's firmware says, with the cure.
_PI_BITS = (
    (0, "the supply's voltage is too low", "use the official power supply and a short, thick cable"),
    (1, "the processor's clock is capped", "find the cause among heat and a weak supply"),
    (2, "the processor is throttled", "give it a heat sink or a fan"),
    (3, "the processor is at its soft temperature limit", "give it a heat sink or a fan"),
)
_TORCH = ((2, 9), (2, 13))
_JETPACKS = {32: "4", 34: "5", 35: "5", 36: "6", 38: "7", 39: "7"}  # by Jetson Linux
_FIRST_CUDA_13 = 38  # Jetson Linux; of earlier ones NVIDIA's torch ends at 2.8
_OLD_ARM = re.compile(r"Raspberry Pi (3|4|Zero 2|Compute Module [34])|Jetson Nano|Coral|Phanbell", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Says what was found, in one sentence with its cure."""

    level: Level
    about: str  # a word for programs: clock, throttling, ...
    text: str


@dataclass(frozen=True, slots=True)
class Validity:
    """Says from when to when a certificate of ours is valid, seconds since the epoch."""

    what: str
    begins_s: float
    ends_s: float


def examine(facts: Facts) -> list[DoctorFinding]:
    """Return the findings on this machine, the worst first; what is in order is said, too."""
    found = [finding for check in CHECKS for finding in check(facts)]
    return ordered(found)


def ordered(findings: Sequence[DoctorFinding]) -> list[DoctorFinding]:
    """Sort findings: the worst come first, else they stay as they came."""
    return sorted(findings, key=lambda finding: ("bad", "warning", "good").index(finding.level))


def clock(facts: Facts) -> Iterator[DoctorFinding]:
    """Look whether something keeps the clock right: certificates and records go by it."""
    if facts.unix_s < _FIRST_S:
        today = datetime.fromtimestamp(facts.unix_s, UTC).date()
        yield DoctorFinding(
            "bad", "clock", f"the clock says {today}: set it, or let `systemd-timesyncd` or `chrony` do it at boot"
        )
    elif facts.clock_synchronised is False:
        text = (
            "nothing keeps the clock right: install `chrony` or enable `systemd-timesyncd` (timedatectl set-ntp true)"
        )
        yield DoctorFinding("warning", "clock", text)
    elif facts.clock_synchronised:
        yield DoctorFinding("good", "clock", "the clock is kept right")


def throttling(facts: Facts) -> Iterator[DoctorFinding]:
    """Look at what a Raspberry Pi's firmware says of supply and heat."""
    if facts.throttled is None:
        return
    now = [(what, cure) for bit, what, cure in _PI_BITS if facts.throttled >> bit & 1]
    since = [(what, cure) for bit, what, cure in _PI_BITS if facts.throttled >> (16 + bit) & 1]
    for what, cure in now:
        yield DoctorFinding("bad", "throttling", f"{what}: {cure}")
    for what, cure in since:
        if (what, cure) not in now:
            yield DoctorFinding(
                "warning", "throttling", f"since the board was started it has happened that {what}: {cure}"
            )
    if not (now or since):
        yield DoctorFinding("good", "throttling", "the board has not been throttled since it was started")


def heat(facts: Facts) -> Iterator[DoctorFinding]:
    """Look at the hottest sensor."""
    if facts.temperature_c is not None and facts.temperature_c >= HOT_C:
        text = f"the board is at {facts.temperature_c:.0f} C and will throttle: give it a heat sink or a fan"
        yield DoctorFinding("warning", "heat", text)
    elif facts.temperature_c is not None:
        yield DoctorFinding("good", "heat", f"the board is at {facts.temperature_c:.0f} C")


def governor(facts: Facts) -> Iterator[DoctorFinding]:
    """Look whether cpufreq holds the clock at its lowest."""
    if "powersave" in facts.governors:
        text = (
            "the governor `powersave` holds the clock at its lowest: `cpupower frequency-set -g ondemand`, or schedutil"
        )
        yield DoctorFinding("warning", "governor", text)
    elif facts.governors:
        yield DoctorFinding("good", "governor", f"the clock goes by {', '.join(sorted(set(facts.governors)))}")
    if facts.allowed_hz and facts.highest_hz and facts.allowed_hz < _CAPPED * facts.highest_hz:
        clocks = f"{facts.allowed_hz / 1e6:.0f} of {facts.highest_hz / 1e6:.0f} MHz"
        text = f"the clock may not go above {clocks}: write the higher number, in kHz, into scaling_max_freq of cpufreq"
        yield DoctorFinding("warning", "governor", text)


def power(facts: Facts) -> Iterator[DoctorFinding]:
    """Say in which power mode a Jetson is: it sets how many cores there are and their clocks, and
    which one is right depends on supply and cooling."""
    if facts.power_mode is None:
        return
    others = ", ".join(f"{name} ({number})" for number, name in facts.power_modes if name != facts.power_mode)
    change = f"; others: {others}, by `sudo nvpmodel -m NUMBER`" if others else ""
    yield DoctorFinding("good", "power", f"the power mode is {facts.power_mode}{change}")


def jetson(facts: Facts) -> Iterator[DoctorFinding]:
    """Look whether there is a torch for the GPU of a Jetson with this JetPack; whether this one
    computes there, `visit` tries."""
    if facts.jetson_linux is None:
        return
    linux = int(facts.jetson_linux.partition(".")[0])
    jetpack = f"JetPack {_JETPACKS[linux]}" if linux in _JETPACKS else "a JetPack that nobody tried here"
    jetpack += f" (Jetson Linux {facts.jetson_linux})"
    if linux >= _FIRST_CUDA_13:
        yield DoctorFinding("good", "jetson", f"the system is {jetpack}")
        return
    newer = "JetPack 7.2 has one for the GPU" if "Orin" in (facts.board or "") else "no newer JetPack takes this board"
    text = f"{jetpack} trains on its CPU, as NVIDIA's torch for its GPU ends before 2.9: {newer}"
    yield DoctorFinding("warning", "jetson", text)


def wear(facts: Facts) -> Iterator[DoctorFinding]:
    """Look at what an eMMC says of its life (eMMC 5.0, JEDEC JESD84-B50, EXT_CSD[267..269])."""
    for device, life in facts.wear:
        if life >= 11:
            text = f"{device} has outlived what it was made for: copy what is on it and replace it now"
            yield DoctorFinding("bad", "wear", text)
        elif life >= 9:
            used = f"{10 * (life - 1)} to {10 * life} %"
            text = f"{device} has used {used} of its life: replace it soon, and write less with checkpoint.every = 10"
            yield DoctorFinding("warning", "wear", text)
        else:
            yield DoctorFinding("good", "wear", f"{device} has used up to {10 * life} % of its life")


def storage(facts: Facts) -> Iterator[DoctorFinding]:
    """Look whether a run can write, and has room."""
    if facts.root_is_read_only:
        text = "the root file system is read-only, as that of a failing card: look at `dmesg`, or write runs elsewhere (--runs)"
        yield DoctorFinding("bad", "storage", text)
    if facts.disk_free_bytes is None:
        return
    free = f"{facts.disk_free_bytes / 1e6:,.0f} MB of disk are free"
    if facts.disk_free_bytes < _LITTLE_DISK:
        text = f"{free}: delete old run folders, or write runs elsewhere (--runs)"
        yield DoctorFinding("warning", "storage", text)
    elif not facts.root_is_read_only:
        yield DoctorFinding("good", "storage", free)


def memory(facts: Facts) -> Iterator[DoctorFinding]:
    """Look whether a model fits beside what is running."""
    if facts.available_bytes is not None and facts.available_bytes >= _LITTLE_MEMORY:
        yield DoctorFinding("good", "memory", f"{facts.available_bytes / 1e6:,.0f} MB of memory are free")
    elif facts.available_bytes is not None:
        text = (
            f"{facts.available_bytes / 1e6:.0f} MB of memory are free, and a board takes some 230 MB before it has a model: "
            "stop what else is running, or leave out the desktop"
        )
        yield DoctorFinding("warning", "memory", text)
    if facts.swap_used_bytes and facts.memory_bytes and facts.swap_used_bytes > facts.memory_bytes / 4:
        text = f"{facts.swap_used_bytes / 1e6:.0f} MB are swapped out, which is slow and wears a card: take a smaller batch"
        yield DoctorFinding("warning", "memory", text)


def messages(most_bytes: int, available_bytes: int | None) -> DoctorFinding:
    """Say how much memory a recipe's messages take, and whether it is there."""
    text = f"messages take at most {most_bytes / 1e6:,.0f} MB of memory, whatever boards send"
    if available_bytes is None or available_bytes >= _LITTLE_MEMORY + most_bytes:
        return DoctorFinding("good", "memory", text)
    free = f"{available_bytes / 1e6:,.0f} MB are free for them and the board itself"
    return DoctorFinding("warning", "memory", f"{text}, and {free}: stop what else is running, or take a smaller model")


def network(facts: Facts) -> Iterator[DoctorFinding]:
    """Look at the interfaces that are up: MTU, and the level of the signal."""
    for interface in facts.interfaces:
        if interface.mtu < MIN_MTU:
            text = f"{interface.name} has an MTU of {interface.mtu}: set it to 1500 unless a tunnel needs it"
            yield DoctorFinding("warning", "mtu", text)
        else:
            yield DoctorFinding("good", "mtu", f"{interface.name} has an MTU of {interface.mtu}")
        if interface.wireless_dbm is not None and interface.wireless_dbm < WEAK_DBM:
            text = f"{interface.name} hears its access point at {interface.wireless_dbm:.0f} dBm: move the board or use a cable"
            yield DoctorFinding("warning", "radio", text)


def versions(facts: Facts) -> Iterator[DoctorFinding]:
    """Look whether Python and torch are of versions that work on this board."""
    if not (3, 11) <= facts.python <= (3, 13):
        text = f"Python {facts.python[0]}.{facts.python[1]} is not one of 3.11, 3.12 and 3.13: install one of them"
        yield DoctorFinding("bad", "versions", text)
    torch = facts.packages.get("torch")
    if torch is None:
        text = "torch is not installed, so the board cannot train: pip install torch (2.9 to 2.13)"
        yield DoctorFinding("bad", "versions", text)
        return
    release = tuple(int(part) for part in re.findall(r"\d+", torch)[:2])
    if _TORCH[0] <= release <= _TORCH[1]:
        yield DoctorFinding("good", "versions", f"Python {facts.python[0]}.{facts.python[1]}, torch {torch}")
    else:
        yield DoctorFinding("warning", "versions", f"torch {torch} is untested here: 2.9 to 2.13 are known to work")
    if facts.machine == "aarch64" and release == (2, 10) and facts.board and _OLD_ARM.search(facts.board):
        text = f"torch {torch} ends with an illegal instruction on a {facts.board}: pip install torch==2.9.1"
        yield DoctorFinding("bad", "versions", text)


CHECKS: tuple[Callable[[Facts], Iterator[DoctorFinding]], ...] = (
    clock, throttling, heat, governor, power, jetson, wear, storage, memory, network, versions,
)  # fmt: skip


def certificates(valid: Sequence[Validity], now_s: float) -> Iterator[DoctorFinding]:
    """Look at the dates of this board's own, its fleet's authority, and so on."""
    for one in valid:
        ends = datetime.fromtimestamp(one.ends_s, UTC).date()
        if now_s > one.ends_s:
            text = f"{one.what} ended on {ends}: issue a new one with `edgegossip fleet add` and copy its folder here"
            yield DoctorFinding("bad", "certificates", text)
        elif now_s < one.begins_s:
            text = f"{one.what} begins to be valid at {_minute(one.begins_s)} and the clock says {_minute(now_s)}: set the clock"
            yield DoctorFinding("bad", "certificates", text)
        elif now_s > one.ends_s - EXPIRES_S:
            text = f"{one.what} ends on {ends}: issue a new one with `edgegossip fleet add` before"
            yield DoctorFinding("warning", "certificates", text)
        else:
            yield DoctorFinding("good", "certificates", f"{one.what} is valid until {ends}")


def peer(name: str, rate: LinkRate, own_versions: dict[str, str], interface_mtu: int | None) -> Iterator[DoctorFinding]:
    """Judge a measured link to a peer."""
    up, down = rate.up_bits_per_s / 1e6, rate.down_bits_per_s / 1e6
    text = f"{name}: {up:.1f} Mbit/s there, {down:.1f} back, round trip {1000 * rate.round_trip_s:.1f} ms"
    yield DoctorFinding("good", "link", text)
    if abs(rate.ahead_s) > CLOCK_S + rate.round_trip_s:
        way = "ahead of" if rate.ahead_s > 0 else "behind"
        text = f"the clock of {name} is {abs(rate.ahead_s):.1f} s {way} ours: let `chrony` or `systemd-timesyncd` keep both"
        yield DoctorFinding("warning", "clock", text)
    theirs, ours = rate.versions.get("edgegossip"), own_versions["edgegossip"]
    if theirs != ours:
        yield DoctorFinding(
            "warning", "versions", f"{name} has edgegossip {theirs}, and this machine {ours}: install the same one"
        )
    if rate.mtu is not None and interface_mtu is not None and rate.mtu < interface_mtu:
        text = f"packets to {name} may have {rate.mtu} bytes and not {interface_mtu}: set that MTU here, or mend the tunnel"
        yield DoctorFinding("warning", "mtu", text)
    if max(up, down) > 10 * min(up, down):
        times = max(up, down) / min(up, down)
        text = f"the link to {name} is {times:.0f} times as fast one way as the other: look for a bad cable or a full channel"
        yield DoctorFinding("warning", "link", text)


def _minute(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"


def visit(
    folder: Path,
    identity: Path | None,
    ports: Sequence[int],
    peers: Sequence[tuple[str, int]],
    device: Callable[[], str] | None,
    message_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the document of `doctor --json`. `links` is this machine's row of the fleet's
    bandwidth matrix. `device` computes a little where the board is to train, and says where that
    is; `message_bytes` is the memory that messages take there at most."""
    facts = gather(folder=folder)
    found = examine(facts)
    if message_bytes is not None:
        found.append(messages(message_bytes, facts.available_bytes))
    if device is not None:
        found += _of_device(device)
    if identity is not None:
        found += _of_identity(identity, facts.unix_s)
    for port in ports:
        found += _of_port(port)
    links = []
    for host, port in peers:
        name = f"{host}:{port}"
        try:
            rate = link_test.measure(host, port)
        except PeerError as error:
            found.append(DoctorFinding("bad", "link", str(error)))
            continue
        found += peer(name, rate, link_test.own_versions(), _mtu_towards(host, port))
        links.append({"from": hostname(), "to": name, **asdict(rate)})
    found = ordered(found)
    return {
        "host": hostname(),
        "board": facts.board,
        "findings": [asdict(finding) for finding in found],
        "links": links,
        "bad": sum(f.level == "bad" for f in found),
        "warnings": sum(f.level == "warning" for f in found),
    }


def _mtu_towards(host: str, port: int) -> int | None:
    """Return the MTU of this machine's interface from which packets go there; None where that
    cannot be told. Nothing is sent."""
    import psutil

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            own = probe.getsockname()[0]
    except OSError:
        return None
    names = [name for name, kinds in psutil.net_if_addrs().items() if any(kind.address == own for kind in kinds)]
    stats = psutil.net_if_stats()
    return next((min(stats[name].mtu, _MAX_MTU) for name in names if name in stats), None)


def _of_identity(folder: Path, now_s: float) -> list[DoctorFinding]:
    from edgegossip.security.identity import Identity

    try:
        own = Identity.load(folder)
    except EdgegossipError as error:
        return [DoctorFinding("bad", "certificates", str(error))]
    valid = [
        Validity(f"the certificate of {own.name}", *own.certificate.valid),
        Validity("the certificate of the fleet's authority", *own.authority.valid),
    ]
    return list(certificates(valid, now_s))


def _of_device(device: Callable[[], str]) -> list[DoctorFinding]:
    try:
        return [DoctorFinding("good", "device", device())]
    except EdgegossipError as error:
        return [DoctorFinding("bad", "device", str(error))]
    except ImportError:
        return []  # a finding of its own says that torch is not there


def _of_port(port: int) -> list[DoctorFinding]:
    try:
        with socket.create_server(("", port)):
            return [DoctorFinding("good", "ports", f"port {port} is free")]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        text = f"port {port} cannot be listened on ({reason}): `ss -ltnp` says who has it, or take another one"
        return [DoctorFinding("bad", "ports", text)]


def text_of(document: dict[str, Any]) -> str:
    """Lay the document out for people: a line a finding, the worst first."""
    mark = {"bad": "!!", "warning": " !", "good": "ok"}
    lines = [f"{document['host']}{' (' + document['board'] + ')' if document['board'] else ''}"]
    lines += [f"{mark[f['level']]}  {f['about']:<12}  {f['text']}" for f in document["findings"]]
    bad, warnings = document["bad"], document["warnings"]
    lines.append(f"{bad} to put right, {warnings} to know of" if bad or warnings else "nothing found wrong")
    return "\n".join(lines)
