"""Sparse bodies: the exact selection, positions and values, the same bytes everywhere. What hostile
bodies do is the laws' and the attack frames'."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.native import sparse
from tests.native.everywhere import ISAS, on_every_isa

BIG = np.finfo(np.float32).max
LARGE = 300_000  # sampled, with candidates of more than one task


def encode(x, k, values="fp32", isa=None, threads=None):
    offsets, counts = np.array([0, len(x)]), np.array([k])
    out = np.empty(sparse.capacity(offsets, counts, values), np.uint8)
    size = sparse.topk_encode(x, offsets, counts, values, out, isa=isa, threads=threads)
    return out[: max(size, 0)].tobytes() if size >= 0 else size


def decode(body, n, isa=None):
    out = np.full(n, 7, np.float32)
    assert sparse.topk_decode(body, np.array([0, n]), out, isa=isa) == (-1, 0)
    return out


def largest(x, k):
    """Positions of the k largest magnitudes, of equal ones the first, in order."""
    return np.sort(np.argsort(-np.abs(x.astype(np.float64)), kind="stable")[:k])


def only_largest(x, k):
    y, at = np.zeros_like(x), largest(x, k)
    y[at] = x[at]
    return y


def vectors():
    rng = np.random.default_rng(5)
    heavy = (rng.gamma(1 / 0.6, 1, LARGE) ** (1 / 0.6) * rng.choice([-1, 1], LARGE)).astype(np.float32)
    clustered = heavy * np.repeat(rng.random(LARGE // 100) < 0.02, 100).astype(np.float32)
    late = np.zeros(LARGE, np.float32)
    late[-3000:] = heavy[-3000:]
    return {
        "heavy tails": heavy,
        "clusters": clustered,
        "at the end": late,
        "all equal": np.full(LARGE, -1.5, np.float32),
        "all zero": np.zeros(LARGE, np.float32),
        "few sizes": rng.integers(-3, 4, LARGE).astype(np.float32),
        "denormal": rng.integers(-9, 10, LARGE).astype(np.float32) * np.float32(1e-45),
        "huge": np.where(rng.random(LARGE) < 0.4, BIG, np.nextafter(BIG, np.float32(0))).astype(np.float32),
        "rising": np.arange(LARGE, dtype=np.float32),
        # The sample sees lines 16 values long at fixed places; here it is told that everything is
        # large, then nothing.
        "sample sees the large": np.where(np.arange(LARGE) // 16 % 4 < 2, heavy, 0).astype(np.float32),
        "sample sees the small": np.where(np.arange(LARGE) // 16 % 4 >= 2, heavy, 0).astype(np.float32),
    }


VECTORS = vectors()


@pytest.mark.parametrize("name", VECTORS)
def test_selection_is_exact_and_the_same_everywhere(name):
    x = VECTORS[name]
    for k in (1, 3000, LARGE // 16, LARGE // 16 + 1, LARGE - 1, LARGE):
        body = encode(x, k)
        np.testing.assert_array_equal(decode(body, len(x)), only_largest(x, k))
        for isa in ISAS:
            assert encode(x, k, isa=isa) == encode(x, k, isa=isa, threads=3) == body


@settings(max_examples=80)
@given(
    n=st.one_of(st.integers(1, 80), st.integers(1, 20_000)),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    sizes=st.sampled_from([2, 5, 1000, 2**24]),
    values=st.sampled_from(["fp32", "fp16", "bf16"]),
)
def test_any_length_and_share(n, share, seed, sizes, values):
    x = np.random.default_rng(seed).integers(-sizes, sizes, n).astype(np.float32)
    k = max(1, round(share * n))
    body = encode(x, k, values)
    assert all(encode(x, k, values, isa) == body for isa in ISAS)
    assert len(body) <= 4 * n + 64
    y, at = decode(body, n), largest(x, k)
    if values == "fp32":
        np.testing.assert_array_equal(y, only_largest(x, k))
    elif values == "fp16":
        np.testing.assert_array_equal(y[at], np.clip(x[at], -65504, 65504).astype(np.float16).astype(np.float32))
    assert not y[np.setdiff1d(np.arange(n), at)].any()


def index_bits(x, k):
    return (8 * len(encode(x, k)) - 32 * k) / k


@pytest.mark.parametrize("share", [0.0005, 0.001, 0.003, 0.007, 0.01, 0.014, 0.03, 0.1, 0.2, 0.3])
def test_random_positions_cost_little_more_than_their_entropy(share):
    n = 1_000_000
    x = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    entropy = -math.log2(share) - (1 - share) / share * math.log2(1 - share)
    assert entropy * 0.98 < index_bits(x, round(n * share)) < entropy * 1.02 + 0.03


def test_clustered_positions_cost_less():
    """Where rows of a matrix differ in size, as those of an embedding or of filters do."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1000, 1000)).astype(np.float32) * np.exp(rng.standard_normal((1000, 1))).astype(np.float32)
    assert index_bits(x.ravel(), 10_000) < 6.5
    x = np.zeros(1_000_000, np.float32)
    x[400_000:410_000] = 1
    assert index_bits(x, 10_000) < 1.1


def randk(x, k, seed=1, unbiased=True, isa=None, threads=None, values="fp32"):
    offsets, counts = np.array([0, len(x)]), np.array([k])
    out = np.empty(sparse.capacity(offsets, counts, values), np.uint8)
    body = out[: sparse.randk_encode(x, offsets, counts, values, unbiased, seed, out, isa, threads)]
    y = np.empty(len(x), np.float32)
    assert sparse.randk_decode(body, offsets, y, isa=isa, threads=threads) == (-1, 0)
    return body.tobytes(), y


@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (10, 3), (16_385, 100), (LARGE, 3000), (LARGE, LARGE // 3), (LARGE, LARGE - 1)]
)
def test_drawn_positions_are_k_and_the_same_everywhere(n, k):
    x = np.arange(1, n + 1, dtype=np.float32)
    body, y = randk(x, k, 2**64 - 1)
    assert np.count_nonzero(y) == k and len(body) <= 8 + 6 + 4 * k
    at = np.flatnonzero(y)
    np.testing.assert_array_equal(y[at], x[at] * np.float32(n / k))
    np.testing.assert_array_equal(randk(x, k, 2**64 - 1, unbiased=False)[1][at], x[at])
    for isa in ISAS:
        assert randk(x, k, 2**64 - 1, isa=isa)[0] == randk(x, k, 2**64 - 1, isa=isa, threads=3)[0] == body
        np.testing.assert_array_equal(randk(x, k, 2**64 - 1, isa=isa)[1], y)


def test_neighbours_are_drawn_apart():
    """Elements of a pair share one hash; both are drawn as often as two independent ones."""
    at = np.flatnonzero(randk(np.ones(1_000_000, np.float32), 100_000)[1])
    for first in (0, 1):
        both = np.intersect1d(at[at % 2 == first], at[at % 2 != first] - 1).size
        assert abs(both - 5000) < 4 * math.sqrt(5000)


def damaged(body, at, value):
    return body[:at] + bytes([value]) + body[at + 1 :]


def test_unused_bits_must_be_zero():
    body = encode(np.array([0, 0, 1, 0, 0, 0], np.float32), 1)
    assert len(body) == 7
    for bit in range(8):
        changed = damaged(body, 2, body[2] ^ 1 << bit)
        out = np.zeros(6, np.float32)
        if sparse.topk_decode(changed, np.array([0, 6]), out) == (-1, 0):
            assert np.count_nonzero(out) == 1 and out[2] == 0
    assert sparse.topk_decode(damaged(body, 2, body[2] | 0x80), np.array([0, 6]), np.zeros(6, np.float32)) == (0, 3)


@on_every_isa
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1001])
def test_momentum_and_norm(isa, n):
    rng = np.random.default_rng(n)
    u, v, g = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    u_next, v_next = np.empty(n, np.float32), np.empty(n, np.float32)
    sparse.accumulate_momentum(u, v, g, 0.9, 0.3, u_next, v_next, isa)
    expected = np.float32(0.9) * u + np.float32(0.3) * g
    np.testing.assert_array_equal(u_next, expected)
    np.testing.assert_array_equal(v_next, v + expected)
    assert sparse.sum_of_squares(g, isa) == pytest.approx(float(g.astype(np.float64) @ g), rel=1e-12)
    assert sparse.sum_of_squares(g, isa) == sparse.sum_of_squares(g, "portable")
    assert sparse.sum_of_squares(np.full(3, BIG), isa) == pytest.approx(3 * float(BIG) ** 2)
