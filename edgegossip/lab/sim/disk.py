"""A disk as power failures leave it: the newest files may be torn or missing. A file that is there
whole is never changed.

`Disk` keeps the states themselves, which are immutable values. `StoredDisk` keeps real checkpoint
files: every state goes through `checkpoint.Store`, byte by byte, on a `FakeDisk`. It is slower; a
campaign with `make_disk=StoredDisk` shows that what is found with one holds for the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.checkpoint.registry import RunContext
from edgegossip.checkpoint.store import Store
from edgegossip.gossip.base import NodeView
from edgegossip.lab.sim.fake_disk import FakeDisk

_FOLDER = "/checkpoint"


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint, and what the checkers know of the node at that moment."""

    state: Any
    round: int
    notes: Any = None


class Disk:
    """The checkpoints of one node, oldest first. None: a file that cannot be read."""

    KEEP = 8

    def __init__(self) -> None:
        self.files: list[Saved | None] = []

    def write(self, saved: Saved) -> None:
        self.files.append(saved)
        if len(self.files) > self.KEEP:
            del self.files[0]

    def crash(self, kind: str, depth: int) -> bool:
        """What is left after a fault of this kind (see faults.CRASHES). Whether it made a
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
        """The newest that can be read."""
        return next((f for f in reversed(self.files) if f is not None), None)


class StoredDisk(Disk):
    """Keeps real checkpoint files. What they cannot hold, the checkers' notes, stays here by
    number."""

    def __init__(self) -> None:
        super().__init__()
        self._disk = FakeDisk()
        self._view: NodeView | None = None
        self._saved: list[Saved] = []
        self._store = self._opened()

    def write(self, saved: Saved) -> None:
        self._view = _view_of(saved.state)
        self._store.save(saved.state, number=len(self._saved))
        self._saved.append(Saved(None, saved.round, saved.notes))

    def crash(self, kind: str, depth: int) -> bool:
        paths = sorted(self._paths())
        had = len(paths)
        self._disk = FakeDisk() if kind == "empty-disk" else self._disk.after_kill()
        if kind == "torn-write" and had:
            self._disk.damage(paths[-1], self._disk.open(paths[-1]).size // 2)
        elif kind in ("lost-write", "old-checkpoint"):
            least = 0 if kind == "lost-write" else min(1, had)
            for path in paths[max(least, had - depth) :]:
                self._disk.remove(path)
        self._store = self._opened()
        return kind in ("crash", "empty-disk") or (had > 0 if kind == "torn-write" else len(self._paths()) < had)

    def read(self) -> Saved | None:
        found = self._store.load(None if self._view is None else RunContext.of(self._view))
        if found is None:
            return None
        noted = self._saved[found.meta["number"]]
        return Saved(found.value, noted.round, noted.notes)

    def _opened(self) -> Store:
        return Store(Path(_FOLDER), {}, keep=self.KEEP, files=self._disk)

    def _paths(self) -> list[str]:
        return [f"{_FOLDER}/{name}" for name in self._disk.names(_FOLDER) if name.endswith(".ckpt")]


def _view_of(state: Any) -> NodeView:
    while not hasattr(state, "view"):
        state = state.inner
    view: NodeView = state.view
    return view
