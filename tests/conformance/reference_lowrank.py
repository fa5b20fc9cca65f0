"""Bodies of powersgd (first message) and atomo in plain Python floats, sum by sum. Shares no code
with the product."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from tests.conformance.reference_common import FLOAT32_MAX, KEY, Shapes, pack, split, tensor_key, uniform32

Matrix = list[list[float]]


def f32(v: float) -> float:
    return struct.unpack("<f", struct.pack("<f", min(FLOAT32_MAX, max(-FLOAT32_MAX, v))))[0]  # type: ignore[no-any-return]


def matrices(x: np.ndarray, shapes: Shapes, rank: int) -> Iterator[tuple[int, list[float], Matrix]]:
    """Index, values and rows of every non-empty tensor; no rows when it is sent as it is."""
    for tensor, (values, shape) in enumerate(zip(split(x, shapes), shapes, strict=True)):
        flat = [float(v) for v in values]
        if not flat:
            continue
        cols = len(flat) // shape[0] if len(shape) > 1 else 0
        rows = [flat[i : i + cols] for i in range(0, len(flat), cols)] if cols else []
        yield tensor, flat, rows if rank * (len(rows) + cols) < len(rows) * cols else []


def in_lanes(terms: Sequence[float]) -> float:
    lanes = [0.0] * 8
    for i, term in enumerate(terms):
        lanes[i % 8] += term
    a, b, c, d, e, f, g, h = lanes
    return ((a + e) + (c + g)) + ((b + f) + (d + h))


def in_order(terms: Iterator[float]) -> float:
    total = 0.0
    for term in terms:
        total += term
    return total


def orthonormal(columns: Matrix) -> Matrix:
    done: Matrix = []
    for column in columns:
        before = math.sqrt(in_lanes([v * v for v in column]))
        for unit in done + done:
            along = in_lanes([u * v for u, v in zip(unit, column, strict=True)])
            column = [v - along * u for u, v in zip(unit, column, strict=True)]
        size = math.sqrt(in_lanes([v * v for v in column]))
        done.append([v / size for v in column] if size > before * 2.0**-40 else [0.0] * len(column))
    return done


def powersgd(x: np.ndarray, shapes: Shapes, rank: int = 2, values: str = "fp32") -> bytes:
    body = b""
    for tensor, flat, rows in matrices(x, shapes, rank):
        if not rows:
            body += pack([v + 0.0 for v in flat], values)
            continue
        cols = len(rows[0])
        numbers = [(w >> 8) * 2.0**-23 - 1 for w in uniform32(tensor_key(0, tensor), 0, rank * cols).tolist()]
        start = [numbers[k * cols : (k + 1) * cols] for k in range(rank)]
        left = orthonormal([[in_lanes([a * b for a, b in zip(row, q, strict=True)]) for row in rows] for q in start])
        body += (sent := pack([f32(v) for column in left for v in column], values))
        flat_left = struct.unpack(f"<{len(rows) * rank}{'f' if values == 'fp32' else 'e'}", sent)
        scales, right = b"", b""
        for k in range(rank):
            column = flat_left[k * len(rows) : (k + 1) * len(rows)]
            q = [f32(in_order(row[j] * p for row, p in zip(rows, column, strict=True))) for j in range(cols)]
            if values == "fp16":
                largest = max(map(abs, q))
                scale = max(2.0 ** (math.frexp(largest)[1] - 1), 2.0**-126) if largest else 0.0
                scales += struct.pack("<f", scale)
                q = [v / scale if scale else 0.0 for v in q]
            right += pack(q, values)
        body += scales + right
    return body


def product(left: Matrix, right: Matrix, rows: int, cols: int) -> list[float]:
    return [
        f32(in_order(u[i] * w[j] for u, w in zip(left, right, strict=True))) for i in range(rows) for j in range(cols)
    ]


def powersgd_values(body: bytes, shapes: Shapes, rank: int = 2, values: str = "fp32") -> list[float]:
    decoded: list[float] = []
    letter, size = ("f", 4) if values == "fp32" else ("e", 2)
    at = 0

    def take(count: int, letter: str, size: int) -> list[float]:
        nonlocal at
        at += count * size
        return list(struct.unpack_from(f"<{count}{letter}", body, at - count * size))

    total = sum(int(np.prod(s)) for s in shapes)
    for _, flat, rows in matrices(np.zeros(total), shapes, rank):
        if not rows:
            decoded += take(len(flat), letter, size)
            continue
        m, n = len(rows), len(rows[0])
        left = [take(m, letter, size) for _ in range(rank)]
        scales = take(rank, "f", 4) if values == "fp16" else [1.0] * rank
        right = [[v * scale for v in take(n, letter, size)] for scale in scales]
        decoded += product(left, right, m, n)
    return decoded


def length(a: float, b: float) -> float:
    small, large = sorted((abs(a), abs(b)))
    return large * math.sqrt(1 + (small / large) * (small / large)) if large else 0.0


def tridiagonal(a: Matrix) -> tuple[list[float], list[float], Matrix]:
    """Householder: diagonal, what stands beside it, and the orthonormal basis as rows."""
    n = len(a)
    beside, reflections = [0.0] * n, []
    for k in range(n - 1):
        v = a[k][k + 1 :]
        rest = in_order(u * u for u in v[1:])
        beside[k] = v[0]
        if rest < 1e-290:
            reflections.append((0.0, v))
            continue
        size = math.sqrt(v[0] * v[0] + rest)
        beside[k] = -size if v[0] > 0 else size
        v[0] -= beside[k]
        beta = 2.0 / (v[0] * v[0] + rest)
        m = n - k - 1
        q = [in_order(beta * v[r] * a[k + 1 + r][k + 1 + i] for r in range(m)) for i in range(m)]
        along = in_order(v[i] * q[i] for i in range(m)) * (0.5 * beta)
        q = [q[i] - along * v[i] for i in range(m)]
        for r in range(m):
            for i in range(m):
                a[k + 1 + r][k + 1 + i] -= v[r] * q[i] + q[r] * v[i]
        reflections.append((beta, v))
    basis = [[float(i == j) for j in range(n)] for i in range(n)]
    for k, (beta, v) in reversed(list(enumerate(reflections))):
        if beta == 0.0:
            continue
        m = n - k - 1
        along_all = [in_order(v[r] * basis[k + 1 + r][k + 1 + i] for r in range(m)) for i in range(m)]
        for r in range(m):
            for i in range(m):
                basis[k + 1 + r][k + 1 + i] -= beta * v[r] * along_all[i]
    return [a[i][i] for i in range(n)], beside, [list(column) for column in zip(*basis, strict=True)]


def eigenvectors(a: Matrix) -> Matrix:
    """Implicit QL."""
    d, e, z = tridiagonal(a)
    n = len(d)
    for first in range(n):
        for _ in range(60):
            last = first
            while last < n - 1 and abs(e[last]) > 2.0**-52 * (abs(d[last]) + abs(d[last + 1])):
                last += 1
            if last == first:
                break
            g = (d[first + 1] - d[first]) / (2 * e[first])
            r = length(g, 1.0)
            g = d[last] - d[first] + e[first] / (g + (-r if g < 0 else r))
            s, c, p = 1.0, 1.0, 0.0
            for i in range(last - 1, first - 1, -1):
                f, b = s * e[i], c * e[i]
                e[i + 1] = r = length(f, g)
                if r == 0:
                    d[i + 1] -= p
                    e[last] = 0.0
                    break
                s, c = f / r, g / r
                g = d[i + 1] - p
                r = (d[i] - g) * s + 2 * c * b
                p = s * r
                d[i + 1] = g + p
                g = c * r - b
                upper, lower = z[i], z[i + 1]
                z[i] = [c * u - s * w for u, w in zip(upper, lower, strict=True)]
                z[i + 1] = [s * u + c * w for u, w in zip(upper, lower, strict=True)]
            else:
                d[first] -= p
                e[first], e[last] = g, 0.0
    return z


def chances(norms: list[float], rank: int) -> list[float]:
    """The paper's Algorithm 1, one atom at a time: the largest is set to 1 while its share would be
    more."""
    result, budget = [0.0] * len(norms), float(rank)
    order = sorted((i for i, s in enumerate(norms) if s > 0), key=lambda i: -norms[i])
    while order and norms[order[0]] * budget >= math.fsum(norms[i] for i in order):
        result[order.pop(0)] = 1.0
        budget -= 1
    for i in order:
        result[i] = norms[i] * budget / math.fsum(norms[j] for j in order)
    return result


def atomo(x: np.ndarray, shapes: Shapes, rank: int = 3) -> bytes:
    body = b""
    for tensor, flat, rows in matrices(x, shapes, rank):
        if not rows:
            body += pack(flat, "fp32")
            continue
        short = rows if len(rows) <= len(rows[0]) else [list(c) for c in zip(*rows, strict=True)]
        gram = [[in_order(a * b for a, b in zip(p, q, strict=True)) for q in short] for p in short]
        units = eigenvectors(gram)
        long = [
            [in_order(u * row[c] for u, row in zip(unit, short, strict=True)) for c in range(len(short[0]))]
            for unit in units
        ]
        norms = [math.sqrt(in_order(w * w for w in ws)) for ws in long]
        floor = max(norms) * len(norms) * 2.0**-48
        wanted = [math.ceil(p * 2**32) for p in chances([s if s > floor else 0.0 for s in norms], rank)]
        drawn = uniform32(tensor_key(KEY, tensor), 0, len(norms)).tolist()
        chosen = [i for i in range(len(norms)) if drawn[i] < wanted[i]]
        us = [[f32(v) for v in units[i]] for i in chosen]
        ws = [[f32(v / (wanted[i] * 2.0**-32)) for v in long[i]] for i in chosen]
        left, right = (us, ws) if short is rows else (ws, us)
        m, n = len(rows), len(rows[0])
        if len(chosen) * (m + n) < m * n and len(chosen) <= 2 * rank + 8:
            body += struct.pack("<H", len(chosen)) + pack(
                [v for side in (left, right) for c in side for v in c], "fp32"
            )
        else:
            body += struct.pack("<H", 0xFFFF) + pack(product(left, right, m, n), "fp32")
    return body


def atomo_values(body: bytes, shapes: Shapes, rank: int = 3) -> list[float]:
    decoded: list[float] = []
    at = 0
    total = sum(int(np.prod(s)) for s in shapes)
    for _, flat, rows in matrices(np.zeros(total), shapes, rank):
        m, n = len(rows), len(rows[0]) if rows else 0
        count = 0xFFFF
        if rows:
            (count,) = struct.unpack_from("<H", body, at)
            at += 2
        size = len(flat) if count == 0xFFFF else count * (m + n)
        numbers = list(struct.unpack_from(f"<{size}f", body, at))
        at += 4 * size
        if count == 0xFFFF:
            decoded += numbers
            continue
        left = [numbers[k * m : (k + 1) * m] for k in range(count)]
        right = [numbers[count * m + k * n : count * m + (k + 1) * n] for k in range(count)]
        decoded += product(left, right, m, n)
    return decoded
