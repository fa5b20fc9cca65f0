"""eden's kernels: the plain version's bytes and values, in blocks of every size, and what a body
may not hold."""

import numpy as np
import pytest

from edgegossip.codecs.keys import tensor_keys
from edgegossip.native import _native
from tests.conformance import reference_eden as plain
from tests.native.everywhere import on_every_isa

SHAPES = ((8191,), (3, 11), (0,), (4096,), (1,), (2, 2048), (96,))
OFFSETS = np.cumsum([0, *(int(np.prod(s)) for s in SHAPES)])
KEYS = tensor_keys(plain.KEY, len(SHAPES))


def vector(scale=1.0, seed=3):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(OFFSETS[-1]) ** 3 * scale).astype(np.float32)


def encode(x, bits, offsets=OFFSETS, keys=KEYS, isa=None, threads=None):
    body = np.full(_native.eden_bytes(offsets, x.size, bits), 85, np.uint8)
    assert _native.eden_encode(x, offsets, keys, bits, body, isa, threads) == -1
    return body


def decode(body, bits, n, offsets=OFFSETS, keys=KEYS, isa=None, threads=None):
    out = np.full(n, 7, np.float32)
    assert _native.eden_decode(body, offsets, keys, bits, out, isa=isa, threads=threads) == -1
    return out


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_bytes_and_values_are_those_of_the_plain_version(bits):
    for scale in (1.0, 1e-44, 1e36):
        x = vector(scale)
        expected = plain.eden(x, SHAPES, bits)[8:]
        values = np.array(plain.eden_values(bytes([plain.KEY]) + bytes(7) + expected, SHAPES, bits), np.float32)
        on_this(bits=bits, x=x, expected=expected, values=values)


@on_every_isa
def on_this(bits, x, expected, values, isa):
    assert encode(x, bits, isa=isa).tobytes() == expected
    assert decode(np.frombuffer(expected, np.uint8), bits, x.size, isa=isa).tobytes() == values.tobytes()
    for weight in (-0.3, 2.0):
        total = np.linspace(-1, 1, x.size, dtype=np.float32)
        with np.errstate(over="ignore", under="ignore"):
            wanted = total + np.float32(weight) * values
        assert _native.eden_decode(np.frombuffer(expected, np.uint8), OFFSETS, KEYS, bits, total, weight, isa) == -1
        assert total.tobytes() == wanted.tobytes()


def test_a_tensor_is_cut_as_its_length_says():
    for n, bits in ((0, 1), (1, 4), (32, 2), (33, 3), (4095, 1), (4097, 4), (100_000, 2)):
        sizes = plain.blocks(n)
        assert _native.eden_bytes(np.array([0, n]), n, bits) == sum(4 + bits * d // 8 for d in sizes)
        assert 0 <= sum(sizes) - n < 32 and sizes == sorted(sizes, reverse=True)


@on_every_isa
def test_the_largest_scale_gives_finite_values(isa):
    rng = np.random.default_rng(4)
    for bits in (1, 4):
        body = rng.integers(0, 256, _native.eden_bytes(np.array([0, 4128]), 4128, bits), dtype=np.uint8)
        largest = np.frombuffer(np.finfo(np.float32).max.tobytes(), np.uint8)
        body[:4] = body[4 + bits * 512 :][:4] = largest
        out = decode(body, bits, 4128, np.array([0, 4128]), [9], isa)
        assert np.isfinite(out).all() and np.abs(out).max() == np.finfo(np.float32).max
