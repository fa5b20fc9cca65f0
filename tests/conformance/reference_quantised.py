"""Bodies of the quantised codecs, with every float32 operation written out. Shares no code with the
product.

A body is an optional head and a section for every tensor that has values: coder, scales, payload.
The coders are in reference_coders.py and reference_entropy.py. The arithmetic of norms and moments
(lanes and the order of sums) is part of the format, because a scale's last bit decides about codes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.conformance.reference_coders import OWN_TABLE_FROM, elias, huffman, runs
from tests.conformance.reference_common import KEY, Shapes, bits_to_bytes, low_first, split, tensor_key, uniform32
from tests.conformance.reference_entropy import Decoder

F = np.float32
FLT_MAX = np.finfo(F).max
BLOCK = 65536
Scales = Callable[[np.ndarray, int], np.ndarray]  # of a tensor's buckets, or of all of it for a bucket of 0


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


# Scales.


def chunk_squares(x: np.ndarray) -> np.float32:
    """float32 squares of up to 512 values in 32 lanes, added as a tree."""
    square = np.zeros((-(-len(x) // 32), 32), F)
    square.reshape(-1)[: len(x)] = x * x
    lanes = np.zeros(32, F)
    for row in square:
        lanes = lanes + row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def moments(x: np.ndarray) -> tuple[float, float, float, float]:
    """Sums of x, |x| and x^2 in 8 lanes of float64, blocks of 65536 added in order; the largest
    |x|."""
    total = [0.0] * 3
    for start in range(0, len(x), BLOCK):
        part = np.zeros((-(-len(x[start : start + BLOCK]) // 8), 8))
        part.reshape(-1)[: len(x[start : start + BLOCK])] = x[start : start + BLOCK]
        for k, values in enumerate((part, np.abs(part), part * part)):
            lanes, block = np.zeros(8), 0.0
            for row in values:
                lanes = lanes + row
            for lane in lanes.tolist():
                block += lane
            total[k] += block
    return total[0], total[1], total[2], float(np.abs(x).max(initial=0))


def short(norm: np.float32) -> np.float32:
    """The next number with 8 bits of mantissa, at most the largest finite one: what travels of a
    bucket's norm."""
    if norm == 0:
        return F(0)
    step = 2.0 ** max(np.frexp(float(norm))[1] - 9, -134)
    return F(min(np.ceil(float(norm) / step) * step, (2 - 2.0**-8) * 2.0**127))


def norms(x: np.ndarray, bucket: int, largest: bool) -> np.ndarray:
    found = []
    for start in range(0, len(x), bucket or max(len(x), 1)):
        part = x[start : start + (bucket or len(x))]
        if largest:
            norm = np.abs(part).max()
        else:
            with np.errstate(over="ignore", under="ignore"):
                squares = sum(
                    float(chunk_squares(part[at : at + 512])) for at in range(0, len(part) * bool(bucket), 512)
                )
            if not 2.0**-80 <= squares < np.inf:
                squares = moments(part)[2]
            norm = F(min(np.sqrt(squares), FLT_MAX))
        found.append(short(norm) if bucket else norm)
    return np.array(found, F)


def l2(x: np.ndarray, bucket: int) -> np.ndarray:
    return norms(x, bucket, False)


def linf(x: np.ndarray, bucket: int) -> np.ndarray:
    return norms(x, bucket, True)


def mean_magnitude(x: np.ndarray, bucket: int) -> np.ndarray:
    return np.array([moments(x)[1] / x.size], F)


def clipped(clip: float) -> Scales:
    def scale(x: np.ndarray, bucket: int) -> np.ndarray:
        _, _, squares, largest = moments(x)
        return np.array([min(largest, clip * math.sqrt(squares / x.size)) if clip else largest], F)

    return scale


# Codes.


def per_value(grid: Grid, scales: np.ndarray, n: int) -> np.ndarray:
    return np.repeat(scales, grid.bucket or max(n, 1))[:n]


def products(grid: Grid, x: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """|v| k, each operation in float32."""
    n = per_value(grid, scales, len(x))
    if grid.kind == "fp4":
        return np.abs(x) * n
    before = np.where(n < 2.0**-60, F(2.0**64), np.where(n > 2.0**60, F(2.0**-64), F(1)))
    top = F(grid.s) * F(2.0 ** (32 - grid.bits if grid.bits > 8 else 24)) if grid.kind == "uniform" else F(1)
    k = np.where(n > 0, top / np.where(n > 0, n * before, F(1)), F(0)).astype(F)
    return np.abs(x) * before * k


def levels_of(grid: Grid, x: np.ndarray, scales: np.ndarray, u: np.ndarray) -> np.ndarray:
    """u: uniform in uint32."""
    a = products(grid, x, scales)
    if grid.kind == "uniform":
        shift = 32 - grid.bits if grid.bits > 8 else 24
        fixed = np.minimum(a, F(grid.s) * F(2.0**shift)).astype(np.int64)
        return fixed + (u >> np.uint32(32 - shift)) >> shift
    if grid.kind == "fp4":
        return sum((a > F(edge)).astype(np.int64) for edge in (0.25, 0.75, 1.25, 1.75, 2.5))
    r = np.minimum(a, F(1))
    if grid.kind == "log2":
        t = r * F(2.0**grid.s)
        y = np.maximum(F(1) + t, t + t).view(np.uint32)
        return (y + (u >> np.uint32(9)) >> np.uint32(23)).astype(np.int64) - 127
    known = np.array(grid.levels, F)
    j = np.searchsorted(known, r, side="right") - 1
    gaps = np.append(known[1:] - known[:-1], F(1))
    steepness = (F(1) / gaps).astype(F)
    steepness[-1] = 0
    return j + ((u >> np.uint32(8)).astype(F) * F(2.0**-24) < (r - known[j]) * steepness[j])


def codes_of(grid: Grid, x: np.ndarray, scales: np.ndarray, key: int, first: int = 0) -> np.ndarray:
    if grid.kind == "sign":
        return (x < 0).astype(np.uint32)
    with np.errstate(all="ignore"):
        level = levels_of(grid, x, scales, uniform32(key, first, len(x)))
    return np.where((level > 0) & np.signbit(x), level + 2 ** (grid.bits - 1), level).astype(np.uint32)


def values_of(grid: Grid, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    n = per_value(grid, scales, len(codes))
    if grid.kind == "sign":
        return np.where(codes == 1, -n, n).astype(F)
    level = codes & np.uint32(2 ** (grid.bits - 1) - 1)
    with np.errstate(all="ignore"):
        if grid.kind == "uniform":
            value = level.astype(F) / F(grid.s) * n
        elif grid.kind == "log2":
            value = np.where(level == 0, 0, 2.0 ** (level.astype(float) - 1 - grid.s)).astype(F) * n
        elif grid.kind == "levels":
            value = np.array(grid.levels, F)[level] * n
        else:
            value = np.where(n > 0, np.array([0, 0.5, 1, 1.5, 2, 3], F)[level] / n, F(0)).astype(F)
    return np.where(codes >> np.uint32(grid.bits - 1) == 1, -value, value)


# Sections.

SMALLEST = {"huffman": OWN_TABLE_FROM, "runs": OWN_TABLE_FROM}  # values that a tensor has for a coder


def section(x: np.ndarray, grid: Grid, scales_of: Scales, key: int, stage: str) -> bytes:
    scales = scales_of(x, grid.bucket)
    codes = codes_of(grid, x, scales, key).tolist()
    head = scales.astype("<f4").tobytes()
    if grid.bucket:  # the 16 bits below the sign
        head = (scales.view(np.uint32) >> 15).astype("<u2").tobytes()
    if stage == "raw" or len(x) < SMALLEST.get(stage, 0):
        return b"\0" + head + bits_to_bytes("".join(low_first(c, grid.bits) for c in codes))
    number, payload = {
        "huffman": lambda: (b"\1", huffman(codes, grid.bits, grid.largest)),
        "runs": lambda: (b"\2", runs(codes, grid.bits, grid.largest)),
        "elias": lambda: (b"\3", elias(codes, grid.bits)),
    }[stage]()
    return number + head + struct.pack("<I", len(payload)) + payload


def encode(x: np.ndarray, shapes: Shapes, grid: Grid, scales_of: Scales, stage: str = "raw") -> bytes:
    tensors = enumerate(split(x, shapes))
    return b"".join(section(t, grid, scales_of, tensor_key(KEY, k), stage) for k, t in tensors if t.size)


def decode(body: bytes, shapes: Shapes, grid: Grid) -> list[float]:
    """Bodies of any coder but zstd."""
    decoder, values = Decoder(grid.bits, grid.largest, grid.bucket), []
    for n in filter(None, map(math.prod, shapes)):
        scales, codes, body = decoder.section(body, n)
        values += values_of(grid, np.array(codes, np.uint32), np.array(scales, F)).tolist()
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

    def __init__(self, norm: Scales) -> None:
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


def some_scale(x: np.ndarray, bucket: int) -> np.ndarray:
    """Not CO3's k, which follows a table: one that brings the largest value to the largest grid
    point."""
    largest = float(np.abs(x).max())
    return np.array([max(3 / largest, 2.0**-126) if largest > 1e-30 else 0], F)


def co3(x: np.ndarray, shapes: Shapes, stage: str) -> bytes:
    return encode(x, shapes, Grid("fp4", 4), some_scale, stage)


def co3_values(body: bytes, shapes: Shapes, stage: str) -> list[float]:
    return decode(body, shapes, Grid("fp4", 4))


def signsgd(x: np.ndarray, shapes: Shapes, stage: str) -> bytes:
    return encode(x, shapes, Grid("sign", 1), mean_magnitude, stage)


def signsgd_values(body: bytes, shapes: Shapes, stage: str) -> list[float]:
    return decode(body, shapes, Grid("sign", 1))
