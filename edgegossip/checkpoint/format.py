"""A checkpoint, version 2: a typed value to bytes and back, without pickle. Pure: an iterator of
pieces to write, and a reader over anything that can be read at a place.

    magic (8 bytes), version (uint16), 0 (uint16), size of the document (uint64)
    the document: JSON, [description, value, sizes of the blobs]; CRC-32 of all before
    blobs, each with its CRC-32: contents of arrays and long message bodies

All numbers are little-endian. The sizes say where the file ends, so one that was cut off is known
to be torn, wherever that was.

None, truths, numbers and text are JSON's own (which Python's module reads back to the bit); all
else is a list that begins with what it is: ["tuple", item, ...], ["dict", [key, value], ...],
["bytes", text in Latin-1], ["blob", number], ["array", number, dtype, extents], ["enum", class,
value], ["object", class, fields]. The kind of every container comes back. An array or body that
occurs twice is kept once, as a view and no copy, and comes back as one object. A `memoryview` comes
back as `bytes`.

Only classes that `registry` allows can appear: what is read from a disk decides nothing but the
values of fields whose types are checked. Every size is held against the bytes that are there before
anything is allocated by it.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.checkpoint.files import Damaged, OpenFile
from edgegossip.checkpoint.registry import RunContext, from_fields, to_fields
from edgegossip.types import DataError, UsageError

MAGIC = b"\x89EGC\r\n\x1a\n"  # like PNG's: transfers that are not clean for bytes are caught at once
VERSION = 2
PIECE_BYTES = 2**20  # that are summed and written at once, while they are in the cache
MAX_DOCUMENT_BYTES = 2**26
INLINE_BYTES = 256  # longer bytes are blobs
_HEAD, _CRC = struct.Struct("<8sHHQ"), struct.Struct("<I")
_DTYPES = ("<f4", "<f8", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1")
_PLAIN = (NoneType, bool, int, float, str)
_CONTAINERS: Mapping[type, str] = {tuple: "tuple", list: "list", frozenset: "frozenset", set: "set"}
_MAPPINGS: Mapping[type, str] = {dict: "dict", MappingProxyType: "mapping"}
_KINDS: Mapping[str, Any] = {word: kind for kind, word in {**_CONTAINERS, **_MAPPINGS}.items()}


class Unusable(DataError):
    """Says that a file is whole, and not for this program."""


def to_bytes(value: Any) -> bytes:
    """Return one value as bytes in memory, in the very format of a file. Raises UsageError on what
    no checkpoint keeps."""
    return b"".join(pieces({}, value))


def from_bytes(data: bytes, run: RunContext | None = None) -> Any:
    """Return the value that `to_bytes` was given. `run` is needed for a gossip state. Raises
    DataError."""
    return Stored(MemoryFile(data)).value(run)


# Writing


def pieces(meta: Mapping[str, Any], value: Any) -> Iterator[bytes | memoryview]:
    """Yield all of a file, in order. Arrays are handed out as views. Raises UsageError, before the
    first piece, on what no checkpoint keeps."""
    packer = _Packer()
    try:
        about, packed = packer.plain(dict(meta), "the description"), packer.plain(value, "the state")
        sizes = [blob.nbytes for blob in packer.blobs]
        document = json.dumps([about, packed, sizes], separators=(",", ":")).encode()
    except (RecursionError, ValueError) as error:  # nested without end, or a number of thousands of digits
        raise UsageError(f"no checkpoint keeps the state: {error}") from None
    if len(document) > MAX_DOCUMENT_BYTES:
        raise UsageError(f"the state is {len(document)} bytes long without its arrays, which no checkpoint keeps")
    yield from _summed(memoryview(_HEAD.pack(MAGIC, VERSION, 0, len(document)) + document))
    for blob in packer.blobs:
        yield from _summed(blob)


def _summed(content: memoryview) -> Iterator[bytes | memoryview]:
    crc = 0
    for start in range(0, len(content), PIECE_BYTES):
        piece = content[start : start + PIECE_BYTES]
        crc = zlib.crc32(piece, crc)
        yield piece
    yield _CRC.pack(crc)


class _Packer:
    """Makes values of what JSON has, and their blobs. `blobs` holds on to the arrays until the
    packer is dropped."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # id -> blob, and the value, so that no id is used twice
        self.blobs: list[memoryview] = []

    def plain(self, value: Any, where: str) -> Any:
        """Return a value as the document has it. Raises UsageError, with the way to it, on one that
        no checkpoint keeps."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in (bytes, memoryview):
            content = memoryview(value)
            if content.nbytes <= INLINE_BYTES:
                return ["bytes", bytes(content).decode("latin-1")]
            return ["blob", self._blob(value, content.cast("B"))]
        if kind is np.ndarray:
            code = value.dtype.newbyteorder("<").str
            if code not in _DTYPES:
                raise UsageError(f"{where} is an array of {value.dtype}, which no checkpoint keeps")
            content = _array_bytes(np.ascontiguousarray(value.astype(code, copy=False)))
            return ["array", self._blob(value, content), code, list(value.shape)]
        if kind in _CONTAINERS:
            items = sorted(value) if kind in (frozenset, set) else value
            return [_CONTAINERS[kind], *(self.plain(item, f"{where}[{k}]") for k, item in enumerate(items))]
        if kind in _MAPPINGS:
            pairs = ((self.plain(key, f"a key of {where}"), key, item) for key, item in value.items())
            return [_MAPPINGS[kind], *([packed, self.plain(item, f"{where}[{key!r}]")] for packed, key, item in pairs)]
        name, fields = to_fields(value, where)
        if isinstance(value, Enum):
            return ["enum", name, self.plain(value.value, where)]
        return ["object", name, {field: self.plain(item, f"{where}.{field}") for field, item in fields.items()}]

    def _blob(self, value: Any, content: memoryview) -> int:
        if id(value) not in self._seen:
            self._seen[id(value)] = len(self.blobs), value
            self.blobs.append(content)
        return self._seen[id(value)][0]


def _array_bytes(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a C-contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


# Reading


class MemoryFile:
    """Reads a file that lies in memory."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size = memoryview(data), len(data)

    def read(self, at: int, into: memoryview) -> None:
        """Fill `into` with what begins at the byte `at`."""
        into[:] = self._data[at : at + len(into)]

    def close(self) -> None:
        """Nothing is open."""


class Stored:
    """Reads one file, which stays open meanwhile. Raises Damaged on one that is not whole, Unusable
    on one that is whole and makes no sense here. Never allocates more than the file is large, and
    the objects that its document names.

    Example:
        stored = Stored(file)
        stored.meta["round"], stored.value(RunContext.of(view))
    """

    def __init__(self, file: OpenFile) -> None:
        self._file, self._run, self._made = file, RunContext(), dict[int, Any]()
        head = bytearray(_HEAD.size)
        self._read(0, memoryview(head))
        magic, version, _, size = _HEAD.unpack(head)
        if magic != MAGIC:
            raise Damaged("it is no checkpoint: its first bytes are others")
        if version != VERSION:
            raise Unusable(
                f"it is of version {version}, and this edgegossip reads version {VERSION}: use the one that wrote it"
            )
        if size > MAX_DOCUMENT_BYTES:
            raise Damaged("its head is damaged")
        try:
            about, self._value, sizes = json.loads(self._bytes(0, _HEAD.size + size)[_HEAD.size :])
            self._places, at = list[tuple[int, int]](), _HEAD.size + size + _CRC.size
            for blob in sizes:
                self._places.append((at, _length(blob)))
                at += blob + _CRC.size
        except (ValueError, TypeError, RecursionError):
            raise Unusable("its document is none") from None
        if at != file.size:
            raise Damaged("it is torn: its end is not where it should be")
        self.meta: Mapping[str, Any] = self._unpacked(about)
        if not isinstance(self.meta, dict) or not all(isinstance(key, str) for key in self.meta):
            raise Unusable("its description is no table")

    def value(self, run: RunContext | None = None) -> Any:
        """Return the value. `run` is needed for a gossip state."""
        self._run = run or RunContext()
        return self._unpacked(self._value)

    def _unpacked(self, packed: Any) -> Any:
        try:
            return self._of(packed)
        except Damaged:
            raise
        except DataError as error:
            raise Unusable(str(error)) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise Unusable(f"its document makes no sense: {error}") from None

    def _of(self, packed: Any) -> Any:
        if not isinstance(packed, list):
            if isinstance(packed, dict):
                raise DataError("its document has a table where none belongs")
            return packed
        match packed:
            case ["bytes", str(text)]:
                return text.encode("latin-1")
            case ["blob", int(index)]:
                return self._body(index)
            case ["array", int(index), str(code), [*extents]]:
                return self._array(index, code, tuple(map(_length, extents)))
            case [str(kind), *items] if kind in _KINDS:
                if _KINDS[kind] in _MAPPINGS:
                    return _KINDS[kind]({self._of(key): self._of(item) for key, item in items})
                return _KINDS[kind](self._of(item) for item in items)
            case ["enum", str(name), value]:
                return from_fields(name, {"value": self._of(value)}, self._run)
            case ["object", str(name), dict(fields)]:
                return from_fields(name, {field: self._of(item) for field, item in fields.items()}, self._run)
        raise DataError(f"its document has the unknown value {str(packed)[:60]}")

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self._places):
            raise DataError(f"its document names blob {index}, and there are {len(self._places)}")
        return self._places[index]

    def _body(self, index: int) -> bytes:
        at, size = self._place(index)
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = self._bytes(at, size)
        if not isinstance(made, bytes):
            raise DataError(f"its blob {index} is both an array and bytes")
        return made

    def _array(self, index: int, code: str, shape: tuple[int, ...]) -> NDArray[Any]:
        at, size = self._place(index)
        if code not in _DTYPES or math.prod(shape) * np.dtype(code).itemsize != size:
            raise DataError(f"its array of {code}{list(shape)} does not fit the {size} bytes that are there")
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = np.empty(shape, code)
            self._fill(at, _array_bytes(made))
        if not isinstance(made, np.ndarray) or made.dtype != np.dtype(code) or made.shape != shape:
            raise DataError(f"its blob {index} is used as two different things")
        return made

    def _bytes(self, at: int, size: int) -> bytes:
        """Return a content, checked."""
        if at + size > self._file.size:
            raise Damaged("it is torn: it ends too early")
        content = bytearray(size)
        self._fill(at, memoryview(content))
        return bytes(content)

    def _fill(self, at: int, into: memoryview) -> None:
        """Read a content of this size, and check it."""
        crc = 0
        for start in range(0, len(into), PIECE_BYTES):
            piece = into[start : start + PIECE_BYTES]
            self._read(at + start, piece)
            crc = zlib.crc32(piece, crc)
        found = bytearray(_CRC.size)
        self._read(at + len(into), memoryview(found))
        if _CRC.pack(crc) != found:
            raise Damaged("its checksum is wrong")

    def _read(self, at: int, into: memoryview) -> None:
        if at + len(into) > self._file.size:
            raise Damaged("it is torn: it ends too early")
        self._file.read(at, into)


def _length(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise DataError(f"its document has a length of {value!r}")
    return value
