"""A checkpoint, version 1: a typed value to bytes and back, without pickle. Pure: an iterator of
pieces to write, and a reader over anything that can be read at a place.

A value becomes a *tree* of tagged bytes and a list of *blobs*, the contents of its arrays and
message bodies, which are views of the arrays and not copies. Exact: numbers to the bit, big
integers, dtypes, the kind of every container, None, enums. An array or body that occurs twice is
kept once and comes back as one object. A `memoryview` comes back as `bytes`.

    magic (8 bytes), version (uint16), 0 (uint16), CRC-32 of these 12
    chunks: name (4 bytes), size (uint64), content, CRC-32 of name, size and content
        META  a packed mapping: what the checkpoint is of, and how far that was
        TREE  the packed value
        BLOB  one for each blob of the tree, in order
        END   number of chunks before it (uint64)

All numbers are little-endian. Nothing follows END, so a file that was cut off, wherever that was,
has none and is known to be torn.

A tree names classes, and only those of a `StateRegistry` can appear: what is read from a disk
decides nothing but the values of fields whose types are checked. Every length is held against the
bytes that are there before anything is allocated by it.
META and TREE are tagged values:

    N T F    None, true, false
    I        length, two's complement
    D        float64
    S B      length, UTF-8; length, bytes
    C        blob: bytes
    A        blob, dtype, dimensions, extents
    ( [ f s  count, items: tuple, list, frozenset, set
    { M      count, keys and values: dict, read-only mapping
    E        name, value of an enum
    O        name, count, field names and values

Lengths, counts and numbers of blobs are unsigned LEB128.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.checkpoint.files import Damaged, OpenFile, Readable
from edgegossip.checkpoint.registry import STATES, RunContext, StateRegistry
from edgegossip.types import DataError, UsageError

MAGIC = b"\x89EGC\r\n\x1a\n"  # like PNG's: transfers that are not clean for bytes are caught at once
VERSION = 1
PIECE_BYTES = 2**20  # that are summed and written at once, while they are in the cache
MAX_TREE_BYTES = 2**28
MAX_DEPTH = 64
MAX_ITEMS = 2**20  # of one container
INLINE_BYTES = 256  # longer bytes are blobs
_MAX_META_BYTES = 2**24  # it names every tensor of the model
_MAX_INT_BYTES = 4096
_FLOAT = struct.Struct("<d")
_HEAD, _CRC, _CHUNK, _COUNT = struct.Struct("<8sHH"), struct.Struct("<I"), struct.Struct("<4sQ"), struct.Struct("<Q")
_DTYPES = ("<f4", "<f8", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1")
_CONTAINERS: Mapping[type, bytes] = {tuple: b"(", list: b"[", frozenset: b"f", set: b"s"}
_MAPPINGS: Mapping[type, bytes] = {dict: b"{", MappingProxyType: b"M"}
_NOTHING = StateRegistry(())


class Unusable(DataError):
    """Says that a file is whole, and not for this program."""


def to_bytes(value: Any, classes: StateRegistry = STATES) -> bytes:
    """Return one value as bytes in memory, in the very format of a file. Raises UsageError on what
    no registry tells how to keep."""
    return b"".join(pieces({}, value, classes))


def from_bytes(data: bytes, run: RunContext | None = None, classes: StateRegistry = STATES) -> Any:
    """Return the value that `to_bytes` was given. `run` is needed for a gossip state. Raises
    DataError."""
    return read(MemoryFile(data), classes, run or RunContext())[1]


# The tree of a value


class Blobs(Protocol):
    """Offers the contents of arrays and bodies, by number, while a tree is read."""

    @property
    def count(self) -> int:
        """How many there are."""

    def size(self, index: int) -> int:
        """Return the bytes of one."""

    def bytes(self, index: int) -> bytes:
        """Return the content of one. Raises DataError when it is damaged."""

    def fill(self, index: int, into: memoryview) -> None:
        """Write the content of one into memory of its size. Raises DataError when it is damaged."""


def _array_bytes(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a C-contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


class Packer:
    """Makes one tree of values, and its blobs. `blobs` holds on to the arrays until the packer is
    dropped."""

    def __init__(self, classes: StateRegistry) -> None:
        self._classes = classes
        self._out = bytearray()
        self._seen: dict[int, tuple[int, Any]] = {}  # id -> blob, and the value, so that no id is used twice
        self.blobs: list[memoryview] = []

    @property
    def tree(self) -> bytes:
        """The tree so far."""
        return bytes(self._out)

    def add(self, value: Any, where: str = "the state", depth: int = 0) -> None:
        """Append a value. Raises UsageError, with the way to it, on one that no registry tells how
        to keep."""
        if depth > MAX_DEPTH:
            raise UsageError(f"{where} is nested more than {MAX_DEPTH} deep, which no checkpoint keeps")
        kind, out = type(value), self._out
        if value is None or value is True or value is False:
            out += b"N" if value is None else b"T" if value else b"F"
        elif kind is int:
            self._int(value, where)
        elif kind is float:
            out += b"D" + _FLOAT.pack(value)
        elif kind is str:
            out += b"S"
            self._piece(value.encode("utf-8", "surrogatepass"))
        elif kind in (bytes, memoryview) and memoryview(value).nbytes <= INLINE_BYTES:
            out += b"B"
            self._piece(bytes(value))
        elif kind in (bytes, memoryview):
            out += b"C"
            self._length(self._blob(value, lambda: memoryview(value)))
        elif kind is np.ndarray:
            self._array(value, where)
        elif kind in _CONTAINERS:
            out += _CONTAINERS[kind]
            self._length(len(value))
            for k, item in enumerate(sorted(value) if kind in (frozenset, set) else value):
                self.add(item, f"{where}[{k}]", depth + 1)
        elif kind in _MAPPINGS:
            out += _MAPPINGS[kind]
            self._length(len(value))
            for key, item in value.items():
                self.add(key, f"a key of {where}", depth + 1)
                self.add(item, f"{where}[{key!r}]", depth + 1)
        else:
            self._object(value, where, depth)

    def _object(self, value: Any, where: str, depth: int) -> None:
        name, fields = self._classes.to_fields(value, where)
        if isinstance(value, Enum):
            self._out += b"E"
            self._piece(name.encode())
            self.add(fields["value"], where, depth + 1)
            return
        self._out += b"O"
        self._piece(name.encode())
        self._length(len(fields))
        for field, item in fields.items():
            self._piece(field.encode())
            self.add(item, f"{where}.{field}", depth + 1)

    def _array(self, value: NDArray[Any], where: str) -> None:
        code = value.dtype.newbyteorder("<").str
        if code not in _DTYPES:
            raise UsageError(f"{where} is an array of {value.dtype}, which no checkpoint keeps")
        self._out += b"A"
        self._length(self._blob(value, lambda: _array_bytes(np.ascontiguousarray(value.astype(code, copy=False)))))
        self._piece(code.encode())
        self._length(value.ndim)
        for extent in value.shape:
            self._length(extent)

    def _blob(self, value: Any, content: Callable[[], memoryview]) -> int:
        if id(value) not in self._seen:
            self._seen[id(value)] = len(self.blobs), value
            made = content()
            self.blobs.append(made.cast("B") if made.nbytes else memoryview(b""))
        return self._seen[id(value)][0]

    def _int(self, value: int, where: str) -> None:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        if len(data) > _MAX_INT_BYTES:
            raise UsageError(f"{where} is a number of {len(data)} bytes, which no checkpoint keeps")
        self._out += b"I"
        self._piece(data)

    def _piece(self, data: bytes) -> None:
        self._length(len(data))
        self._out += data

    def _length(self, value: int) -> None:
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)


class Unpacker:
    """Makes values of one tree. Raises DataError on anything that `Packer` did not write."""

    def __init__(self, classes: StateRegistry, tree: bytes, blobs: Blobs, run: Any = None) -> None:
        """`run`: what the registry's adapters need to know that no tree holds."""
        self._classes, self._tree, self._at, self._run = classes, tree, 0, run
        self._blobs, self._made = blobs, dict[int, Any]()
        self._readers: dict[bytes, Callable[[int], Any]] = {
            b"N": lambda _: None,
            b"T": lambda _: True,
            b"F": lambda _: False,
            b"I": lambda _: self._int(),
            b"D": lambda _: _FLOAT.unpack(self._take(8))[0],
            b"S": lambda _: self._text(),
            b"B": lambda _: self._piece(),
            b"C": lambda _: self._body(),
            b"A": lambda _: self._array(),
            b"E": lambda depth: classes.from_fields(self._text(), {"value": self.value(depth)}, run),
            b"O": self._object,
            **{tag: self._container(kind) for kind, tag in _CONTAINERS.items()},
            **{tag: self._mapping(kind) for kind, tag in _MAPPINGS.items()},
        }

    def value(self, depth: int = 0) -> Any:
        """Return the next value."""
        tag = self._take(1)
        if depth > MAX_DEPTH or tag not in self._readers:
            raise DataError("its tree is too deep" if depth > MAX_DEPTH else f"its tree has the unknown tag {tag!r}")
        return self._readers[tag](depth + 1)

    def end(self) -> None:
        """Raise DataError unless all of the tree and every blob was used."""
        if self._at != len(self._tree) or len(self._made) != self._blobs.count:
            raise DataError("it holds more than its tree says")

    def _take(self, count: int) -> bytes:
        if count > len(self._tree) - self._at:
            raise DataError("its tree ends too early")
        self._at += count
        return self._tree[self._at - count : self._at]

    def _length(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise DataError("its tree has a length beyond 64 bits")

    def _count(self) -> int:
        """Read how many things follow that take a byte each at least."""
        count = self._length()
        if count > min(MAX_ITEMS, len(self._tree) - self._at):
            raise DataError(f"its tree claims {count} items, more than there can be")
        return count

    def _piece(self) -> bytes:
        return self._take(self._length())

    def _text(self) -> str:
        try:
            return self._piece().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise DataError("its tree has a text that is none") from None

    def _int(self) -> int:
        data = self._piece()
        if not 0 < len(data) <= _MAX_INT_BYTES:
            raise DataError(f"its tree has a number of {len(data)} bytes")
        return int.from_bytes(data, "little", signed=True)

    def _index(self) -> int:
        index = self._length()
        if index >= self._blobs.count:
            raise DataError(f"its tree names part {index}, and there are {self._blobs.count}")
        return index

    def _body(self) -> bytes:
        index = self._index()
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = self._blobs.bytes(index)
        if not isinstance(made, bytes):
            raise DataError(f"its part {index} is both an array and bytes")
        return made

    def _array(self) -> NDArray[Any]:
        index, code, ndim = self._index(), self._text(), self._length()
        if code not in _DTYPES or ndim > 8:
            raise DataError(f"its tree has an array of {code} in {ndim} dimensions")
        shape = tuple(self._length() for _ in range(ndim))
        dtype, size = np.dtype(code), self._blobs.size(index)
        count = 1
        for extent in shape:
            count *= extent
        if count * dtype.itemsize != size or (max(shape, default=0) > size and count):
            raise DataError(f"its array of {code}{list(shape)} does not fit the {size} bytes that are there")
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = np.empty(shape, dtype)
            self._blobs.fill(index, _array_bytes(made))
        if not isinstance(made, np.ndarray) or made.dtype != dtype or made.shape != shape:
            raise DataError(f"its part {index} is used as two different things")
        return made

    def _container(self, kind: type) -> Callable[[int], Any]:
        def read(depth: int) -> Any:
            items = [self.value(depth) for _ in range(self._count())]
            return kind(self._hashable(i) for i in items) if kind in (set, frozenset) else kind(items)

        return read

    def _mapping(self, kind: type) -> Callable[[int], Any]:
        def read(depth: int) -> Any:
            count, found = self._count(), dict[Any, Any]()
            for _ in range(count):
                key = self._hashable(self.value(depth))
                found[key] = self.value(depth)
            if len(found) != count:
                raise DataError("its tree has a key twice")
            return kind(found)

        return read

    def _hashable(self, key: Any) -> Any:
        try:
            hash(key)
        except TypeError:
            raise DataError(f"its tree has a key of type {type(key).__name__}") from None
        return key

    def _object(self, depth: int) -> Any:
        name, fields = self._text(), dict[str, Any]()
        for _ in range(self._count()):
            field = self._text()
            if field in fields:
                raise DataError(f"its {name} has the field {field} twice")
            fields[field] = self.value(depth)
        return self._classes.from_fields(name, fields, self._run)


# The file around it


class MemoryFile(OpenFile):
    """Reads a file that lies in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    @property
    @override
    def size(self) -> int:
        return len(self._data)

    @override
    def read(self, at: int, into: memoryview) -> None:
        piece = self._data[at : at + len(into)]
        if len(piece) < len(into):
            raise Damaged("it is torn: it ends too early")
        into[:] = piece

    @override
    def close(self) -> None:
        pass


def pieces(meta: Mapping[str, Any], value: Any, classes: StateRegistry) -> Iterator[bytes | memoryview]:
    """Yield all of a file, in order. Arrays are handed out as views. Raises UsageError, before the
    first piece, on what no registry tells how to keep."""
    about, packer = Packer(_NOTHING), Packer(classes)
    about.add(dict(meta), "the description")
    packer.add(value)
    head = _HEAD.pack(MAGIC, VERSION, 0)
    yield head + _CRC.pack(zlib.crc32(head))
    yield from _chunk(b"META", memoryview(about.tree))
    yield from _chunk(b"TREE", memoryview(packer.tree))
    for blob in packer.blobs:
        yield from _chunk(b"BLOB", blob)
    yield from _chunk(b"END ", memoryview(_COUNT.pack(2 + len(packer.blobs))))


def _chunk(name: bytes, content: memoryview) -> Iterator[bytes | memoryview]:
    head = _CHUNK.pack(name, len(content))
    crc = zlib.crc32(head)
    yield head
    for start in range(0, len(content), PIECE_BYTES):
        piece = content[start : start + PIECE_BYTES]
        crc = zlib.crc32(piece, crc)
        yield piece
    yield _CRC.pack(crc)


def read_meta(file: Readable) -> Mapping[str, Any]:
    """Return what the file is of. Raises Damaged, or Unusable for another version."""
    return _meta(file, _scan(file))


def read(file: Readable, classes: StateRegistry, run: Any) -> tuple[Mapping[str, Any], Any]:
    """Return description and value. Raises Damaged on a file that is not whole, Unusable on one
    that is whole and makes no sense here. Never allocates more than the file is large, and the
    objects that its tree names."""
    chunks = _scan(file)
    meta = _meta(file, chunks)
    tree = _chunk_content(file, chunks[1])
    unpacker = Unpacker(classes, tree, _FileBlobs(file, chunks[2:]), run)
    try:
        value = unpacker.value()
        unpacker.end()
    except Damaged:
        raise
    except DataError as error:
        raise Unusable(str(error)) from None
    return meta, value


@dataclass(frozen=True, slots=True)
class _Place:
    name: bytes
    start: int  # of the content
    size: int


class _FileBlobs(Blobs):
    """Reads blobs where a file has them."""

    def __init__(self, file: Readable, places: list[_Place]) -> None:
        self._file, self._places = file, places

    @property
    @override
    def count(self) -> int:
        return len(self._places)

    @override
    def size(self, index: int) -> int:
        return self._places[index].size

    @override
    def bytes(self, index: int) -> bytes:
        return _chunk_content(self._file, self._places[index])

    @override
    def fill(self, index: int, into: memoryview) -> None:
        _fill(self._file, self._places[index], into)


def _scan(file: Readable) -> list[_Place]:
    """Return where META, TREE and every BLOB are. Everything is looked at but the contents."""
    head = _bytes(file, 0, _HEAD.size + _CRC.size)
    magic, version, _ = _HEAD.unpack_from(head)
    if magic != MAGIC:
        raise Damaged("it is no checkpoint: its first bytes are others")
    if zlib.crc32(head[: _HEAD.size]) != _CRC.unpack_from(head, _HEAD.size)[0]:
        raise Damaged("its head is damaged")
    if version != VERSION:
        raise Unusable(
            f"it is of version {version}, and this edgegossip reads version {VERSION}: use the one that wrote it"
        )
    at, places = len(head), list[_Place]()
    while not places or places[-1].name != b"END ":
        name, size = _CHUNK.unpack(_bytes(file, at, _CHUNK.size))
        wanted = (b"META",) if not places else (b"TREE",) if len(places) == 1 else (b"BLOB", b"END ")
        start = at + _CHUNK.size
        if name not in wanted or size > file.size - start - _CRC.size:
            raise Damaged("it is torn, or its chunks are damaged")
        places.append(_Place(name, start, size))
        at = start + size + _CRC.size
    end = places.pop()
    limits = zip(places, (_MAX_META_BYTES, MAX_TREE_BYTES), strict=False)
    if at != file.size or end.size != _COUNT.size or any(p.size > most for p, most in limits):
        raise Damaged("its end is not where it should be")
    if _COUNT.unpack(_chunk_content(file, end))[0] != len(places):
        raise Damaged("chunks of it are missing")
    return places


def _meta(file: Readable, chunks: list[_Place]) -> Mapping[str, Any]:
    unpacker = Unpacker(_NOTHING, _chunk_content(file, chunks[0]), _FileBlobs(file, []))
    try:
        meta = unpacker.value()
        unpacker.end()
    except DataError as error:
        raise Unusable(str(error)) from None
    if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
        raise Unusable("its description is no table")
    return meta


def _chunk_content(file: Readable, place: _Place) -> bytes:
    content = bytearray(place.size)
    _fill(file, place, memoryview(content))
    return bytes(content)


def _fill(file: Readable, place: _Place, into: memoryview) -> None:
    """Read the content, and check it. `into` has its size."""
    crc = zlib.crc32(_CHUNK.pack(place.name, place.size))
    for start in range(0, place.size, PIECE_BYTES):
        piece = into[start : start + PIECE_BYTES]
        file.read(place.start + start, piece)
        crc = zlib.crc32(piece, crc)
    if crc != _CRC.unpack(_bytes(file, place.start + place.size, _CRC.size))[0]:
        raise Damaged("its checksum is wrong")


def _bytes(file: Readable, at: int, count: int) -> bytes:
    if at + count > file.size:
        raise Damaged("it is torn: it ends too early")
    data = bytearray(count)
    file.read(at, memoryview(data))
    return bytes(data)
