"""Chunks: the bytes are those of the protobuf runtime, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.outbound import Slicer
from edgegossip.mesh.wire import ChunkView, chunk_message, parse_request, parse_response
from edgegossip.types import DecodeError

u64 = st.integers(0, 2**64 - 1)


@given(
    u64, u64, u64, st.booleans(), st.lists(st.binary(max_size=300), max_size=4), st.sampled_from([0, 100, 127, 20_000])
)
def test_a_chunk_is_what_protobuf_makes_of_it(transfer, offset, total, ask, pieces, pad):
    pieces = [*pieces, bytes(pad)]
    message = chunk_message(transfer, offset, total, ask, [memoryview(p) for p in pieces])
    data = b"".join(pieces)
    chunk = pb.Chunk(transfer=transfer, offset=offset, total=total, acknowledge=ask, data=data)
    expected = pb.ExchangeRequest(chunk=chunk)
    assert pb.ExchangeRequest.FromString(message) == expected
    if data:  # protobuf leaves out an empty data field
        assert message == expected.SerializeToString()
    view = parse_request(message)
    assert isinstance(view, ChunkView)
    assert (view.transfer, view.offset, view.total, view.acknowledge, bytes(view.data)) == (
        transfer,
        offset,
        total,
        ask,
        data,
    )


def test_a_chunk_in_another_order_of_fields_means_the_same():
    chunk = bytes.fromhex("2a03616263") + b"\x09" + (7).to_bytes(8, "little") + b"\x19" + (3).to_bytes(8, "little")
    view = parse_request(b"\x12" + bytes([len(chunk)]) + chunk)
    assert (view.transfer, view.offset, view.total, bytes(view.data)) == (7, 0, 3, b"abc")


def outcome(message: bytes) -> object:
    try:
        parsed = parse_request(message)
    except DecodeError:
        return "invalid"
    if isinstance(parsed, ChunkView):
        return (parsed.transfer, parsed.offset, parsed.total, parsed.acknowledge, bytes(parsed.data))
    return parsed.SerializeToString()


def reference(message: bytes) -> object:
    try:
        request = pb.ExchangeRequest.FromString(message)
    except Exception:
        return "invalid"
    if request.WhichOneof("kind") == "chunk":
        c = request.chunk
        return (c.transfer, c.offset, c.total, c.acknowledge, c.data)
    return request.SerializeToString()


@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 255))
def test_a_damaged_chunk_is_read_as_protobuf_reads_it(data, at, byte):
    message = bytearray(chunk_message(3, 4, 5, True, [memoryview(data)]))
    message[at % len(message)] = byte
    assert outcome(bytes(message)) == reference(bytes(message))
    assert outcome(bytes(message[: at % len(message)])) == reference(bytes(message[: at % len(message)]))


@given(st.binary(max_size=80))
def test_any_bytes_are_read_as_protobuf_reads_them(message):
    assert outcome(message) == reference(message)
    assert outcome(b"\x12" + message) == reference(b"\x12" + message)


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_slices_cover_the_buffers_without_gaps(buffers, sizes):
    slicer, whole = Slicer([memoryview(b) for b in buffers]), b"".join(buffers)
    for size in sizes:
        assert b"".join(slicer.take(size)) == whole[:size]
        whole = whole[size:]


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05"])
def test_a_response_that_is_no_protobuf(message):
    with pytest.raises(DecodeError):
        parse_response(message)
