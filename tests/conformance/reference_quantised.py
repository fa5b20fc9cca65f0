"""Bodies of the quantised codecs, value by value, with every float32 operation written out. Shares
no code with the product.

A body is an optional head and a section for every tensor that has values: coder, scales, payload.
The coders huffman and runs are in reference_coders.py. The arithmetic of
norms and moments (lanes and the order of sums) is part of the format, because a scale's last bit
decides about codes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tests.conformance.reference_coders import (
    OWN_TABLE_FROM,
    bits_to_bytes,
    huffman,
    huffman_codes,
    low_first,
    omega,
    read_omega,
    runs,
    runs_codes,
)

Shapes = tuple[tuple[int, ...], ...]

F = np.float32
KEY = 1  # of the golden vectors
FLT_MAX = float(np.finfo(np.float32).max)
M64, M32 = 2**64 - 1, 2**32 - 1


@dataclass(frozen=True)
class Grid:
    """Codes of one quantiser: `kind` is uniform, log2, levels, fp4 or sign."""

    kind: str
    bits: int
    s: int = 0
    bucket: int = 0
    levels: tuple[float, ...] = ()

    @property
    def largest(self) -> int:
        """The largest level."""
        return {"log2": self.s + 1, "levels": len(self.levels) - 1, "fp4": 5}.get(self.kind, self.s)


def split(values: np.ndarray, shapes: Shapes) -> list[np.ndarray]:
    return np.split(values, np.cumsum([math.prod(s) for s in shapes])[:-1])


# Randomness: SplitMix64's finaliser for the tensor, a counter hashed twice for the pair of values.


def tensor_key(key: int, k: int) -> int:
    z = (key + 0x9E3779B97F4A7C15 * (k + 1)) & M64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return z ^ z >> 31


def uniform32(key: int, i: int) -> int:
    a, b = key & M32, key >> 32
    x = ((i >> 1) * 0x9E3779B9 + a) & M32
    x ^= x >> 16
    x = (x * 0x7FEB352D + b) & M32
    x ^= x >> 15
    x = (x * 0x846CA68B) & M32
    x ^= x >> 16
    return x if i % 2 == 0 else (x << 16 | x >> 16) & M32


# Scales.


def squares_of_512(x: Sequence[np.float32]) -> np.float32:
    """32 lanes of float32, added as a tree."""
    lanes = [F(0)] * 32
    for i, v in enumerate(x):
        lanes[i % 32] = lanes[i % 32] + v * v
    width = 16
    while width:
        lanes = [lanes[k] + lanes[k + width] for k in range(width)]
        width //= 2
    return lanes[0]


def moments(x: np.ndarray) -> tuple[float, float]:
    """Sum |x| and sum x^2 in 8 lanes of float64; blocks of 65536 are added in order."""
    total = [0.0, 0.0]
    for start in range(0, x.size, 65536):
        sizes, squares = [0.0] * 8, [0.0] * 8
        for i, v in enumerate(x[start : start + 65536].tolist()):
            sizes[i % 8] += abs(v)
            squares[i % 8] += v * v
        total[0] += sum(sizes)
        total[1] += sum(squares)
    return total[0], total[1]


def narrow(v: float) -> np.float32:
    return F(min(v, FLT_MAX))


def l2(x: np.ndarray, bucketed: bool) -> np.float32:
    with np.errstate(over="ignore", under="ignore"):
        total = sum(float(squares_of_512(list(x[i : i + 512]))) for i in range(0, x.size, 512)) if bucketed else 0.0
    if not 2.0**-80 <= total <= np.finfo(np.float64).max:
        total = moments(x)[1]
    return narrow(math.sqrt(total))


def as_it_travels(norm: np.float32) -> np.float32:
    """A bucket's norm with 8 bits of mantissa, rounded up; the largest finite one for all above."""
    word = struct.unpack("<I", struct.pack("<f", norm))[0]
    while word % 2**15:
        word += 1
    return F(struct.unpack("<f", struct.pack("<I", min(word, 0xFEFF << 15)))[0])


def linf(x: np.ndarray, bucketed: bool) -> np.float32:
    return F(np.abs(x).max())


def mean_magnitude(x: np.ndarray, bucketed: bool) -> np.float32:
    return F(moments(x)[0] / x.size)


def clipped(clip: float) -> Callable[[np.ndarray, bool], np.float32]:
    def scale(x: np.ndarray, bucketed: bool) -> np.float32:
        largest = float(np.abs(x).max())
        return F(min(largest, clip * math.sqrt(moments(x)[1] / x.size)) if clip else largest)

    return scale


# Codes.


def before_and_factor(grid: Grid, scale: np.float32) -> tuple[np.float32, np.float32]:
    """What |v| is multiplied by, one after the other."""
    if grid.kind == "fp4":
        return F(1), scale
    if scale == 0:
        return F(1), F(0)
    before = F(2.0**64) if scale < F(2.0**-60) else F(2.0**-64) if scale > F(2.0**60) else F(1)
    top = F(grid.s) * F(2.0 ** (32 - grid.bits) if grid.bits > 8 else 2.0**24) if grid.kind == "uniform" else F(1)
    return before, top / (scale * before)


def level_of(grid: Grid, a: np.float32, u: int) -> int:
    """The level of a = |v| times its factor; u is uniform in uint32."""
    if grid.kind == "uniform":
        fraction = 32 - grid.bits if grid.bits > 8 else 24
        return (int(min(a, F(grid.s) * F(2.0**fraction))) + (u >> 32 - fraction)) >> fraction
    if grid.kind == "fp4":
        return sum(a > edge for edge in (0.25, 0.75, 1.25, 1.75, 2.5))
    r = min(a, F(1))
    if grid.kind == "log2":
        t = r * F(2.0**grid.s)
        bits = struct.unpack("<I", struct.pack("<f", max(t + F(1), t + t)))[0]
        return (bits + (u >> 9) >> 23) - 127
    levels = [F(v) for v in grid.levels]
    j = max(k for k, level in enumerate(levels) if level <= r)
    if j == len(levels) - 1:
        return j
    return j + int(F(u >> 8) * F(2.0**-24) < (r - levels[j]) * (F(1) / (levels[j + 1] - levels[j])))


def code_of(grid: Grid, v: np.float32, scale: np.float32, u: int) -> int:
    if grid.kind == "sign":
        return int(v < 0)
    before, factor = before_and_factor(grid, scale)
    with np.errstate(over="ignore", under="ignore"):
        level = level_of(grid, abs(v) * before * factor, u)
    return level | (1 << grid.bits - 1 if level and np.signbit(v) else 0)


def value_of(grid: Grid, code: int, scale: np.float32) -> float:
    negative, level = code >> grid.bits - 1, code & (1 << grid.bits - 1) - 1
    if grid.kind == "sign":
        unit = F(1)
    elif grid.kind == "uniform":
        unit = F(level) / F(grid.s)
    elif grid.kind == "log2":
        unit = F(2.0 ** (level - 1 - grid.s)) if level else F(0)
    elif grid.kind == "fp4":
        with np.errstate(over="ignore", under="ignore"):
            return float(F((0, 0.5, 1, 1.5, 2, 3)[level]) / scale * (-1 if negative else 1)) if scale else 0.0
    else:
        unit = F(grid.levels[level])
    with np.errstate(under="ignore"):
        return float(unit * scale * F(-1 if negative else 1))


# Sections.

SMALLEST = {"huffman": OWN_TABLE_FROM, "runs": OWN_TABLE_FROM}  # values that a tensor has for a coder


def buckets(x: Sequence[object], bucket: int) -> Iterator[tuple[int, int]]:
    width = bucket or len(x)
    return ((start, min(start + width, len(x))) for start in range(0, len(x), width))


def section(x: np.ndarray, grid: Grid, norm: Callable[[np.ndarray, bool], np.float32], key: int, stage: str) -> bytes:
    scales, codes = [], []
    for start, end in buckets(x, grid.bucket):
        scale = norm(x[start:end], grid.bucket != 0)
        if grid.bucket:
            scale = as_it_travels(scale)
        scales.append(scale)
        codes += [code_of(grid, x[i], scale, uniform32(key, i)) for i in range(start, end)]
    head = struct.pack(f"<{len(scales)}f", *scales)
    if grid.bucket:  # the 16 bits below the sign
        head = b"".join(struct.pack("<H", word >> 15) for (word,) in struct.iter_unpack("<I", head))
    if stage == "raw" or len(x) < SMALLEST.get(stage, 0):
        return b"\0" + head + bits_to_bytes("".join(low_first(c, grid.bits) for c in codes))
    number, payload = {
        "huffman": lambda: (b"\1", huffman(codes, grid.bits, grid.largest)),
        "runs": lambda: (b"\2", runs(codes, grid.bits, grid.largest)),
        "elias": lambda: (b"\3", elias(codes, grid)),
    }[stage]()
    return number + head + struct.pack("<I", len(payload)) + payload


def elias(codes: list[int], grid: Grid) -> bytes:
    """The number of nonzeros, then for each: omega(gap), sign, omega(level)."""
    bits, previous, nonzeros = "", -1, 0
    for i, code in enumerate(codes):
        if code:
            bits += omega(i - previous) + str(code >> grid.bits - 1) + omega(code & (1 << grid.bits - 1) - 1)
            previous, nonzeros = i, nonzeros + 1
    return struct.pack("<I", nonzeros) + bits_to_bytes(bits)


def codes_of_elias(payload: bytes, n: int, grid: Grid) -> list[int]:
    codes, at, i = [0] * n, 0, -1
    bits = "".join(low_first(byte, 8) for byte in payload[4:])
    for _ in range(struct.unpack_from("<I", payload)[0]):
        gap, at = read_omega(bits, at)
        i += gap
        level, after = read_omega(bits, at + 1)
        codes[i] = int(bits[at]) << grid.bits - 1 | level
        at = after
    return codes


def encode(x: np.ndarray, shapes: Shapes, grid: Grid, norm: Callable[..., np.float32], stage: str = "raw") -> bytes:
    return b"".join(section(t, grid, norm, tensor_key(KEY, k), stage) for k, t in enumerate(split(x, shapes)) if t.size)


def scales_at(body: bytes, at: int, count: int, bucket: int) -> list[np.float32]:
    if not bucket:
        return [F(v) for v in struct.unpack_from(f"<{count}f", body, at)]
    words = struct.pack(f"<{count}I", *(half << 15 for half in struct.unpack_from(f"<{count}H", body, at)))
    return [F(v) for v in struct.unpack(f"<{count}f", words)]


def decode(body: bytes, shapes: Shapes, grid: Grid) -> list[float]:
    """Bodies of any coder but zstd."""
    values: list[float] = []
    at = 0
    for n in (math.prod(s) for s in shapes):
        if n == 0:
            continue
        stage, count = body[at], -(-n // grid.bucket) if grid.bucket else 1
        scales = scales_at(body, at + 1, count, grid.bucket)
        at += 1 + (2 if grid.bucket else 4) * count
        if stage == 0:
            size = -(-n * grid.bits // 8)
            bits = "".join(low_first(byte, 8) for byte in body[at : at + size])
            codes = [int(bits[i * grid.bits : (i + 1) * grid.bits][::-1], 2) for i in range(n)]
        else:
            size = struct.unpack_from("<I", body, at)[0]
            at += 4
            payload = body[at : at + size]
            if stage == 3:
                codes = codes_of_elias(payload, n, grid)
            else:
                codes = {1: huffman_codes, 2: runs_codes}[stage](payload, n, grid.bits, grid.largest)
        at += size
        values += [value_of(grid, c, scales[i // grid.bucket if grid.bucket else 0]) for i, c in enumerate(codes)]
    return values


# The codecs: how their parameters make a grid and a scale.


def geometric(s: int, p: float) -> tuple[float, ...]:
    powers = [1.0]
    for _ in range(s):
        powers.append(powers[-1] * p)
    return (0.0, *(float(F(v)) for v in reversed(powers)))


def uniform_grid(bits: int = 4, bucket: int = 512) -> Grid:
    return Grid("uniform", bits, 2 ** (bits - 1) - 1, bucket)


def elastiquant_grid(bits: int = 4, ratio: float = 0.0, levels: tuple[float, ...] = (), bucket: int = 512) -> Grid:
    inner = 2 ** (bits - 1) - 2
    p = ratio or (0.5 if bits <= 4 else 0.9)
    if levels:
        return Grid("levels", bits, bucket=bucket, levels=tuple(levels))
    if p == 0.5 and inner <= 30:
        return Grid("log2", bits, inner, bucket)
    return Grid("levels", bits, bucket=bucket, levels=geometric(inner, p))


class Uniform:
    """qsgd and qsgd-inf."""

    def __init__(self, norm: Callable[[np.ndarray, bool], np.float32]) -> None:
        self.norm = norm

    def body(self, x: np.ndarray, shapes: Shapes, stage: str, **params: int) -> bytes:
        return encode(x, shapes, uniform_grid(**params), self.norm, stage)

    def values(self, body: bytes, shapes: Shapes, stage: str, **params: int) -> list[float]:
        return decode(body, shapes, uniform_grid(**params))


QSGD, QSGD_INF = Uniform(l2), Uniform(linf)


def elastiquant(x: np.ndarray, shapes: Shapes, stage: str, norm: str = "l2", **params: object) -> bytes:
    return encode(x, shapes, elastiquant_grid(**params), l2 if norm == "l2" else linf, stage)


def elastiquant_values(body: bytes, shapes: Shapes, stage: str, norm: str = "l2", **params: object) -> list[float]:
    return decode(body, shapes, elastiquant_grid(**params))


def elasticl(x: np.ndarray, shapes: Shapes, stage: str, s0: int = 127) -> bytes:
    return struct.pack("<H", s0) + encode(x, shapes, Grid("uniform", 1 + s0.bit_length(), s0), l2, stage)


def elasticl_values(body: bytes, shapes: Shapes, stage: str, s0: int = 127) -> list[float]:
    s = struct.unpack_from("<H", body)[0]
    return decode(body[2:], shapes, Grid("uniform", 1 + s.bit_length(), s))


def terngrad(x: np.ndarray, shapes: Shapes, stage: str, clip: float = 2.5) -> bytes:
    return encode(x, shapes, Grid("uniform", 2, 1), clipped(clip), stage)


def terngrad_values(body: bytes, shapes: Shapes, stage: str, clip: float = 2.5) -> list[float]:
    return decode(body, shapes, Grid("uniform", 2, 1))


def some_scale(x: np.ndarray, bucketed: bool) -> np.float32:
    """Not CO3's k, which follows a table: one that brings the largest value to the largest grid
    point."""
    largest = float(np.abs(x).max())
    return F(max(3 / largest, 2.0**-126)) if largest > 1e-30 else F(0)


def co3(x: np.ndarray, shapes: Shapes, stage: str) -> bytes:
    return encode(x, shapes, Grid("fp4", 4), some_scale, stage)


def co3_values(body: bytes, shapes: Shapes, stage: str) -> list[float]:
    return decode(body, shapes, Grid("fp4", 4))


def signsgd(x: np.ndarray, shapes: Shapes, stage: str) -> bytes:
    return encode(x, shapes, Grid("sign", 1), mean_magnitude, stage)


def signsgd_values(body: bytes, shapes: Shapes, stage: str) -> list[float]:
    return decode(body, shapes, Grid("sign", 1))
