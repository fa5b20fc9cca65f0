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
                 its authors' two layouts, each with {data_batch_1..5,test_batch}:
                 cifar-10-batches-bin/*.bin, 10,000 records a file of 1 label byte and 3,072 pixel
                 bytes (R, G, B planes, row-major), memory-mapped, so only what is taken is read;
                 cifar-10-batches-py/*, Python pickles, read with `load_plain_pickle`.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    read = _read_pickled if _missing_binary(path) else _read_binary
    return read(path, _CIFAR10_TRAIN, about.classes), read(path, _CIFAR10_TEST, about.classes)


def _cifar10_folder(name: str, folder: str) -> Path:
    return find_folder(name, folder, ("cifar-10-batches-bin", "cifar-10-batches-py"), _missing_cifar10)


def _missing_cifar10(path: Path) -> Sequence[str]:
    binary, pickled = _missing_binary(path), [f for f in _CIFAR10_TRAIN + _CIFAR10_TEST if not (path / f).is_file()]
    return binary if len(binary) <= len(pickled) else pickled


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


def _read_pickled(path: Path, names: Sequence[str], classes: int) -> Examples:
    parts = [_read_pickle(path / name, classes) for name in names]
    images = np.concatenate([images for images, _ in parts]).reshape(-1, 3, 32, 32)
    return Examples(np.concatenate([labels for _, labels in parts]), InMemory(images))


def _read_pickle(file: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """uint8[10000, 3072] and int64[10000]."""
    content: dict[str, Any] = {}
    loaded = load_plain_pickle(file)
    if isinstance(loaded, dict):
        content = {k.decode("latin-1") if isinstance(k, bytes) else k: v for k, v in loaded.items()}
    images, labels = content.get("data"), content.get("labels")
    if not isinstance(images, np.ndarray) or images.shape != (_RECORDS, _PIXELS):
        found = getattr(images, "shape", "nothing of that name")
        raise DataError(f"{file}: expected data = uint8[{_RECORDS}, {_PIXELS}], found {found}")
    if not isinstance(labels, list) or not all(type(v) is int and 0 <= v < classes for v in labels):
        raise DataError(f"{file}: expected labels = a list of whole numbers 0 to {classes - 1}")
    _check_counts(str(file), len(images), len(labels), max(labels, default=0), classes)
    return images, np.array(labels, np.int64)


_LARGEST_PICKLE = 64 * 2**20  # the files this is for have 31 MB
_MOST_OPCODES = 500_000  # and 30,000 of these
_MEMOIZES, _RECALLS = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), ("GET", "BINGET", "LONG_BINGET")
_LEAVES = (  # make what holds nothing else
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
    *("BINBYTES8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "GLOBAL", "STACK_GLOBAL", "REDUCE"),
)
_BRANCHES = (
    *("MARK", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BUILD", "STOP"),
)


class _Refused(Exception):
    """The pickle asks for something that is not plain data."""


class _Dtype:
    """Stand-in for numpy.dtype: unsigned bytes only."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("u1", b"u1", "uint8", b"uint8"):
            raise _Refused(f"an array of type {code!r}"[:200])

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment; bytes have none."""


class _Array:
    """Stand-in for numpy.ndarray: collects (version, shape, dtype, is_fortran, bytes)."""

    array: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes) or fortran:
            raise _Refused("an array that is not plain bytes in row-major order")
        fits = len(shape) <= 8 and all(type(d) is int and 0 <= d <= _LARGEST_PICKLE for d in shape)
        if not fits or math.prod(shape) != len(content):
            raise _Refused(f"an array of shape {shape} with {len(content)} bytes"[:200])
        self.array = np.frombuffer(content, np.uint8).reshape(shape)


def _reconstruct(*_: Any) -> _Array:
    """Stand in for numpy's _reconstruct, which is called with (ndarray, (0,), b'b')."""
    return _Array()


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._left = len(data)

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        if (module, name) not in _STAND_INS:
            raise _Refused(f"{module}.{name}")
        return _STAND_INS[module, name]

    @override
    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a persistent object")

    def _encode(self, text: str, codec: Any = "latin1") -> bytes:
        """Stand in for _codecs.encode, with which Python 3 writes bytes in old protocols: no more
        of them than the file has."""
        if codec != "latin1":
            raise _Refused("a text encoding")
        self._left -= len(text)
        if self._left < 0:
            raise _Refused("the same bytes again and again")
        return text.encode("latin-1")


def _check_size(data: bytes) -> None:
    """Raise _Refused unless a pickle makes a tree no larger than its file. The stock reader makes a
    table as long as the highest place that a file names in its memo, takes memory for bytes before
    it looks whether they are there, and hashes what holds another thing twice two times as long."""
    recallable: dict[int, bool] = {}
    top = ""  # the operation that made what is on top
    for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
        name = operation.name
        if number >= _MOST_OPCODES:
            raise _Refused(f"more than {_MOST_OPCODES} operations")
        if name in _MEMOIZES:
            place = len(recallable) if name == "MEMOIZE" else int(argument or 0)
            if place >= _MOST_OPCODES:
                raise _Refused(f"place {place} of a memo")
            recallable[place] = top in _LEAVES
        elif name in _RECALLS:
            if not recallable.get(int(argument or 0)):
                raise _Refused(f"what is in place {argument} of a memo twice")
            top = "GLOBAL"
        elif name in _LEAVES or name in _BRANCHES:
            top = name
        elif name not in ("PROTO", "FRAME"):
            raise _Refused(f"the operation {name}")


def load_plain_pickle(file: Path) -> Any:
    """Read a pickle that holds nothing but dicts, lists, bytes, text, numbers and uint8 arrays.

    A pickle names the functions that rebuild its objects, and unpickling calls them: the stock
    reader runs whatever a file asks for. This one resolves the three names that a numpy array needs
    to stand-ins of its own and refuses every other; numpy's own reconstruction, which trusts its
    input, is never called. Arrays in dicts come back as numpy arrays (uint8), text of Python 2 as
    bytes.

    Raises DataError for a truncated or malformed pickle, for one that asks for anything but plain
    data or would take much more memory than its size, and for a file of more than 64 MiB."""
    size = file.stat().st_size
    if size > _LARGEST_PICKLE:
        raise DataError(f"{file}: expected at most {_LARGEST_PICKLE} bytes, found {size}")
    try:
        data = file.read_bytes()
        _check_size(data)
        loaded = _PlainUnpickler(data).load()
    except _Refused as refused:
        raise DataError(f"{file}: refused, because it asks for {refused}; expected plain arrays only") from None
    except Exception as error:  # a malformed pickle can raise nearly anything
        raise DataError(f"{file}: expected a Python pickle, found damage: {type(error).__name__}: {error}") from error
    if isinstance(loaded, dict):
        return {k: v.array if isinstance(v, _Array) else v for k, v in loaded.items()}
    return loaded
