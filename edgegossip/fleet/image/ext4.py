"""The root file system: an ext4 image made from a folder by mke2fs, never mounted. The same files
give the same bytes."""

from __future__ import annotations

import os
from pathlib import Path

from edgegossip.fleet.image.tools import run
from edgegossip.types import DataError, HostError

LABEL = "RASPIROOT"
_UUID = "65646765-676f-4373-8970-000000000001"
_MIB = 1 << 20
_BLOCK, _INODE = 4096, 256
_SPARE = 1.10  # over what the files need: journals of apt, logs; first boot makes it as large as the card anyway
_SPARE_BYTES = 96 * _MIB
_TIMEOUT_S = 900.0


def make(root: Path, image: Path, epoch: int) -> None:
    """An image with everything below `root`, with room to start in; its own times are `epoch` (Unix
    seconds). Raises HostError."""
    need = sum(-(-path.lstat().st_size // _BLOCK) * _BLOCK + _INODE + 64 for path in all_of(root))  # 64: its name
    blocks = -int(-(need * _SPARE + _SPARE_BYTES) // _BLOCK)
    options = f"hash_seed={_UUID},nodiscard,lazy_itable_init=0,lazy_journal_init=0"
    command: list[str | Path] = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-I", str(_INODE)]
    command += ["-L", LABEL, "-U", _UUID, "-E", options, "-d", root, image, str(blocks)]
    run(command, _TIMEOUT_S, env=_clock(epoch))
    _set_times(root, image, epoch)


def _clock(epoch: int) -> dict[str, str]:
    """The library goes by the first of these up to e2fsprogs 1.47.0, and by the second from 1.47.1
    on."""
    return {"E2FSPROGS_FAKE_TIME": str(epoch), "SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC"}


def _set_times(root: Path, image: Path, epoch: int) -> None:
    """mke2fs copies when each inode was last changed and read on this machine: nothing can set the
    one here, and reading a folder changes the other. So they are set in the image."""
    names = [_quoted(path, root) for path in all_of(root)]
    lines = [f'set_inode_field "{name}" {field} @{epoch}' for name in names for field in ("ctime", "atime")]
    run(["debugfs", "-w", "-f", "-", image], _TIMEOUT_S, text="\n".join(lines) + "\n", env=_clock(epoch))


def all_of(root: Path) -> list[Path]:
    """A folder and everything in it, in order; links are not followed."""
    found = [root]
    for folder, names, files in os.walk(root):
        found += [Path(folder, name) for name in (*names, *files)]
    return sorted(found)


def _quoted(path: Path, root: Path) -> str:
    return "/" + path.relative_to(root).as_posix().replace('"', '""') if path != root else "/"


def listing(image: Path, offset: int, folder: str) -> tuple[str, ...]:
    """Names in a folder of the file system that begins at byte `offset`. Raises DataError when
    there is none such."""
    out = _debugfs(image, offset, f'ls -p "{folder}"')
    names = [line.split("/")[5] for line in out.splitlines() if line.count("/") >= 6]
    if not names:
        raise DataError(f"{image}: its root file system has no {folder}, or cannot be read")
    return tuple(sorted(name for name in names if name not in (".", "..")))


def read(image: Path, offset: int, path: str) -> bytes:
    """A file's content. Raises DataError."""
    out = _debugfs(image, offset, f'cat "{path}"')
    if not out and path.rpartition("/")[2] not in listing(image, offset, path.rpartition("/")[0] or "/"):
        raise DataError(f"{image}: its root file system has no {path}")
    return out.encode("utf-8", "surrogateescape")


def _debugfs(image: Path, offset: int, request: str) -> str:
    try:
        return run(["debugfs", "-R", request, f"{image}?offset={offset}"], 120)
    except HostError as error:
        if "needs debugfs" in str(error):
            raise
        raise DataError(f"{image}: its root file system cannot be read ({error})") from error
