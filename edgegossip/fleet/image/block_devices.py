"""What this machine says of its disks: lsblk's tree, mounts, swap and loop devices, as plain facts
that `refusals` decides on."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.fleet.image.tools import run
from edgegossip.types import HostError

COLUMNS = "NAME,KNAME,PATH,MAJ:MIN,TYPE,SIZE,RO,RM,HOTPLUG,TRAN,VENDOR,MODEL,FSTYPE,UUID"


@dataclass(frozen=True, slots=True)
class Device:
    """Holds a line of lsblk, with what is on it or stacked on it. `number` is MAJOR:MINOR, `size`
    bytes."""

    name: str
    path: str
    number: str
    kind: str  # disk, part, loop, rom, crypt, lvm, raid1, mpath, ...
    size: int
    read_only: bool = False
    removable: bool = False
    transport: str = ""
    label: str = ""  # maker and model
    file_system: str = ""
    uuid: str = ""
    children: tuple[Device, ...] = ()

    def family(self) -> Iterator[Device]:
        """Yield itself and everything on it."""
        yield self
        for child in self.children:
            yield from child.family()


@dataclass(frozen=True, slots=True)
class Mount:
    """Holds a line of mountinfo. `number` is of the file system: not that of the disk with btrfs,
    overlays, ZFS and FUSE. `behind` is that of the block device which `source` leads to, through
    links such as /dev/disk/by-uuid/...; empty when it is none."""

    number: str
    point: str
    source: str
    file_system: str
    behind: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """Names a file or device that something uses, and the number of the device that it lies on or
    is."""

    what: str  # "swap /swapfile", "loop3 (backup.img)", "the image"
    number: str


@dataclass(frozen=True, slots=True)
class Target:
    """Holds what the user named. `kind` is block, file, folder, other or missing."""

    path: str
    kind: str
    number: str = ""


@dataclass(frozen=True, slots=True)
class Medium:
    """Tells a disk from another one that has its name later: another card in the reader, a stick
    put in anew. `size` is bytes; `sequence` is the kernel's count of disks that it has seen (Linux
    5.15)."""

    number: str = ""
    size: int = 0
    removable: bool = False
    sequence: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Holds all that the decision to write a device goes by."""

    target: Target
    devices: tuple[Device, ...]
    mounts: tuple[Mount, ...]
    kept: tuple[Kept, ...] = ()  # swap, files behind loop devices, the image itself
    cards: frozenset[str] = frozenset()  # names of SD cards in a reader that says so (not soldered eMMC)
    medium: Medium = Medium()  # as it was before all the rest was asked


def gather(path: str, image: Path | None = None) -> Facts:
    """Gather facts about the device at `path`, and where `image` lies. Raises HostError when lsblk
    cannot be asked."""
    target = _target(path)
    medium = medium_of(target.number)
    tree = run(["lsblk", "--json", "--bytes", "--output", COLUMNS], 60)
    kept = (*parse_swaps(_read("/proc/swaps"), _number_of), *_loops(), *_image(image))
    mounts = parse_mounts(_read("/proc/self/mountinfo"), _block_number)
    return Facts(target, parse_lsblk(tree), mounts, kept, _cards(), medium)


def medium_of(number: str) -> Medium:
    """Look up in sysfs, at this moment, the medium of the block device MAJOR:MINOR."""
    about = Path("/sys/dev/block") / (number or "none")
    sectors, removable, sequence = (_read(about / name).strip() for name in ("size", "removable", "diskseq"))
    return Medium(number, 512 * int(sectors or 0), removable == "1", sequence)


def number_of(descriptor: int) -> str:
    """Return the number of the block device that is open; empty when it is none. Raises OSError."""
    status = os.fstat(descriptor)
    return _name_number(status.st_rdev) if stat.S_ISBLK(status.st_mode) else ""


def parse_lsblk(text: str) -> tuple[Device, ...]:
    """Read lsblk's JSON. A device that is on several disks (RAID) comes below each. Raises
    HostError."""
    try:
        return tuple(_device(entry) for entry in json.loads(text)["blockdevices"])
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(
            f"lsblk says something that this program does not understand ({error}): nothing is written"
        ) from error


def parse_mounts(text: str, block_number: Callable[[str], str] = lambda path: "") -> tuple[Mount, ...]:
    """Read /proc/self/mountinfo (proc(5)). `block_number(path)` is that of the block device there,
    empty for anything else."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) >= 5 and len(rest) >= 2:
            source = _unescaped(rest[1])
            found.append(Mount(fields[2], _unescaped(fields[4]), source, rest[0], block_number(source)))
    return tuple(found)


def parse_swaps(text: str, number_of: Any) -> tuple[Kept, ...]:
    """Read /proc/swaps. `number_of(path)` is the device that a path is, or that a file lies on."""
    paths = [_unescaped(line.split()[0]) for line in text.splitlines()[1:] if line.strip()]
    return tuple(Kept(f"swap {path}", number_of(path)) for path in paths)


def _device(entry: Mapping[str, Any]) -> Device:
    label = " ".join(str(entry.get(key) or "").strip() for key in ("vendor", "model")).strip()
    return Device(
        name=str(entry["kname"]),
        path=str(entry.get("path") or f"/dev/{entry['kname']}"),
        number=str(entry["maj:min"]).strip(),
        kind=str(entry["type"]),
        size=int(entry["size"] or 0),
        read_only=_flag(entry["ro"]),
        removable=_flag(entry["rm"]),
        transport=str(entry.get("tran") or ""),
        label=label,
        file_system=str(entry.get("fstype") or ""),
        uuid=str(entry.get("uuid") or ""),
        children=tuple(_device(child) for child in entry.get("children", ())),
    )


def _flag(value: object) -> bool:
    return value in (True, "1", 1)  # older versions write words


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _target(path: str) -> Target:
    try:
        status = os.stat(path)
    except OSError:
        return Target(path, "missing")
    if stat.S_ISBLK(status.st_mode):
        return Target(path, "block", _name_number(status.st_rdev))
    return Target(
        path, "file" if stat.S_ISREG(status.st_mode) else "folder" if stat.S_ISDIR(status.st_mode) else "other"
    )


def _number_of(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return _name_number(status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev)


def _block_number(path: str) -> str:
    try:
        status = os.stat(path) if path.startswith("/") else None
    except OSError:
        return ""
    return _name_number(status.st_rdev) if status is not None and stat.S_ISBLK(status.st_mode) else ""


def _name_number(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def _loops() -> Iterator[Kept]:
    for file in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        behind = _read(file).strip()
        yield Kept(f"{file.parts[3]} ({behind})", _number_of(behind))


def _image(image: Path | None) -> Iterator[Kept]:
    if image is not None:
        yield Kept(f"the image {image}", _number_of(str(image)))


def _cards() -> frozenset[str]:
    files = Path("/sys/block").glob("mmcblk*/device/type")
    return frozenset(file.parts[3] for file in files if _read(file).strip() == "SD")


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
