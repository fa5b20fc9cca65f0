"""The root file system: an ext4 image made from a folder by mke2fs, never mounted. The same files give the same bytes."""

from __future__ import annotations

import os
from pathlib import Path

from edgegossip.image.tools import run
from edgegossip.types import DataError, HostError

LABEL = "RASPIROOT"
_UUID = "65646765-676f-4373-8970-000000000001"
_MIB = 1 << 20
_BLOCK, _INODE = 4096, 256
_SPARE = 1.10  # over what the files need: journals of apt, logs; first boot makes it as large as the card anyway
_SPARE_BYTES = 96 * _MIB
_TIMEOUT_S = 900.0


def make(root: Path, image: Path, epoch: int) -> None:
    """An image with everything below `root`, with room to start in. No time in it is later than `epoch` (Unix seconds)."""
    need = _clamp_times(root, epoch)
    blocks = -int(-(need * _SPARE + _SPARE_BYTES) // _BLOCK)
    options = f"hash_seed={_UUID},nodiscard,lazy_itable_init=0,lazy_journal_init=0"
    command: list[str | Path] = ["mke2fs", "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-I", str(_INODE)]
    command += ["-L", LABEL, "-U", _UUID, "-E", options, "-d", root, image, str(blocks)]
    # The library goes by the first of these up to e2fsprogs 1.47.0, and by the second from 1.47.1 on.
    env = {"E2FSPROGS_FAKE_TIME": str(epoch), "SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC"}
    run(command, _TIMEOUT_S, env=env)
    _set_change_times(root, image, epoch)


def _clamp_times(root: Path, epoch: int) -> int:
    """The bytes that the files take, each by whole blocks with its inode; access and modification times are made the same on all
    machines."""
    need = 0
    for path in _all(root):
        status = path.lstat()
        at = min(int(status.st_mtime), epoch)
        os.utime(path, (at, at), follow_symlinks=False)
        need += -(-status.st_size // _BLOCK) * _BLOCK + _INODE + 64  # 64: its name
    return need


def _set_change_times(root: Path, image: Path, epoch: int) -> None:
    """mke2fs copies when an inode was last changed on this machine, which nothing can set here; so it is set there."""
    lines = [f'set_inode_field "{_quoted(path, root)}" ctime @{epoch}' for path in _all(root)]
    run(["debugfs", "-w", "-f", "-", image], _TIMEOUT_S, text="\n".join(lines) + "\n", env={"TZ": "UTC"})


def _all(root: Path) -> list[Path]:
    found = [root]
    for folder, names, files in os.walk(root):
        found += [Path(folder, name) for name in (*names, *files)]
    return sorted(found)


def _quoted(path: Path, root: Path) -> str:
    return "/" + path.relative_to(root).as_posix().replace('"', '""') if path != root else "/"


def listing(image: Path, offset: int, folder: str) -> tuple[str, ...]:
    """Names in a folder of the file system that begins at byte `offset`. Raises DataError when there is none such."""
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
