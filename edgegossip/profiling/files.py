"""Files that are whole or not there: written under another name, synced, then renamed."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from edgegossip.types import HostError


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` with `data`; after a crash or power loss it holds the old bytes or the new ones. Raises
    HostError."""
    temporary: str | None = None
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def write_json(path: Path, document: Any) -> None:
    """`document` as indented JSON, atomically. Numbers that are not finite must be None already."""
    write_atomic(path, (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
