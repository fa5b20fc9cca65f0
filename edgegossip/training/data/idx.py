"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): 60,000 training and 10,000 test
images, 1x28x28, 10 classes.

Both come as four idx files, {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or gzipped. An idx
file is a big-endian header (magic 0x0000_08_dd: unsigned bytes in dd dimensions, then dd sizes of
32 bits) and the values, row-major.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgegossip.training.data.base import DataSet, Description, Examples, InMemory, check_counts
from edgegossip.training.data.home import find_folder
from edgegossip.types import DataError

_SUBFOLDERS = {"mnist": ("mnist", "MNIST/raw"), "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw")}
_PARTS = {"train": 60_000, "t10k": 10_000}  # file-name prefix -> examples
_SIDE = 28  # pixels
_UNSIGNED_BYTES = 0x08


def locate(name: str, folder: str) -> None:
    """Raises DataError unless the four files are there."""
    _folder(name, folder)


def load(name: str, folder: str, about: Description) -> DataSet:
    """Raises DataError for missing, truncated or corrupt files."""
    path = _folder(name, folder)
    train, test = (_read_part(path, part, count, about.classes) for part, count in _PARTS.items())
    return DataSet(name, about, train, test)


def _folder(name: str, folder: str) -> Path:
    return find_folder(name, folder, _SUBFOLDERS[name], _missing)


def _missing(path: Path) -> Sequence[str]:
    return [f"{stem}.gz" for part in _PARTS for stem in _stems(part) if _existing(path / stem) is None]


def _stems(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def _existing(stem: Path) -> Path | None:
    return next((f for f in (stem, stem.with_name(stem.name + ".gz")) if f.is_file()), None)


def _read_part(path: Path, part: str, count: int, classes: int) -> Examples:
    images_stem, labels_stem = (path / stem for stem in _stems(part))
    images = read_idx(images_stem, (count, _SIDE, _SIDE))
    labels = read_idx(labels_stem, (count,))
    check_counts(str(labels_stem), len(images), len(labels), int(labels.max()), classes)
    return Examples(labels.astype(np.int64), InMemory(images[:, None]))


def read_idx(stem: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """uint8[shape] from `stem` or `stem`.gz. Never reads more than `shape` calls for.

    Raises DataError when the file is missing, damaged, or holds something else."""
    file = _existing(stem)
    if file is None:
        raise DataError(f"{stem}: neither this file nor {stem.name}.gz is there")
    header_size, size = 4 + 4 * len(shape), math.prod(shape)
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            header = stream.read(header_size)
            content = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: expected an idx file of {header_size + size} bytes, found damage: {error}") from error
    words = np.frombuffer(header[: len(header) // 4 * 4], ">u4").tolist()
    expected = [_UNSIGNED_BYTES << 8 | len(shape), *shape]
    if words != expected:
        raise DataError(f"{file}: expected the idx header {expected}, found {words}")
    if len(content) != size:
        found = "more" if len(content) > size else str(len(content))
        raise DataError(f"{file}: expected {size} values after the header, found {found}")
    return np.frombuffer(content, np.uint8).reshape(shape)
