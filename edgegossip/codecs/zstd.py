"""The entropy coder zstd: sections of u8 4, scales as in a raw section, u32 size, and a Zstandard
frame of the tensor's symbols, made and read piece by piece.

Symbols (native.quantise) are codes in the next 1, 2, 4, 8 or 16 bits, which zstd packs better than
codes that lie across bytes. They are made, packed, unpacked and turned into values a piece at a
time, never all at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.checks import all_finite
from edgegossip.native import quantise
from edgegossip.native.quantise import LevelKind, Quantiser
from edgegossip.types import DecodeError, HostError, Vec

SECTION = 4  # the first byte of such a section
_SIZE = struct.Struct("<I")
_FRAME_BYTES = 64  # around the codes, at most
_PIECE = 1 << 17  # values; a multiple of every bucket
LEAST_VALUES = 1024  # of a tensor: a frame costs a receiver as much time as thousands of values with other coders
_SAMPLES, _SAMPLE = 4, 1 << 14  # pieces that tell whether a frame would be shorter, and values of each
_NEAR = 1.02  # times what another coder takes: so much the samples may be off


def shorten(values: Vec, quantiser: Quantiser, key: int, out: NDArray[np.uint8], size: int, asked: bool) -> int:
    """Replace the section that `out` begins with, `size` bytes, by a zstd one where that is
    shorter; the size then.

    `asked`: the user wants zstd; otherwise it is tried on samples of a large tensor first. Tensors
    of fewer than LEAST_VALUES have no such section.
    """
    if values.size < LEAST_VALUES:
        return size
    scale_bytes = quantiser.scale_bytes(values.size)
    symbols = _Symbols(values, _read_scales(out[1 : 1 + scale_bytes].data, quantiser), quantiser, key)
    if not asked and not symbols.may_shrink_to((size - 1 - scale_bytes) / values.size):
        return size
    frame = compress(symbols.of(_pieces(values.size)))
    start = 1 + scale_bytes + _SIZE.size
    if start + len(frame) >= size:
        return size
    out[0] = SECTION
    out[1 + scale_bytes : start] = np.frombuffer(_SIZE.pack(len(frame)), np.uint8)
    out[start : start + len(frame)] = np.frombuffer(frame, np.uint8)
    return start + len(frame)


@dataclass(frozen=True, slots=True)
class _Symbols:
    """A tensor's symbols, made a piece at a time."""

    values: Vec
    scales: Vec
    quantiser: Quantiser
    key: int

    def of(self, spans: list[tuple[int, int]]) -> Iterator[memoryview]:
        """Those of values first .. last of each span, which start at buckets. Valid until the next
        are made."""
        q = self.quantiser
        scratch = np.empty(q.symbol_bytes(max(last - first for first, last in spans)), np.uint8)
        for first, last in spans:
            out = scratch[: q.symbol_bytes(last - first)]
            scales = _scales_of(self.scales, q, first, last)
            quantise.quantise(q, self.values[first:last], scales, self.key, first, out)
            yield out.data

    def may_shrink_to(self, bytes_a_value: float) -> bool:
        """Whether samples of a large tensor come to about so few bytes a value; True of a small
        one."""
        each = max(_SAMPLE, self.quantiser.bucket)
        if self.values.size <= _SAMPLES * each:
            return True
        part = self.values.size // _SAMPLES // each * each
        spans = [(k * part, k * part + each) for k in range(_SAMPLES)]
        return len(compress(self.of(spans))) <= _NEAR * bytes_a_value * _SAMPLES * each


def decode(
    body: memoryview, at: int, quantiser: Quantiser, n: int, out: Vec | None, weight: float | None, of: str
) -> int:
    """Decode the section at `at` into float32[n], or only check it (`out` is None). The position
    after it.

    Raises DecodeError, which speaks `of` a codec's body and tensor.
    """
    if n < LEAST_VALUES:
        raise DecodeError(f"{of} is invalid: {n} values have no zstd frame")
    scales_at = at + 1
    size_at = scales_at + quantiser.scale_bytes(n)
    start = size_at + _SIZE.size
    if start > len(body):
        raise DecodeError(f"{of} is invalid: it ends early")
    end = start + int(_SIZE.unpack_from(body, size_at)[0])
    if end > len(body):
        raise DecodeError(f"{of} is invalid: it ends early")
    if (
        end - start > quantiser.symbol_bytes(n) + _FRAME_BYTES
    ):  # never sent, and would take as long to walk as the peer likes
        raise DecodeError(f"{of} is invalid: it is longer than the codes as they are")
    scales = _read_scales(body[scales_at:size_at], quantiser)
    if not _scales_are_good(scales, quantiser):
        raise DecodeError(f"{of} is invalid: a scale is not finite, below zero, or has values beyond float32")
    scratch = np.empty(min(n, _PIECE), np.float32) if out is None else None
    spans = _pieces(n)
    sizes = [quantiser.symbol_bytes(last - first) for first, last in spans]
    for (first, last), symbols in zip(spans, decompress(body[start:end], sizes), strict=True):
        target = scratch[: last - first] if scratch is not None else out[first:last]  # type: ignore[index]
        if not quantise.dequantise(quantiser, symbols, _scales_of(scales, quantiser, first, last), target, weight):
            raise DecodeError(f"{of} is invalid: a code is none of this codec's")
        if _padding(symbols, last - first, quantiser):
            raise DecodeError(f"{of} is invalid: unused bits are set")
    return end


def _read_scales(stored: memoryview, quantiser: Quantiser) -> Vec:
    """float32[m]; of buckets from the upper halves of float32 without a sign."""
    if not quantiser.bucket:
        return np.frombuffer(stored, "<f4").astype(np.float32)
    return (np.frombuffer(stored, "<u2").astype(np.uint32) << 15).view(np.float32)


def _scales_are_good(scales: Vec, quantiser: Quantiser) -> bool:
    """Finite, not negative; and those that divide have a finite largest value."""
    if not all_finite(scales) or (scales < 0).any():
        return False
    if quantiser.kind is not LevelKind.FP4:
        return True
    with np.errstate(over="ignore"):
        return all_finite(np.divide(np.float32(3), scales[scales > 0]))


def _padding(symbols: bytes, n: int, quantiser: Quantiser) -> int:
    """What stands in the bits after the last code."""
    used = n * next(width for width in (1, 2, 4, 8, 16) if width >= quantiser.bits) % 8
    return symbols[-1] >> used if used else 0


def _pieces(n: int) -> list[tuple[int, int]]:
    return [(first, min(first + _PIECE, n)) for first in range(0, n, _PIECE)]


def _scales_of(scales: Vec, quantiser: Quantiser, first: int, last: int) -> Vec:
    """The scales of values first .. last."""
    b = quantiser.bucket
    return scales[first // b : -(-last // b)] if b else scales


# A frame (RFC 8878) has no checksum, dictionary or content size, and a window of at most 256 KiB,
# so that a receiver needs little memory for any frame. The same library version gives the same
# bytes everywhere; another version may pack the same codes otherwise.

_WINDOW_LOG = 18
_LEVEL = 1
_FRAME_HEAD = b"\x28\xb5\x2f\xfd\x00"  # magic number and a frame header without options
_BLOCKS_AT = len(_FRAME_HEAD) + 1  # after the window descriptor
_MIN_BLOCKS, _MEAN_BLOCK_BYTES = 16, 4096  # far more blocks than the library makes, which are 128 KiB each
_LAST, _RLE = 1, 1  # bits of a block header


def compress(pieces: Iterable[memoryview]) -> bytes:
    """Return one frame around the pieces."""
    zstandard = _library()

    params = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, write_content_size=False, write_checksum=False
    )
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    return b"".join([*(packer.compress(piece) for piece in pieces), packer.flush()])


def decompress(payload: memoryview, sizes: Iterable[int]) -> Iterator[bytes]:
    """Yield pieces of these sizes in bytes, which must be all that the frame holds. Raises
    DecodeError, when it comes to it."""
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
    """zstandard, imported here because only runs that use it pay for its memory. Raises
    HostError without it."""
    try:
        import zstandard
    except ImportError:
        raise HostError(
            "the entropy coder zstd needs the package zstandard, which is not installed: pip install zstandard"
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
    if bytes(payload[: len(_FRAME_HEAD)]) != _FRAME_HEAD or len(payload) <= _BLOCKS_AT:
        raise DecodeError("a zstd section holds something else than a plain zstd frame")
    exponent, mantissa = payload[len(_FRAME_HEAD)] >> 3, payload[len(_FRAME_HEAD)] & 7
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
