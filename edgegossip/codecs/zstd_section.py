"""Sections of stage zstd: u8 4, scales as in a raw section, u32 size, a zstd frame of the tensor's
symbols.

Symbols (native.quantise) are codes in the next 1, 2, 4, 8 or 16 bits, which zstd packs better than
codes that lie across bytes. They are made, packed, unpacked and turned into values a piece at a
time, never all at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs import zstd
from edgegossip.codecs.checks import all_finite
from edgegossip.native import quantise
from edgegossip.native.quantise import Kind, Quantiser
from edgegossip.types import DecodeError, Vec

STAGE = 4
_SIZE = struct.Struct("<I")
_FRAME_BYTES = 64  # around the codes, at most
_PIECE = 1 << 17  # values; a multiple of every bucket
LEAST_VALUES = 1024  # of a tensor: a frame costs a receiver as much time as thousands of values in other stages
_SAMPLES, _SAMPLE = 4, 1 << 14  # pieces that tell whether a frame would be shorter, and values of each
_NEAR = 1.02  # times what another stage takes: so much the samples may be off


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
    frame = zstd.compress(symbols.of(_pieces(values.size)))
    start = 1 + scale_bytes + _SIZE.size
    if start + len(frame) >= size:
        return size
    out[0] = STAGE
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
        return len(zstd.compress(self.of(spans))) <= _NEAR * bytes_a_value * _SAMPLES * each


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
    for (first, last), symbols in zip(spans, zstd.decompress(body[start:end], sizes), strict=True):
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
    if quantiser.kind is not Kind.FP4:
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
