"""Laws of codecs that draw random numbers: what the key decides, and unbiasedness.

All keys are fixed, so nothing here can fail by chance from one run to the next; the limits are
those of a fresh draw.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

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
