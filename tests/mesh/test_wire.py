"""Chunks and answers as bytes."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.mesh.outbound import Slicer
from edgegossip.mesh.wire import ChunkView, chunk_message, parse_request, parse_response
from edgegossip.types import DecodeError

u64 = st.integers(0, 2**64 - 1)


@given(u64, u64, u64, st.booleans(), st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4))
def test_a_chunk_has_its_numbers_in_order_each_of_eight_bytes_and_the_data_at_its_end(
    transfer, offset, total, ask, pieces
):
    data = b"".join(pieces)
    message = chunk_message(transfer, offset, total, ask, [memoryview(p) for p in pieces])
    numbers = b"".join(
        bytes((tag,)) + struct.pack("<Q", n) for tag, n in zip((9, 17, 25), (transfer, offset, total), strict=True)
    )
    chunk = numbers + bytes((32, ask, 42)) + varint(len(data)) + data
    assert message == b"\x12" + varint(len(chunk)) + chunk
    view = parse_request(message)
    assert isinstance(view, ChunkView)
    assert (*view[:4], bytes(view.data)) == (transfer, offset, total, ask, data)


def varint(number: int) -> bytes:
    return bytes((number,)) if number < 128 else bytes((number & 127 | 128,)) + varint(number >> 7)


def test_a_chunk_in_another_order_of_fields_means_the_same():
    chunk = bytes.fromhex("2a03616263") + b"\x09" + (7).to_bytes(8, "little") + b"\x19" + (3).to_bytes(8, "little")
    view = parse_request(b"\x12" + bytes([len(chunk)]) + chunk)
    assert (view.transfer, view.offset, view.total, bytes(view.data)) == (7, 0, 3, b"abc")


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(message):
    for bytes_ in (message, b"\x12" + message):
        with suppress(DecodeError):
            parse_request(bytes_)


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
