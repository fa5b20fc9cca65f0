"""topk and randk beyond the laws: how many values, in which bytes, with which error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, frame
from edgegossip.codecs.sparse import counts
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec

CTX = codecs.Ctx(key=2**64 - 3, round=2)
LAYOUT = Layout.of([TensorSpec("w", (40, 50)), TensorSpec("empty", (0,)), TensorSpec("b", (10,)), TensorSpec("s", ())])


def gradient(layout: Layout, seed: int = 0) -> Vec:
    rng = np.random.default_rng(seed)
    return (rng.gamma(1 / 0.6, 1, layout.size) ** (1 / 0.6) * rng.choice([-1, 1], layout.size)).astype(np.float32)


def sent(codec: codecs.Codec[Any], x: Vec, layout: Layout, ctx: codecs.Ctx = CTX) -> tuple[bytes, Vec]:
    body = bytes(codec.encode(x, codec.init(layout), ctx)[0])
    return body, codec.decode(body, layout)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.0, [1, 0, 1, 1]),
        (0.01, [20, 0, 1, 1]),
        (0.07, [140, 0, 1, 1]),
        (0.3, [600, 0, 3, 1]),
        (1.0, [2000, 0, 10, 1]),
    ],
)
def test_counts_are_the_ceiling_of_the_share_and_at_least_one(ratio: float, expected: list[int]) -> None:
    assert counts(LAYOUT, ratio).tolist() == expected


def test_a_whole_number_is_not_rounded_up() -> None:
    layout = Layout.of([TensorSpec("a", (100,)), TensorSpec("b", (2_000_000_000,))])
    for percent in range(1, 101):
        assert counts(layout, percent / 100).tolist() == [percent, percent * 20_000_000]


@pytest.mark.parametrize("name", ["topk", "randk"])
@pytest.mark.parametrize(("values", "value_bits"), [("fp32", 32), ("fp16", 16), ("bf16", 16)])
def test_as_many_values_as_asked_in_less_than_the_limit(name: str, values: str, value_bits: int) -> None:
    for ratio in (1e-9, 0.001, 0.01, 0.1, 0.3, 0.37, 0.4, 0.9, 0.97, 1.0):
        body, y = sent(codecs.get(name, ratio=ratio, values=values), gradient(LAYOUT), LAYOUT)
        assert np.count_nonzero(y) == counts(LAYOUT, ratio).sum()
        assert len(body) <= frame.Limits.of(LAYOUT).max_body_bytes
        assert 8 * len(body) <= value_bits * np.count_nonzero(y) + 2100 + 3 * 48 + 64


def test_randk_has_the_variance_that_is_stated() -> None:
    """E||x' - x||^2 = (n/k - 1) ||x||^2, over 300 keys within 5 %."""
    layout = Layout.of([TensorSpec("w", (1000,))])
    x, codec = np.ones(1000, np.float32), codecs.get("randk", ratio=0.25)
    x[::3] = -5
    errors = [((sent(codec, x, layout, codecs.Ctx(key * 7919, 0))[1] - x) ** 2).sum() for key in range(300)]
    assert np.mean(errors) == pytest.approx(3 * (x**2).sum(), rel=0.05)


def test_randk_saturates() -> None:
    layout = Layout.of([TensorSpec("a", (100,))])
    x = np.full(100, -3.4e38, np.float32)
    assert set(sent(codecs.get("randk"), x, layout)[1]) == {0, -np.finfo(np.float32).max}
    assert set(sent(codecs.get("randk", values="fp16"), x, layout)[1]) == {0, -65504}
    assert set(sent(codecs.get("randk", unbiased=False), x, layout)[1]) == {0, np.float32(-3.4e38)}
