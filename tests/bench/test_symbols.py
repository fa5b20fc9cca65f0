"""Entropy of known symbols, read from raw bodies."""

import struct

import numpy as np
import pytest

from edgegossip.bench.symbols import CodeForm, entropy
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalError


def packed(codes, bits):
    stream = ((np.asarray(codes)[:, None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(-1)
    return np.packbits(stream, bitorder="little").tobytes()


def section(codes, bits, scales):
    return b"\0" + struct.pack(f"<{scales}f", *[1.0] * scales) + packed(codes, bits)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8, 11, 16])
def test_known_distributions(bits):
    # Two equally likely symbols in one tensor, one symbol in the other, which has three times as many values.
    first, second = np.tile([0, (1 << bits) - 1], 8), np.zeros(48, int)
    layout = Layout.of([TensorSpec("a", (4, 4)), TensorSpec("none", (0,)), TensorSpec("b", (48,))])
    body = b"head" + section(first, bits, 2) + section(second, bits, 6)
    found = entropy(body, layout, CodeForm(4, bits, 8))
    assert found.by_tensor == pytest.approx(0.25)
    p = 8 / 64
    assert found.overall == pytest.approx(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


@pytest.mark.parametrize("n", [1, 3, 1001, (1 << 20) + 3])
def test_uniform_symbols_and_padding(n):
    codes = np.random.default_rng(0).integers(0, 16, n)
    counts = np.bincount(codes, minlength=16)
    p = counts[counts > 0] / n
    found = entropy(section(codes, 4, 1), Layout.of([TensorSpec("a", (n,))]), CodeForm(0, 4, 0))
    assert found.by_tensor == found.overall == pytest.approx(-(p * np.log2(p)).sum(), abs=1e-12)


def test_other_bodies_are_refused():
    layout = Layout.of([TensorSpec("a", (16,))])
    whole = section(np.zeros(16, int), 4, 1)
    for body in (b"\1" + whole[1:], whole[:-1], whole + b"\0", b""):
        with pytest.raises(LocalError):
            entropy(body, layout, CodeForm(0, 4, 0))
