"""Files that are whole or not there: written under another name, synced, then renamed."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from edgegossip.types import HostError

_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)  # file systems without it, or where nothing can be new


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write in the block. After it `path` holds what was written; after an exception, a
    crash or power loss it holds that or what it held before. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` with `data`; after a crash or power loss it holds the old bytes or the new
    ones. Raises HostError."""
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def write_json(path: Path, document: Any) -> None:
    """`document` as indented JSON, atomically. Numbers that are not finite must be None already."""
    write_atomic(path, (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def make_folder(path: Path) -> None:
    """A new folder with those above it, whose names survive power loss: also of those above that
    another process made and was killed before it synced them. Raises OSError."""
    path.mkdir(parents=True)
    for above in path.absolute().parents:
        with suppress(PermissionError):  # a folder that we may not read is none that we made
            sync_folder(above)


def sync_folder(folder: Path) -> None:
    """The names in it are on the disk. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(fd)
