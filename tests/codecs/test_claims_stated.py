"""What the codecs of the package state about sizes and errors that no closed form gives, and what
users may state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, verify
from edgegossip.codecs import claims
from edgegossip.codecs.claims import Claims
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec

LAYOUT, X = verify.trial(20_000)


def of(name: str, x: Vec = X, layout: Layout = LAYOUT, **params: Any) -> Claims:
    return claims.claims_of(codecs.get(name, **params), x, layout)


def verdict(name: str, check: str, **params: Any) -> bool | None:
    report = verify.verify(codecs.get(name, **params), name, size=20_000, draws=8, rebuild=codecs.from_wire)
    return next(c.passed for c in report.checks if c.name == check)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("co3", {}),
        ("terngrad", {}),
        ("terngrad", {"stage": "huffman", "clip": 1.0}),
    ],
)
def test_sizes_are_judged_where_codes_are_coded(name: str, params: dict[str, Any]) -> None:
    assert verdict(name, "size", **params) is True
    assert verdict(name, "size", **{**params, "stage": "raw"}) is None


def test_the_entropy_of_co3_is_that_of_its_decoded_values() -> None:
    codec = codecs.get("co3", gamma=0.0)
    values = codec.decode(codec.encode(X, codec.init(LAYOUT), codecs.Ctx(1, 0))[0], LAYOUT)
    bits = 32.0 * len(LAYOUT.tensors)
    for part in np.split(values, LAYOUT.offsets[1:-1]):
        share = np.unique(part, return_counts=True)[1] / part.size
        bits -= part.size * float((share * np.log2(share)).sum())
    assert of("co3").entropy_bits == pytest.approx(bits / LAYOUT.size, rel=1e-4)


def test_the_entropy_of_terngrad_is_of_what_is_left_after_the_clip() -> None:
    assert of("terngrad", clip=1e6).entropy_bits == pytest.approx(of("terngrad", clip=0.0).entropy_bits)
    assert of("terngrad", clip=1.0).entropy_bits > of("terngrad").entropy_bits > of("terngrad", clip=0.0).entropy_bits


def test_minmax8_states_half_a_step() -> None:
    assert verdict("minmax8", "variance") is True
    x = np.linspace(-1, 1, 256).astype(np.float32)
    layout = Layout.of([TensorSpec("a", (256,))])
    error = 256 * (0.52 * 2 / 255) ** 2
    assert of("minmax8", x, layout).variance == pytest.approx(error / float(x @ x), rel=1e-3)


@pytest.mark.parametrize("name", ["co3", "terngrad", "minmax8"])
def test_tensors_without_values_and_of_zeros(name: str) -> None:
    layout = Layout.of([TensorSpec("none", (0,)), TensorSpec("zeros", (4,))])
    stated = of(name, np.zeros(4, np.float32), layout)
    assert stated.entropy_bits == (None if name == "minmax8" else 8)  # the scale
    empty = of(name, np.zeros(0, np.float32), Layout.of([TensorSpec("none", (0,))]))
    assert not empty.entropy_bits


class Stating:
    name = "own"

    def __init__(self, stated: Claims) -> None:
        self.stated = stated

    def claims(self, x: Vec, layout: Layout) -> Claims:
        return self.stated


@pytest.mark.parametrize(
    "stated", [Claims(True, "0.2"), Claims("yes"), Claims(True, float("nan")), Claims(True, None, -1.0)]
)
def test_claims_that_nothing_can_be_held_to(stated: Any) -> None:
    with pytest.raises(ValueError, match="unbiased is True, False or None, the others are finite numbers"):
        claims.claims_of(Stating(stated), X, LAYOUT)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    stated = Claims(np.bool_(True), np.float32(0.5), np.int64(4))  # type: ignore[arg-type]
    assert claims.claims_of(Stating(stated), X, LAYOUT) is stated  # type: ignore[arg-type]
