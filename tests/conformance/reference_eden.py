"""eden the slow, plain way: docs/wire-format.md ("EDEN") line by line, in float32 and float64."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from tests.conformance.reference_common import FLOAT32_MAX, KEY, Shapes, tensor_key, uniform32

LEVELS = {
    1: [0.7978845608028654],
    2: [0.45278003463649286, 1.510417608499097],
    3: [0.24509417894422303, 0.7560052812058806, 1.343909278505004, 2.151945704536991],
    4: [
        *(0.12839502985114712, 0.3880482994902903, 0.6567591185324636, 0.9423404564869611),
        *(1.256231197347176, 1.6180463860218808, 2.0690172265313795, 2.732589570995171),
    ],
}
# Halfway between two levels, to the last bit as the kernels have them.
LIMITS: dict[int, list[float]] = {
    1: [],
    2: [0.9815988215677949],
    3: [0.5005497300750519, 1.0499572798554424, 1.7479274915209975],
    4: [
        *(0.2582216646707187, 0.5224037090113769, 0.7995497875097124, 1.0992858269170687),
        *(1.4371387916845284, 1.8435318062766302, 2.4008033987632755),
    ],
}


def blocks(n: int) -> list[int]:
    left, sizes = -(-n // 32) * 32, []
    while left:
        sizes.append(min(4096, 1 << (left.bit_length() - 1)))
        left -= sizes[-1]
    return sizes


def signs(key: int, position: int, d: int) -> Iterator[np.ndarray]:
    """float32[d] of +-1 for each rotation."""
    for r in range(rounds(d)):
        words = uniform32(key, 2 * (position // 4 + r * d // 32), d // 16)[::2].tolist()
        yield np.array([-1 if words[i // 32] >> i % 32 & 1 else 1 for i in range(d)], np.float32)


def rounds(d: int) -> int:
    return {32: 8, 64: 6, 128: 4, 256: 4, 512: 3}.get(d, 2)


def factor(d: int) -> int:
    return (rounds(d) * (d.bit_length() - 1) + 1) // 2 - 2


def hadamard(v: np.ndarray) -> np.ndarray:
    half = v.size // 2
    while half:
        pairs = v.reshape(-1, 2, half)
        v = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1).reshape(-1)
        half //= 2
    return v


def summed(v: np.ndarray) -> float:
    """Value i in lane i mod 32, lanes as a tree, float32 within 512 values and float64 between."""
    total = 0.0
    for start in range(0, v.size, 512):
        lanes = np.zeros(32, np.float32)
        for row in np.pad(v[start : start + 512], (0, -v[start : start + 512].size % 32)).reshape(-1, 32):
            lanes += row
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        total += float(lanes[0])
    return total


def squares_of(x: np.ndarray) -> float:
    with np.errstate(over="ignore", under="ignore"):
        squares = summed(x * x)
    if 2.0**-80 <= squares < np.inf:
        return squares
    lanes = np.zeros(8)
    for row in np.pad(x.astype(np.float64), (0, -x.size % 8)).reshape(-1, 8):
        lanes += row * row
    return float(sum(lanes.tolist()))


def body_of_block(x: np.ndarray, d: int, bits: int, key: int, position: int) -> bytes:
    squares = squares_of(x)
    if squares == 0:
        return bytes(4 + bits * d // 8)
    norm = np.sqrt(squares)
    near_one = np.float32(2.0 ** -min(126, max(-126, int(np.frexp(norm)[1]) - 1)))
    u = np.pad(x, (0, d - x.size)) * near_one
    for sign in signs(key, position, d):
        u = hadamard(u * sign)
    deviation = norm * float(near_one)
    for _ in range(rounds(d) - 1):
        deviation *= np.sqrt(float(d))
    limits = np.array(LIMITS[bits]) * deviation
    level = np.searchsorted(limits.astype(np.float32), np.abs(u), side="right")
    product = summed(np.abs(u) * np.array(LEVELS[bits], np.float32)[level])
    scale = squares * float(near_one) / product * 2.0 ** factor(d)
    planes = [np.signbit(u), *(level >> b & 1 for b in range(bits - 2, -1, -1))]
    packed = b"".join(np.packbits(plane.astype(bool), bitorder="little").tobytes() for plane in planes)
    return struct.pack("<f", min(scale, FLOAT32_MAX)) + packed


def values_of_block(body: bytes, d: int, bits: int, key: int, position: int) -> np.ndarray:
    scale = np.float32(struct.unpack_from("<f", body)[0])
    if scale == 0:
        return np.zeros(d, np.float32)
    planes = np.unpackbits(np.frombuffer(body, np.uint8, offset=4), bitorder="little").reshape(bits, d)
    level = np.zeros(d, np.int64)
    for plane in planes[1:]:
        level = 2 * level + plane
    u = np.array(LEVELS[bits], np.float32)[level] * np.where(planes[0], -1, 1).astype(np.float32)
    for sign in reversed(list(signs(key, position, d))):
        u = hadamard(u) * sign
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(u * np.float32(2.0 ** -factor(d)) * scale, -FLOAT32_MAX, FLOAT32_MAX)


def eden(x: np.ndarray, shapes: Shapes, bits: int = 2) -> bytes:
    body, at = struct.pack("<Q", KEY), 0
    for k, shape in enumerate(shapes):
        n, position = int(np.prod(shape, dtype=np.int64)), 0
        for d in blocks(n):
            part = x[at + position : at + min(n, position + d)]
            body += body_of_block(part, d, bits, tensor_key(KEY, k), position)
            position += d
        at += n
    return body


def eden_values(body: bytes, shapes: Shapes, bits: int = 2) -> list[float]:
    key, at = struct.unpack_from("<Q", body)[0], 8
    values: list[float] = []
    for k, shape in enumerate(shapes):
        n, position = int(np.prod(shape, dtype=np.int64)), 0
        for d in blocks(n):
            size = 4 + bits * d // 8
            block = values_of_block(body[at : at + size], d, bits, tensor_key(key, k), position)
            values += block[: n - position].tolist()
            position, at = position + d, at + size
    return values
