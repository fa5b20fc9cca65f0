"""The quantiser kernels against theory: the variance they have is the formula's, CO3's grid has the
optimum's error and its codes take the bits that its marginals predict."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgegossip.codecs import claims, co3, levels, relative_error
from edgegossip.native import quantise
from edgegossip.native.quantise import Kind, Quantiser
from tests.codecs import gennorm_oracle as oracle
from tests.codecs.huffman_lengths import pair_bits_per_code

N = 1 << 17


def listed(s: int, p: float) -> Quantiser:
    values = tuple(levels.geometric_levels(s, p).tolist())
    return Quantiser(Kind.LEVELS, 8, len(values) - 1, 512, values)


@pytest.mark.parametrize("linf", [False, True])
@pytest.mark.parametrize(
    ("quantiser", "grid"),
    [
        (Quantiser(Kind.UNIFORM, 4, 7, 512), levels.uniform_levels(7)),
        (Quantiser(Kind.UNIFORM, 8, 127, 8192), levels.uniform_levels(127)),
        (Quantiser(Kind.LOG2, 4, 6, 512), levels.geometric_levels(6, 0.5)),
        (Quantiser(Kind.LOG2, 4, 6, 8192), levels.geometric_levels(6, 0.5)),
        (listed(126, 0.9), levels.geometric_levels(126, 0.9)),
    ],
    ids=lambda v: f"{v.kind.name}-{v.levels}-{v.bucket}" if isinstance(v, Quantiser) else "",
)
def test_the_variance_is_the_formulas_and_below_the_bound(quantiser: Quantiser, grid: np.ndarray, linf: bool) -> None:
    x = oracle.sample(0.6, N)
    scales = quantise.norms(x, quantiser.bucket, linf)
    assert scales is not None
    errors = []
    for key in range(1, 9):
        y = np.empty_like(x)
        symbols = quantise.quantise(quantiser, x, scales, key * 0x9E3779B97F4A7C15 % 2**64)
        quantise.dequantise(quantiser, symbols, scales, y)
        errors.append(relative_error(x, y) ** 2)
    expected = claims.normalized_variance(grid, x, quantiser.bucket, "linf" if linf else "l2")
    deviation = float(np.std(errors, ddof=1)) / math.sqrt(len(errors))
    assert abs(np.mean(errors) - expected) <= 6 * deviation + 1e-3 * expected  # 6 of 8 draws are as rare as 4 of many
    assert np.mean(errors) <= levels.worst_case_variance(grid, quantiser.bucket)
    if quantiser.kind == Kind.LOG2:
        assert np.mean(errors) <= levels.variance_bound(6, quantiser.bucket)


def test_co3_has_the_optimums_error_and_takes_less_than_two_bits_and_a_fifth() -> None:
    x = oracle.sample(0.6, N)
    grid = Quantiser(Kind.FP4, 4, 5, 0)
    _, magnitudes, squares, largest = quantise.moments(x)
    k = co3.scale_for(magnitudes, squares, largest, N)
    scales, y = np.array([k], np.float32), np.empty_like(x)
    symbols = np.frombuffer(quantise.quantise(grid, x, scales, 1), np.uint8)
    quantise.dequantise(grid, symbols, scales, y)
    assert relative_error(x, y) == pytest.approx(0.2564, rel=0.02)
    codes = np.concatenate([symbols & 15, symbols >> 4])
    share = np.bincount(codes, minlength=16) / codes.size
    law = co3.fit(magnitudes, squares, N)
    table = co3.static_table_for(law.beta)
    assert table.beta == 0.6
    assert (
        pair_bits_per_code(table.weights, share)
        <= 2.16
        < 2.35
        <= pair_bits_per_code(co3.static_table_for(1).weights, share)
    )
