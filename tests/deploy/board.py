"""A board's image in memory: the programs of deploy/rootfs with a disk that loses power in the
place of `os`."""

from __future__ import annotations

import errno
import importlib.util
import os
import posixpath
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace

from lab.sim.disk import FakeDisk, Inode

ROOTFS = Path(__file__).parents[2] / "deploy" / "rootfs"
PROGRAMS = ROOTFS / "usr/lib/edgegossip"
_LINK = b"\0link:"


class PowerCut(BaseException):
    """The board is off."""


def program(name: str) -> ModuleType:
    """One of the image's programs, as a module."""
    sys.path.insert(0, str(PROGRAMS))
    try:
        spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(PROGRAMS))


class FakeOs:
    """What disk.py needs of `os`, on a FakeDisk. Symbolic links are files of their own kind, as
    durable as their names."""

    path = posixpath
    O_WRONLY, O_CREAT, O_EXCL, O_CLOEXEC, O_RDONLY, O_DIRECTORY = (
        *(os.O_WRONLY, os.O_CREAT, os.O_EXCL, os.O_CLOEXEC, os.O_RDONLY, os.O_DIRECTORY),
    )
    F_OK = os.F_OK

    def __init__(self, disk: FakeDisk) -> None:
        self.disk = disk
        self.modes: dict[str, int] = {}
        self._open: dict[int, list] = {}  # descriptor: inode or folder, place

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        path, made = self._follow(path), flags & os.O_CREAT
        if flags & os.O_DIRECTORY:
            thing: object = path
        elif made:
            if path in self.disk._now:
                raise FileExistsError(errno.EEXIST, "there", path)
            thing = self.disk.create(path)
            self.modes[path] = mode
        elif path not in self.disk._now:
            raise FileNotFoundError(errno.ENOENT, "not there", path)
        else:
            thing = self.disk._now[path]
        fd = max(self._open, default=2) + 1
        self._open[fd] = [thing, 0, path]
        return fd

    def read(self, fd: int, count: int) -> bytes:
        inode, at, _ = self._open[fd]
        self._open[fd][1] += count
        return bytes(inode.content[at : at + count])

    def write(self, fd: int, data: bytes | memoryview) -> int:
        inode, at, _ = self._open[fd]
        data = bytes(data)
        if at == len(inode.content):
            self.disk.write(inode, data)
        else:
            self.disk.before("write", "")
            inode.content[at : at + len(data)] = data
        self._open[fd][1] += len(data)
        return len(data)

    def fsync(self, fd: int) -> None:
        thing = self._open[fd][0]
        self.disk.sync_folder(thing) if isinstance(thing, str) else self.disk.sync(thing)

    def sync(self) -> None:
        """More than what is asked for elsewhere is not promised."""

    def close(self, fd: int) -> None:
        del self._open[fd]

    def fchmod(self, fd: int, mode: int) -> None:
        self.modes[self._open[fd][2]] = mode

    def chmod(self, path: str, mode: int) -> None:
        self.modes[path] = mode

    def fstat(self, fd: int) -> SimpleNamespace:
        return SimpleNamespace(st_size=len(self._open[fd][0].content))

    def replace(self, old: str, new: str) -> None:
        self.disk.rename(old, new)
        if old in self.modes:
            self.modes[new] = self.modes.pop(old)

    def unlink(self, path: str) -> None:
        self.disk.remove(path)

    def symlink(self, target: str, path: str) -> None:
        inode = self.disk.create(path)
        inode.content += _LINK + target.encode()
        inode.synced = bytes(inode.content)

    def readlink(self, path: str) -> str:
        inode = self.disk._now.get(path)
        if inode is None or not inode.content.startswith(_LINK):
            raise OSError(errno.EINVAL, "no link", path)
        return inode.content[len(_LINK) :].decode()

    def link(self, old: str, new: str) -> None:
        if new in self.disk._now:
            raise FileExistsError(errno.EEXIST, "there", new)
        self.disk._begin("link", new)
        self.disk._in_folder(new)
        self.disk._put(new, self.disk._now[self._follow(old)])

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        if path in self.disk._folders:
            raise FileExistsError(errno.EEXIST, "there", path)
        self.disk._begin("make_folder", path)
        if posixpath.dirname(path) not in self.disk._folders:
            raise FileNotFoundError(errno.ENOENT, "not there", path)
        self.disk._folders.add(path)

    def rmdir(self, path: str) -> None:
        if any(p.startswith(path + "/") for p in (*self.disk._now, *self.disk._folders)):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self.disk._begin("rmdir", path)
        self.disk._folders.discard(path)
        self.disk._sure_folders.discard(path)

    def listdir(self, path: str) -> list[str]:
        path = self._follow(path)
        if path not in self.disk._folders:
            raise FileNotFoundError(errno.ENOENT, "not there", path)
        inside = (*self.disk._now, *(f for f in self.disk._folders if f not in ("", "/")))
        return sorted({posixpath.basename(p) for p in inside if posixpath.dirname(p) == path})

    def access(self, path: str, mode: int) -> bool:
        path = self._follow(path)
        return path in self.disk._now or path in self.disk._folders

    def _follow(self, path: str) -> str:
        """With symbolic links in it followed."""
        done = ""
        for part in path.strip("/").split("/"):
            here = f"{done}/{part}"
            inode = self.disk._now.get(here)
            if inode is not None and inode.content.startswith(_LINK):
                target = inode.content[len(_LINK) :].decode()
                here = self._follow(posixpath.normpath(posixpath.join(done or "/", target)))
            done = here
        return done


def cut_at(number: int) -> Callable[[str, str], None]:
    """For FakeDisk.before: the power goes before the operation of this number."""
    left = [number]

    def before(operation: str, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise PowerCut

    return before


def after(disk: FakeDisk, rng: Random) -> FakeDisk:
    """What the next boot finds."""
    return disk.after_power_cut(rng)


def put(disk: FakeDisk, path: str, data: bytes) -> None:
    """A file that was there before."""
    disk.make_folder(posixpath.dirname(path))
    disk._now[path] = disk._sure[path] = Inode(bytearray(data), data)
