"""Files that are whole or not there, for the programs of a board's image. Standard library only,
and nothing of a release: these programs must run when a release does not.

Everything goes through `os`, in whose place tests put a disk that loses power between any two
operations."""

from __future__ import annotations

import os
from contextlib import suppress


class Disk:
    """Reads and writes the files of a board. Paths are below `root`, which is / on a board.
    Everything raises OSError."""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def path(self, path: str) -> str:
        """Return where a path of the board's is on this machine."""
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> bytes | None:
        """Return the whole of a file; None when there is none."""
        try:
            fd = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            parts = []
            while part := os.read(fd, 1 << 20):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        return os.access(self.path(path), os.F_OK)

    def modified_s(self, path: str) -> float | None:
        """Return when a file was last written or touched, Unix seconds; None when there is none."""
        try:
            return os.stat(self.path(path)).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    def real(self, path: str) -> str:
        """Return a path with its symbolic links followed."""
        return os.path.realpath(self.path(path))

    def target(self, path: str) -> str | None:
        """Return where a symbolic link points; None when there is none."""
        try:
            return os.readlink(self.path(path))
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_folder(self, path: str, mode: int = 0o755) -> None:
        """Make a folder, durably; the one above it is there."""
        with suppress(FileExistsError):
            os.mkdir(self.path(path), mode)
        os.chmod(self.path(path), mode)  # whatever the umask
        self.sync_folder(os.path.dirname(path))

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Put `data` in place of a file, durably: a power cut leaves the old one or the new one."""
        temporary = self.path(f"{path}.new")
        with suppress(FileNotFoundError):
            os.unlink(temporary)  # of a run that was cut: it may have other permissions
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.fchmod(fd, mode)  # whatever the umask
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, self.path(path))
        self.sync_folder(os.path.dirname(path))

    def point(self, path: str, target: str) -> None:
        """Make `path` a symbolic link to `target`, durably, in the place of what it was."""
        temporary = self.path(f"{path}.new")
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        os.symlink(target, temporary)
        os.replace(temporary, self.path(path))
        self.sync_folder(os.path.dirname(path))

    def overwrite(self, path: str) -> None:
        """Write zeros over the content, where it lies, durably."""
        fd = os.open(self.path(path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            left = os.fstat(fd).st_size
            while left:
                left -= os.write(fd, bytes(min(left, 65_536)))
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        """Remove a file, durably; one that is not there is all right."""
        with suppress(FileNotFoundError):
            os.unlink(self.path(path))
        self.sync_folder(os.path.dirname(path))

    def sync_folder(self, path: str) -> None:
        fd = os.open(self.path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # FAT may refuse; what was in the folder is synced with the device below
                os.fsync(fd)
            if os.path.normpath(path).startswith("/boot"):
                os.sync()
        finally:
            os.close(fd)
