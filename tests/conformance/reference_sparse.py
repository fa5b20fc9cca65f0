"""Bodies of topk and randk, bit by bit. Shares no code with the product."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tests.conformance.reference_common import (
    FLOAT32_MAX,
    KEY,
    Shapes,
    bits_of,
    bits_to_bytes,
    low_first,
    pack,
    split,
    tensor_key,
    uniform32,
    varint,
)

ALL, GAPS, BITMAP, DRAWN = range(4)


def count(n: int, ratio: float) -> int:
    return min(n, max(1, int(np.ceil(n * ratio * (1 - 1e-12)))))


def first_rice(n: int, k: int) -> int:
    return min(30, ((n - k) * 11 // (16 * k) + 1).bit_length() - 1)


def gap_code(gap: int, rice: int) -> str:
    q = gap >> rice
    return "0" * 24 + low_first(gap, 31) if q >= 24 else "0" * q + "1" + low_first(gap & ((1 << rice) - 1), rice)


def rice_of(gaps: list[int], before: int) -> int:
    """The encoder's choice: a parameter near the mean's, unless that of the block before costs at
    most 5 bits more."""
    middle = (sum(gaps) // len(gaps) + 1).bit_length() - 1
    costs = {before: sum(len(gap_code(g, before)) for g in gaps) - 5}
    best = before
    for rice in range(max(0, middle - 4), min(30, middle + 1) + 1):
        costs.setdefault(rice, sum(len(gap_code(g, rice)) for g in gaps))
        if rice != before and costs[rice] < costs[best]:
            best = rice
    return best


def gap_bits(positions: list[int], n: int) -> str:
    gaps = [p - q - 1 for p, q in zip(positions, [-1, *positions], strict=False)]
    rice, bits = first_rice(n, len(positions)), ""
    for start in range(0, len(gaps), 64):
        block = gaps[start : start + 64]
        before, rice = rice, rice_of(block, rice)
        bits += "1" if rice == before else "0" + low_first(rice, 5)
        bits += "".join(gap_code(gap, rice) for gap in block)
    return bits


def topk(x: np.ndarray, shapes: Shapes, ratio: float = 0.01, values: str = "fp32") -> bytes:
    body = b""
    for t in split(x, shapes):
        n = t.size
        if n == 0:
            continue
        k = count(n, ratio)
        chosen = sorted(sorted(range(n), key=lambda i, t=t: (-abs(float(t[i])), i))[:k])
        width, form = (32, 0) if values == "fp32" else (16, 1)
        if width * k + n >= width * n:
            kept = set(chosen)
            body += bytes([ALL | form << 2]) + pack([float(t[i]) if i in kept else 0.0 for i in range(n)], values)
            continue
        bitmap = 8 * k >= 3 * n
        where = "".join("1" if i in set(chosen) else "0" for i in range(n)) if bitmap else gap_bits(chosen, n)
        body += bytes([(BITMAP if bitmap else GAPS) | form << 2]) + varint(k) + bits_to_bytes(where)
        body += pack([float(t[i]) for i in chosen], values)
    return body


def drawn(n: int, k: int, key: int, tensor: int) -> list[int]:
    numbers = (uniform32(tensor_key(key, tensor), 0, n) >> 1).tolist()
    return sorted(sorted(range(n), key=lambda i: (-numbers[i], i))[:k])


def randk(x: np.ndarray, shapes: Shapes, ratio: float = 0.01, values: str = "fp32", unbiased: bool = True) -> bytes:
    body = struct.pack("<Q", KEY)
    for tensor, t in enumerate(split(x, shapes)):
        n, form = t.size, 0 if values == "fp32" else 1
        if n == 0:
            continue
        k = count(n, ratio)
        if k == n:
            body += bytes([ALL | form << 2]) + pack([float(v) for v in t], values)
            continue
        scale = np.float32(n / k if unbiased else 1.0)
        with np.errstate(over="ignore", under="ignore"):
            sent = [float(t[i] * scale) for i in drawn(n, k, KEY, tensor)]
        sent = [min(FLOAT32_MAX, max(-FLOAT32_MAX, v)) for v in sent]
        body += bytes([DRAWN | form << 2]) + varint(k) + pack(sent, values)
    return body


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        low = self.take(1)[0]
        return low if low < 128 else low & 127 | self.varint() << 7

    def positions(self, n: int, k: int) -> list[int]:
        """Of a GAPS section; `at` moves behind it."""
        bits = iter(bits_of(self.data[self.at :]))
        used = 0

        def take(width: int) -> str:
            nonlocal used
            used += width
            return "".join(next(bits) for _ in range(width))

        rice, found = first_rice(n, k), []
        for i in range(k):
            if i % 64 == 0 and take(1) == "0":
                rice = int(take(5)[::-1], 2)
            q = 0
            while q < 24 and take(1) == "0":
                q += 1
            width = 31 if q == 24 else rice
            rest = int(take(width)[::-1] or "0", 2)
            found.append((found[-1] + 1 if found else 0) + (rest if q == 24 else q << rice | rest))
        self.take((used + 7) // 8)
        return found


def _values(body: _Reader, shapes: Shapes, key: int) -> list[float]:
    decoded: list[float] = []
    for tensor, shape in enumerate(shapes):
        n = int(np.prod(shape, dtype=np.int64))
        if n == 0:
            continue
        head = body.take(1)[0]
        how, (size, code) = head & 3, ((4, "f"), (2, "e"))[head >> 2]
        k = n if how == ALL else body.varint()
        where: Any = range(n)
        if how == GAPS:
            where = body.positions(n, k)
        elif how == BITMAP:
            where = [i for i, bit in enumerate(bits_of(body.take((n + 7) // 8))) if bit == "1"]
        elif how == DRAWN:
            where = drawn(n, k, key, tensor)
        out = [0.0] * n
        for i, v in zip(where, struct.unpack(f"<{k}{code}", body.take(size * k)), strict=True):
            out[i] = v
        decoded += out
    return decoded


def topk_values(body: bytes, shapes: Shapes, **params: Any) -> list[float]:
    return _values(_Reader(body), shapes, 0)


def randk_values(body: bytes, shapes: Shapes, **params: Any) -> list[float]:
    return _values(_Reader(body[8:]), shapes, int.from_bytes(body[:8], "little"))
