"""A disk as power failures leave it: the newest files may be torn or missing. A file that is there whole is never changed.

States are immutable values, so a file is the state itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        """What is left after a fault of this kind (see faults.CRASHES). Whether it made a difference."""
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
