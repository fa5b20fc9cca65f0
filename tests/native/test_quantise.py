"""Quantisers: the exact codes, values and norms, on every instruction set; unbiasedness; what
hostile symbols do."""

import numpy as np
import pytest

from edgegossip.native import quantise as native_quantise
from edgegossip.native.quantise import LevelKind, Quantiser
from tests.conformance import reference_quantised as reference
from tests.conformance.reference_common import uniform32
from tests.native.everywhere import ISAS, on_every_isa
from tests.native.sections import norms

KEY = 0x0123456789ABCDEF
GEOMETRIC = (0.0, *(0.9**k for k in range(126, -1, -1)))
CROWDED = tuple(
    float(v)
    for v in sorted({0, 1, 0.5, *(np.float32(0.5) + np.float32(k * 2.0**-24) for k in range(20)), 1e-30, 2e-30, 1e-40})
)
QUANTISERS = [
    *(Quantiser(LevelKind.UNIFORM, bits, 2 ** (bits - 1) - 1, 512) for bits in range(2, 17)),
    Quantiser(LevelKind.UNIFORM, 6, 17, 0),
    Quantiser(LevelKind.UNIFORM, 2, 1, 0),
    *(Quantiser(LevelKind.UNIFORM, 4, 5, bucket) for bucket in (8, 16, 64, 1024, 65536)),
    *(Quantiser(LevelKind.LOG2, bits, 2 ** (bits - 1) - 2, 512) for bits in range(2, 9)),
    *(Quantiser(LevelKind.LOG2, 4, 6, bucket) for bucket in (0, 8, 32, 8192)),
    Quantiser(LevelKind.LEVELS, 8, 0, 512, GEOMETRIC),
    Quantiser(LevelKind.LEVELS, 6, 0, 64, CROWDED),
    Quantiser(LevelKind.LEVELS, 4, 0, 0, (0, 0.1, 0.25, 0.3, 1)),
    Quantiser(LevelKind.LEVELS, 4, 0, 512, (0, *(0.4**k for k in range(6, -1, -1)))),
    Quantiser(LevelKind.LEVELS, 2, 0, 512, (0, 1)),
    Quantiser(LevelKind.FP4, 4),
    Quantiser(LevelKind.SIGN, 1),
]


LARGEST_SHORT = (2 - 2.0**-8) * 2.0**127


def name_of(q):
    return f"{q.kind.name}-{q.bits}-{q.levels}-{q.bucket}"


def codes_of(q, x, scales, key=KEY):
    return reference.codes_of(grid_of(q), x, scales, key)


def grid_of(q):
    return reference.Grid(q.kind.name.lower(), q.bits, q.levels, q.bucket, q.list or ())


def pack(q, codes):
    width = next(w for w in (1, 2, 4, 8, 16) if w >= q.bits)
    bits = (codes[:, None] >> np.arange(width, dtype=np.uint32)) & np.uint32(1)
    return np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little").tobytes()


def scales_of(q, x, linf=False):
    if q.kind is LevelKind.FP4 and len(x):
        return np.array([1.7], np.float32) / max(np.abs(x).mean(dtype=np.float64).astype(np.float32), np.float32(1e-37))
    return reference.norms(x, q.bucket, linf)


def moments(x, isa):
    return native_quantise.moments_of(x, np.array([0, len(x)]), isa)[0]


def gradient(n, seed=0, scale=1e-2):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * np.exp(rng.standard_normal(n))
    x[rng.random(n) < 0.05] = 0
    x[::17] *= -0.0
    return np.clip(x * scale, -3.4e38, 3.4e38).astype(np.float32)


def check_exact(q, x, scales, key=KEY):
    """On every instruction set."""
    codes, base = codes_of(q, x, scales, key), np.linspace(-1, 1, len(x), dtype=np.float32)
    packed, expected = pack(q, codes), reference.values_of(grid_of(q), codes, scales)
    with np.errstate(over="ignore"):
        summed = (base + np.float32(0.3) * expected).tobytes()
    for isa in ISAS:
        symbols = native_quantise.quantise(q, x, scales, key, 0, isa=isa)
        assert symbols.tobytes() == packed, isa
        out, total = np.full(len(x), 7, np.float32), base.copy()
        assert native_quantise.dequantise(q, symbols, scales, out, isa=isa)
        assert native_quantise.dequantise(q, symbols, scales, total, 0.3, isa=isa)
        assert (out.tobytes(), total.tobytes()) == (expected.tobytes(), summed), isa


@pytest.mark.parametrize("q", QUANTISERS, ids=name_of)
def test_codes_and_values_are_those_of_the_definition(q):
    for seed, n in enumerate([*range(0, 71, 1 if q.bits in (1, 4) else 7), 511, 513, 4097, 10_000]):
        x = gradient(n, seed)
        check_exact(q, x, scales_of(q, x), KEY * (n + 1) % 2**64)


@pytest.mark.parametrize("q", [q for q in QUANTISERS if q.bits in (1, 4, 7, 8, 12)], ids=name_of)
def test_extreme_values(q):
    rng = np.random.default_rng(1)
    big = np.finfo(np.float32).max
    patterns = rng.integers(0, 2**32, 3000, dtype=np.uint32)
    patterns[(patterns & 0x7F800000) == 0x7F800000] ^= 0x00800000
    cases = [
        patterns.view(np.float32),
        np.repeat([big, -big, 0, 1e-45, -1e-45, 1e-30], 100).astype(np.float32),
        np.full(600, 1e-45, np.float32),
        np.full(600, -big, np.float32),
        gradient(600, 3, 1e-36),
        gradient(600, 4, 1e-42),
        gradient(600, 5, 1e30),
        np.zeros(600, np.float32),
        -np.zeros(600, np.float32),
        np.eye(1, 600, 7, dtype=np.float32)[0],
    ]
    for x in cases:
        for linf in (False, True):
            scales = scales_of(q, x, linf)
            check_exact(q, x, scales)
        if q.kind is not LevelKind.FP4:
            check_exact(q, x, np.minimum(scales, np.float32(1e-3)))  # clipped


@on_every_isa
@pytest.mark.parametrize("linf", [False, True])
def test_norms(isa, linf):
    for scale in (1, 1e-20, 1e-38, 1e-44, 1e19, 1e37):
        for n in (0, 1, 31, 32, 33, 511, 512, 513, 70_000 if scale == 1 else 3000):
            x = gradient(n, n, scale)
            for bucket in (0, 8, 128, 512, 65536):
                if bucket == 8 and n > 600:
                    continue
                found = norms(x, bucket, linf, isa)
                assert found.tobytes() == reference.norms(x, bucket, linf).tobytes()
                for k, value in enumerate(found):
                    part = x[k * bucket :][: bucket or n].astype(np.float64)
                    true = np.abs(part).max() if linf else np.linalg.norm(part)
                    true = min(true, float(np.finfo(np.float32).max))
                    wide, tiny = (2.0**-8, 2.0**-134) if bucket else (0, 1e-45)
                    assert abs(value - true) <= (wide + 3e-6) * true + tiny
                    assert not bucket or value >= true * (1 - 3e-6) or value == LARGEST_SHORT


@on_every_isa
def test_norms_of_buckets_are_rounded_up_to_what_travels(isa):
    x = np.zeros((6, 8), np.float32)
    x[:, 3] = [0, 1, np.nextafter(np.float32(1), np.float32(2)), 2 - 2.0**-8, 2 - 2.0**-9, -(2.0**-149)]
    expected = [0, 1, 1 + 2.0**-8, 2 - 2.0**-8, 2, 2.0**-134]
    for linf in (False, True):
        assert norms(x.reshape(-1), 8, linf, isa).tolist() == expected
    assert norms(x[2], 0, True, isa)[0] == x[2, 3]


@on_every_isa
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_noticed(isa, bad):
    for at in (0, 33, 511, 512, 4096, 9998, 9999):
        x = gradient(10_000)
        x[at] = bad
        for linf in (False, True):
            for bucket in (0, 8, 512, 8192):
                assert norms(x, bucket, linf, isa) is None
        assert not np.isfinite(moments(x, isa)[3])


@on_every_isa
def test_moments(isa):
    for n in (0, 1, 7, 8, 9, 1000, 65_537):
        x = gradient(n, n)
        assert moments(x, isa) == reference.moments(x)
    big = np.full(100, np.finfo(np.float32).max, np.float32)
    assert moments(big, isa) == reference.moments(big)


@on_every_isa
def test_random_numbers(isa):
    for first, n in [(0, 0), (0, 1), (1, 1), (0, 70), (1, 70), (31, 33), (32, 32), (2**33 + 5, 100)]:
        assert (native_quantise.uniform32(KEY, first, n, isa) == uniform32(KEY, first, n)).all()


@on_every_isa
def test_alignment_and_what_lies_around(isa):
    for q in (QUANTISERS[2], QUANTISERS[10], Quantiser(LevelKind.LOG2, 4, 6, 512), Quantiser(LevelKind.SIGN, 1)):
        room, raw = gradient(1200), np.full(4000, 0xAA, np.uint8)
        for shift in (0, 1, 3, 5):
            x = room[shift : shift + 1001]
            scales = reference.norms(x, q.bucket, False)
            symbols = raw[shift : shift + q.symbol_bytes(1001)]
            raw[:] = 0xAA
            native_quantise.quantise(q, x, scales, KEY, 0, symbols, isa)
            assert symbols.tobytes() == pack(q, codes_of(q, x, scales))
            assert (raw[:shift] == 0xAA).all() and (raw[shift + len(symbols) :] == 0xAA).all()
            out = np.full(1200, 5, np.float32)
            assert native_quantise.dequantise(q, symbols, scales, out[shift : shift + 1001], isa=isa)
            assert (out[:shift] == 5).all() and (out[shift + 1001 :] == 5).all()


@on_every_isa
@pytest.mark.parametrize("q", [q for q in QUANTISERS if q.kind is not LevelKind.SIGN], ids=name_of)
def test_codes_of_nobody_are_refused(isa, q):
    x = gradient(n := 601)
    scales = scales_of(q, x)
    codes = codes_of(q, x, scales)
    sign = 2 ** (q.bits - 1)
    top = {
        LevelKind.UNIFORM: q.levels,
        LevelKind.LOG2: q.levels + 1,
        LevelKind.LEVELS: len(q.list or ()) - 1,
        LevelKind.FP4: 5,
    }[q.kind]
    width = next(w for w in (1, 2, 4, 8, 16) if w >= q.bits)
    wrong = {sign, *range(top + 1, min(sign, top + 3)), *range(sign + top + 1, min(2**width, sign + top + 3))}
    out = np.empty(n, np.float32)
    for code in wrong:
        for at in (0, n // 2, n - 1):
            bad = codes.copy()
            bad[at] = code
            assert not native_quantise.dequantise(q, pack(q, bad), scales, out, isa=isa)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (Quantiser(LevelKind.UNIFORM, 17, 1), "bits must be 2 to 16"),
        (Quantiser(LevelKind.UNIFORM, 4, 8), "levels must be 1 to"),
        (Quantiser(LevelKind.LOG2, 4, 7), "levels must be 0 to"),
        (Quantiser(LevelKind.LEVELS, 2, 0, 0, (0, 0.5, 1)), "the list must have 2 to"),
        (Quantiser(LevelKind.LEVELS, 4, 0, 0, (0.1, 1)), "start at 0 and end at 1"),
        (Quantiser(LevelKind.LEVELS, 4, 0, 0, (0, 0.5, 0.5, 1)), "must increase"),
        (Quantiser(LevelKind.FP4, 5), "bits must be 4"),
        (Quantiser(LevelKind.FP4, 4, 0, 512), "bucket must be 0"),
        (Quantiser(LevelKind.SIGN, 1, 0, 24), "bucket must be 0 or a power of two"),
    ],
)
def test_quantisers_that_cannot_be(q, message):
    x = gradient(8)
    with pytest.raises(ValueError, match=message):
        native_quantise.quantise(q, x, np.ones(1, np.float32), KEY)
    with pytest.raises(ValueError, match=message):
        native_quantise.dequantise(q, bytes(8), np.ones(1, np.float32), x)


@on_every_isa
@pytest.mark.parametrize("first", [1 << 18, (1 << 18) + 1024, 1 << 24, (1 << 30) + 512, (1 << 31) - 512])
def test_random_numbers_far_into_a_tensor(isa, first):
    assert (native_quantise.uniform32(KEY, first, 300, isa) == uniform32(KEY, first, 300)).all()
