"""eden keeps the figures of its paper for every x: the error is that of a normal law's best
quantiser. That its mean over keys is nothing, however few values x has, is test_unbiased.py's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs
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
