"""The zstd stage: one Zstandard frame (RFC 8878) around the raw codes of a tensor, made and read
piece by piece.

Frames have no checksum, dictionary or content size, and a window of at most 256 KiB, so a receiver
needs little memory for any frame. The same library version gives the same bytes everywhere; another
version may pack the same codes otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from edgegossip.types import DecodeError, HostError

_WINDOW_LOG = 18
_LEVEL = 1
_HEAD = b"\x28\xb5\x2f\xfd\x00"  # magic number and a frame header without options
_BLOCKS_AT = len(_HEAD) + 1  # after the window descriptor
_MIN_BLOCKS, _MEAN_BLOCK_BYTES = 16, 4096  # far more blocks than the library makes, which are 128 KiB each
_LAST, _RLE = 1, 1  # bits of a block header


def compress(pieces: Iterable[memoryview]) -> bytes:
    """One frame around the pieces."""
    zstandard = _library()

    params = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, write_content_size=False, write_checksum=False
    )
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    return b"".join([*(packer.compress(piece) for piece in pieces), packer.flush()])


def decompress(payload: memoryview, sizes: Iterable[int]) -> Iterator[bytes]:
    """Pieces of these sizes in bytes, which must be all that the frame holds. Raises DecodeError,
    when it comes to it."""
    zstandard = _library()
    sizes = list(sizes)
    _require_frame(payload, _MIN_BLOCKS + sum(sizes) // _MEAN_BLOCK_BYTES)
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
    try:
        with unpacker.stream_reader(payload, read_size=1 << 16, closefd=False) as reader:
            for size in sizes:
                yield _read(reader, size)
            if reader.read(1):
                raise DecodeError("a zstd frame holds more than its tensor's codes")
    except zstandard.ZstdError as error:
        raise DecodeError(f"a zstd frame is damaged: {error}") from None


def _library() -> ModuleType:
    """zstandard, imported here because only runs that use the stage pay for its memory. Raises
    HostError without it."""
    try:
        import zstandard
    except ImportError:
        raise HostError(
            "the zstd stage needs the package zstandard, which is not installed: pip install zstandard"
        ) from None
    return zstandard


def _read(reader: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = reader.read(size - len(data))
        if not more:
            raise DecodeError(f"a zstd frame ends {size - len(data)} bytes early")
        data = data + more if data else more
    return data


def _require_frame(payload: memoryview, max_blocks: int) -> None:
    """Raises DecodeError unless these bytes are one frame of our form, to the last byte, with no
    more blocks than that."""
    if bytes(payload[: len(_HEAD)]) != _HEAD or len(payload) <= _BLOCKS_AT:
        raise DecodeError("a zstd section holds something else than a plain zstd frame")
    exponent, mantissa = payload[len(_HEAD)] >> 3, payload[len(_HEAD)] & 7
    if (1 << exponent + 10) * (8 + mantissa) > 8 << _WINDOW_LOG:
        raise DecodeError(f"a zstd frame asks for a window of more than {1 << _WINDOW_LOG} bytes")
    at, last, blocks = _BLOCKS_AT, False, 0
    while not last:
        blocks += 1
        if blocks > max_blocks:
            raise DecodeError(f"a zstd frame has more than {max_blocks} blocks")
        if len(payload) - at < 3:
            raise DecodeError("a zstd frame ends within a block's header")
        header = int.from_bytes(payload[at : at + 3], "little")
        last, kind, size = bool(header & _LAST), header >> 1 & 3, header >> 3
        if size == 0 and not last:
            raise DecodeError("a zstd frame has an empty block before its last")
        at += 3 + (1 if kind == _RLE else size)
        if at > len(payload):
            raise DecodeError("a zstd frame ends within a block")
    if at != len(payload):
        raise DecodeError(f"a zstd frame is followed by {len(payload) - at} bytes that do not belong to it")
