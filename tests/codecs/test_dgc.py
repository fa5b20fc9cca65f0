"""dgc against the lines of Deep Gradient Compression (Lin et al. 2018, algorithm 4), in plain
numpy."""

from __future__ import annotations

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.sparse import Dgc
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import UsageError, Vec

LAYOUT = Layout.of([TensorSpec("w", (30, 40)), TensorSpec("empty", (0,)), TensorSpec("b", (40,))])
PIECES = [slice(0, 1200), slice(1200, 1240)]


class Paper:
    """One worker, with the paper's names; float32 as the product's, so that the comparison can be
    exact."""

    def __init__(self, momentum: float, clip: float) -> None:
        self.u, self.v = np.zeros(LAYOUT.size, np.float32), np.zeros(LAYOUT.size, np.float32)
        self.momentum, self.clip = np.float32(momentum), clip

    def step(self, g: Vec, share: float) -> Vec:
        if self.clip:
            norm = np.sqrt((g.astype(np.float64) ** 2).sum())
            g = np.float32(min(1.0, self.clip / norm)) * g
        self.u = self.momentum * self.u + g
        self.v = self.v + self.u
        mask = np.zeros(LAYOUT.size, bool)
        for piece in PIECES:
            size = np.abs(self.v[piece])
            k = max(1, int(np.ceil(size.size * share - 1e-9)))
            mask[piece] = size >= np.sort(size)[-k]  # no ties in this test
        sparse = np.where(mask, self.v, 0)
        self.v = np.where(mask, 0, self.v)
        self.u = np.where(mask, 0, self.u)
        return sparse


def gradients(rounds: int) -> list[Vec]:
    rng = np.random.default_rng(7)
    return [(rng.standard_normal(LAYOUT.size) * 10.0 ** rng.integers(-3, 3)).astype(np.float32) for _ in range(rounds)]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("clip", [0.0, 2.5])
@pytest.mark.parametrize(
    ("ratio", "warmup", "shares"), [(0.05, 0, [0.05]), (0.001, 4, [0.25, 0.0625, 0.015625, 0.00390625, 0.001])]
)
def test_ten_rounds_are_those_of_the_paper(
    momentum: float, clip: float, ratio: float, warmup: int, shares: list[float]
) -> None:
    codec = codecs.get("dgc", ratio=ratio, momentum=momentum, clip=clip, warmup_rounds=warmup)
    paper, state = Paper(momentum, clip), codec.init(LAYOUT)
    for round, g in enumerate(gradients(10)):
        body, state = codec.encode(g, state, codecs.Ctx(key=0, round=round))
        expected = paper.step(g, shares[min(round, len(shares) - 1)])
        np.testing.assert_array_equal(codec.decode(body, LAYOUT), expected)
        np.testing.assert_array_equal(state.u, paper.u)
        np.testing.assert_array_equal(state.v, paper.v)


def test_shares_of_the_warm_up_are_the_papers() -> None:
    """Sparsity 75 %, 93.75 %, 98.4375 %, 99.6 %, then 99.9 %: section 3.3, at one round an
    epoch."""
    codec = Dgc(ratio=0.001, warmup_rounds=4)
    assert [codec.ratio_at(r) for r in range(6)] == [0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001]
    assert [Dgc(ratio=0.01, warmup_rounds=6).ratio_at(r) for r in range(7)] == [
        0.25,
        0.25,
        0.0625,
        0.0625,
        0.015625,
        0.015625,
        0.01,
    ]
    assert [Dgc(ratio=0.3, warmup_rounds=3).ratio_at(r) for r in range(4)] == [0.3] * 4
    assert [Dgc(ratio=1e-9, warmup_rounds=2).ratio_at(r) for r in range(3)] == [0.25, 0.25 * 0.25**7, 1e-9]
    assert Dgc(ratio=0.01).ratio_at(0) == 0.01


def test_half_precision_leaves_its_rounding_error_in_the_memory() -> None:
    codec = codecs.get("dgc", ratio=0.1, values="fp16")
    g = gradients(1)[0]
    g[:3] = 1e6
    body, state = codec.encode(g, codec.init(LAYOUT), codecs.Ctx(0, 0))
    np.testing.assert_array_equal(codec.decode(body, LAYOUT) + state.v, g)
    assert (state.v[:3] == 1e6 - 65504).all()


def test_topk_decodes_its_bodies() -> None:
    codec = codecs.get("dgc", ratio=0.3)
    body, _ = codec.encode(gradients(1)[0], codec.init(LAYOUT), codecs.Ctx(0, 0))
    rebuilt = codecs.from_wire(codec.wire_id, codec.wire_params())
    assert rebuilt.name == "topk"
    np.testing.assert_array_equal(rebuilt.decode(body, LAYOUT), codec.decode(body, LAYOUT))


def test_a_memory_that_overflows_is_divergence_too() -> None:
    codec, g = codecs.get("dgc", ratio=1e-9), np.zeros(LAYOUT.size, np.float32)
    g[[3, 5]] = 3e38, 2.5e38
    _, state = codec.encode(g, codec.init(LAYOUT), codecs.Ctx(0, 0))
    with pytest.raises(UsageError, match="^tensor w holds NaN or infinite values"):
        codec.encode(g, state, codecs.Ctx(0, 1))
