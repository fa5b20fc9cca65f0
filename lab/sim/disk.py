"""Disks as power failures leave them, and the checkpoints of a node on them.

`FakeDisk` is a file system in memory that can lose power: a file's content survives if it was
synced, its name if its folder was synced after. What was not synced survives or not as the
generator says: each change of a name by itself (so a rename may be there without an earlier
one), a content whole, cut short, with holes, or not at all. POSIX promises no more than that.

`Disk` is what the simulator uses: it keeps the states themselves, which are immutable values;
the newest may be torn or missing, and one that is there whole is never changed. `StoredDisk`
keeps real checkpoint files: every state goes through `checkpoint.Store`, byte by byte, on a
`FakeDisk`. It is slower; `run_schedule(..., make_disk=StoredDisk)` shows that what is found with
one holds for the other."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from typing_extensions import override

from edgegossip.checkpoint.files import Files
from edgegossip.checkpoint.format import MemoryFile
from edgegossip.checkpoint.registry import RunContext
from edgegossip.checkpoint.store import Store
from edgegossip.gossip.base import NodeView

BLOCK_BYTES = 512
_LOST = 0.5  # of what was not synced
_FOLDER = "/checkpoint"


@dataclass(eq=False)
class Inode:
    """Holds the content of one file: what it is now, and what of it would survive."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None  # what is sure to be there; None: nothing


@dataclass(frozen=True, slots=True)
class _Change:
    """Says of one folder that this name is that file from now on; None: it is gone."""

    path: str
    inode: Inode | None


class FakeDisk(Files):
    """Implements `Files` in memory.

    `before(operation, path)` is called before each operation that changes something; what it
    raises comes out, with the operation not done, or half done if it is a `write`. With
    `capacity_bytes` a write beyond it raises OSError (ENOSPC); with `read_only` every change
    does (EROFS)."""

    def __init__(self, before: Callable[[str, str], None] = lambda operation, path: None) -> None:
        self.before = before
        self.capacity_bytes: int | None = None
        self.read_only = False
        self._now: dict[str, Inode] = {}  # files by path
        self._sure: dict[str, Inode] = {}
        self._folders, self._sure_folders = {"", "/"}, {"", "/"}
        self._changes: list[_Change] = []  # of names, not synced
        self._durable: set[str] = set()  # folders whose names this process has synced
        self._locked: set[str] = set()

    # -- Files

    @override
    def make_folder(self, path: str) -> None:
        above = posixpath.dirname(path)
        if above == path or (path in self._durable and path in self._folders):
            return
        self.make_folder(above)
        if path not in self._folders:
            self._begin("make_folder", path)
            self._folders.add(path)
        self.sync_folder(above)
        self._durable.add(path)

    @override
    def names(self, folder: str) -> list[str]:
        return [posixpath.basename(p) for p in self._now if posixpath.dirname(p) == folder]

    @override
    def create(self, path: str) -> Inode:
        self._begin("create", path)
        self._in_folder(path)
        inode = Inode()
        self._put(path, inode)
        return inode

    @override
    def write(self, file: Inode, data: bytes | memoryview) -> None:
        data = bytes(data)
        self._check_writable()
        try:
            self.before("write", "")
        except BaseException:
            file.content += data[: len(data) // 2]
            raise
        used = sum(len(i.content) for i in self._now.values())
        if self.capacity_bytes is not None and used + len(data) > self.capacity_bytes:
            file.content += data[: max(0, self.capacity_bytes - used)]
            raise OSError(errno.ENOSPC, "No space left on device")
        file.content += data

    @override
    def sync(self, file: Inode) -> None:
        self._begin("sync", "")
        file.synced = bytes(file.content)

    @override
    def close(self, file: Inode) -> None:
        """Nothing to do."""

    @override
    def rename(self, old: str, new: str) -> None:
        self._begin("rename", new)
        inode = self._now[old]
        self._put(new, inode)
        self._put(old, None)

    @override
    def sync_folder(self, path: str) -> None:
        self._begin("sync_folder", path)
        self._sure_folders |= {f for f in self._folders if posixpath.dirname(f) == path}
        for change in self._changes:
            if posixpath.dirname(change.path) == path:
                _apply(self._sure, change)
        self._changes = [c for c in self._changes if posixpath.dirname(c.path) != path]

    @override
    def remove(self, path: str) -> None:
        self._begin("remove", path)
        if path not in self._now:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        self._put(path, None)

    @override
    def open(self, path: str) -> MemoryFile:
        if path not in self._now:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return MemoryFile(bytes(self._now[path].content))

    @override
    def lock(self, folder: str) -> Callable[[], None]:
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "No such folder", folder)
        if folder in self._locked:
            raise BlockingIOError
        self._locked.add(folder)
        return lambda: self._locked.discard(folder)

    # -- faults

    def after_power_cut(self, rng: Random) -> FakeDisk:
        """Return the disk as the next start finds it. This one is left as it is."""
        disk, kept = FakeDisk(), dict(self._sure)
        for change in self._changes:
            if rng.random() >= _LOST:
                _apply(kept, change)
        disk._folders = {f for f in self._folders if f in self._sure_folders or rng.random() >= _LOST}
        disk._folders = {f for f in disk._folders if _above(f) <= disk._folders}
        disk._sure_folders = set(disk._folders)
        survived = {id(inode): _survived(inode, rng) for inode in kept.values()}
        for path, inode in kept.items():
            if posixpath.dirname(path) in disk._folders:
                disk._now[path] = disk._sure[path] = survived[id(inode)]
        return disk

    def after_kill(self) -> FakeDisk:
        """Return the same disk for another process: what the kernel was given is there."""
        disk = FakeDisk()
        disk.__dict__ |= {**self.__dict__, "before": disk.before, "_locked": set[str](), "_durable": set[str]()}
        return disk

    def damage(self, path: str, keep_bytes: int) -> None:
        """Cut a file short, as a torn write does."""
        self._now[path].content = self._now[path].content[:keep_bytes]
        self._now[path].synced = bytes(self._now[path].content)

    # -- inside

    def _begin(self, operation: str, path: str) -> None:
        self._check_writable()
        self.before(operation, path)

    def _check_writable(self) -> None:
        if self.read_only:
            raise OSError(errno.EROFS, "Read-only file system")

    def _in_folder(self, path: str) -> None:
        if posixpath.dirname(path) not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "No such folder", path)

    def _put(self, path: str, inode: Inode | None) -> None:
        change = _Change(path, inode)
        _apply(self._now, change)
        self._changes.append(change)


def _apply(names: dict[str, Inode], change: _Change) -> None:
    if change.inode is None:
        names.pop(change.path, None)
    else:
        names[change.path] = change.inode


def _above(folder: str) -> set[str]:
    found = set()
    while posixpath.dirname(folder) != folder:
        folder = posixpath.dirname(folder)
        found.add(folder)
    return found


def _survived(inode: Inode, rng: Random) -> Inode:
    """The content: what was synced; else whole, cut short, with holes of zeros, or empty."""
    content = bytes(inode.content)
    if inode.synced == content:
        return Inode(bytearray(content), content)
    how = rng.randrange(4)
    if how == 0:
        content = inode.synced or b""
    elif how == 1:
        content = content[: rng.randrange(len(content) + 1)]
    elif how == 2:
        blocks = [content[k : k + BLOCK_BYTES] for k in range(0, len(content), BLOCK_BYTES)]
        content = b"".join(b if rng.random() >= _LOST else bytes(len(b)) for b in blocks)
    return Inode(bytearray(content), content)


@dataclass(frozen=True, slots=True)
class Saved:
    """Holds one checkpoint, and what the checkers know of the node at that moment."""

    state: Any
    round: int
    notes: Any = None


class Disk:
    """Keeps the checkpoints of one node, oldest first; None is a file that cannot be read."""

    KEEP = 8

    def __init__(self) -> None:
        self.files: list[Saved | None] = []
        self.full = self.failing = 0  # by how many faults
        self.slow_s = 0.0  # until a file is there

    def write(self, saved: Saved) -> None:
        """Add a checkpoint; only the newest `KEEP` stay."""
        self.files.append(saved)
        if len(self.files) > self.KEEP:
            del self.files[0]

    def crash(self, kind: str, depth: int) -> bool:
        """Leave what a fault of this kind (see faults.CRASHES) leaves; tell whether it made a
        difference."""
        had = len(self.files)
        if kind == "empty-disk":
            self.files = []
        elif kind == "torn-write" and had:
            self.files = [*self.files[:-1], None]
        elif kind == "lost-write":
            self.files = self.files[: max(0, had - depth)]
        elif kind == "old-checkpoint":
            self.files = self.files[: max(1, had - depth)]
        return kind in ("crash", "empty-disk") or (had > 0 if kind == "torn-write" else len(self.files) < had)

    def read(self) -> Saved | None:
        """Return the newest that can be read."""
        return next((f for f in reversed(self.files) if f is not None), None)


class StoredDisk(Disk):
    """Keeps real checkpoint files. What they cannot hold, the checkers' notes, stays here by
    number."""

    def __init__(self) -> None:
        super().__init__()
        self.device = FakeDisk()
        self._view: NodeView | None = None
        self._saved: list[Saved] = []
        self._store = self._opened()

    @override
    def write(self, saved: Saved) -> None:
        self._view = _view_of(saved.state)
        self._store.save(saved.state, number=len(self._saved))
        self._saved.append(Saved(None, saved.round, saved.notes))

    @override
    def crash(self, kind: str, depth: int) -> bool:
        paths = sorted(self._paths())
        had = len(paths)
        self.device = FakeDisk() if kind == "empty-disk" else self.device.after_kill()
        if kind == "torn-write" and had:
            self.device.damage(paths[-1], self.device.open(paths[-1]).size // 2)
        elif kind in ("lost-write", "old-checkpoint"):
            least = 0 if kind == "lost-write" else min(1, had)
            for path in paths[max(least, had - depth) :]:
                self.device.remove(path)
        self._store = self._opened()
        return kind in ("crash", "empty-disk") or (had > 0 if kind == "torn-write" else len(self._paths()) < had)

    @override
    def read(self) -> Saved | None:
        found = self._store.load(None if self._view is None else RunContext.of(self._view))
        if found is None:
            return None
        noted = self._saved[found.meta["number"]]
        return Saved(found.value, noted.round, noted.notes)

    def _opened(self) -> Store:
        return Store(Path(_FOLDER), {}, keep=self.KEEP, files=self.device)

    def _paths(self) -> list[str]:
        return [f"{_FOLDER}/{name}" for name in self.device.names(_FOLDER) if name.endswith(".ckpt")]


def _view_of(state: Any) -> NodeView:
    while not hasattr(state, "view"):
        state = state.inner
    view: NodeView = state.view
    return view
