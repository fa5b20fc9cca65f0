"""Chunks to bytes and back, without the copies that the protobuf runtime would make of the data.

Two facts of the protobuf encoding make this exact and simple: a message's fields may be laid one
after the other, so a chunk is a head of fixed length and the data; and the head's numbers are
fixed-width, so its bytes sit at known places. What does not look like that (another implementation
may order fields differently) goes through the protobuf runtime and means the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from edgegossip.mesh._proto import mesh_pb2
from edgegossip.types import DecodeError

PROTOCOL_VERSION = 1
GRPC_PREFIX_BYTES = 5  # compression flag and length before every gRPC message

_TAG_CHUNK = 0x12  # ExchangeRequest.chunk = 2, length-delimited
_TAG_TRANSFER, _TAG_OFFSET, _TAG_TOTAL = 0x09, 0x11, 0x19  # fixed64 fields 1, 2, 3
_TAG_ACKNOWLEDGE = 0x20  # bool field 4
_TAG_DATA = 0x2A  # Chunk.data = 5, length-delimited
_TAGS = (_TAG_TRANSFER, _TAG_OFFSET, _TAG_TOTAL, _TAG_ACKNOWLEDGE, _TAG_DATA)
_NUMBERS = struct.Struct("<BQBQBQBBB")  # each tag and number, then the tag of the data


class ChunkView(NamedTuple):  # made for every chunk: a frozen dataclass takes five times as long
    """A chunk as it came; `data` refers to the received message."""

    transfer: int
    offset: int
    total: int
    acknowledge: bool
    data: memoryview


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def chunk_message(transfer: int, offset: int, total: int, acknowledge: bool, pieces: Sequence[memoryview]) -> bytes:
    """The serialised ExchangeRequest that carries `pieces` as one chunk's data. One copy."""
    head, data_length = _lengths(sum(map(len, pieces)))
    numbers = _NUMBERS.pack(
        _TAG_TRANSFER, transfer, _TAG_OFFSET, offset, _TAG_TOTAL, total, _TAG_ACKNOWLEDGE, acknowledge, _TAG_DATA
    )
    return b"".join((head, numbers, data_length, *pieces))


@lru_cache(maxsize=256)
def _lengths(data_bytes: int) -> tuple[bytes, bytes]:
    """What stands before the numbers of a chunk with so much data, and the data's own length."""
    data_length = _varint(data_bytes)
    return bytes((_TAG_CHUNK,)) + _varint(_NUMBERS.size + len(data_length) + data_bytes), data_length


def parse_request(message: bytes) -> ChunkView | mesh_pb2.ExchangeRequest:
    """A ChunkView for a chunk, else the protobuf message. Raises DecodeError for bytes that are no
    ExchangeRequest."""
    view = _fast_chunk(message)
    if view is not None:
        return view
    try:
        request = mesh_pb2.ExchangeRequest.FromString(message)
    except ProtobufDecodeError as error:
        raise DecodeError("a mesh message is not valid protobuf") from error
    if request.WhichOneof("kind") == "chunk":
        chunk = request.chunk
        return ChunkView(chunk.transfer, chunk.offset, chunk.total, chunk.acknowledge, memoryview(chunk.data))
    return request


def parse_response(message: bytes) -> mesh_pb2.ExchangeResponse:
    """Raises DecodeError for bytes that are no ExchangeResponse."""
    try:
        return mesh_pb2.ExchangeResponse.FromString(message)
    except ProtobufDecodeError as error:
        raise DecodeError("a mesh message is not valid protobuf") from error


def _fast_chunk(message: bytes) -> ChunkView | None:
    """The chunk in `message` when that is laid out as `chunk_message` does, else None."""
    if not message or message[0] != _TAG_CHUNK:
        return None
    # A chunk of ours of this length can have but one head and one length of its data: compare them.
    head, numbers_at, data_length, data_at = _frame_of(len(message))
    if not message.startswith(head) or message[numbers_at + _NUMBERS.size : data_at] != data_length:
        return None
    # Between the two stand the numbers, each behind its tag, and the tag of the data.
    tag1, transfer, tag2, offset, tag3, total, tag4, acknowledge, tag5 = _NUMBERS.unpack_from(message, numbers_at)
    if (tag1, tag2, tag3, tag4, tag5) != _TAGS or acknowledge > 1:
        return None
    return ChunkView(transfer, offset, total, acknowledge == 1, memoryview(message)[data_at:])


@lru_cache(maxsize=256)
def _frame_of(message_bytes: int) -> tuple[bytes, int, bytes, int]:
    """What surrounds the numbers in a chunk message of this length: the bytes before them, where
    they begin, the length of the data after them, where the data begin. Lengths that no chunk has
    get bytes that no chunk has."""
    for length_bytes in range(1, 6):
        body = message_bytes - 1 - length_bytes
        for size_bytes in range(1, 6):
            size = body - _NUMBERS.size - size_bytes
            if size < 0:
                continue
            length, data_length = _varint(body), _varint(size)
            if (len(length), len(data_length)) == (length_bytes, size_bytes):
                at = 1 + length_bytes
                return bytes((_TAG_CHUNK,)) + length, at, data_length, at + _NUMBERS.size + size_bytes
    return b"\0", 0, b"\0", 0


class Slicer:
    """Takes pieces of any length off the front of buffers that are read one after the other. No
    copies."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._left = [buffer for buffer in reversed(buffers) if len(buffer)]

    def take(self, size_bytes: int) -> list[memoryview]:
        """The next `size_bytes`, or fewer at the end, in pieces; empty when nothing is left."""
        pieces: list[memoryview] = []
        while size_bytes and self._left:
            buffer = self._left.pop()
            if len(buffer) > size_bytes:
                self._left.append(buffer[size_bytes:])
                buffer = buffer[:size_bytes]
            pieces.append(buffer)
            size_bytes -= len(buffer)
        return pieces
