"""A model in a file that other programs read: named arrays as .npz or as .safetensors.

Both formats are simple enough to be written here, piece by piece from the arrays themselves, so
that a large model is saved without a copy of it; and a file is whole or not there. Reading is lazy,
one array at a time, and trusts nothing: no pickle, and every length is held against the file.

A file also says what it is of (`about`, texts by name): the board, the round, and how many of its
arrays, counted from the first, travel between boards. In a .npz that is the comment of the archive,
in a .safetensors its `__metadata__`.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.choices import did_you_mean
from edgegossip.files import replacing
from edgegossip.types import ConfigError, DataError, EdgegossipError, NodeId, Round, UsageError

BEST = "best"  # the folder of a run folder in which models of the best evaluations are

SUFFIXES = (".npz", ".safetensors")
_LENGTH = struct.Struct("<Q")
_MOST_HEADER_BYTES = 100_000_000  # as the safetensors library has it
_PIECE_BYTES = 1 << 22
_METADATA = "__metadata__"
# What numpy, zipfile, zlib and a header of any JSON raise for a file that is torn or forged
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
_DTYPES: Mapping[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "C64": "<c8",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def check_suffix(path: Path, also: tuple[str, ...] = ()) -> None:
    """Raise ConfigError unless the file's name ends as one of the formats does."""
    allowed = (*SUFFIXES, *also)
    if path.suffix not in allowed:
        hint = did_you_mean(path.suffix, allowed)
        raise ConfigError(f"{path}: a model file ends in {', '.join(allowed)}{hint}")


def write_model(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> int:
    """Write arrays in their order; return the file's size in bytes.

    `path` ends in .npz or .safetensors and is replaced as a whole. Arrays hold numbers or booleans
    of any shape, empty ones too. Raises ConfigError for another ending or a type that the format
    lacks, OSError when it cannot be written.

    Example:
        write_model(Path("model.safetensors"), {"weight": np.eye(3)}, {"board": "board-0"})
    """
    check_suffix(path)
    plain = {name: _little(name, array) for name, array in arrays.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        if path.suffix == ".npz":
            _write_npz(file, plain, about)
        else:
            _write_safetensors(file, plain, about)
        return file.tell()


@dataclass(frozen=True, slots=True)
class BestFile:
    """Is a model that checkpoint.best kept."""

    board: NodeId
    round: Round  # how many it has had
    merit: float  # greater for a better evaluation
    path: Path


def best_files(folder: Path) -> list[BestFile]:
    """Return the models in a run folder's best/; those that cannot be read are passed over."""
    found = []
    for path in sorted(folder.glob("*.*")):
        try:
            about = ModelFile(path).about
            found.append(BestFile(about["board"], int(about["round"]), float(about["merit"]), path))
        except (EdgegossipError, OSError, KeyError, ValueError):
            continue
    return found


def _little(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """The same values, contiguous and little-endian; as a rule the array itself."""
    if array.dtype.kind not in "fciub":
        raise UsageError(f"tensor {name} holds {array.dtype}, which no model file keeps")
    # not ascontiguousarray, which makes a scalar a vector
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
        archive.comment = json.dumps(dict(about)).encode()
    file.seek(0, 2)


def _write_safetensors(file: IO[bytes], arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> None:
    """The header names arrays in the order given; their bytes come widest type first, as the
    library lays them, so that each lies where its type may be read in place."""
    if _METADATA in arrays:
        raise ConfigError(f"a tensor is named {_METADATA}, which safetensors keeps for itself: write a .npz")
    placed, at = {}, 0
    by_width = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    for name in by_width:
        placed[name] = [at, at + arrays[name].nbytes]
        at += arrays[name].nbytes
    header: dict[str, Any] = {_METADATA: dict(about)}
    for name, array in arrays.items():
        kind = _NAMES.get(array.dtype.str)
        if kind is None:
            raise ConfigError(f"tensor {name} holds {array.dtype}, which safetensors lacks: write a .npz")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": placed[name]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(_LENGTH.pack(len(text)) + text)
    for name in by_width:
        if arrays[name].nbytes:
            data = arrays[name].reshape(-1).view(np.uint8).data
            for start in range(0, len(data), _PIECE_BYTES):
                file.write(data[start : start + _PIECE_BYTES])


class ModelFile(Mapping[str, NDArray[Any]]):
    """Arrays of a model file by name, in their order; each is read when it is asked for.

    Raises DataError when the file cannot be read, or is not what its name says.

    Example:
        weights = ModelFile(Path("model.safetensors"))["fc.weight"]
    """

    def __init__(self, path: Path) -> None:
        check_suffix(path)
        self.path = path
        self.about: Mapping[str, str] = {}
        self._places: dict[str, tuple[str, tuple[int, ...], int]] = {}  # dtype, shape, offset in the file
        self._archive: Any = None
        try:
            if path.suffix == ".npz":
                self._open_npz()
            else:
                self._open_safetensors()
        except DataError:
            raise
        except _UNREADABLE as error:
            raise DataError(f"cannot read a model from {path}: {error}") from None

    @property
    def travels(self) -> tuple[str, ...]:
        """Names of what boards exchanged; the others are of the board alone. All names, where the
        file does not say."""
        count = self.about.get("travels", "")
        return tuple(self)[: int(count) if count.isdecimal() else None]

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._places:
            raise KeyError(name)
        try:
            return self._read(name)
        except _UNREADABLE as error:
            raise DataError(f"cannot read tensor {name} from {self.path}: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _open_npz(self) -> None:
        self._archive = np.load(self.path, allow_pickle=False)
        if not isinstance(self._archive, np.lib.npyio.NpzFile):
            raise DataError(f"cannot read a model from {self.path}: it is no archive of arrays")
        self._places = dict.fromkeys(self._archive.files, ("", (), 0))
        comment = self._archive.zip.comment if self._archive.zip is not None else b""
        self.about = _texts(json.loads(comment)) if comment.startswith(b"{") else {}

    def _open_safetensors(self) -> None:
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size).ljust(_LENGTH.size, b"\xff"))
            start = _LENGTH.size + length
            if length > min(_MOST_HEADER_BYTES, size - _LENGTH.size):
                raise DataError(f"cannot read a model from {self.path}: its header does not fit the file")
            header = json.loads(file.read(length), object_pairs_hook=_once)
        self.about = _texts(header.pop(_METADATA, {}))
        for name, entry in header.items():
            dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
                raise DataError(f"cannot read a model from {self.path}: tensor {name} has a size that is none")
            if end - begin != math.prod(shape) * dtype.itemsize or start + end > size:
                raise DataError(f"cannot read a model from {self.path}: tensor {name} does not fit the file")
            self._places[name] = (dtype.str, shape, start + begin)

    def _read(self, name: str) -> NDArray[Any]:
        if self._archive is not None:
            return entry_of(self._archive, name)
        dtype, shape, at = self._places[name]
        count = math.prod(shape)
        values = np.fromfile(self.path, dtype, count, offset=at) if count else np.empty(0, dtype)
        if values.size != count:
            raise DataError(f"cannot read tensor {name} from {self.path}: the file became shorter")
        return values.reshape(shape)


def entry_of(archive: np.lib.npyio.NpzFile, name: str) -> NDArray[Any]:
    """Read an array of an .npz file. Raises ValueError for one that claims to be larger than its
    entry, or is larger than memory, before it takes any."""
    assert archive.zip is not None
    entry = next(e for e in archive.zip.infolist() if e.filename in (name, f"{name}.npy"))
    with archive.zip.open(entry) as file:
        first = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    if math.prod(shape) * max(dtype.itemsize, 1) > entry.file_size:
        raise ValueError(f"{name} claims to be {dtype}{list(shape)} in {entry.file_size} bytes")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if entry.compress_size < entry.file_size > memory:
        raise ValueError(f"{name} has {entry.file_size} bytes when it is unpacked, and this machine {memory} of memory")
    array: NDArray[Any] = archive[name]
    return array


def _texts(found: Any) -> Mapping[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise DataError("what the file says of itself is no table of texts")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DataError("a name stands in its header twice")
    return found
