"""Whether an image is whole: its hash, partitions, what a board needs to start, and that a base
image holds no private key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.fleet.image import configure, disk
from edgegossip.fleet.image.build import description
from edgegossip.fleet.image.disk import Partition
from edgegossip.fleet.image.filesystems import ext4_names, fat_files
from edgegossip.fleet.image.private_keys import find_keys
from edgegossip.types import DataError, EdgegossipError

_BOOT_FILES = (r"^/config\.txt$", r"^/cmdline\.txt$", r"^/vmlinuz-", r"^/initrd\.img-", r"\.dtb$")
_ROOT_FILES = ("/etc/fstab", "/opt/edgegossip/current", "/etc/systemd/system/edgegossip-node.service",
               "/etc/systemd/system/edgegossip-firstboot.service", "/usr/lib/edgegossip/firstboot.py")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """Names one thing that was looked at. `fault` is empty when it is as it should be."""

    name: str
    says: str
    fault: str = ""


def verify(image: Path, echo: Callable[[str], None] = lambda text: None) -> tuple[ImageCheck, ...]:
    """Make every check of an image, or of a card's image with a bundle. Raises DataError when it
    cannot be read at all."""
    about = configure.described(image)
    boot, root = configure.layout(image)
    named = str(about.get("name", ""))
    steps: tuple[tuple[str, Callable[[], str]], ...] = (
        ("hash", lambda: _hash(image, about)),
        ("boot partition", lambda: _boot(image, boot, named)),
        ("root file system", lambda: _root(image, root)),
        ("secrets", lambda: _secrets(image, boot, named, about)),
    )
    return tuple(_checked(name, look, echo) for name, look in steps)


def _checked(name: str, look: Callable[[], str], echo: Callable[[str], None]) -> ImageCheck:
    try:
        check = ImageCheck(name, look())
    except (EdgegossipError, OSError) as error:
        check = ImageCheck(name, "", str(error))
    echo(f"{check.name}: {check.fault or check.says}")
    return check


def _hash(image: Path, about: dict[str, Any]) -> str:
    if "sha256" not in about:
        return f"no {description(image).name} beside it to compare with: {disk.sha256(image)}"
    if disk.sha256(image) != about["sha256"]:
        raise DataError("it is not the image that was built: it changed or was copied in part; build or copy it again")
    return str(about["sha256"])


def _boot(image: Path, boot: Partition, named: str) -> str:
    names = fat_files(image, boot.start)
    missing = [pattern.strip("^$\\") for pattern in _BOOT_FILES if not any(re.search(pattern, name) for name in names)]
    if missing:
        raise DataError(f"its boot partition has no {missing[0]}: no board starts from it")
    has_bundle = f"/{configure.BUNDLE}" in names
    if bool(named) != has_bundle:
        raise DataError(
            f"its boot partition has {'a' if has_bundle else 'no'} bundle, and should have {'one' if named else 'none'}"
        )
    return f"{len(names)} files" + (f", and the bundle of {named}" if named else "")


def _root(image: Path, root: Partition) -> str:
    for path in _ROOT_FILES:
        folder, _, name = path.rpartition("/")
        if name not in ext4_names(image, root.start, folder):
            raise DataError(f"its root file system has no {path}")
    keys = [name for name in ext4_names(image, root.start, "/etc/ssh") if name.startswith("ssh_host_")]
    if keys:
        raise DataError(f"its root file system has {keys[0]}, which every card would share")
    releases = ext4_names(image, root.start, "/opt/edgegossip/releases")
    return f"release {', '.join(releases)}"


def _secrets(image: Path, boot: Partition, named: str, about: Mapping[str, Any]) -> str:
    """Look through all of its bytes, free space too; of a card with a bundle, all but the boot
    partition, where the bundle is. Libraries of cryptography have public keys to test themselves
    with: the build has noted which."""
    with open(image, "rb") as stream:
        known = set(about.get("library_keys", ()))
        found = [
            k.at for k in find_keys(stream) if k.digest not in known and not (named and boot.start <= k.at < boot.end)
        ]
    if found:
        raise DataError(f"there is a private key at byte {found[0]}: build it again, and look at deploy/rootfs")
    return "no private key but the bundle's" if named else "no private key and no bundle"
