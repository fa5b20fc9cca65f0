"""Folders that commands change: one command at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgegossip.types import UsageError

_LOOK_S = 0.05


@contextmanager
def locked(folder: Path, patience_s: float = 10.0) -> Iterator[None]:
    """Keep everybody else out of the same folder, in this process or another. Raises UsageError
    when somebody still is after `patience_s`, OSError when there is no such folder. Not to be
    nested."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder, time.monotonic() + patience_s)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, until_s: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= until_s:
                raise UsageError(
                    f"another `edgegossip` command is changing {folder}: when it has ended, say this one again"
                ) from error
            time.sleep(_LOOK_S)
        except OSError:  # a file system without locks: then nobody is kept out
            return
