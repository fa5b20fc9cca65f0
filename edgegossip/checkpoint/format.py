"""A checkpoint file, version 1. Pure: an iterator of pieces to write, and a reader over anything
that can be read at a place.

    magic (8 bytes), version (uint16), 0 (uint16), CRC-32 of these 12
    chunks: name (4 bytes), size (uint64), content, CRC-32 of name, size and content; all numbers little-endian
        META  a packed mapping: what the checkpoint is of, and how far that was
        TREE  the packed value
        BLOB  one for each blob of the tree, in order
        END   number of chunks before it (uint64)

Nothing follows END, so a file that was cut off, wherever that was, has none and is known to be
torn.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edgegossip.checkpoint.classes import Classes
from edgegossip.checkpoint.pack import Packer, Unpacker
from edgegossip.types import DataError

MAGIC = b"\x89EGC\r\n\x1a\n"  # like PNG's: transfers that are not clean for bytes are caught at once
VERSION = 1
PIECE_BYTES = 2**20  # that are summed and written at once, while they are in the cache
MAX_TREE_BYTES = 2**28
_MAX_META_BYTES = 2**24  # it names every tensor of the model
_HEAD, _CRC, _CHUNK, _COUNT = struct.Struct("<8sHH"), struct.Struct("<I"), struct.Struct("<4sQ"), struct.Struct("<Q")
_NOTHING = Classes(())


class Damaged(DataError):
    """A file that was torn or changed: the one before it may do."""


class Unusable(DataError):
    """A file that is whole, and not for this program."""


class Readable(Protocol):
    """A file that is open for reading. `read` raises OSError, and fills all of `into` or raises
    Damaged."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, into: memoryview) -> None: ...


def pieces(meta: Mapping[str, Any], value: Any, classes: Classes) -> Iterator[bytes | memoryview]:
    """All of the file, in order. Arrays are handed out as views. Raises UsageError, before the
    first piece, on what no table tells how to keep."""
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
    """What the file is of. Raises Damaged, or Unusable for another version."""
    return _meta(file, _scan(file))


def read(file: Readable, classes: Classes, outside: Any) -> tuple[Mapping[str, Any], Any]:
    """Description and value. Raises Damaged on a file that is not whole, Unusable on one that is
    whole and makes no sense here. Never allocates more than the file is large, and the objects that
    its tree names."""
    chunks = _scan(file)
    meta = _meta(file, chunks)
    tree = _content(file, chunks[1])
    unpacker = Unpacker(classes, tree, _FileBlobs(file, chunks[2:]), outside)
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


class _FileBlobs:
    """Implements `pack.Blobs`."""

    def __init__(self, file: Readable, places: list[_Place]) -> None:
        self._file, self._places = file, places

    @property
    def count(self) -> int:
        return len(self._places)

    def size(self, index: int) -> int:
        return self._places[index].size

    def bytes(self, index: int) -> bytes:
        return _content(self._file, self._places[index])

    def fill(self, index: int, into: memoryview) -> None:
        _fill(self._file, self._places[index], into)


def _scan(file: Readable) -> list[_Place]:
    """Where META, TREE and every BLOB are. Everything is looked at but the contents."""
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
    if _COUNT.unpack(_content(file, end))[0] != len(places):
        raise Damaged("chunks of it are missing")
    return places


def _meta(file: Readable, chunks: list[_Place]) -> Mapping[str, Any]:
    unpacker = Unpacker(_NOTHING, _content(file, chunks[0]), _FileBlobs(file, []))
    try:
        meta = unpacker.value()
        unpacker.end()
    except DataError as error:
        raise Unusable(str(error)) from None
    if not isinstance(meta, dict) or not all(isinstance(key, str) for key in meta):
        raise Unusable("its description is no table")
    return meta


def _content(file: Readable, place: _Place) -> bytes:
    content = bytearray(place.size)
    _fill(file, place, memoryview(content))
    return bytes(content)


def _fill(file: Readable, place: _Place, into: memoryview) -> None:
    """The content, checked. `into` has its size."""
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
