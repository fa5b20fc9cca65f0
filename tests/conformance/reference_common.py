"""What the plain references share: tensors of a vector, bits of bytes, random numbers. Shares no
code with the product."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

Shapes = tuple[tuple[int, ...], ...]
KEY = 1  # of the golden vectors
FLOAT32_MAX = float(np.finfo(np.float32).max)
M64, M32 = 2**64 - 1, 2**32 - 1


def split(values: np.ndarray, shapes: Shapes) -> list[np.ndarray]:
    return np.split(values, np.cumsum([math.prod(s) for s in shapes], dtype=int))[:-1]


def pack(values: Sequence[float], form: str) -> bytes:
    if form == "fp32":
        return struct.pack(f"<{len(values)}f", *values)
    return struct.pack(f"<{len(values)}e", *(min(65504.0, max(-65504.0, v)) for v in values))


def varint(k: int) -> bytes:
    return bytes([k]) if k < 128 else bytes([k & 127 | 128]) + varint(k >> 7)


def bits_to_bytes(bits: str) -> bytes:
    """The first bit of the string lies lowest in the first byte."""
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))


def bits_of(data: bytes) -> str:
    return "".join(low_first(byte, 8) for byte in data)


def low_first(value: int, width: int) -> str:
    return format(value, f"0{width}b")[::-1] if width else ""


# Randomness: SplitMix64's finaliser for the tensor, a counter hashed twice for the pair of values.


def tensor_key(key: int, k: int) -> int:
    z = (key + 0x9E3779B97F4A7C15 * (k + 1)) & M64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return z ^ z >> 31


def uniform32(key: int, first: int, n: int) -> np.ndarray:
    """uint32[n], of the elements from `first` on."""
    i = np.arange(first, first + n, dtype=np.uint64)
    x = (i >> 1) * 0x9E3779B9 + (key & M32) & M32
    x = (x ^ x >> 16) * 0x7FEB352D + (key >> 32) & M32
    x = (x ^ x >> 15) * 0x846CA68B & M32
    x ^= x >> 16
    return np.where(i % 2 == 0, x, (x << 16 | x >> 16) & M32).astype(np.uint32)
