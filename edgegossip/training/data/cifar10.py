"""CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images, 3x32x32, 10 classes, in its
authors' two layouts.

cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin   10,000 records a file: 1 label byte, 3,072
                                                        pixel bytes (R, G, B planes, row-major).
                                                        Memory-mapped: only what is taken is read.
cifar-10-batches-py/{data_batch_1..5,test_batch}        Python pickles, read with `plain_pickle`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.training.data.base import DataSet, Description, Examples, InMemory, check_counts
from edgegossip.training.data.home import find_folder
from edgegossip.training.data.plain_pickle import load_plain
from edgegossip.types import DataError

_TRAIN = tuple(f"data_batch_{k}" for k in range(1, 6))
_TEST = ("test_batch",)
_RECORDS = 10_000  # a file
_PIXELS = 3 * 32 * 32  # bytes


@dataclass(frozen=True, slots=True)
class MappedImages:
    """Images of several binary files. parts: uint8[records, 1 + 3072] each, memory-mapped."""

    parts: tuple[NDArray[np.uint8], ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = np.empty((len(indices), _PIXELS), np.uint8)
        files, rows = np.divmod(indices, _RECORDS)
        for k, part in enumerate(self.parts):
            here = files == k
            images[here] = part[rows[here], 1:]
        return images.reshape(-1, 3, 32, 32)


def locate(name: str, folder: str) -> None:
    """Raises DataError unless one of the two layouts is complete."""
    _folder(name, folder)


def load(name: str, folder: str, about: Description) -> DataSet:
    """Raises DataError for missing, truncated or corrupt files."""
    path = _folder(name, folder)
    read = _read_binary if not _missing_binary(path) else _read_pickled
    return DataSet(name, about, read(path, _TRAIN, about.classes), read(path, _TEST, about.classes))


def _folder(name: str, folder: str) -> Path:
    return find_folder(name, folder, ("cifar-10-batches-bin", "cifar-10-batches-py"), _missing)


def _missing(path: Path) -> Sequence[str]:
    binary, pickled = _missing_binary(path), [f for f in _TRAIN + _TEST if not (path / f).is_file()]
    return binary if len(binary) <= len(pickled) else pickled


def _missing_binary(path: Path) -> list[str]:
    return [f"{f}.bin" for f in _TRAIN + _TEST if not (path / f"{f}.bin").is_file()]


def _read_binary(path: Path, names: Sequence[str], classes: int) -> Examples:
    parts = tuple(_map(path / f"{name}.bin") for name in names)
    for name, part in zip(names, parts, strict=True):
        check_counts(str(path / f"{name}.bin"), len(part), len(part), int(part[:, 0].max()), classes)
    return Examples(np.concatenate([p[:, 0] for p in parts]).astype(np.int64), MappedImages(parts))


def _map(file: Path) -> NDArray[np.uint8]:
    expected, found = _RECORDS * (1 + _PIXELS), file.stat().st_size
    if found != expected:
        raise DataError(f"{file}: expected {expected} bytes ({_RECORDS} records of {1 + _PIXELS}), found {found}")
    return np.memmap(file, np.uint8, "r", shape=(_RECORDS, 1 + _PIXELS))


def _read_pickled(path: Path, names: Sequence[str], classes: int) -> Examples:
    parts = [_unpickle(path / name, classes) for name in names]
    images = np.concatenate([images for images, _ in parts]).reshape(-1, 3, 32, 32)
    return Examples(np.concatenate([labels for _, labels in parts]), InMemory(images))


def _unpickle(file: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """uint8[10000, 3072] and int64[10000]."""
    content: dict[str, Any] = {}
    loaded = load_plain(file)
    if isinstance(loaded, dict):
        content = {k.decode("latin-1") if isinstance(k, bytes) else str(k): v for k, v in loaded.items()}
    images, labels = content.get("data"), content.get("labels")
    if not isinstance(images, np.ndarray) or images.shape != (_RECORDS, _PIXELS):
        found = getattr(images, "shape", "nothing of that name")
        raise DataError(f"{file}: expected data = uint8[{_RECORDS}, {_PIXELS}], found {found}")
    if not isinstance(labels, list) or not all(type(v) is int and 0 <= v < classes for v in labels):
        raise DataError(f"{file}: expected labels = a list of whole numbers 0 to {classes - 1}")
    check_counts(str(file), len(images), len(labels), max(labels, default=0), classes)
    return images, np.array(labels, np.int64)
