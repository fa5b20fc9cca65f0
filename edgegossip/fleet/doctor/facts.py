"""What is known of a machine. Files are read under a root folder, so that a recorded tree can stand
in for "/"."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgegossip.telemetry.machine import board_name, package_version, power_mode, power_modes
from edgegossip.telemetry.sensors import THROTTLED, found, hottest, memory_of, number_of, text_of, throttled_bits, zones

PACKAGES = ("edgegossip", "numpy", "torch", "grpcio", "protobuf", "psutil", "flwr")
_OWN_CLOCK = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")  # scaling_driver
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512  # more than struct timex has


@dataclass(frozen=True, slots=True)
class Interface:
    """Describes a network interface that is up."""

    name: str
    mtu: int
    wireless_dbm: float | None = None  # level of the signal; None: by wire, or not told


@dataclass(frozen=True, slots=True)
class Facts:
    """Holds what is known of a machine; None is what it does not tell."""

    board: str | None = None
    machine: str = ""  # such as "aarch64"
    python: tuple[int, int] = (3, 11)
    packages: Mapping[str, str | None] = field(default_factory=dict)
    unix_s: float = 0.0
    clock_synchronised: bool | None = None
    power_mode: str | None = None  # of a Jetson, such as "15W"
    power_modes: tuple[tuple[int, str], ...] = ()  # all that it has: number, name
    jetson_linux: str | None = None  # the release of a Jetson's system (L4T), such as "39.2.0"
    throttled: int | None = None  # the firmware's bits, see edgegossip.telemetry.sensors
    temperature_c: float | None = None
    governors: tuple[str, ...] = ()  # of cpufreq
    allowed_hz: float | None = None  # highest clock that cpufreq may choose, of the slowest policy by its share
    highest_hz: float | None = None  # that the same policy's cores have
    wear: tuple[tuple[str, int], ...] = ()  # (block device, eMMC life time estimate: 1 is up to 10 % used, 11 is over)
    memory_bytes: int | None = None
    available_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_free_bytes: int | None = None  # where the board keeps its runs
    root_is_read_only: bool = False
    interfaces: tuple[Interface, ...] = ()


def gather(root: Path = Path("/"), folder: Path = Path(".")) -> Facts:
    """Look at this machine. `folder`: where runs are kept. What is not a file under `root` is asked
    of this machine."""
    real = root == Path("/")
    memory = memory_of(root / "proc/meminfo")
    allowed_hz, highest_hz = _clock_limits(root)
    return Facts(
        board=board_name(root / "proc/device-tree"),
        machine=platform.machine(),
        python=sys.version_info[:2],
        packages={name: package_version(name, sys.path) for name in PACKAGES},
        unix_s=time.time(),
        clock_synchronised=_clock_synchronised() if real else None,
        power_mode=power_mode(root),
        power_modes=power_modes(root),
        jetson_linux=jetson_linux(root),
        throttled=throttled_bits(found(root, *THROTTLED)),
        temperature_c=hottest(zones(root)),
        governors=_governors(root),
        allowed_hz=allowed_hz,
        highest_hz=highest_hz,
        wear=_wear(root),
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        swap_used_bytes=memory["SwapTotal"] - memory["SwapFree"]
        if {"SwapTotal", "SwapFree"} <= memory.keys()
        else None,
        disk_free_bytes=_free(folder),
        root_is_read_only=_read_only(root),
        interfaces=_interfaces(root),
    )


def jetson_linux(root: Path = Path("/")) -> str | None:
    """Return the release of a Jetson's system, such as "39.2.0" of "# R39 (release), REVISION: 2.0,
    ..."; None on other machines, and in containers to which nobody hands the file."""
    found = re.match(r"#\s*R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)", text_of(root / "etc/nv_tegra_release") or "")
    return f"{found[1]}.{found[2]}" if found else None


def _clock_synchronised() -> bool | None:
    """Return what the kernel knows of whoever sets its clock (NTP, chrony, timesyncd); None where
    it cannot be asked."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def _clock_limits(root: Path) -> tuple[float | None, float | None]:
    """Return what cpufreq may choose and what the cores have, Hz; of several policies (big and
    little cores) that which is held down most."""
    limits = []
    for policy in found(root, "sys/devices/system/cpu/cpufreq/policy*"):
        allowed, highest = number_of(policy / "scaling_max_freq"), number_of(policy / "cpuinfo_max_freq")
        if allowed and highest:
            limits.append((1000 * allowed, 1000 * highest))
    return min(limits, key=lambda pair: pair[0] / pair[1], default=(None, None))


def _governors(root: Path) -> tuple[str, ...]:
    """Return the governors of policies whose driver goes by them. Processors of PCs that choose
    their clock themselves call that `powersave`, too (Documentation/admin-guide/pm/intel_pstate.rst
    and amd-pstate.rst, active mode)."""
    policies = found(root, "sys/devices/system/cpu/cpufreq/policy*")
    names = [text_of(p / "scaling_governor") for p in policies if text_of(p / "scaling_driver") not in _OWN_CLOCK]
    return tuple(dict.fromkeys(name for name in names if name))


def _wear(root: Path) -> tuple[tuple[str, int], ...]:
    """Return the worst figure of each device that has any: an SD card seldom does, eMMC always."""
    rows = []
    for file in found(root, "sys/block/mmcblk*/device/life_time"):
        words = re.findall(r"\b0x([0-9a-fA-F]{2})\b", text_of(file) or "")
        if worst := max((int(word, 16) for word in words), default=0):  # 0 is "not told"
            rows.append((file.parts[-3], worst))
    return tuple(rows)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _read_only(root: Path) -> bool:
    """Return whether / is a card's or disk's and mounted so, as the kernel does when that fails. A
    container's is no device's, and may be meant so."""
    for line in (text_of(root / "proc/mounts") or "").splitlines():
        words = line.split()
        if len(words) > 3 and words[1] == "/" and words[0].startswith("/dev/"):
            return "ro" in words[3].split(",")
    return False


def _interfaces(root: Path) -> tuple[Interface, ...]:
    levels = _signal(root)
    rows = []
    for folder in found(root, "sys/class/net/*"):
        mtu = number_of(folder / "mtu")
        if folder.name != "lo" and mtu is not None and text_of(folder / "operstate") == "up":
            rows.append(Interface(folder.name, int(mtu), levels.get(folder.name)))
    return tuple(rows)


def _signal(root: Path) -> dict[str, float]:
    """Read proc/net/wireless: dBm by interface, where the driver gives dBm."""
    levels = {}
    for line in (text_of(root / "proc/net/wireless") or "").splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        try:
            level = float(words[2].rstrip(".")) if colon and len(words) > 2 else 0.0
        except ValueError:
            continue
        if -120 <= level < 0:
            levels[name.strip()] = level
    return levels


def hostname() -> str:
    """Return the name that this machine has for itself."""
    return os.uname().nodename
