"""A folder of results that survives its process, so that work that was stopped is resumed.

The file has one line of JSON a finished case, appended and synced before the next case counts as
begun. kill -9 and power loss cost the cases in progress at most: a torn last line is passed over
when it is read and ended before the next one is written. A lock keeps a second process out of the
folder; the kernel drops it with the process.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias

from edgegossip.telemetry.sinks import write_all
from edgegossip.types import HostError

LOCK = ".lock"

Result: TypeAlias = dict[str, Any]  # of one case: has at least "key" and "state"


def read_results(path: Path) -> dict[str, Result]:
    """Read the results in a file by their `key`; none where there is no file.

    Of two lines of one case the later counts; a line that is torn, or of anything else, is passed
    over. Raises HostError when the file cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}") from None
    results = (_parsed(line) for line in lines)
    return {result["key"]: result for result in results if result is not None}


def _parsed(line: bytes) -> Result | None:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = (
        isinstance(result, dict) and isinstance(result.get("key"), str) and result.get("state") in ("done", "failed")
    )
    return result if whole else None


class ResultStore:
    """Appends results to a file, and holds the folder's lock meanwhile: a context manager.

    Example:
        with ResultStore(Path("runs/mine/study.jsonl"), "study") as store:
            store.add({"key": "0f3a", "state": "done", "accuracy": 0.93})
    """

    def __init__(self, path: Path, what: str) -> None:
        """Open the file and its folder, made if need be; `what` names the work to people.

        Raises HostError when another process is at work there, or for what the disk refuses.
        """
        self.path = path
        folder = path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise HostError(
                    f"another {what} is at work in {folder}; wait for it, or choose another folder with --output"
                ) from None
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                write_all(self._file, b"\n")
        except OSError as error:
            raise HostError(f"cannot write to the folder {folder}: {error.strerror}") from None

    def add(self, result: Mapping[str, Any]) -> None:
        """Append a result, durably; numbers in it are finite (see `plain`). Raises HostError."""
        line = json.dumps(result, ensure_ascii=False, separators=(", ", ": "), allow_nan=False) + "\n"
        try:
            write_all(self._file, line.encode("utf-8", "replace"))
            os.fsync(self._file)
        except OSError as error:
            raise HostError(f"cannot write to {self.path}: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        os.close(self._lock)


def plain(value: Any) -> Any:
    """Return a value with null for what is no finite number, as JSON needs it."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
