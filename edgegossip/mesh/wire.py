"""The messages of an Exchange stream as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from edgegossip.mesh._proto import mesh_pb2
from edgegossip.types import DecodeError

SERVICE = "edgegossip.v1.Mesh"
METHOD = f"/{SERVICE}/Exchange"
PROTOCOL_VERSION = 1  # of `Hello`
GRPC_PREFIX_BYTES = 5  # compression flag and length before every gRPC message


def chunk_message(transfer: int, offset: int, total: int, acknowledge: bool, pieces: Sequence[memoryview]) -> bytes:
    """Serialise the ExchangeRequest that carries `pieces` as one chunk's data."""
    chunk = mesh_pb2.Chunk(
        transfer=transfer, offset=offset, total=total, acknowledge=acknowledge, data=b"".join(pieces)
    )
    return mesh_pb2.ExchangeRequest(chunk=chunk).SerializeToString()


class ChunkView(NamedTuple):  # made for every chunk: a frozen dataclass takes five times as long
    """Holds a chunk as it came."""

    transfer: int
    offset: int
    total: int
    acknowledge: bool
    data: memoryview


def parse_request(message: bytes) -> ChunkView | mesh_pb2.ExchangeRequest:
    """Parse a message of a stream: into a ChunkView for a chunk, else the protobuf message. Raises
    DecodeError for bytes that are no ExchangeRequest."""
    try:
        request = mesh_pb2.ExchangeRequest.FromString(message)
    except ProtobufDecodeError as error:
        raise DecodeError("a mesh message is not valid protobuf") from error
    if request.WhichOneof("kind") == "chunk":
        c = request.chunk
        return ChunkView(c.transfer, c.offset, c.total, c.acknowledge, memoryview(c.data))
    return request


def parse_response(message: bytes) -> mesh_pb2.ExchangeResponse:
    """Parse an answer. Raises DecodeError for bytes that are no ExchangeResponse."""
    try:
        return mesh_pb2.ExchangeResponse.FromString(message)
    except ProtobufDecodeError as error:
        raise DecodeError("a mesh message is not valid protobuf") from error
