"""Size and error of an encoding."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import UsageError


def vec(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_relative_error() -> None:
    assert codecs.relative_error(vec(3, 4), vec(3, 4)) == 0
    assert codecs.relative_error(vec(3, 4), vec(0, 0)) == 1
    assert codecs.relative_error(vec(3, 4), vec(3, 5)) == pytest.approx(0.2)
    assert codecs.relative_error(vec(0, 0), vec(0, 0)) == 0
    assert codecs.relative_error(vec(0, 0), vec(0, 1)) == math.inf
    assert codecs.relative_error(vec(), vec()) == 0


def test_relative_error_neither_overflows_nor_cancels() -> None:
    assert codecs.relative_error(vec(3e38, 3e38), vec(3e38, -3e38)) == pytest.approx(math.sqrt(2))
    x = np.ones(100_000, np.float32)
    y = x + np.float32(2.0**-20)
    assert codecs.relative_error(x, y) == pytest.approx(2.0**-20)


@pytest.mark.parametrize("other", [np.zeros(3, np.float32), np.zeros((2, 1), np.float32)])
def test_relative_error_of_other_shapes(other: np.ndarray) -> None:
    with pytest.raises(UsageError, match="cannot compare vectors of shape"):
        codecs.relative_error(vec(1, 2), other)


def test_bits_per_value_counts_every_byte_of_the_body() -> None:
    layout = Layout.of([TensorSpec("a", (6,)), TensorSpec("b", (2,))])
    x = np.arange(8, dtype=np.float32)
    # 4 bits a value; a coder byte and a norm for each of two tensors
    expected = {"fp32": 32, "fp16": 16, "minmax8": 8 + 2 * 64 / 8, "topk": 14, "4-bit-elastiquant": 4 + 2 * 24 / 8}
    for name, bits in expected.items():
        codec = codecs.get(name)
        body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(0, 0))
        assert codecs.bits_per_value(body, layout) == bits, name
    assert codecs.bits_per_value(np.zeros(8, np.float32).data, layout) == 32
    assert codecs.bits_per_value(b"12345678", Layout.of([TensorSpec("a", (0,))])) == 0
