"""A trained model on disk: named float32 tensors in one .npz file, written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np

from edgegossip.layout import Layout
from edgegossip.profiling.files import replacing
from edgegossip.types import DataError, HostError, LocalError, Vec

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(HostError):
    """There is no room for the file."""


def save_model(path: Path, layout: Layout, x: Vec) -> None:
    """Write x, float32[n], by tensor name. Temporary file, fsync, rename, fsync of the folder. Raises HostError, DiskFull when
    that is why."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, **layout.views(x))  # type: ignore[arg-type]
    except OSError as error:
        kind = DiskFull if error.errno in _FULL else HostError
        raise kind(f"cannot save the model to {path}: {error.strerror}") from None


def load_model(path: Path, layout: Layout) -> Vec:
    """The vector that `save_model` wrote. Raises DataError when the file is unreadable or of another model."""
    from zipfile import BadZipFile  # here: nothing that a board needs while it waits

    try:
        with np.load(path, allow_pickle=False) as archive:
            return layout.flatten({name: archive[name] for name in archive.files})
    except (OSError, ValueError, KeyError, BadZipFile, LocalError) as error:
        raise DataError(f"cannot read a model from {path}: {error}") from None
