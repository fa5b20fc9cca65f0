"""Claims follow from a codec's name and parameters: bounds of the right levels and bucket, entropy
where there is a coder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, verify
from edgegossip.codecs import claims, levels
from edgegossip.codecs.claims import Claims
from edgegossip.layout import Layout, TensorSpec
from tests.codecs.gennorm_oracle import sample

LAYOUT, X = verify.trial(4096)


ROUNDED_UP = (1 + 2.0**-8) ** 2  # a bucket's norm, squared


@dataclass
class Described:
    """What `claims_of` looks at: a name and parameters."""

    name: str
    bits: int = 4
    bucket: int = 512
    norm: str = "l2"
    stage: str = "raw"
    levels: tuple[float, ...] = ()
    p: float = 0.5
    clip: float = 0.0
    s0: int = 7


@dataclass
class Wrapped:
    codec: Any
    name: str = "wrapper"
    bits: int = field(default=99)


def stated(name: str, **params: Any) -> Claims:
    return claims.claims_of(Described(name, **params), X, LAYOUT)


def test_stochastic_codecs_state_the_worst_case_of_their_levels() -> None:
    def worst(grid: Any) -> Claims:
        return Claims(True, levels.worst_case_variance(grid, 512) * ROUNDED_UP)

    assert stated("qsgd") == worst(levels.uniform_levels(7))
    assert stated("qsgd-inf", bits=2, norm="linf") == worst([0, 1])
    assert stated("qsgd", bucket=0).variance == levels.worst_case_variance(levels.uniform_levels(7), 45 * 45)
    assert stated("elasticl", bucket=0).variance == stated("qsgd", bucket=0).variance
    assert stated("elastiquant") == Claims(True, levels.variance_bound(6, 512) * ROUNDED_UP)
    assert stated("elastiquant", bits=8, p=0.9) == Claims(True, levels.variance_bound(126, 512, 0.9) * ROUNDED_UP)
    assert stated("elastiquant", bits=2) == worst([0, 1])
    assert stated("elastiquant", levels=(0, 0.2, 1)) == worst([0, 0.2, 1])
    assert stated("elastiquant", bucket=0).variance == levels.variance_bound(6, 45 * 45)
    assert stated("terngrad").unbiased and stated("terngrad", clip=2.5) == Claims(False)


def test_entropy_is_claimed_with_a_coder_that_aims_at_it() -> None:
    assert stated("qsgd", stage="elias").entropy_bits is None
    bits = stated("qsgd", stage="auto", bucket=512).entropy_bits
    parts = [X[LAYOUT.offsets[k] : LAYOUT.offsets[k + 1]] for k in range(3)]
    scales = sum(-(-part.size // 512) for part in parts)
    symbols = sum(part.size * claims.code_entropy(levels.uniform_levels(7), part, 512) for part in parts)
    assert bits == pytest.approx((symbols + 16 * scales) / 4096)
    whole = sum(part.size * claims.code_entropy(levels.uniform_levels(7), part) for part in parts)
    assert stated("qsgd", stage="huffman", bucket=0).entropy_bits == pytest.approx((whole + 32 * 3) / 4096)
    empty = Layout.of([TensorSpec("none", (0,)), TensorSpec("some", (4,))])
    some = np.ones(4, np.float32)
    assert claims.claims_of(Described("qsgd", stage="auto"), some, empty).entropy_bits >= 4


@pytest.mark.parametrize("bucket", [0, 7, 64, 1000])
def test_the_entropy_is_that_of_drawn_codes(bucket: int) -> None:
    grid, x, rng = np.array([0, 0.1, 0.4, 1.0]), sample(0.8, 1000), np.random.default_rng(1)
    starts = range(0, x.size, bucket or x.size)
    norms = np.array([np.linalg.norm(x[k : k + (bucket or x.size)].astype(np.float64)) for k in starts])
    r = np.abs(x) / np.repeat(norms, bucket or x.size)[: x.size]
    low = np.searchsorted(grid, r, side="right") - 1
    drawn = low + (rng.random((2000, x.size)) < (r - grid[low]) / (grid[low + 1] - grid[low]))
    counts = np.unique(np.where(x < 0, -drawn, drawn), return_counts=True)[1]
    assert claims.code_entropy(grid, x, bucket) == pytest.approx(claims.entropy_bits(counts), rel=0.01)


def test_what_has_no_values_or_only_zeros_has_no_entropy() -> None:
    for size in (0, 5):
        assert claims.code_entropy([0, 1], np.zeros(size, np.float32), 2, "linf") == 0
    assert claims.entropy_bits([0, 0]) == 0 and claims.entropy_bits([[1, 1], [1, 1]]) == 2


def test_what_wrappers_rounders_and_strangers_claim() -> None:
    assert claims.claims_of(Wrapped(Wrapped(Described("qsgd"))), X, LAYOUT) == stated("qsgd")
    assert stated("unheard-of") == Claims()
    assert stated("fp32").unbiased and stated("fp16").variance < stated("bf16").variance < 1e-4
    assert stated("dgc") == stated("co3") == Claims(False, 1.0)
    assert stated("atomo") == Claims(True)


def test_selections_claim_the_share_that_they_keep() -> None:
    layout = Layout.of([TensorSpec("a", (100,)), TensorSpec("none", (0,)), TensorSpec("b", (10,))])
    x = np.concatenate([np.full(100, 0.1), np.full(10, np.sqrt(0.3))]).astype(np.float32)  # squares: 1 and 3

    def of(name: str, **params: Any) -> Claims:
        return claims.claims_of(codecs.get(name, **params), x, layout)

    assert of("topk", ratio=0.5).variance == pytest.approx(0.5, abs=1e-4)
    assert of("topk", ratio=0.01).variance == pytest.approx(0.25 * 0.99 + 0.75 * 0.9, abs=1e-4)  # at least one value
    assert of("randk", ratio=0.1).variance == pytest.approx(9, rel=0.02)
    assert of("randk", ratio=0.1).unbiased and of("randk", ratio=0.1, values="bf16").unbiased is None
    assert of("randk", ratio=0.1, unbiased=False) == of("topk", ratio=0.1)
    assert claims.claims_of(codecs.get("topk"), np.zeros_like(x), layout).variance < 1e-4


def test_signs_claim_their_exact_error() -> None:
    y = np.concatenate([np.sign(t) * np.abs(t).mean() for t in np.split(X, LAYOUT.offsets[1:-1])])
    error = float(((y - X).astype(np.float64) ** 2).sum() / (X.astype(np.float64) ** 2).sum())
    assert stated("signsgd").variance == pytest.approx(error, rel=1e-5)
    assert claims.claims_of(Described("signsgd"), np.zeros_like(X), LAYOUT) == Claims(False, 0.0)
