"""The few file operations that checkpoints are made of: the seam at which tests kill the process or
cut the power."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from edgegossip.checkpoint.format import Damaged, Readable

H = TypeVar("H")
_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)  # file systems without it, or where nothing can be new


class OpenFile(Readable, Protocol):
    def close(self) -> None: ...


class Files(Protocol[H]):
    """Paths are strings. Everything raises OSError; nothing else is durable but what was synced: a
    file's content by `sync`, its name by `sync_folder`."""

    def make_folder(self, path: str) -> None:
        """With those above it, durably: one that is there already may be of a process that was
        killed before it synced."""

    def names(self, folder: str) -> list[str]:
        """Of the files in it; none when there is no such folder."""

    def create(self, path: str) -> H:
        """A new, empty file, open for writing; one that is there already is emptied."""

    def write(self, file: H, data: bytes | memoryview) -> None:
        """All of it, at the end."""

    def sync(self, file: H) -> None: ...

    def close(self, file: H) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """In the place of `new`, if there is one: at every moment one of the two is there."""

    def sync_folder(self, path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def open(self, path: str) -> OpenFile: ...

    def lock(self, folder: str) -> Callable[[], None]:
        """Until the function that is returned is called, or this process ends. Raises
        BlockingIOError when another process has it."""


class _OsFile:
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


class OsFiles:
    """The real ones. Implements `Files[int]`; a file is its descriptor."""

    def __init__(self) -> None:
        self._durable: set[str] = set()  # folders whose names this process has synced

    def make_folder(self, path: str) -> None:
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
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, file: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]

    def sync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NOT_SYNCED:
                raise
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def open(self, path: str) -> OpenFile:
        return _OsFile(path)

    def lock(self, folder: str) -> Callable[[], None]:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise
        except OSError:  # a file system without locks: then nobody is kept out
            pass
        return lambda: os.close(fd)


OS_FILES = OsFiles()
