"""The file systems of a card, made and changed inside files and never mounted: FAT with mtools,
ext4 with mke2fs and debugfs. The same files give the same bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgegossip.fleet.image.tools import run
from edgegossip.types import DataError

BOOT_LABEL, ROOT_LABEL = "RASPIFIRM", "RASPIROOT"
VOLUME_ID = "65646765"
_FAT32_CLUSTERS = 65_525  # with fewer, drivers take it for FAT16
_UUID = "65646765-676f-4373-8970-000000000001"
_BLOCK, _INODE = 4096, 256
_SPARE = 1.10  # over what the files need: journals of apt, logs; first boot makes it as large as the card anyway
_SPARE_BYTES = 96 << 20
_FAT_S, _EXT4_S, _LOOK_S = 300.0, 900.0, 120.0  # bounds of one program

# -- FAT


def make_fat(files: Path, image: Path, size: int, epoch: int) -> None:
    """Make a file system of `size` bytes with everything below `files`. Raises HostError when it
    does not fit."""
    with open(image, "wb") as stream:
        stream.truncate(size)
    cluster = "4" if size >= 4 * _FAT32_CLUSTERS * 512 else "1"  # sectors
    run(["mkfs.vfat", "--invariant", "-F", "32", "-s", cluster, "-i", VOLUME_ID, "-n", BOOT_LABEL, image], _FAT_S)
    for folder, names, _ in os.walk(files):
        names.sort()
        here = Path(folder)
        inside = here.relative_to(files)
        plain = sorted(p for p in here.iterdir() if p.is_file())
        if inside.parts:
            _mtools(["mmd", "-i", image, f"::/{inside}"], epoch)
        if plain:  # one call a folder, in order: what comes when decides where it lies
            _mtools(["mcopy", "-m", "-Q", "-o", "-i", image, *plain, f"::/{inside if inside.parts else ''}"], epoch)


def put_in_fat(image: Path, offset: int, files: Sequence[Path], epoch: int) -> None:
    """Copy files to the top of the file system that begins at byte `offset` of a card's image, over
    those of the same names."""
    _mtools(["mcopy", "-Q", "-o", "-i", f"{image}@@{offset}", *files, "::/"], epoch)


def fat_files(image: Path, offset: int) -> tuple[str, ...]:
    """List the paths of all files, such as /overlays/x.dtbo. Raises HostError when it is no FAT
    file system that can be read."""
    listed = _mtools(["mdir", "-b", "-s", "-i", f"{image}@@{offset}", "::/"], None)
    return tuple(sorted(line.removeprefix("::") for line in listed.splitlines() if line and not line.endswith("/")))


def _mtools(command: Sequence[str | Path], epoch: int | None) -> str:
    env = {"TZ": "UTC", "MTOOLS_SKIP_CHECK": "1", **({} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)})}
    return run(command, _FAT_S, env=env)


# -- ext4


def make_ext4(root: Path, image: Path, epoch: int) -> None:
    """Make an image with everything below `root`, with room to start in; its own times are `epoch`
    (Unix seconds). Raises HostError."""
    need = sum(-(-path.lstat().st_size // _BLOCK) * _BLOCK + _INODE + 64 for path in all_of(root))  # 64: its name
    blocks = -int(-(need * _SPARE + _SPARE_BYTES) // _BLOCK)
    options = f"hash_seed={_UUID},nodiscard,lazy_itable_init=0,lazy_journal_init=0"
    command: list[str | Path] = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-I", str(_INODE)]
    command += ["-L", ROOT_LABEL, "-U", _UUID, "-E", options, "-d", root, image, str(blocks)]
    run(command, _EXT4_S, env=_clock(epoch))
    _set_times(root, image, epoch)


def _clock(epoch: int) -> dict[str, str]:
    """Return the clock of e2fsprogs: it goes by the first of these up to e2fsprogs 1.47.0, and by
    the second from 1.47.1 on."""
    return {"E2FSPROGS_FAKE_TIME": str(epoch), "SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC"}


def _set_times(root: Path, image: Path, epoch: int) -> None:
    """mke2fs copies when each inode was last changed and read on this machine: nothing can set the
    one here, and reading a folder changes the other. So they are set in the image."""
    names = [_quoted(path, root) for path in all_of(root)]
    lines = [f'set_inode_field "{name}" {field} @{epoch}' for name in names for field in ("ctime", "atime")]
    run(["debugfs", "-w", "-f", "-", image], _EXT4_S, text="\n".join(lines) + "\n", env=_clock(epoch))


def all_of(root: Path) -> list[Path]:
    """List a folder and everything in it, in order; links are not followed."""
    found = [root]
    for folder, names, files in os.walk(root):
        found += [Path(folder, name) for name in (*names, *files)]
    return sorted(found)


def _quoted(path: Path, root: Path) -> str:
    return "/" + path.relative_to(root).as_posix().replace('"', '""') if path != root else "/"


def ext4_names(image: Path, offset: int, folder: str) -> tuple[str, ...]:
    """List the names in a folder of the file system that begins at byte `offset`. Raises DataError
    when there is none such, HostError when it is no file system that can be read."""
    out = run(["debugfs", "-R", f'ls -p "{folder}"', f"{image}?offset={offset}"], _LOOK_S)
    names = [line.split("/")[5] for line in out.splitlines() if line.count("/") >= 6]
    if not names:
        raise DataError(f"{image}: its root file system has no {folder}, or cannot be read")
    return tuple(sorted(name for name in names if name not in (".", "..")))
