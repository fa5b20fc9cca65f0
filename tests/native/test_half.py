"""fp32, fp16 and bf16: every pattern decodes, every kind of value encodes, as the definitions and
numpy say."""

import numpy as np
import pytest

from edgegossip.native import half
from tests.native.everywhere import on_every_isa

FORMS = tuple(half.BYTES)
PATTERNS = np.arange(2**16, dtype=np.uint16)
LARGEST = np.finfo(np.float32).max


def encode(form, x, isa=None, threads=None):
    out = np.empty(half.BYTES[form] * x.size, np.uint8)
    assert half.encode(form, x, np.array([0, x.size]), out, isa, threads) == -1
    return out


def values_of(form, patterns):
    if form == "fp16":
        with np.errstate(invalid="ignore"):
            return patterns.view(np.float16).astype(np.float32)
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def any_values(n, seed=1):
    """Half of them any finite float32, half near the range of binary16."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    x[: n // 2] = (rng.standard_normal(n // 2) * 10.0 ** rng.uniform(-9, 6, n // 2)).astype(np.float32)
    return np.where(np.isfinite(x), x, np.float32(1))


def nearest(form, x):
    """By definition: the finite number of the form that lies nearest, the even one of two."""
    finite = PATTERNS[np.isfinite(values_of(form, PATTERNS)) & (PATTERNS < 0x8000)]
    grid = values_of(form, finite).astype(np.float64)
    size = np.abs(x.astype(np.float64))
    above = np.minimum(np.searchsorted(grid, size), len(grid) - 1)
    below = np.maximum(above - 1, 0)
    up, down = grid[above] - size, size - grid[below]
    code = np.where((up < down) | ((up == down) & (finite[above] % 2 == 0)) | (size > grid[-1]), above, below)
    return finite[code] | np.where(np.signbit(x), 0x8000, 0).astype(np.uint16)


@on_every_isa
@pytest.mark.parametrize("form", ["fp16", "bf16"])
def test_every_pattern_decodes_to_its_value_and_back(form, isa):
    expected = values_of(form, PATTERNS)
    good = np.isfinite(expected)
    out = np.empty(good.sum(), np.float32)
    assert half.decode(form, PATTERNS[good].view(np.uint8), out, isa=isa)
    assert out.tobytes() == expected[good].tobytes()
    assert encode(form, out, isa).tobytes() == PATTERNS[good].tobytes()


@pytest.mark.parametrize("form", FORMS)
@on_every_isa
def test_a_number_that_is_not_finite_is_refused_wherever_it_stands(form, isa):
    if form == "fp32":
        bad = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    else:
        bad = PATTERNS[~np.isfinite(values_of(form, PATTERNS))]
    for pattern in bad[:: max(1, len(bad) // 64)]:
        for at in (0, 4095, 4096, 5000):
            body = np.zeros(5001, bad.dtype)
            body[at] = pattern
            out = np.full(5001, 7, np.float32)
            assert not half.finite(form, body.view(np.uint8), isa)
            assert not half.decode(form, body.view(np.uint8), out, 0.5, isa)
            assert (out == 7).all()
            assert not half.decode(form, body.view(np.uint8), out, None, isa)
    assert half.finite(form, b"", isa) and half.finite(form, bytes(4004), isa)


@on_every_isa
@pytest.mark.parametrize("form", ["fp16", "bf16"])
def test_the_nearest_number_is_sent(form, isa):
    finite = PATTERNS[np.isfinite(values_of(form, PATTERNS))]
    middles = (values_of(form, finite[:-1]).astype(np.float64) + values_of(form, finite[1:])) / 2
    middles = middles[np.abs(middles) <= LARGEST].astype(np.float32)
    around = [middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.copysign(LARGEST, middles))]
    special = np.array([0.0, -0.0, 1e-45, -1e-45, LARGEST, -LARGEST, 65504, 65519.9, 65520, 1e5], np.float32)
    x = np.concatenate([*around, special, any_values(100_000, seed=2)])
    assert encode(form, x, isa).tobytes() == nearest(form, x).astype(np.uint16).tobytes()
