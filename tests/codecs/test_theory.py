"""The table of variances that the codecs' defaults were chosen by, reproduced by the formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgegossip.codecs import claims, levels
from edgegossip.types import UsageError
from tests.codecs.gennorm_oracle import sample

# Normalised variance and entropy of the codes at beta = 0.6: levels, then (bucket, norm) -> eps, H
# with 32 bits a bucket.
COLUMNS = ((512, "l2"), (512, "linf"), (8192, "l2"), (8192, "linf"))
TABLE = {
    "qsgd-2": (levels.uniform_levels(1), (12.5053, 3.1327, 52.9974, 5.8922), (0.27, 0.60, 0.07, 0.36)),
    "qsgd-4": (levels.uniform_levels(7), (1.0794, 0.1501, 6.7156, 0.3676), (0.96, 2.07, 0.32, 1.45)),
    "qsgd-8": (levels.uniform_levels(127), (0.0052, 0.0005, 0.0779, 0.0014), (4.22, 5.97, 2.31, 5.14)),
    "nuqsgd-4": (levels.geometric_levels(6, 0.5), (0.0918, 0.0741, 0.3047, 0.0823), (2.88, 3.66, 1.54, 3.32)),
    "nuqsgd-8": (levels.geometric_levels(126, 0.5), (0.0825, 0.0736, 0.0829, 0.0805), (4.18, 4.21, 4.12, 4.14)),
    "nuqsgd-8-0.9": (levels.geometric_levels(126, 0.9), (0.0019, 0.0017, 0.0019, 0.0018), (6.87, 6.89, 6.81, 6.83)),
}
ROWS = [(name, column) for name in TABLE for column in range(4)]


@pytest.fixture(scope="module")
def vector() -> np.ndarray:
    return sample(0.6, 1 << 18)  # with the largest of 8192 as norm, samples differ by 10 %: the table's own


@pytest.mark.parametrize(("name", "column"), ROWS)
def test_the_table_of_variances_and_entropies(vector: np.ndarray, name: str, column: int) -> None:
    grid, eps, entropy = TABLE[name]
    bucket, norm = COLUMNS[column]
    # Four digits were printed: 0.0005 is 0.00045 to 0.00055.
    assert claims.normalized_variance(grid, vector, bucket, norm) == pytest.approx(eps[column], rel=1e-3, abs=6e-5)
    assert claims.code_entropy(grid, vector, bucket, norm) + 32 / bucket == pytest.approx(
        entropy[column], rel=0.02, abs=0.01
    )


@pytest.mark.parametrize("bucket", [0, 7, 64, 1000])
def test_both_are_the_expectations_of_drawn_codes(bucket: int) -> None:
    grid = np.array([0, 0.1, 0.4, 1.0])
    x = sample(0.8, 1000)
    rng = np.random.default_rng(1)
    width = bucket or x.size
    n = np.concatenate(
        [np.full(len(v), np.linalg.norm(v.astype(np.float64))) for v in np.split(x, range(width, x.size, width))]
    )
    r = np.abs(x) / n
    low = np.searchsorted(grid, r, side="right") - 1
    up = (r - grid[low]) / (grid[low + 1] - grid[low])
    drawn = low + (rng.random((2000, x.size)) < up)
    error = (((grid[drawn] - r) * n) ** 2).sum(1).mean() / float((x.astype(np.float64) ** 2).sum())
    assert claims.normalized_variance(grid, x, bucket) == pytest.approx(error, rel=0.02)
    codes = np.where(x < 0, -drawn, drawn)
    assert claims.code_entropy(grid, x, bucket) == pytest.approx(
        claims.entropy_bits(np.unique(codes, return_counts=True)[1]), rel=0.01
    )


def test_vectors_without_values_or_with_zeros_only() -> None:
    for size in (0, 5):
        x = np.zeros(size, np.float32)
        assert claims.normalized_variance([0, 1], x, 2) == 0
        assert claims.code_entropy([0, 1], x, 2, "linf") == 0
    assert claims.entropy_bits([0, 0]) == 0
    assert claims.entropy_bits([[1, 1], [1, 1]]) == 2
    for bad in ([0.0], [0, 0.5], [0.1, 1], [0, 1, 1], [0, math.nan, 1]):
        with pytest.raises(UsageError):
            claims.normalized_variance(bad, x)
