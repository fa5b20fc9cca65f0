"""The messages of an Exchange stream as bytes: chunks, which are laid out and read here without the
copies that protobuf's runtime would make of the data, and the rest, which goes through it.

Two facts of the protobuf encoding make that possible: a message's fields may be laid one after the
other, so a chunk is a head and the data; and the head's numbers are fixed-width, so their bytes sit
at known places.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from edgegossip.mesh._proto import mesh_pb2
from edgegossip.types import DecodeError

SERVICE = "edgegossip.v1.Mesh"
METHOD = f"/{SERVICE}/Exchange"
PROTOCOL_VERSION = 1  # of `Hello`
GRPC_PREFIX_BYTES = 5  # compression flag and length before every gRPC message
_CHUNK = 0x12  # ExchangeRequest.chunk = 2, length-delimited
# Within it: transfer, offset and total (fixed64 fields 1, 2, 3), acknowledge (bool field 4), and
# data = 5, length-delimited. Each number stands behind its tag; the tag of the data ends them.
_TAGS = (0x09, 0x11, 0x19, 0x20, 0x2A)
_NUMBERS = struct.Struct("<BQBQBQBBB")


def chunk_message(transfer: int, offset: int, total: int, acknowledge: bool, pieces: Sequence[memoryview]) -> bytes:
    """Serialise the ExchangeRequest that carries `pieces` as one chunk's data. One copy."""
    before, behind = _around_numbers(sum(map(len, pieces)))
    a, b, c, d, e = _TAGS
    numbers = _NUMBERS.pack(a, transfer, b, offset, c, total, d, acknowledge, e)
    return b"".join((before, numbers, behind, *pieces))


class ChunkView(NamedTuple):  # made for every chunk: a frozen dataclass takes five times as long
    """Holds a chunk as it came; `data` refers to the received message."""

    transfer: int
    offset: int
    total: int
    acknowledge: bool
    data: memoryview


def parse_request(message: bytes) -> ChunkView | mesh_pb2.ExchangeRequest:
    """Parse a message of a stream: into a ChunkView for a chunk, else the protobuf message. Raises
    DecodeError for bytes that are no ExchangeRequest.

    What does not look like a chunk of ours (another implementation may order fields differently)
    goes through the protobuf runtime and means the same."""
    view = _fast_chunk(message)
    if view is not None:
        return view
    try:
        request = mesh_pb2.ExchangeRequest.FromString(message)
    except ProtobufDecodeError as error:
        raise DecodeError("a mesh message is not valid protobuf") from error
    if request.WhichOneof("kind") == "chunk":
        c = request.chunk
        return ChunkView(c.transfer, c.offset, c.total, c.acknowledge, memoryview(c.data))
    return request


def _fast_chunk(message: bytes) -> ChunkView | None:
    """Return the chunk in `message` when that is laid out as `chunk_message` does, else None."""
    if not message or message[0] != _CHUNK:
        return None
    # A chunk of ours of this length can have but one length and one length of its data: compare.
    before, behind = _around_message(len(message))
    numbers_at = len(before)
    numbers_end = numbers_at + _NUMBERS.size
    if not message.startswith(before) or not message.startswith(behind, numbers_end):
        return None
    # Between the two stand the numbers, each behind its tag, and the tag of the data.
    a, transfer, b, offset, c, total, d, acknowledge, e = _NUMBERS.unpack_from(message, numbers_at)
    if (a, b, c, d, e) != _TAGS or acknowledge > 1:
        return None
    data = memoryview(message)[numbers_end + len(behind) :]
    return ChunkView(transfer, offset, total, acknowledge == 1, data)


@lru_cache(maxsize=256)
def _around_message(message_bytes: int) -> tuple[bytes, bytes]:
    """Return what stands before and behind the numbers in a chunk message of this length. Lengths
    that no chunk has get bytes that no chunk has."""
    least, most = 1 + 1 + _NUMBERS.size + 1, 1 + 5 + _NUMBERS.size + 5
    for overhead in range(least, min(most, message_bytes) + 1):
        before, behind = _around_numbers(message_bytes - overhead)
        if len(before) + _NUMBERS.size + len(behind) == overhead:
            return before, behind
    return b"\0", b"\0"


def parse_response(message: bytes) -> mesh_pb2.ExchangeResponse:
    """Parse an answer. Raises DecodeError for bytes that are no ExchangeResponse."""
    try:
        return mesh_pb2.ExchangeResponse.FromString(message)
    except ProtobufDecodeError as error:
        raise DecodeError("a mesh message is not valid protobuf") from error


@lru_cache(maxsize=256)  # of a few sizes, again and again
def _around_numbers(data_bytes: int) -> tuple[bytes, bytes]:
    """Return what stands before and behind _NUMBERS in a chunk with so much data: the chunk's tag
    and length, and the data's length."""
    data_length = _varint(data_bytes)
    chunk_bytes = _NUMBERS.size + len(data_length) + data_bytes
    return bytes((_CHUNK,)) + _varint(chunk_bytes), data_length


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
