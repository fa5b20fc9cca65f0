"""The zstd coder: frames that are read in pieces, to the last byte, whatever they claim."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.codecs.zstd import compress, decompress
from edgegossip.types import DecodeError

DATA = bytes(1000) + bytes(range(256)) * 5 + b"\7" * 300_000


def unpack(payload: bytes, sizes: list[int]) -> list[bytes]:
    return list(decompress(memoryview(payload), sizes))


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_round_trip_in_any_pieces(pieces: list[bytes]) -> None:
    payload = compress([memoryview(p) for p in pieces])
    assert unpack(payload, [len(p) for p in pieces]) == pieces
    assert b"".join(unpack(payload, [1] * len(b"".join(pieces)))) == b"".join(pieces)


def test_others_read_our_frames() -> None:
    payload = compress([memoryview(DATA)])
    assert zstandard.ZstdDecompressor().decompressobj().decompress(payload) == DATA
    assert len(payload) < 700


@pytest.mark.parametrize(
    ("size", "message"), [(len(DATA) + 1, "ends 1 bytes early"), (len(DATA) - 1, "holds more than")]
)
def test_another_size(size: int, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        unpack(compress([memoryview(DATA)]), [size])


GOOD = compress([memoryview(DATA)])


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "something else than a plain zstd frame"),
        (b"PK\x03\x04" + bytes(40), "something else than a plain zstd frame"),
        (zstandard.ZstdCompressor(write_content_size=True).compress(DATA), "something else than a plain zstd frame"),
        (zstandard.ZstdCompressor(write_checksum=True).compress(DATA), "something else than a plain zstd frame"),
        (GOOD[:5] + b"\x80" + GOOD[6:], "asks for a window of more than 262144 bytes"),
        (GOOD[:7], "ends within a block's header"),
        (GOOD[:-1], "ends within a block"),
        (GOOD + b"\0", "followed by 1 bytes"),
        (GOOD[:6] + b"\x01\x00\x00", "ends 302280 bytes early"),
        (GOOD[:6] + b"\x0d\x00\x00" + b"\xff", "a zstd frame is damaged"),
    ],
)
def test_damaged_frames(payload: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        unpack(payload, [len(DATA)])


def test_a_bomb_is_read_no_further_than_its_tensor_is_long() -> None:
    """2 MiB of zeros from 60 bytes: only the pieces that are asked for are ever made."""
    block = (0 << 0 | 1 << 1 | (1 << 17) << 3).to_bytes(3, "little") + b"\0"
    last = (1 << 0 | 1 << 1 | (1 << 17) << 3).to_bytes(3, "little") + b"\0"
    bomb = GOOD[:6] + block * 14 + last
    with pytest.raises(DecodeError, match="holds more than its tensor's codes"):
        unpack(bomb, [4096])


def test_many_small_blocks_are_refused_at_once() -> None:
    small = (1 << 1 | 1 << 3).to_bytes(3, "little") + b"\0"
    with pytest.raises(DecodeError, match="more than 17 blocks"):
        unpack(GOOD[:6] + small * 4095 + b"\x0b\0\0\0", [4096])
    empty = bytes(3)
    with pytest.raises(DecodeError, match="an empty block before its last"):
        unpack(GOOD[:6] + empty * 4 + GOOD[6:], [len(DATA)])
