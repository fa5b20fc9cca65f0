"""Whether a device may be overwritten. Pure: facts in, reasons out. Every rule is a function, and
any of them is enough to refuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgegossip.fleet.image.block_devices import Device, Facts, Mount

_SYSTEM = ("/", "/boot", "/boot/efi", "/usr", "/var", "/home", "/nix", "/run/live/medium")
# Disks to lsblk, and made of something else: another disk, memory, another machine.
_MADE_UP = re.compile(r"(bcache|zram|ram|zd|drbd|nbd|rbd)\d+")
_PARTS_OF_MORE = {
    "LVM2_member": "LVM",
    "bcache": "bcache",
    "drbd": "DRBD",
    "ceph_bluestore": "Ceph",
    "mpath_member": "multipath",
}
_PART_OF_A_CARD = re.compile(r"mmcblk\d+(boot\d+|rpmb|gp\d+)")


@dataclass(frozen=True, slots=True)
class Wish:
    """Holds what the user asks for. `image_size` is bytes; `confirmed` is what was said with
    --yes."""

    image_size: int
    confirmed: str = ""
    allow_fixed: bool = False


def refusals(facts: Facts, wish: Wish) -> tuple[str, ...]:
    """Say why not, a sentence each; empty when the device may be overwritten."""
    if not_a_device := tuple(_no_device(facts)):
        return not_a_device
    device = device_of(facts)
    if device is None:
        return (f"{facts.target.path}: lsblk does not know this device, so nothing is known of its use",)
    found = [reason for rule in _RULES for reason in rule(device, facts, wish)]
    if not found:  # nobody is asked to confirm what will not be done
        found = list(_not_confirmed(device, wish))
    return tuple(f"{facts.target.path}: {reason}" for reason in dict.fromkeys(found))


def device_of(facts: Facts) -> Device | None:
    """Find the device that the target is, whatever name it was called by."""
    everything = (d for top in facts.devices for d in top.family())
    return next((d for d in everything if d.number == facts.target.number), None)


def describe(device: Device) -> str:
    """Describe a device, such as "SanDisk Ultra, 31.9 GB, usb"."""
    return ", ".join(filter(None, (device.label or device.kind, f"{device.size / 1e9:.1f} GB", device.transport)))


def _no_device(facts: Facts) -> Iterator[str]:
    path, kind = facts.target.path, facts.target.kind
    if kind == "missing":
        yield f"{path}: there is no such device; `lsblk` lists those that there are"
    elif kind == "file":
        yield f"{path} is a plain file, not a device: copy the image with cp if that is what you want"
    elif kind != "block":
        yield f"{path} is a {'folder' if kind == 'folder' else 'device of another kind'}, not a disk or card"


def _part(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    if device.kind == "part":
        whole = next(d for d in facts.devices if any(m.number == device.number for m in d.family()))
        yield f"it is a partition: name the whole device, {whole.path}"
    elif device.kind not in ("disk", "loop") or _MADE_UP.fullmatch(device.name):
        yield f"it is no disk or card of its own ({device.kind})"
    elif _PART_OF_A_CARD.fullmatch(device.name):
        yield "it is a boot area of an eMMC, not a card"


def _system_disk(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    points = {m.point for m in _mounts(device, facts)} & set(_SYSTEM)
    if points:
        yield f"this machine runs from it (it holds {', '.join(sorted(points))})"


def _mounted(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    points = sorted({m.point for m in _mounts(device, facts)} - set(_SYSTEM))
    if points:
        yield f"it is mounted at {', '.join(points)}: unmount it first"


def _in_use(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    numbers = {member.number for member in device.family()}
    for kept in facts.kept:
        if kept.number in numbers:
            yield f"{kept.what} {'is' if kept.what.startswith('swap') else 'lies'} on it"


def _holders(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    for member in device.family():
        if member is not device and member.kind != "part":
            yield f"{member.name} ({member.kind}) is built on it: close that first"


def _member(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    """Refuse parts of file systems over several disks, whose mounts name one of them or none."""
    everything = [d for top in facts.devices for d in top.family()]
    in_use = {d.uuid for d in everything for m in facts.mounts if d.uuid and _is_behind(d, m)}
    for member in device.family():
        if member.file_system == "btrfs" and member.uuid in in_use:
            yield f"{member.name} is part of a btrfs that is mounted"
        if member.file_system == "zfs_member" and any(m.file_system == "zfs" for m in facts.mounts):
            yield f"{member.name} is part of a ZFS pool, and pools are in use here"


def _sleeping_member(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    """Refuse parts of something over several disks that is not assembled now, so that nothing is
    built on it: a part of a RAID holds what the others cannot replace."""
    for member in device.family():
        kind = member.file_system
        whole = "a RAID" if kind.endswith("_raid_member") else _PARTS_OF_MORE.get(kind)
        if whole and not member.children:
            yield f"{member.name} is part of {whole}: `wipefs --all {member.path}` if that is not needed any more"


def _read_only(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    if device.read_only:
        yield "it is write-protected: look at the switch on the card"


def _fixed(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    if not (device.removable or device.name in facts.cards or wish.allow_fixed):
        yield f"it is a fixed disk ({describe(device)}), no card: --allow-fixed if you mean it"


def _too_small(device: Device, facts: Facts, wish: Wish) -> Iterator[str]:
    if device.size == 0:
        yield "there is no card in this reader"
    elif wish.image_size > device.size:
        yield f"the image needs {wish.image_size} bytes, and it has {device.size}"


def _not_confirmed(device: Device, wish: Wish) -> Iterator[str]:
    if wish.confirmed not in (device.name, device.path):
        wrong = f"--yes {wish.confirmed} names another device; " if wish.confirmed else ""
        yield f"{wrong}everything on it ({describe(device)}) will be lost: say --yes {device.name} if that is meant"


def _mounts(device: Device, facts: Facts) -> list[Mount]:
    """Find mounts by number, and by the device behind the mount, since some file systems show a
    number of their own."""
    family = list(device.family())
    return [m for m in facts.mounts if any(m.number == d.number or _is_behind(d, m) for d in family)]


def _is_behind(device: Device, mount: Mount) -> bool:
    """Return whether that is the device that was mounted, by whatever name."""
    names = {device.path, f"/dev/{device.name}"}
    names |= {f"/dev/disk/by-uuid/{device.uuid}", f"UUID={device.uuid}"} if device.uuid else set()
    return mount.behind == device.number or mount.source in names


_RULES: tuple[Callable[[Device, Facts, Wish], Iterator[str]], ...] = (
    _part, _system_disk, _mounted, _in_use, _holders, _member, _sleeping_member, _read_only, _fixed, _too_small,
)  # fmt: skip
