"""A checkpoint as bytes in memory, in the very format of the file."""

from __future__ import annotations

from typing import Any

from edgegossip.checkpoint.classes import Classes
from edgegossip.checkpoint.format import Damaged, pieces, read
from edgegossip.checkpoint.table import STATES, Outside


class MemoryFile:
    """Implements `format.Readable` over bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, at: int, into: memoryview) -> None:
        piece = self._data[at : at + len(into)]
        if len(piece) < len(into):
            raise Damaged("it is torn: it ends too early")
        into[:] = piece

    def close(self) -> None:
        """Nothing to do."""


def to_bytes(value: Any, classes: Classes = STATES) -> bytes:
    """One value. Raises UsageError on what no table tells how to keep."""
    return b"".join(pieces({}, value, classes))


def from_bytes(data: bytes, outside: Outside | None = None, classes: Classes = STATES) -> Any:
    """The value that `to_bytes` was given. `outside`: the run, for a gossip state. Raises
    DataError."""
    return read(MemoryFile(data), classes, outside or Outside())[1]
