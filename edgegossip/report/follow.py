"""A run folder that is still being written: its records as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgegossip.profiling.lines import EventRecord, LogText, Record, parse_record

_PIECE_BYTES = 1 << 20


class Follower:
    """Reads metrics.jsonl and events.jsonl from where it stopped the last time. A last line without its end waits until it
    has one. A file that became shorter, because the run was begun anew in its place, is read again from its start."""

    def __init__(self, folder: Path) -> None:
        self._files = [_Tail(folder / "events.jsonl"), _Tail(folder / "metrics.jsonl")]

    def new(self, most: int | None = None) -> Iterator[Record]:
        """Records that came since the last call, all of them or about `most` of each kind; events first, because they say which
        boards there are. Raises OSError."""
        for file in self._files:
            for line in file.lines(most):
                record = parse_record(line)
                if not isinstance(record, LogText):
                    yield record

    @property
    def restarted(self) -> bool:
        """Whether a file became shorter: what was read before is of another run."""
        return any(file.restarted for file in self._files)


class _Tail:
    def __init__(self, path: Path) -> None:
        self._path, self._at, self._rest = path, 0, b""
        self.restarted = False

    def lines(self, most: int | None) -> Iterator[bytes]:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._at:
            self._at, self._rest, self.restarted = 0, b"", True
        count = 0
        with self._path.open("rb") as file:
            file.seek(self._at)
            while piece := file.read(_PIECE_BYTES):
                self._at += len(piece)
                *whole, self._rest = (self._rest + piece).split(b"\n")
                yield from whole
                count += len(whole)
                if most is not None and count >= most:
                    return


def is_over(record: Record, members: set[str], ended: set[str]) -> bool:
    """Takes note in `ended` of a board that finished or was lost; whether all of `members` have."""
    if isinstance(record, EventRecord):
        if record.name in ("finished", "lost", "error"):
            ended.add(record.node)
        elif record.name in ("restarted", "started"):
            ended.discard(record.node)
    return bool(members) and members <= ended
