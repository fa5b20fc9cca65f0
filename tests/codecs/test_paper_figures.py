"""Sizes and errors of the bodies that travel, against the figures of the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.gennorm_tables import OPTIMA
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec
from lab.papers import bounds
from tests.codecs import gennorm_oracle as oracle

N = 1 << 17
LAYOUT = Layout.of([TensorSpec("t", (N,))])


@pytest.fixture(scope="module")
def vector() -> Vec:
    return oracle.sample(0.6, N)


def send(codec: codecs.Codec[Any], x: Vec, layout: Layout, key: int) -> tuple[int, Vec]:
    """Bits of the body, and what arrives."""
    body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(key=key * 0x9E3779B97F4A7C15 % 2**64, round=0))
    return 8 * memoryview(body).nbytes, codec.decode(body, layout)


@pytest.mark.parametrize("beta", [0.6, 2.0])
def test_the_mean_elias_stream_is_below_equation_3(beta: float) -> None:
    d = 65536
    layout, x = Layout.of([TensorSpec("t", (d,))]), oracle.sample(beta, d, seed=2)
    codec = codecs.get("elastiquant", bits=4, bucket=0, stage="elias")
    sizes = [send(codec, x, layout, key)[0] for key in range(1, 6)]
    head = 8 * 16  # coder, length and number of nonzeros, which the equation leaves out
    assert np.mean(sizes) <= bounds.length_bound(6, d) + head


def test_co3_takes_two_bits_and_a_fifth_at_beta_six_tenths(vector: Vec) -> None:
    codec = codecs.get("co3", gamma=0.0, stage="huffman")
    bits, y = send(codec, vector, LAYOUT, 1)
    assert bits / N <= 2.20
    optimum = {row[0]: row[3] for row in OPTIMA}[0.6]
    assert codecs.relative_error(vector, y) == pytest.approx(oracle.relative_error(0.6, optimum), rel=0.02)


@pytest.mark.parametrize(
    ("beta", "noise"), [(0.4, 0.08), (0.8, 0.03), (1.0, 0.03), (2.0, 0.01)]
)  # a few values weigh much
def test_co3_has_the_tables_error_for_other_shapes(beta: float, noise: float) -> None:
    x = oracle.sample(beta, N, seed=3) * np.float32(1e-4)
    y = send(codecs.get("co3", gamma=0.0), x, LAYOUT, 1)[1]
    optimum = {row[0]: row[3] for row in OPTIMA}[beta]
    assert codecs.relative_error(x, y) == pytest.approx(oracle.relative_error(beta, optimum), rel=noise)
