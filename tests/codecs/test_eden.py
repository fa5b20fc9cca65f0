"""eden keeps the figures of its paper for every x: the error is that of a normal law's best
quantiser, and its mean over keys is nothing, however few values x has."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.codecs.claims import claims_of
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec

NMSE = {1: math.pi / 2 - 1, 2: 0.13311, 3: 0.035776, 4: 0.0095916}  # 1 / (1 - D) - 1, Max 1960
PAPER = {1: 0.569, 2: 0.133, 3: 0.0355, 4: 0.0095}


def errors(bits: int, x: Vec, keys: int, first: int = 0) -> np.ndarray:
    """float64[keys, n] over the norm of x, which is one tensor."""
    layout, codec = Layout.of([TensorSpec("t", (x.size,))]), codecs.get("eden", bits=bits)
    found = np.empty((keys, x.size))
    for k in range(keys):
        body, _ = codec.encode(x, layout, codecs.Ctx((first + k) * 0x9E37_79B9_7F4A_7C15 % 2**64, 0))
        found[k] = codec.decode(body, layout).astype(np.float64) - x
    return found / np.linalg.norm(x.astype(np.float64))


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_error_is_that_of_the_paper(bits: int) -> None:
    """Within 2 %, of normal and of heavy-tailed values, which another quantiser would notice."""
    rng = np.random.default_rng(bits)
    for x in (rng.standard_normal(8192), rng.standard_normal(8192) ** 5, np.eye(1, 8192, 77)[0]):
        nmse = (errors(bits, x.astype(np.float32), 100) ** 2).sum(1).mean()
        assert nmse == pytest.approx(NMSE[bits], rel=0.02) and nmse == pytest.approx(PAPER[bits], rel=0.02)


def few_values(kind: str, n: int) -> Vec:
    """Vectors for which one rotation gives a bias of up to half of their norm."""
    x = np.zeros(n)
    if kind == "a tenth beside a value":
        x[:2] = 10, 1
    elif kind == "three":
        x[[0, 1, n - 1]] = 3, 2, 1
    elif kind == "half":
        x[: n // 2] = 1
    elif kind == "an outlier":
        x[:] = 1
        x[n // 3] = 10 * math.sqrt(n)
    else:
        x[:] = np.random.default_rng(n).standard_normal(n) ** 5
    return x.astype(np.float32)


@pytest.mark.no_cover
@settings(max_examples=20)
@given(
    bits=st.integers(1, 4),
    kind=st.sampled_from(["a tenth beside a value", "three", "half", "an outlier", "heavy"]),
    n=st.sampled_from([32, 64, 100, 256, 512, 1000, 4096, 5000]),
    first=st.integers(0, 2**32),
)
def test_the_mean_error_is_none_for_the_hardest_vectors(bits: int, kind: str, n: int, first: int) -> None:
    """For x as it is, 200 keys: the sum over pairs of different keys, an estimate of the squared
    bias, is no further from 0 than 4 standard deviations of it under no bias."""
    e = errors(bits, few_values(kind, n), 200, first)
    gram = e @ e.T
    pairs = gram[np.triu_indices(200, 1)]
    assert pairs.mean() <= 4 * pairs.std() / math.sqrt(pairs.size), (pairs.mean(), kind)


def test_the_bias_of_one_rotation_would_be_seen() -> None:
    """The same measure refuses errors with a bias of a tenth of the norm."""
    e = errors(1, few_values("three", 512), 200)
    e[:, 0] += 0.1
    gram = e @ e.T
    pairs = gram[np.triu_indices(200, 1)]
    assert pairs.mean() > 4 * pairs.std() / math.sqrt(pairs.size)


@settings(max_examples=20)
@given(bits=st.integers(1, 4), seed=st.integers(0, 2**32), size=st.sampled_from([1e-40, 1e-20, 1.0, 1e20, 1e35]))
def test_the_gain_is_one_in_every_message(bits: int, seed: int, size: float) -> None:
    """<x', x> = ||x||^2 exactly, by the scale that EDEN sends: here to the rounding of float32 (of
    denormal numbers in the smallest)."""
    rng = np.random.default_rng(seed)
    x = (size * rng.standard_normal(4096)).astype(np.float32)
    along = errors(bits, x, 1, seed)[0] @ (x.astype(np.float64) / np.linalg.norm(x.astype(np.float64)))
    assert abs(along) < (1e-4 if size < 1e-38 else 1e-6)


def test_a_model_takes_its_bits_and_little_else() -> None:
    """32 bits for every 4096 values, and the key."""
    for bits in (1, 2, 3, 4):
        layout = Layout.of([TensorSpec("t", (64, 64, 3, 3))])
        codec = codecs.get("eden", bits=bits)
        body, _ = codec.encode(np.ones(layout.size, np.float32), layout, codecs.Ctx(1, 0))
        assert codecs.bits_per_value(body, layout) == pytest.approx(bits + 32 / 4096 + 64 / 36864, abs=1e-12)


@pytest.mark.no_cover
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_what_it_claims_holds_for_the_smallest_blocks(bits: int) -> None:
    layout = Layout.of([TensorSpec("t", (32,))])
    for kind in ("a tenth beside a value", "three", "half", "heavy"):
        x = few_values(kind, 32)
        claimed = claims_of(codecs.get("eden", bits=bits), x, layout)
        assert claimed.unbiased and claimed.variance is not None
        lost = (errors(bits, x, 500) ** 2).sum(1)
        assert lost.mean() <= claimed.variance + 4 * lost.std() / math.sqrt(500), kind
