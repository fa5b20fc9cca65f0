"""Bodies of dither and deadzone in plain Python: integers, tables and one value after the other.
Shares no code with the product."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator

import numpy as np

from tests.conformance.reference_common import (
    KEY,
    Shapes,
    bits_to_bytes,
    low_first,
    split,
    tensor_key,
    uniform32,
    varint,
)
from tests.conformance.reference_quantised import moments

F = np.float32


ALL_ZERO, PLAIN, CODED = range(3)
SLOTS, LOW, BLOCK, ESCAPE, ABSENT, DEPTH = 4096, 1 << 16, 64, 255, 31, 3
FRACTION = 16
BIT = 1 << FRACTION
MIXED = tensor_key(KEY, 0)
Table = list[int]
Model = tuple[int, int, list[int]]  # largest magnitude, share of escapes, levels


def log2_table() -> list[int]:
    table = []
    for i in range(256):
        x, log = (256 + i) << 23, 0
        for _ in range(FRACTION + 1):
            x = x * x >> 31
            log = log << 1 | x >> 32
            x >>= x >> 32
        table.append((log + 1) >> 1)
    return [*table, BIT]


LOG2 = log2_table()


def log2(v: int) -> int:
    whole = v.bit_length() - 1
    mantissa = v << (63 - whole)
    at, rest = mantissa >> 55 & 255, mantissa >> 39 & 0xFFFF
    return (whole << FRACTION) + LOG2[at] + ((LOG2[at + 1] - LOG2[at]) * rest >> 16)


def folded(v: int) -> int:
    return 2 * v - 1 if v > 0 else -2 * v


def unfolded(z: int) -> int:
    return (z + 1) // 2 if z & 1 else -(z // 2)


ONE, PLACES, MAGNITUDES, MIRRORED = range(4)  # what tables a model has


def tables_of(shape: int) -> int:
    return 4 if shape in (PLACES, MIRRORED) else 1


def place(p: int, shape: int) -> int:
    return min(p % 8, 7 - p % 8) if shape == MIRRORED else p % 8 // 2


def mirrored(p: int, s: int) -> int:
    return folded(-unfolded(s)) if p % 8 >= 4 and s != ESCAPE else s


# Which models a string has.


def cost(count: list[list[int]], shape: int) -> tuple[int, int]:
    """Bits in 2^-16, and the largest magnitude of a model for counts[table][symbol]."""
    tail = [sum(sum(c[max(0, 2 * m - 1) :]) for c in count) for m in range(129)]
    if tail[1] == 0:
        return 16 * BIT, 0
    tables, magnitudes = tables_of(shape), shape == MAGNITUDES
    rows, everything = joined(count, tables), sum(map(sum, count))
    per, best, slots = 5 * BIT * tables * (1 if magnitudes else 2), (2**63, 0), 0
    for h in range(1, 128):
        for c in rows:
            for some in c[2 * h - 1 : 2 * h + 1]:
                twice = c[2 * h - 1] + c[2 * h] if magnitudes else 2 * some
                slots += max(0, sum(c) - SLOTS // 2 * twice) * 23 if twice else 0
        escapes = (80 + 20 * tail[h + 1]) * BIT + 23 * everything if tail[h + 1] else 0
        best = min(best, (per * h + slots + escapes, h))
        if not tail[h + 1]:
            break
    bits = (16 + 5 * tables) * BIT + best[0]
    for c in rows:
        some = c[: 2 * best[1] + 1]
        if magnitudes:
            bits += sum(some[1:]) * BIT
            some = [some[0], *(a + b for a, b in zip(some[1::2], some[2::2], strict=True))]
        some = [v for v in some if v]
        if some:
            bits += sum(some) * log2(sum(some)) - sum(v * log2(v) for v in some)
    return bits, best[1]


def joined(count: list[list[int]], tables: int) -> list[list[int]]:
    return count if tables == 4 else [[sum(c) for c in zip(*count, strict=True)]]


def level(count: int, total: int) -> int:
    if not count:
        return ABSENT
    return min((2 * (log2(total) - min(log2(count), log2(total))) + BIT // 2) >> FRACTION, ABSENT - 1)


def model(count: list[list[int]], shape: int) -> Model:
    h, magnitudes = cost(count, shape)[1], shape == MAGNITUDES
    if h == 0:
        return 0, 0, []
    levels, escapes = [], 0
    for c in joined(count, tables_of(shape)):
        total = sum(c[: 2 * h + 1])
        escapes += sum(c[2 * h + 1 :])
        row = [level(c[0], total)]
        for m in range(1, h + 1):
            plus, minus = c[2 * m - 1], c[2 * m]
            row += [level(plus + minus, 2 * total)] if magnitudes else [level(plus, total), level(minus, total)]
        levels += row if total else [0, *row[1:]]
    everything = sum(map(sum, count))
    return h, min(max(SLOTS * escapes // everything, 1), 255) if escapes else 0, levels


def models_for(symbols: list[int], kinds: list[tuple[int, int]], shape: int):
    """Bits, the models and which one each block has."""
    blocks, most = len(kinds), min(max((1 + len(symbols) // 1024) // tables_of(shape), 1), 16)
    counts = {k: [[0] * 256 for _ in range(4)] for k in sorted(set(kinds))}
    for p, s in enumerate(symbols):
        counts[kinds[p // BLOCK]][place(p, shape)][s] += 1
    group_of = {k: i for i, k in enumerate(counts)}
    groups = [(count, kinds.count(k)) for k, count in counts.items()]

    def price(group: tuple[list[list[int]], int]) -> int:
        return cost(group[0], shape)[0] + group[1] * (log2(blocks) - log2(group[1]))

    def both(k: int) -> tuple[list[list[int]], int]:
        (a, i), (b, j) = groups[k : k + 2]
        return [[u + v for u, v in zip(c, d, strict=True)] for c, d in zip(a, b, strict=True)], i + j

    while len(groups) > 1:
        more = [price(both(k)) - price(groups[k]) - price(groups[k + 1]) for k in range(len(groups) - 1)]
        k = more.index(min(more))
        if more[k] >= 0 and len(groups) <= most:
            break
        groups[k : k + 2] = [both(k)]
        group_of = {kind: g - (g > k) for kind, g in group_of.items()}
    bits = sum(price(g) >> FRACTION for g in groups)
    if len(groups) > 1:
        bits += 64
        whole = [[sum(each) for each in zip(*rows, strict=True)] for rows in zip(*(g[0] for g in groups), strict=True)]
        one = cost(whole, shape)[0] >> FRACTION
        if one <= bits:
            bits, groups, group_of = one, [(whole, blocks)], dict.fromkeys(group_of, 0)
    return bits, shape, [model(g[0], shape) for g in groups], [group_of[k] for k in kinds]


def kind(block: list[int], skewed: bool) -> tuple[int, int]:
    """Below zero, neither or above zero, and loudness: neighbours in order are alike."""
    total = sum((s + 1) // 2 for s in block)
    above = sum((s + 1) // 2 for s in block if s & 1)
    loud = 1 + (log2(total) >> (FRACTION - 1)) if total else 0
    skew = (3 * above > 2 * total) - (3 * above < total) if skewed else 0
    return skew, -loud if skew else loud


def choose(symbols: list[int], places: bool, signed: bool):
    def blocks(skewed: bool, of: list[int] = symbols) -> list[tuple[int, int]]:
        return [kind(of[first : first + BLOCK], skewed) for first in range(0, len(of), BLOCK)]

    found = models_for(symbols, blocks(places or signed), ONE)
    if places and 1 + len(symbols) // 1024 >= 4:
        found = min(found, models_for(symbols, blocks(True), PLACES), key=lambda f: f[0])
        if 2 * found[0] < len(symbols):
            turned = [mirrored(p, s) for p, s in enumerate(symbols)]
            found = min(found, models_for(turned, blocks(False, turned), MIRRORED), key=lambda f: f[0])
    if signed:
        found = min(models_for(symbols, blocks(False), MAGNITUDES), found, key=lambda f: f[0])
    return found


def shares(m: Model, table: int, shape: int) -> Table:
    h, escapes, levels = m
    each = len(levels) // tables_of(shape)
    row = levels[each * table :][:each]
    weights = [0] * 256
    for s in range(2 * h + 1):
        k = row[(s + 1) // 2 if shape == MAGNITUDES else s]
        weights[s] = 0 if k == ABSENT else (741455 if k & 1 else 1 << 20) >> (k >> 1)
    slots, total = SLOTS - escapes, sum(weights)
    above = [max(w * slots - total, 1) if w else 0 for w in weights]
    ends = [0, *itertools.accumulate(above)]
    rest = slots - sum(w > 0 for w in weights)
    share = [
        1 + b * rest // ends[-1] - a * rest // ends[-1] if w else 0
        for w, (a, b) in zip(weights, itertools.pairwise(ends), strict=True)
    ]
    share[ESCAPE] = escapes
    return share


# Strings.


def string(values: list[int], places: bool = False, signed: bool = False, depth: int = 0) -> bytes:
    z = [folded(v) for v in values]
    width = max(z).bit_length()
    bits = low_first(PLAIN, 2) + low_first(width, 5) + "".join(low_first(v, width) for v in z)
    plain = bits_to_bytes(bits if width else "00")
    if len(plain) <= 8 or depth == DEPTH:
        return plain
    body = coded(values, places, signed, depth + 1)
    return body if len(body) < len(plain) else plain


def nested(values: list[int], depth: int) -> bytes:
    body = string(values, depth=depth)
    return varint(len(body)) + body


def coded(values: list[int], places: bool, signed: bool, depth: int) -> bytes:
    symbols = [min(folded(v), ESCAPE) for v in values]
    size, shape, models, index = choose(symbols, places, signed)
    share = [[shares(m, t, shape) for t in range(tables_of(shape))] if m[0] else [] for m in models]
    escapes = []
    for p, v in enumerate(values):
        h = models[index[p // BLOCK]][0]
        if abs(v) > h:
            escapes.append(v - h if v > 0 else v + h)
            symbols[p] = ESCAPE
    if shape == MIRRORED:
        symbols = [mirrored(p, s) for p, s in enumerate(symbols)]
    many = size >= 1 << 16
    bits = low_first(CODED, 2) + low_first(len(models) - 1, 4)
    bits += low_first(shape, 2) + "".join("01"[flag] for flag in (many, bool(escapes)))
    for h, e, levels in models:
        bits += low_first(h, 7)
        if h:
            bits += (low_first(e, 8) if escapes else "") + "".join(low_first(k, 5) for k in levels)
    body = bits_to_bytes(bits)
    if escapes:
        body += varint(len(escapes)) + nested(escapes, depth)
    if len(models) > 1:
        body += nested([unfolded(k) for k in index], depth)
    lanes = 32 if many else 1
    state, words = [LOW] * lanes, b""
    for p in reversed(range(len(symbols))):
        of = share[index[p // BLOCK]]
        if not of:
            continue
        row = of[place(p, shape) if tables_of(shape) == 4 else 0]
        f, first, x = row[symbols[p]], sum(row[: symbols[p]]), state[p % lanes]
        if f == SLOTS:
            continue
        if x >= f << 20:
            words, x = struct.pack("<H", x & 0xFFFF) + words, x >> 16
        state[p % lanes] = (x // f << 12) + x % f + first
    return body + struct.pack(f"<{lanes}I", *state) + words


class Bits:
    """Bits of bytes, low ones first."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.bits = "".join(format(b, "08b")[::-1] for b in data)

    def take(self, width: int) -> int:
        self.at += width
        return int(self.bits[self.at - width : self.at][::-1], 2)

    def rest(self) -> bytes:
        return self.data[-(-self.at // 8) :]


def read_nested(data: bytes, n: int) -> tuple[list[int], bytes]:
    size, data = read_varint(data)
    return read_string(data[:size], n), data[size:]


def read_varint(data: bytes) -> tuple[int, bytes]:
    value = shift = 0
    for k, byte in enumerate(data):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, data[k + 1 :]
    raise ValueError("no end")


def read_string(data: bytes, n: int) -> list[int]:
    bits = Bits(data)
    kind = bits.take(2)
    if kind == ALL_ZERO:
        return [0] * n
    if kind == PLAIN:
        width = bits.take(5)
        return [unfolded(bits.take(width)) for _ in range(n)]
    count = bits.take(4) + 1
    shape, many, has_escapes, models = bits.take(2), bits.take(1), bits.take(1), []
    for _ in range(count):
        h = bits.take(7)
        e = bits.take(8) if h and has_escapes else 0
        levels = tables_of(shape) * (h + 1 if shape == MAGNITUDES else 2 * h + 1) if h else 0
        models.append((h, e, [bits.take(5) for _ in range(levels)]))
    data, escapes, index = bits.rest(), [], [0] * -(-n // BLOCK)
    if has_escapes:
        count, data = read_varint(data)
        escapes, data = read_nested(data, count)
    if len(models) > 1:
        found, data = read_nested(data, len(index))
        index = [folded(v) for v in found]
    lanes = 32 if many else 1
    state = list(struct.unpack_from(f"<{lanes}I", data))
    words = list(struct.unpack(f"<{len(data) // 2 - 2 * lanes}H", data[4 * lanes :]))
    share = [[shares(m, t, shape) for t in range(tables_of(shape))] if m[0] else [] for m in models]
    slots = [[[s for s, f in enumerate(row) for _ in range(f)] for row in of] for of in share]
    values, taken, escaped = [], 0, iter(escapes)
    for p in range(n):
        k = index[p // BLOCK]
        if not share[k]:
            values.append(0)
            continue
        t = place(p, shape) if tables_of(shape) == 4 else 0
        x = state[p % lanes]
        s = slots[k][t][x % SLOTS]
        row = share[k][t]
        x = row[s] * (x >> 12) + x % SLOTS - sum(row[:s])
        if x < LOW and taken < len(words):
            x, taken = x << 16 | words[taken], taken + 1
        state[p % lanes] = x
        if s == ESCAPE:
            v, h = next(escaped), models[k][0]
            values.append(v + h if v > 0 else v - h)
        else:
            values.append(unfolded(mirrored(p, s) if shape == MIRRORED else s))
    return values


# Steps.


def dither(count: int) -> Iterator[tuple[np.float32, int]]:
    """u of each value, and where in its row it lies."""
    w = uniform32(MIXED, 0, -(-count // 8) * 8).tolist()
    for i in range(count):
        first = w[i // 8 * 8]
        eighth = (i + (first & 3 | first >> 14 & 4)) % 8
        yield F((eighth << 15 | w[i] >> 18 << 1 | 1) / 2**18 - 0.5), eighth


def eighths_of(x: np.ndarray, shapes: Shapes, allocation: float) -> list[int]:
    parts = list(split(x, shapes))
    squares = [moments(part)[2] for part in parts]
    mean = math.fsum(squares) / max(x.size, 1)
    means = [s / part.size if part.size else 0.0 for s, part in zip(squares, parts, strict=True)]
    return [max(-96, min(96, round(4 * allocation * math.log2(m / mean)))) if m >= 2.0**-200 else 0 for m in means]


def matrices(shapes: Shapes) -> Iterator[tuple[int, int, int]]:
    """The first value, rows and columns of each tensor with rows enough."""
    at = 0
    for shape in shapes:
        size = math.prod(shape)
        if len(shape) > 1 and shape[0] >= 8 and size > shape[0]:
            yield at, shape[0], size // shape[0]
        at += size


def classes_of(t: np.ndarray) -> list[int]:
    """Of each column of magnitudes in steps, float32[rows, columns]."""
    rows, columns = t.shape
    sums = np.zeros(columns, F)
    for row in t:
        sums += row
    loud = [int(float(v) / rows * 256) for v in sums]
    order = sorted(range(columns), key=lambda j: (loud[j], j))

    def price(count: int) -> int:
        total = 0
        for k in range(count):
            some = order[columns * k // count : columns * (k + 1) // count]
            mean = sum(loud[j] for j in some) // len(some)
            spread = (mean + 256) * log2(mean + 256) - (mean * log2(mean) if mean else 0) - 256 * log2(256)
            total += len(some) * (spread >> FRACTION)
        return total * rows // 256

    _, best = min((price(1 << width) + 3 * width * columns // 2, 1 << width) for width in range(4))
    classes = [0] * columns
    for rank, j in enumerate(order):
        classes[j] = ((rank + 1) * best - 1) // columns
    return classes


def places(classes: list[int], size: int, shapes: Shapes) -> np.ndarray:
    """Which value of the vector is coded first, second, ..."""
    found, at = np.arange(size), 0
    for first, rows, columns in matrices(shapes) if classes else ():
        order = np.argsort(classes[at : at + columns], kind="stable")
        found[first : first + rows * columns] = (first + np.arange(rows)[:, None] * columns + order).flatten()
        at += columns
    return found


def sort(x: np.ndarray, steps: np.ndarray, shapes: Shapes, dead_zone: bool) -> tuple[list[int], np.ndarray]:
    """Columns' classes and what they make of the order."""
    t = np.abs(x) * (F(1) / steps)
    if dead_zone:
        t = (t + F(1 / 3)).astype(np.int64).astype(F)
    classes: list[int] = []
    for first, rows, columns in matrices(shapes):
        matrix = t[first : first + rows * columns].reshape(rows, columns)
        classes += classes_of(matrix) if columns >= 64 else [0] * columns
    classes = classes if any(classes) else []
    return classes, places(classes, x.size, shapes)


def with_classes(first: bytes, classes: list[int]) -> bytes:
    """The body's first bytes, with columns' classes behind them."""
    if not classes:
        return first
    body = string([unfolded(c) for c in classes])
    return first[:4] + bytes([first[4] | 2]) + first[5:] + struct.pack("<I", len(body)) + body


def head(x: np.ndarray, shapes: Shapes, error: float, step: float, allocation: float) -> tuple[bytes, np.ndarray]:
    """The body's first bytes, and the step of each value."""
    sizes = [int(np.prod(s, dtype=np.int64)) for s in shapes]
    squares = math.fsum(moments(part)[2] for part in split(x, shapes))
    if not squares:
        return struct.pack("<fB", 0, 0), np.zeros(x.size, F)
    eighths = eighths_of(x, shapes, allocation) if allocation else []
    weight = math.fsum(n * 2.0 ** (e / 4) for n, e in zip(sizes, eighths, strict=True)) if eighths else float(x.size)
    wanted = step or error * math.sqrt(12 * squares / weight)
    largest = [float(np.abs(part).max(initial=0)) for part in split(x, shapes)]
    smallest = max(v * 2.0 ** (-e / 8) for v, e in zip(largest, eighths or [0] * len(sizes), strict=True)) / 2**21
    common = F(min(max(wanted, smallest, 2.0**-126), float(np.finfo(F).max) / 2**13))
    own = [F(math.ldexp(float(common) * 2 ** (e % 8 / 8), e // 8)) for e in eighths or [0] * len(sizes)]
    packed = struct.pack(f"<fB{len(eighths)}b", common, bool(eighths), *eighths)
    return packed, np.repeat(np.array(own, F), sizes)


def dithered(x: np.ndarray, shapes: Shapes, error: float = 0.25, step: float = 0.0, allocation: float = 0.0) -> bytes:
    first, steps = head(x, shapes, error, step, allocation)
    if not steps.any():
        return struct.pack("<Q", MIXED) + first
    classes, order = sort(x, steps, shapes, False)
    x, inverse = x[order], F(1) / steps[order]
    rows = [0] * (-(-x.size // 8) * 8)
    for i, (u, eighth) in enumerate(dither(x.size)):
        rows[i // 8 * 8 + eighth] = int(np.rint(F(x[i] * inverse[i]) + u))
    return struct.pack("<Q", MIXED) + with_classes(first, classes) + string(rows, places=True)


def deadzoned(x: np.ndarray, shapes: Shapes, step: float, allocation: float = 0.0) -> bytes:
    first, steps = head(x, shapes, 0.0, step, allocation)
    if not steps.any():
        return first
    classes, order = sort(x, steps, shapes, True)
    x, steps = x[order], steps[order]
    t = np.abs(x * (F(1) / steps))
    size = (t + F(1 / 3)).astype(np.int64)
    shift = []
    for k in (1, 2, 3):
        chosen = size == k if k < 3 else size >= 3
        rest = sum(math.floor((float(v) - float(s)) * 65536) for v, s in zip(t[chosen], size[chosen], strict=True))
        mean = math.trunc(rest / int(chosen.sum())) if chosen.any() else 0
        shift.append(max(0, min(255, (mean + 128 >> 8) + 128)))
    q = np.where(x < 0, -size, size).tolist()
    return with_classes(first, classes) + bytes(shift) + string(q + [0] * (-len(q) % 8), signed=True)


def steps_of(body: bytes, shapes: Shapes) -> tuple[np.ndarray, np.ndarray, bytes]:
    """The step of each value, which value is coded first, second, ..., and what follows."""
    sizes = [int(np.prod(s, dtype=np.int64)) for s in shapes]
    common, flags = struct.unpack_from("<fB", body)
    own = flags & 1
    eighths = struct.unpack_from(f"<{len(shapes)}b", body, 5) if own else [0] * len(shapes)
    each = [F(math.ldexp(common * 2 ** (e % 8 / 8), e // 8)) for e in eighths]
    body, classes = body[5 + own * len(shapes) :], []
    if flags & 2:
        size = struct.unpack_from("<I", body)[0]
        classes = [folded(v) for v in read_string(body[4 : 4 + size], sum(c for _, _, c in matrices(shapes)))]
        body = body[4 + size :]
    return np.repeat(np.array(each, F), sizes), places(classes, sum(sizes), shapes), body


def dithered_values(body: bytes, shapes: Shapes, **params: float) -> list[float]:
    steps, order, rest = steps_of(body[8:], shapes)
    values = [0.0] * steps.size
    if not steps.any():
        return values
    rows = read_string(rest, -(-steps.size // 8) * 8)
    for i, (u, eighth) in enumerate(dither(steps.size)):
        q = rows[i // 8 * 8 + eighth]
        with np.errstate(over="ignore"):
            values[order[i]] = held(F(F(q) - u) * steps[i])
    return values


def deadzoned_values(body: bytes, shapes: Shapes, **params: float) -> list[float]:
    steps, order, rest = steps_of(body, shapes)
    values = [0.0] * steps.size
    if not steps.any():
        return values
    shift = [F(0), *(F(b / 256 - 0.5) for b in rest[:3])]
    for i, v in enumerate(read_string(rest[3:], -(-steps.size // 8) * 8)[: steps.size]):
        values[order[i]] = held(F(np.sign(v)) * (F(F(abs(v)) + shift[min(abs(v), 3)]) * steps[i]))
    return values


def held(v: np.float32) -> float:
    return float(np.clip(v, np.finfo(F).min, np.finfo(F).max))
