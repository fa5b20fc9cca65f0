"""The boot partition: a FAT file system made and changed inside a file with mtools, never mounted.
The same files give the same bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgegossip.fleet.image.tools import run
from edgegossip.types import DataError, HostError

LABEL = "RASPIFIRM"
VOLUME_ID = "65646765"
_FAT32_CLUSTERS = 65_525  # with fewer, drivers take it for FAT16
_TIMEOUT_S = 300.0


def make(files: Path, image: Path, size: int, epoch: int) -> None:
    """A file system of `size` bytes with everything below `files`. Raises HostError when it does
    not fit."""
    with open(image, "wb") as stream:
        stream.truncate(size)
    cluster = "4" if size >= 4 * _FAT32_CLUSTERS * 512 else "1"  # sectors
    run(["mkfs.vfat", "--invariant", "-F", "32", "-s", cluster, "-i", VOLUME_ID, "-n", LABEL, image], _TIMEOUT_S)
    for folder, names, _ in os.walk(files):
        names.sort()
        here = Path(folder)
        inside = here.relative_to(files)
        plain = sorted(p for p in here.iterdir() if p.is_file())
        if inside.parts:
            _mtools(["mmd", "-i", image, f"::/{inside}"], epoch)
        if plain:  # one call a folder, in order: what comes when decides where it lies
            _mtools(["mcopy", "-m", "-Q", "-o", "-i", image, *plain, f"::/{inside if inside.parts else ''}"], epoch)


def put(image: Path, offset: int, files: Sequence[Path], epoch: int) -> None:
    """Copy files to the top of the file system that begins at byte `offset` of a card's image, over
    those of the same names."""
    _mtools(["mcopy", "-Q", "-o", "-i", f"{image}@@{offset}", *files, "::/"], epoch)


def names(image: Path, offset: int = 0) -> tuple[str, ...]:
    """Paths of all files, such as /overlays/x.dtbo. Raises DataError when it is no FAT file system
    that can be read."""
    try:
        listed = _mtools(["mdir", "-b", "-s", "-i", f"{image}@@{offset}", "::/"], None)
    except HostError as error:
        if "needs mdir" in str(error):
            raise
        raise DataError(f"{image}: its boot partition cannot be read ({error})") from error
    return tuple(sorted(line.removeprefix("::") for line in listed.splitlines() if line and not line.endswith("/")))


def read(image: Path, offset: int, name: str) -> bytes:
    """A file at the top. Raises HostError when there is none."""
    return _mtools(["mtype", "-i", f"{image}@@{offset}", f"::/{name}"], None).encode("utf-8", "surrogateescape")


def _mtools(command: Sequence[str | Path], epoch: int | None) -> str:
    env = {"TZ": "UTC", "MTOOLS_SKIP_CHECK": "1", **({} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)})}
    return run(command, _TIMEOUT_S, env=env)
