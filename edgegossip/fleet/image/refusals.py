"""Whether a device may be overwritten, by what lsblk says of it. That nothing uses it is the
kernel's to say: whoever writes opens it for itself alone (flashing.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.fleet.image.tools import run
from edgegossip.types import HostError

_COLUMNS = "KNAME,PKNAME,PATH,MAJ:MIN,TYPE,SIZE,RM,TRAN,VENDOR,MODEL,FSTYPE,MOUNTPOINTS"
# Disks to lsblk, and made of something else: another disk, memory, another machine.
_MADE_UP = re.compile(r"(bcache|zram|ram|zd|drbd|nbd|rbd)\d+")
_PART_OF_A_CARD = re.compile(r"mmcblk\d+(boot\d+|rpmb|gp\d+)")
# What is on a part of something over several disks that is not assembled now, so that nothing uses
# it: it holds what the others cannot replace.
_PART_OF_MORE = re.compile(r"\w+_member|bcache|drbd|ceph_bluestore")


@dataclass(frozen=True, slots=True)
class Device:
    """Holds what lsblk says of a device, with what is on it or stacked on it. `number` is
    MAJOR:MINOR, `size` bytes."""

    name: str
    path: str
    number: str
    kind: str  # disk, part, loop, rom, crypt, lvm, raid1, mpath, ...
    size: int
    parent: str = ""  # name of the disk that a partition is of
    removable: bool = False
    transport: str = ""
    label: str = ""  # maker and model
    file_system: str = ""
    mounts: tuple[str, ...] = ()
    children: tuple[Device, ...] = ()

    def family(self) -> Iterator[Device]:
        """Yield itself and everything on it."""
        yield self
        for child in self.children:
            yield from child.family()

    def __str__(self) -> str:
        """Describe it, such as "SanDisk Ultra, 31.9 GB, usb"."""
        return ", ".join(filter(None, (self.label or self.kind, f"{self.size / 1e9:.1f} GB", self.transport)))


@dataclass(frozen=True, slots=True)
class Wish:
    """Holds what the user asks for. `image_size` is bytes; `confirmed` is what was said with
    --yes."""

    image_size: int
    confirmed: str = ""
    allow_fixed: bool = False


def look_up(path: str) -> Device:
    """Ask lsblk for a device. Raises HostError."""
    return parse_lsblk(run(["lsblk", "--json", "--bytes", "--output", _COLUMNS, path], 60))


def parse_lsblk(text: str) -> Device:
    """Read lsblk's JSON of one device. An SD card in a reader of its own is removable, whatever
    the kernel says of the reader. Raises HostError."""
    try:
        (entry,) = json.loads(text)["blockdevices"]
        return _device(entry)
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(
            f"lsblk says something that this program does not understand ({error}): nothing is written"
        ) from error


def _device(entry: Mapping[str, Any]) -> Device:
    name = str(entry["kname"])
    return Device(
        name=name,
        path=str(entry["path"]),
        number=str(entry["maj:min"]).strip(),
        kind=str(entry["type"]),
        size=int(entry["size"] or 0),
        parent=str(entry.get("pkname") or ""),
        removable=bool(entry["rm"]) or _is_sd_card(name),
        transport=str(entry.get("tran") or ""),
        label=" ".join(str(entry.get(key) or "").strip() for key in ("vendor", "model")).strip(),
        file_system=str(entry.get("fstype") or ""),
        mounts=tuple(filter(None, entry["mountpoints"])),
        children=tuple(_device(child) for child in entry.get("children", ())),
    )


def _is_sd_card(name: str) -> bool:
    """Return whether a reader says that it holds an SD card, and no soldered eMMC."""
    try:
        return Path(f"/sys/block/{name}/device/type").read_text().strip() == "SD"
    except OSError:
        return False


def refusals(device: Device, wish: Wish) -> tuple[str, ...]:
    """Say why not, a sentence each; empty when the device may be overwritten. Nobody is asked to
    confirm what will not be done."""
    found = list(_never(device, wish)) or list(_not_confirmed(device, wish))
    return tuple(f"{device.path}: {reason}" for reason in found)


def _never(device: Device, wish: Wish) -> Iterator[str]:
    if device.kind == "part":
        yield f"it is a partition: name the whole device, /dev/{device.parent}"
    elif device.kind not in ("disk", "loop") or _MADE_UP.fullmatch(device.name):
        yield f"it is no disk or card of its own ({device.kind})"
    elif _PART_OF_A_CARD.fullmatch(device.name):
        yield "it is a boot area of an eMMC, not a card"
    for member in device.family():
        for point in member.mounts:
            yield f"{member.name} is in use at {point}: unmount it first, unless this machine runs from it"
        if _PART_OF_MORE.fullmatch(member.file_system):
            kind = member.file_system
            yield f"{member.name} is part of something larger ({kind}): `wipefs --all {member.path}` if that is not needed"
    if not (device.removable or wish.allow_fixed):
        yield f"it is a fixed disk ({device}), no card: --allow-fixed if you mean it"
    if device.size == 0:
        yield "there is no card in this reader"
    elif wish.image_size > device.size:
        yield f"the image needs {wish.image_size} bytes, and it has {device.size}"


def _not_confirmed(device: Device, wish: Wish) -> Iterator[str]:
    if wish.confirmed not in (device.name, device.path):
        wrong = f"--yes {wish.confirmed} names another device; " if wish.confirmed else ""
        yield f"{wrong}everything on it ({device}) will be lost: say --yes {device.name} if that is meant"
