"""What tests of sections share: quantisers as the codecs make them, tensors with known codes,
encoding and decoding."""

from __future__ import annotations

import functools

import numpy as np

from edgegossip.codecs.co3 import STATIC_TABLES
from edgegossip.codecs.levels import geometric_levels
from edgegossip.native import _native, coding, quantise
from edgegossip.native.quantise import LevelKind, Quantiser

KEY = 0x1234_5678_9ABC_DEF0
CO3_TABLES = np.array([t.weights for t in STATIC_TABLES], np.uint8).reshape(-1)
FP4 = Quantiser(LevelKind.FP4, 4)
SIGN = Quantiser(LevelKind.SIGN, 1)
TERNARY = Quantiser(LevelKind.UNIFORM, 2, 1)
BAD_CODER = -3
CHOICES: tuple[coding.Choice, ...] = ("raw", "huffman", "elias", "auto")


def uniform(bits, bucket=0):
    return Quantiser(LevelKind.UNIFORM, bits, 2 ** (bits - 1) - 1, bucket)


def log2(bits, bucket=0):
    return Quantiser(LevelKind.LOG2, bits, 2 ** (bits - 1) - 2, bucket)


def geometric(bits, bucket=0):
    return Quantiser(LevelKind.LEVELS, bits, 0, bucket, tuple(geometric_levels(2 ** (bits - 1) - 2, 0.9).tolist()))


def largest_level(q):
    return {LevelKind.UNIFORM: q.levels, LevelKind.LOG2: q.levels + 1, LevelKind.FP4: 5, LevelKind.SIGN: 0}.get(
        q.kind, len(q.list or ()) - 1
    )


def code_width(q):
    return next(w for w in (1, 2, 4, 8, 16) if w >= q.bits)


def exact(q, levels, signs):
    """x and scales that are quantised to these levels, int[n], and signs, bool[n], for every
    key."""
    n = len(levels)
    scales = np.full(q.scale_count(n), q.levels if q.kind is LevelKind.UNIFORM else 1, np.float32)
    if q.kind is LevelKind.UNIFORM and q.bucket and q.levels > 511:  # a scale of so many bits does not travel
        sizes, scales = far_from_short(q, levels)
    elif q.kind is LevelKind.UNIFORM:
        sizes = levels.astype(np.float32)
    elif q.kind is LevelKind.LOG2:
        sizes = np.where(levels > 0, 2.0 ** (levels - 1.0 - q.levels), 0).astype(np.float32)
    elif q.kind is LevelKind.SIGN:
        sizes = np.ones(n, np.float32)
    else:
        sizes = np.array(q.list or (0, 0.5, 1, 1.5, 2, 3), np.float32)[levels]
    return np.where(signs, -sizes, sizes).astype(np.float32), scales


def far_from_short(q, levels):
    """Magnitudes whose products with the factor of a scale 2^(bits - 1) are the levels in fixed
    point, without a rest."""
    scale, one = np.float32(2 ** (q.bits - 1)), np.float32(2.0 ** (32 - q.bits))
    factor = np.float32(q.levels) * one / scale
    near = (levels / q.levels * float(scale)).astype(np.float32)
    sizes = near
    for other in (np.nextafter(near, np.float32(0)), np.nextafter(near, 2 * scale)):
        sizes = np.where(sizes * factor == levels * one, sizes, other)
    assert (sizes * factor == levels * one).all()
    return sizes, np.full(q.scale_count(len(levels)), scale, np.float32)


def codes_of(q, levels, signs):
    if q.kind is LevelKind.SIGN:
        return signs.astype(np.uint16)
    return (levels + np.where(signs & (levels > 0), 1 << q.bits - 1, 0)).astype(np.uint16)


@functools.lru_cache(maxsize=4)  # each coder gets the same ones
def sparse_levels(q, n, density, seed=1):
    """Levels of which a share is not zero, mostly small ones, and signs."""
    rng = np.random.default_rng(seed)
    levels = np.minimum(rng.geometric(0.4, n), max(largest_level(q), 1)) * (rng.random(n) < density)
    top = rng.random(n) < 0.02
    found = np.where(top & (levels > 0), largest_level(q), levels).astype(np.int64), rng.random(n) < 0.5
    for array in found:
        array.flags.writeable = False
    return found


def norms(x, bucket, linf=False, isa=None):
    """The norms of every bucket; None when x is not finite."""
    scales = np.empty(Quantiser(LevelKind.UNIFORM, 4, 7, bucket).scale_count(len(x)), np.float32)
    return scales if _native.quantise_norms(x, bucket, linf, scales, isa) else None


def bound(n, q, choice):
    return coding.bound_of(np.array([0, n]), q, choice)


def encode(q, x, choice, scales=None, state=None, preferred=-1, **more):
    """The section of a tensor; -1 when it is not finite."""
    room = np.full(bound(len(x), q, choice), 0xA5, np.uint8)
    state = coding.new_state() if state is None else state
    more |= {"scales": scales, "preferred": np.array([preferred])}
    size = coding.encode_all(q, x, np.array([0, len(x)]), [KEY], choice, state, room, **more)
    return size if size < 0 else room[:size].tobytes()


def decode(q, body, n, out=None, weight=None, at=0, state=None, **more):
    """Where the section ends, or a fault."""
    state = coding.new_state() if state is None else state
    tensor, end = coding.decode_all(q, body, at, np.array([0, n]), 0, state, out, weight, **more)
    return end if tensor == 1 or end < 0 else BAD_CODER


def values_of(q, x, scales):
    """What x becomes, by the quantisers alone."""
    out = np.empty_like(x)
    assert quantise.dequantise(q, quantise.quantise(q, x, scales, KEY), scales, out)
    return out
