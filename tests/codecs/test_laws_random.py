"""Laws of codecs that draw random numbers: what the key decides, and unbiasedness.

All keys are fixed, so nothing here can fail by chance from one run to the next; the limits are
those of a fresh draw.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec
from tests.codecs.case import Case
from tests.codecs.cases import CASES

LAYOUT = Layout.of(
    [TensorSpec("a", (24, 50)), TensorSpec("b", (7,)), TensorSpec("c", (640,)), TensorSpec("d", (3, 2, 5))]
)
CTX = codecs.Ctx(key=1, round=3, loss=0.5, lr=0.1)
KEYS = 200
SIGMAS = 4.0
GROUPS = 12  # of values alike in size
EXAMPLES = 500
FEW_KEYS = 24  # of a drawn example
FEW_SIGMAS = 9.0  # of so few keys; examples are many, and some of the codecs' errors are seldom and large
# None with few values: a rounding that is seldom otherwise, as that of a tensor's only value, is
# then not seen in so few keys.
TENSORS = ((64,), (200,), (600,), (1500,), (12, 40), (30, 20), (8, 3, 3, 3))

every_codec = pytest.mark.parametrize("case", CASES, ids=str)
UNBIASED = [c for c in CASES if c.claims.unbiased]
every_unbiased_codec = pytest.mark.parametrize("case", UNBIASED, ids=str)


def gradient() -> Vec:
    """Heavy tails as gradients have them, in float32[n]; the tensors differ in size."""
    rng = np.random.default_rng(11)
    x = np.sign(rng.standard_normal(LAYOUT.size)) * rng.gamma(1 / 0.6, 1.0, LAYOUT.size) ** (1 / 0.6)
    for k, scale in enumerate((1e-3, 1.0, 20.0, 1e-5)):
        x[LAYOUT.offsets[k] : LAYOUT.offsets[k + 1]] *= scale
    return x.astype(np.float32)


@every_codec
def test_the_key_decides_the_bytes_where_the_codec_draws_and_only_there(case: Case) -> None:
    x, codec = gradient(), case.codec()
    bodies = {
        bytes(codec.encode(x, codec.init(LAYOUT), dataclasses.replace(CTX, key=key))[0])
        for key in (0, 1, 2**32, 2**64 - 1)
    }
    if case.claims.random:
        assert len(bodies) >= 3  # of the few numbers that atomo draws here, two keys may say the same
    else:
        assert len(bodies) == 1


@pytest.mark.no_cover
@every_unbiased_codec
def test_the_mean_over_keys_is_the_input(case: Case) -> None:
    """The decoded vector less x, summed with weights in a dozen ways (gain, plain sums by size of
    value, sums by size and sign, tensor by tensor), over KEYS independent keys: every mean lies
    within 4 sigma of 0."""
    x, codec = gradient(), case.codec()
    ways = _ways(x)
    sums = np.empty((KEYS, ways.shape[0]))
    for key in range(KEYS):
        body, _ = codec.encode(x, codec.init(LAYOUT), dataclasses.replace(CTX, key=key * 0x1234_5678_9ABC_DEF1 % 2**64))
        sums[key] = ways @ (codec.decode(body, LAYOUT).astype(np.float64) - x)
    spread = sums.std(axis=0, ddof=1) / np.sqrt(KEYS)
    rounding = 2.0**-22 * (np.abs(ways) @ np.abs(x.astype(np.float64)))
    assert (spread > 0).any(), "nothing was random"
    assert (np.abs(sums.mean(axis=0)) <= SIGMAS * spread + rounding).all(), sums.mean(axis=0) / spread


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Layout, Vec, int]:
    """A layout, values of one law in it, and the first key. Sometimes a tensor goes on behind the
    border of a block."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = [TENSORS[k] for k in rng.integers(len(TENSORS), size=rng.integers(1, 4))]
    if rng.random() < 0.01:
        shapes.append((65536 + int(rng.integers(-3, 600)),))
    layout = Layout.of(TensorSpec(f"t{k}", shape) for k, shape in enumerate(shapes))
    x = np.concatenate([rng.choice((1e-6, 1.0, 30.0)) * rng.laplace(size=t.size) for t in layout.tensors])
    if rng.random() < 0.3:
        x[rng.random(x.size) < 0.5] = 0
    return layout, x.astype(np.float32), int(rng.integers(2**63))


def the_mean_is_the_input(case: Case, layout: Layout, x: Vec, first: int) -> None:
    """The mean of the errors over FEW_KEYS keys, summed plainly, by sign and by size: none is
    further from 0 than FEW_SIGMAS of its own spread. What rounds by a rule is off by the square
    root of the number of values."""
    codec, plain = case.codec(), x.astype(np.float64)
    ways = np.array([plain, np.sign(plain), np.ones(x.size)])
    sums = np.empty((FEW_KEYS, len(ways)))
    for k in range(FEW_KEYS):
        ctx = dataclasses.replace(CTX, key=(first + k * 0x9E37_79B9_7F4A_7C15) % 2**64)
        body, _ = codec.encode(x, codec.init(layout), ctx)
        sums[k] = ways @ (codec.decode(body, layout).astype(np.float64) - plain)
    spread = sums.std(axis=0, ddof=1) / np.sqrt(FEW_KEYS)
    rounding = 2.0**-18 * np.linalg.norm(ways, axis=1) * np.linalg.norm(plain)
    assert (np.abs(sums.mean(axis=0)) <= FEW_SIGMAS * spread + rounding).all(), (sums.mean(axis=0), spread)


@pytest.mark.slow
@every_unbiased_codec
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(vector=vectors())
def test_the_mean_over_keys_is_the_input_whatever_it_is(case: Case, vector: tuple[Layout, Vec, int]) -> None:
    assume(vector[1].size < 65_000 or "bytes" not in case.params)
    the_mean_is_the_input(case, *vector)


def test_what_rounds_by_a_rule_is_noticed() -> None:
    """The same limits refuse codecs that are biased."""
    x = np.random.default_rng(2).laplace(size=LAYOUT.size).astype(np.float32)
    for name, params in (("fp16", {}), ("signsgd", {}), ("topk", {"ratio": 0.5}), ("randk", {"unbiased": False})):
        with pytest.raises(AssertionError):
            the_mean_is_the_input(Case(name, params), LAYOUT, x, 1)


def _ways(x: Vec) -> np.ndarray:
    """float64[ways, n]: one row of weights for every sum."""
    rows = [x.astype(np.float64)]  # the gain: <y, x> = <x, x>
    for k in range(len(LAYOUT.tensors)):
        tensor = np.zeros(x.size)
        tensor[LAYOUT.offsets[k] : LAYOUT.offsets[k + 1]] = 1
        rows += [tensor, tensor * np.sign(x)]
        size = int(LAYOUT.offsets[k + 1] - LAYOUT.offsets[k])
        if size < 100:
            continue
        for group in np.array_split(np.argsort(np.abs(x[tensor > 0])) + LAYOUT.offsets[k], GROUPS):
            signed = np.zeros(x.size)
            signed[group] = np.sign(x[group])
            rows.append(signed)
    return np.array(rows)
