"""The quantisers again in numpy, from their definitions: the kernels must give exactly these codes,
values and norms."""

import numpy as np

from edgegossip.native.quantise import LevelKind

F32 = np.float32
BLOCK = 65536


def uniform32(key, first, n):
    i = np.arange(first, first + n, dtype=np.uint64)
    a, b = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    x = ((i >> np.uint64(1)).astype(np.uint32) * np.uint32(0x9E3779B9) + a).astype(np.uint32)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D) + b
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return np.where(i % 2 == 0, x, x << np.uint32(16) | x >> np.uint32(16))


def chunk_squares(x):
    """float32 squares of up to 512 values in 32 lanes, added as a tree."""
    square = np.zeros((-(-len(x) // 32), 32), F32)
    square.reshape(-1)[: len(x)] = x * x
    lanes = np.zeros(32, F32)
    for row in square:
        lanes = lanes + row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def moments(x):
    total = np.zeros(3)
    for start in range(0, len(x), BLOCK):
        part = np.zeros((-(-len(x[start : start + BLOCK]) // 8), 8))
        part.reshape(-1)[: len(x[start : start + BLOCK])] = x[start : start + BLOCK]
        for k, values in enumerate((part, np.abs(part), part * part)):
            lanes, block = np.zeros(8), 0.0
            for row in values:
                lanes = lanes + row
            for lane in lanes:
                block = block + lane
            total[k] += block
    return (*total.tolist(), float(np.abs(x).max(initial=0)))


def short(norm):
    """The next number with 8 bits of mantissa, at most the largest finite one: what travels of a
    bucket's norm."""
    norm = float(norm)
    if norm == 0:
        return F32(0)
    step = 2.0 ** max(np.frexp(norm)[1] - 9, -134)
    return F32(min(np.ceil(norm / step) * step, (2 - 2.0**-8) * 2.0**127))


def norms(x, bucket, linf):
    if bucket == 0 and not linf and len(x):
        squares = moments(x)[2]
        return np.array([min(np.sqrt(squares), np.finfo(F32).max)], F32)
    found = []
    for start in range(0, len(x), bucket or max(len(x), 1)):
        part = x[start : start + (bucket or len(x))]
        if linf:
            largest = np.abs(part).max()
            found.append(short(largest) if bucket else largest)
            continue
        squares = 0.0
        with np.errstate(over="ignore", under="ignore"):
            for at in range(0, len(part), 512):
                squares += float(chunk_squares(part[at : at + 512]))
        if not 2.0**-80 <= squares < np.inf:
            squares = moments(part)[2]
        found.append(short(F32(min(np.sqrt(squares), np.finfo(F32).max))))
    return np.array(found, F32)


def per_value(q, scales, n):
    return np.repeat(scales, q.bucket or max(n, 1))[:n]


def products(q, x, scales):
    """|v| k, each operation in float32."""
    n = per_value(q, scales, len(x))
    if q.kind is LevelKind.FP4:
        return np.abs(x) * n
    before = np.where(n < 2.0**-60, F32(2.0**64), np.where(n > 2.0**60, F32(2.0**-64), F32(1)))
    top = F32(q.levels) * F32(2.0 ** (32 - q.bits if q.bits > 8 else 24)) if q.kind is LevelKind.UNIFORM else F32(1)
    k = np.where(n > 0, top / np.where(n > 0, n * before, F32(1)), F32(0)).astype(F32)
    return np.abs(x) * before * k


def levels_of(q, x, scales, u):
    a = products(q, x, scales)
    if q.kind is LevelKind.UNIFORM:
        shift = 32 - q.bits if q.bits > 8 else 24
        fixed = np.minimum(a, F32(q.levels) * F32(2.0**shift)).astype(np.int64)
        return fixed + (u >> np.uint32(32 - shift)) >> shift
    r = np.minimum(a, F32(1))
    if q.kind is LevelKind.LOG2:
        t = r * F32(2.0**q.levels)
        y = np.maximum(F32(1) + t, t + t).view(np.uint32)
        return (y + (u >> np.uint32(9)) >> np.uint32(23)).astype(np.int64) - 127
    if q.kind is LevelKind.LEVELS:
        known = np.array(q.list, F32)
        j = np.searchsorted(known, r, side="right") - 1
        gaps = np.append(known[1:] - known[:-1], F32(1))
        steepness = (F32(1) / gaps).astype(F32)
        steepness[-1] = 0
        return j + ((u >> np.uint32(8)).astype(F32) * F32(2.0**-24) < (r - known[j]) * steepness[j])
    return sum((a > F32(edge)).astype(np.int64) for edge in (0.25, 0.75, 1.25, 1.75, 2.5))


def codes_of(q, x, scales, key, first=0):
    if q.kind is LevelKind.SIGN:
        return (x < 0).astype(np.uint32)
    with np.errstate(all="ignore"):
        level = levels_of(q, x, scales, uniform32(key, first, len(x)))
    return np.where((level > 0) & np.signbit(x), level + 2 ** (q.bits - 1), level).astype(np.uint32)


def pack(q, codes):
    width = next(w for w in (1, 2, 4, 8, 16) if w >= q.bits)
    bits = (codes[:, None] >> np.arange(width, dtype=np.uint32)) & np.uint32(1)
    return np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")


def values_of(q, codes, scales):
    n = per_value(q, scales, len(codes))
    if q.kind is LevelKind.SIGN:
        return np.where(codes == 1, -n, n).astype(F32)
    level = codes & np.uint32(2 ** (q.bits - 1) - 1)
    if q.kind is LevelKind.UNIFORM:
        value = level.astype(F32) / F32(q.levels) * n
    elif q.kind is LevelKind.LOG2:
        value = np.where(level == 0, 0, 2.0 ** (level.astype(float) - 1 - q.levels)).astype(F32) * n
    elif q.kind is LevelKind.LEVELS:
        value = np.array(q.list, F32)[level] * n
    else:
        with np.errstate(all="ignore"):
            value = np.where(n > 0, np.array([0, 0.5, 1, 1.5, 2, 3], F32)[level] / n, F32(0)).astype(F32)
    return np.where(codes >> np.uint32(q.bits - 1) == 1, -value, value)
