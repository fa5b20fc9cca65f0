"""Data sets of images by name: digits, MNIST, Fashion-MNIST and CIFAR-10.

digits           1,797 handwritten digits, 8x8 pixels of 0..16, in 44 kB beside this file: the
                 test part of the UCI "Optical Recognition of Handwritten Digits" data set
                 (Alpaydin, Kaynak 1998), in the order of the copy that scikit-learn carries;
                 digits-LICENSE.txt has both licences. Of each class, in file order, every fifth
                 example is a test example (355), the others train (1,442). The same writers are
                 in both parts, so this is an easy task.
mnist,           LeCun et al. 1998, and Xiao et al. 2017: 60,000 training and 10,000 test images,
fashion-mnist    1x28x28, 10 classes. Four idx files, {train,t10k}-{images-idx3,labels-idx1}-ubyte,
                 plain or gzipped: a big-endian header (magic 0x0000_08_dd: unsigned bytes in dd
                 dimensions, then dd sizes of 32 bits) and the values, row-major.
cifar10          Krizhevsky 2009: 50,000 training and 10,000 test images, 3x32x32, 10 classes, in
                 its authors' binary layout, cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin:
                 10,000 records a file of 1 label byte and 3,072 pixel bytes (R, G, B planes,
                 row-major), memory-mapped, so only what is taken is read.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.training.data.base import DataSet, Description, Examples, InMemory, Inputs
from edgegossip.training.data.folders import find_folder
from edgegossip.types import DataError


def locate(name: str, folder: str) -> None:
    """Raise DataError unless the files of the data set are there. The digits always are."""
    if name == "cifar10":
        _cifar10_folder(name, folder)
    elif name != "digits":
        _mnist_folder(name, folder)


def load(name: str, folder: str, about: Description) -> DataSet:
    """Read a data set. Raises DataError for missing, truncated or corrupt files."""
    train, test = {"digits": _digits, "cifar10": _cifar10}.get(name, _mnist)(name, folder, about)
    return DataSet(name, about, train, test)


_DIGITS = Path(__file__).with_name("digits.npz")
_DIGITS_TEST_EVERY = 5


def _digits(name: str, folder: str, about: Description) -> tuple[Examples, Examples]:
    with np.load(_DIGITS, allow_pickle=False) as archive:
        images, labels = archive["images"][:, None], archive["labels"].astype(np.int64)
    rank = np.empty(len(labels), np.int64)  # the how-manieth of its class each example is
    for c in range(about.classes):
        members = np.flatnonzero(labels == c)
        rank[members] = np.arange(len(members))
    test = rank % _DIGITS_TEST_EVERY == _DIGITS_TEST_EVERY - 1
    return Examples(labels[~test], InMemory(images[~test])), Examples(labels[test], InMemory(images[test]))


_MNIST_FOLDERS = {"mnist": ("mnist", "MNIST/raw"), "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw")}
_MNIST_PARTS = {"train": 60_000, "t10k": 10_000}  # file-name prefix -> examples
_SIDE = 28  # pixels
_UNSIGNED_BYTES = 0x08


def _mnist(name: str, folder: str, about: Description) -> tuple[Examples, Examples]:
    path = _mnist_folder(name, folder)
    train, test = (_mnist_part(path, part, count, about.classes) for part, count in _MNIST_PARTS.items())
    return train, test


def _mnist_folder(name: str, folder: str) -> Path:
    return find_folder(name, folder, _MNIST_FOLDERS[name], _missing_idx)


def _missing_idx(path: Path) -> Sequence[str]:
    return [f"{stem}.gz" for part in _MNIST_PARTS for stem in _stems(part) if _existing(path / stem) is None]


def _stems(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def _existing(stem: Path) -> Path | None:
    return next((f for f in (stem, stem.with_name(stem.name + ".gz")) if f.is_file()), None)


def _mnist_part(path: Path, part: str, count: int, classes: int) -> Examples:
    images_stem, labels_stem = (path / stem for stem in _stems(part))
    images = read_idx(images_stem, (count, _SIDE, _SIDE))
    labels = read_idx(labels_stem, (count,))
    _check_counts(str(labels_stem), len(images), len(labels), int(labels.max()), classes)
    return Examples(labels.astype(np.int64), InMemory(images[:, None]))


def _check_counts(source: str, images: int, labels: int, top_label: int, classes: int) -> None:
    """Raise DataError unless there are as many labels as images, at least one, and every label is
    a class."""
    if images != labels or images == 0:
        raise DataError(f"{source}: expected as many labels as images and at least one, found {images} and {labels}")
    if top_label >= classes:
        raise DataError(f"{source}: expected labels 0 to {classes - 1}, found {top_label}")


def read_idx(stem: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read uint8[shape] from `stem` or `stem`.gz, and never more than `shape` calls for.

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


_CIFAR10_TRAIN = tuple(f"data_batch_{k}" for k in range(1, 6))
_CIFAR10_TEST = ("test_batch",)
_RECORDS = 10_000  # a file
_PIXELS = 3 * 32 * 32  # bytes


@dataclass(frozen=True, slots=True)
class MappedImages(Inputs):
    """Gives images of several binary files. parts: uint8[records, 1 + 3072] each, memory-mapped."""

    parts: tuple[NDArray[np.uint8], ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @override
    def take(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = np.empty((len(indices), _PIXELS), np.uint8)
        files, rows = np.divmod(indices, _RECORDS)
        for k, part in enumerate(self.parts):
            here = files == k
            images[here] = part[rows[here], 1:]
        return images.reshape(-1, 3, 32, 32)


def _cifar10(name: str, folder: str, about: Description) -> tuple[Examples, Examples]:
    path = _cifar10_folder(name, folder)
    return _read_binary(path, _CIFAR10_TRAIN, about.classes), _read_binary(path, _CIFAR10_TEST, about.classes)


def _cifar10_folder(name: str, folder: str) -> Path:
    return find_folder(name, folder, ("cifar-10-batches-bin",), _missing_binary)


def _missing_binary(path: Path) -> list[str]:
    return [f"{f}.bin" for f in _CIFAR10_TRAIN + _CIFAR10_TEST if not (path / f"{f}.bin").is_file()]


def _read_binary(path: Path, names: Sequence[str], classes: int) -> Examples:
    parts = tuple(_map(path / f"{name}.bin") for name in names)
    for name, part in zip(names, parts, strict=True):
        _check_counts(str(path / f"{name}.bin"), len(part), len(part), int(part[:, 0].max()), classes)
    return Examples(np.concatenate([p[:, 0] for p in parts]).astype(np.int64), MappedImages(parts))


def _map(file: Path) -> NDArray[np.uint8]:
    expected, found = _RECORDS * (1 + _PIXELS), file.stat().st_size
    if found != expected:
        raise DataError(f"{file}: expected {expected} bytes ({_RECORDS} records of {1 + _PIXELS}), found {found}")
    return np.memmap(file, np.uint8, "r", shape=(_RECORDS, 1 + _PIXELS))
