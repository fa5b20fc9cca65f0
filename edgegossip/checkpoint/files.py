"""The few file operations that checkpoints are made of: the methods at which tests kill the process
or cut the power."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from edgegossip.types import DataError

_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)  # file systems without it, or where nothing can be new


class Damaged(DataError):
    """Says that a file was torn or changed: the one before it may do."""


class OpenFile(Protocol):
    """A file that is open for reading until it is closed."""

    @property
    def size(self) -> int:
        """Its bytes."""

    def read(self, at: int, into: memoryview) -> None:
        """Fill all of `into` with what begins at the byte `at`. Raises OSError, or Damaged when the
        file ends before."""

    def close(self) -> None:
        """Close it."""


class _OpenFile:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def read(self, at: int, into: memoryview) -> None:
        while into:
            count = os.preadv(self._fd, [into], at)
            if not count:
                raise Damaged("it became shorter while it was read")
            at, into = at + count, into[count:]

    def close(self) -> None:
        os.close(self._fd)


class Files:
    """Writes, reads and names files of the operating system. Paths are strings; a file that is
    written is its descriptor. Everything raises OSError; nothing is durable but what was synced: a
    file's content by `sync`, its name by `sync_folder`."""

    def __init__(self) -> None:
        self._durable: set[str] = set()  # folders whose names this process has synced

    def make_folder(self, path: str) -> None:
        """Make a folder, with those above it, durably: one that is there already may be of a
        process that was killed before it synced."""
        path = os.path.abspath(path)
        above = os.path.dirname(path)
        if above == path or (path in self._durable and os.path.isdir(path)):
            return
        self.make_folder(above)
        os.makedirs(path, exist_ok=True)
        with suppress(PermissionError):  # a folder that we may not read is none that we made
            self.sync_folder(above)
        self._durable.add(path)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in it; none when there is no such folder."""
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, path: str) -> Any:
        """Open a new, empty file for writing; one that is there already is emptied."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, file: Any, data: bytes | memoryview) -> None:
        """Write all of `data` at the end."""
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]

    def sync(self, file: Any) -> None:
        """Return when what was written is durable."""
        os.fsync(file)

    def close(self, file: Any) -> None:
        """Close a file that was written."""
        os.close(file)

    def rename(self, old: str, new: str) -> None:
        """Put a file in the place of `new`, if there is one: at every moment one of the two is
        there."""
        os.replace(old, new)

    def sync_folder(self, path: str) -> None:
        """Return when the names in a folder are durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NOT_SYNCED:
                raise
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def open(self, path: str) -> OpenFile:
        """Open a file for reading."""
        return _OpenFile(path)

    def lock(self, folder: str) -> Callable[[], None]:
        """Lock a folder until the function that is returned is called, or this process ends. Raises
        BlockingIOError when another process has it."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise
        except OSError:  # a file system without locks: then nobody is kept out
            pass
        return lambda: os.close(fd)


OS_FILES = Files()
