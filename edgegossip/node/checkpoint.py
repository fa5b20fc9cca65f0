"""A trained model on disk: named float32 tensors in one .npz file, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from edgegossip.layout import Layout
from edgegossip.types import DataError, HostError, LocalError, Vec


def save_model(path: Path, layout: Layout, x: Vec) -> None:
    """Write x, float32[n], by tensor name. Temporary file, fsync, rename, fsync of the folder. Raises HostError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                np.savez(file, **layout.views(x))  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise HostError(f"cannot save the model to {path}: {error.strerror}") from None


def load_model(path: Path, layout: Layout) -> Vec:
    """The vector that `save_model` wrote. Raises DataError when the file is unreadable or of another model."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return layout.flatten({name: archive[name] for name in archive.files})
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, LocalError) as error:
        raise DataError(f"cannot read a model from {path}: {error}") from None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
