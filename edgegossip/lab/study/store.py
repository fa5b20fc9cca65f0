"""A file of results, study.jsonl unless another is named: one line a finished case, appended and
synced before the next one counts as begun.

kill -9 and power loss cost the cases in progress at most: a torn last line is passed over when it
is read and ended before the next one is written. A lock keeps a second study out of the folder; the
kernel drops it with the process.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from edgegossip.telemetry.sinks import write_all
from edgegossip.types import HostError

FILE, LOCK = "study.jsonl", ".lock"


def read(folder: Path, file: str = FILE) -> dict[str, dict[str, Any]]:
    """Results by the case's key; of two lines of one case the later counts. Raises HostError when
    it cannot be read."""
    path = folder / file
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}") from None
    results = (_parsed(line) for line in lines)
    return {result["key"]: result for result in results if result is not None}


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        result = json.loads(line)
    except ValueError:
        return None
    whole = (
        isinstance(result, dict) and isinstance(result.get("key"), str) and result.get("state") in ("done", "failed")
    )
    return result if whole else None


class Store:
    """A study's folder, opened to add results. A context manager; raises HostError for whatever the
    disk refuses. `file`: the results' name, `what`: the work's, for people."""

    def __init__(self, folder: Path, file: str = FILE, what: str = "study") -> None:
        self.folder, self._path = folder, folder / file
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise HostError(
                    f"another {what} is at work in {folder}; wait for it, or choose another --out"
                ) from None
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                write_all(self._file, b"\n")
        except OSError as error:
            raise HostError(f"cannot write to the folder {folder}: {error.strerror}") from None

    def add(self, result: Mapping[str, Any]) -> None:
        line = json.dumps(result, ensure_ascii=False, separators=(", ", ": "), allow_nan=False) + "\n"
        try:
            write_all(self._file, line.encode("utf-8", "replace"))
            os.fsync(self._file)
        except OSError as error:
            raise HostError(f"cannot write to {self._path}: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        os.close(self._lock)
