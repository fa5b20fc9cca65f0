"""The Elias coder's rival: quantisation to s uniform levels and Elias omega codes, as vectorised
numpy.

Encoding looks every code word up in a table, adds lengths up for bit positions and ORs whole 64-bit
words. Decoding takes one nonzero from every bucket at a time (buckets have known bit offsets, which
this format sends along), 17 bits by table. Both work on pieces of 4096 buckets, so that no
temporary grows with the model.

A bucket: for each nonzero omega(gap from the one before, 1-based), sign bit, omega(level); most
significant bit first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgegossip.types import Vec

_BITS = 17  # of omega(512), the longest that occurs
_LARGEST = 512
_PIECE = 4096  # buckets


@dataclass(frozen=True, slots=True)
class Piece:
    """Holds up to 4096 buckets as they would be sent."""

    norms: Vec
    counts: NDArray[np.uint16]  # nonzeros of each bucket
    starts: NDArray[np.uint32]  # bit at which it begins
    words: NDArray[np.uint64]


def omega(k: int) -> str:
    """Return Elias's recursive code of k >= 1: "0", 2 -> "100", 4 -> "101000" (Elias 1975)."""
    word = "0"
    while k > 1:
        word = f"{k:b}{word}"
        k = k.bit_length() - 1
    return word


@cache
def _coder() -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Code words and their lengths of 1 .. 512, by value."""
    words = ["", *(omega(k) for k in range(1, _LARGEST + 1))]
    return np.array([int(w or "0", 2) for w in words], np.uint64), np.array([len(w) for w in words], np.int64)


@cache
def _decoder() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(value, length) by the next 17 bits."""
    values, lengths = np.zeros(1 << _BITS, np.int64), np.ones(1 << _BITS, np.int64)
    for k in range(1, _LARGEST + 1):
        word = omega(k)
        start = int(word, 2) << (_BITS - len(word))
        values[start : start + (1 << (_BITS - len(word)))] = k
        lengths[start : start + (1 << (_BITS - len(word)))] = len(word)
    return values, lengths


class NumpyElias:
    """Codes as qsgd (or, with `levels`, elastiquant) with L2 norms of buckets of at most 512
    values, Elias coded."""

    def __init__(self, s: int, bucket: int, levels: tuple[float, ...] = ()) -> None:
        self.s, self.bucket, self._rng = s, bucket, np.random.default_rng(1)
        self.levels = np.array(levels, np.float32)

    def encode(self, x: Vec) -> list[Piece]:
        """Quantise and code float32[n], piece by piece."""
        return [self._encode(piece) for piece in self._pieces(x)]

    def decode(self, pieces: list[Piece], out: Vec) -> Vec:
        """Decode all pieces into `out`, float32[n], and return it."""
        at = 0
        for piece in pieces:
            size = min(out.size - at, len(piece.norms) * self.bucket)
            out[at : at + size] = self._decode(piece)[:size]
            at += size
        return out

    def _pieces(self, x: Vec) -> Iterator[Vec]:
        for start in range(0, x.size, _PIECE * self.bucket):
            piece = x[start : start + _PIECE * self.bucket]
            yield np.pad(piece, (0, -piece.size % self.bucket)).reshape(-1, self.bucket)

    def _quantise(self, rows: Vec) -> tuple[Vec, NDArray[np.int64]]:
        magnitudes = np.abs(rows)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float32))
        r = magnitudes / np.maximum(norms, np.finfo(np.float32).tiny)[:, None]
        u = self._rng.random(rows.shape, dtype=np.float32)
        if not self.levels.size:
            return norms, np.minimum(r * np.float32(self.s) + u, self.s).astype(np.int64)
        below = np.clip(np.searchsorted(self.levels, r, side="right") - 1, 0, self.levels.size - 2)
        low, high = self.levels[below], self.levels[below + 1]
        return norms, below + (u * (high - low) < r - low)

    def _encode(self, rows: Vec) -> Piece:
        norms, levels = self._quantise(rows)
        row, column = np.nonzero(levels)
        first = np.diff(row, prepend=-1) != 0
        gap = np.where(first, column + 1, np.diff(column, prepend=0))
        codes, lengths = _coder()
        level = levels[row, column]
        sign = (rows[row, column] < 0).astype(np.uint64)
        behind = lengths[level]
        word = (((codes[gap] << np.uint64(1)) | sign) << behind.astype(np.uint64)) | codes[level]
        size = lengths[gap] + 1 + behind
        end = np.cumsum(size)
        counts = np.bincount(row, minlength=len(rows))
        ends = np.concatenate(([0], end))[np.cumsum(counts)]
        starts = np.concatenate(([0], ends[:-1]))
        return Piece(norms, counts.astype(np.uint16), starts.astype(np.uint32), _put(word, end - size, size))

    def _decode(self, piece: Piece) -> Vec:
        values, lengths = _decoder()
        grid = self.levels if self.levels.size else np.arange(self.s + 1, dtype=np.float32) / np.float32(self.s)
        out = np.zeros((len(piece.norms), self.bucket), np.float32)
        rows = np.flatnonzero(piece.counts)
        at, column = piece.starts.astype(np.int64)[rows], np.full(len(rows), -1)
        left = piece.counts[rows].astype(np.int64)
        while rows.size:
            ahead = _peek(piece.words, at, _BITS)
            column = column + values[ahead]
            at = at + lengths[ahead]
            ahead = _peek(piece.words, at, _BITS + 1)
            negative, ahead = ahead >> _BITS, ahead & ((1 << _BITS) - 1)
            at = at + 1 + lengths[ahead]
            out[rows, column] = np.where(negative, -1, 1) * grid[values[ahead]] * piece.norms[rows]
            left = left - 1
            if (more := left > 0).sum() < left.size:
                rows, at, column, left = rows[more], at[more], column[more], left[more]
        return out.reshape(-1)


def _put(word: NDArray[np.uint64], at: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A stream of 64-bit words with these words of `size` bits at these bits, which follow each
    other."""
    total = int(at[-1] + size[-1]) if at.size else 0
    out = np.zeros(total // 64 + 2, np.uint64)
    if not at.size:
        return out
    into, room = at >> 6, 64 - (at & 63) - size
    fits = room >= 0
    high = np.where(fits, word << np.maximum(room, 0).astype(np.uint64), word >> np.maximum(-room, 0).astype(np.uint64))
    begins = np.flatnonzero(np.diff(into, prepend=-1))
    out[into[begins]] = np.bitwise_or.reduceat(high, begins)
    over = ~fits  # at most one word crosses each border
    out[into[over] + 1] |= word[over] << (64 + room[over]).astype(np.uint64)
    return out


def _peek(words: NDArray[np.uint64], at: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """The `bits` bits from bit `at` on."""
    index, shift = at >> 6, (at & 63).astype(np.uint64)
    low = (words[index + 1] >> np.uint64(1)) >> (np.uint64(63) - shift)
    found: NDArray[np.int64] = (((words[index] << shift) | low) >> np.uint64(64 - bits)).astype(np.int64)
    return found
