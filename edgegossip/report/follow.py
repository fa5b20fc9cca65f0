"""A run folder that is still being written: its records as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgegossip.telemetry.lines import LogText, Record, parse_record

_PIECE_BYTES = 1 << 20


class Follower:
    """Reads metrics.jsonl and events.jsonl from where it stopped the last time. A last line without
    its end waits until it has one."""

    def __init__(self, folder: Path) -> None:
        self._files = [_Tail(folder / "events.jsonl"), _Tail(folder / "metrics.jsonl")]

    def new(self) -> Iterator[Record]:
        """Records that came since the last call; events first, because they say which boards there
        are. Raises OSError."""
        for file in self._files:
            for line in file.lines():
                record = parse_record(line)
                if not isinstance(record, LogText):
                    yield record

    def shrunk(self) -> bool:
        """Whether a file is shorter than what was read of it: another run is written in its place.
        Raises OSError."""
        return any(file.size() < file.at for file in self._files)


class _Tail:
    def __init__(self, path: Path) -> None:
        self._path, self._rest = path, b""
        self.at = 0  # bytes read

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def lines(self) -> Iterator[bytes]:
        if self.size() <= self.at:
            return
        with self._path.open("rb") as file:
            file.seek(self.at)
            while piece := file.read(_PIECE_BYTES):
                self.at += len(piece)
                *whole, self._rest = (self._rest + piece).split(b"\n")
                yield from whole
