"""The codec whose rate is chosen for every message: what it makes is dither's or deadzone's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.codecs import Ctx, auto
from edgegossip.gossip.averaging import follows
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError

LAYOUT = Layout.of([TensorSpec("w", (40, 50)), TensorSpec("b", (50,)), TensorSpec("mean", (50,), trainable=False)])
X = np.random.default_rng(3).standard_normal(LAYOUT.size).astype(np.float32)


@pytest.mark.parametrize(("repaired", "name"), [(False, "dither"), (True, "deadzone")])
@pytest.mark.parametrize("size", [200, 700, 1900])
def test_a_message_is_that_of_the_codec_with_so_many_bytes(repaired: bool, name: str, size: int) -> None:
    codec, other = auto.for_scheme(codecs.get("auto"), repaired), codecs.get(name, bytes=size)
    body, _ = codec.encode(X, codec.init(LAYOUT), Ctx(key=5, round=2, bytes=size))
    same, _ = other.encode(X, other.init(LAYOUT), Ctx(key=5, round=2))
    assert bytes(body) == bytes(same) and len(body) <= size
    decoded = codecs.from_wire(codec.wire_id, codec.wire_params()).decode(body, LAYOUT)
    np.testing.assert_array_equal(decoded, codec.decode(body, LAYOUT))


def test_its_own_limit_holds_whatever_is_asked_for() -> None:
    codec = codecs.get("auto", bytes=300)
    for asked in (None, 200, 2000):
        body, _ = codec.encode(X, codec.init(LAYOUT), Ctx(key=5, round=2, bytes=asked))
        assert len(body) <= min(300, asked or 300)


@pytest.mark.parametrize(("repaired", "bits"), [(False, 1 / 4), (True, 1 / 32)])
def test_a_message_is_never_all_noise(repaired: bool, bits: float) -> None:
    """Whatever a link allows; less than that is refused where the user asks for it."""
    layout = Layout.of([TensorSpec("w", (200, 500)), TensorSpec("mean", (500,), trainable=False)])
    x = np.random.default_rng(3).standard_normal(layout.size).astype(np.float32)
    least, codec = int(bits * layout.size / 8) + 1, auto.for_scheme(codecs.get("auto"), repaired)
    for sent in (codec, codecs.for_layout(codec, layout)):
        body, _ = sent.encode(x, sent.init(layout), Ctx(key=5, round=2, bytes=70))
        assert len(body) >= 0.9 * least
    with pytest.raises(ConfigError, match=f"codec auto: bytes = 70 hold next to nothing .* that do are {least}"):
        auto.for_scheme(codecs.get("auto", bytes=70), repaired).init(layout)


def test_an_error_is_fixed_whatever_is_asked_for() -> None:
    codec = codecs.get("auto", error=0.1)
    bodies = {bytes(codec.encode(X, codec.init(LAYOUT), Ctx(key=5, round=2, bytes=b))[0]) for b in (None, 100)}
    assert len(bodies) == 1 and not follows(codec)


@given(st.integers(500, 2000))
def test_statistics_stay_exact_and_count(size: int) -> None:
    codec = codecs.for_layout(auto.for_scheme(codecs.get("auto"), repaired=True), LAYOUT)
    body, _ = codec.encode(X, codec.init(LAYOUT), Ctx(key=5, round=2, bytes=size))
    assert len(body) <= size and follows(codec)
    np.testing.assert_array_equal(codec.decode(body, LAYOUT)[-50:], X[-50:])


@pytest.mark.parametrize("other", [{"bytes": 100}, {"seconds": 1.0}])
def test_error_goes_with_no_limit(other: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="error and (bytes|seconds) are both given, and error fixes the rate"):
        codecs.get("auto", error=0.1, **other)


def test_it_may_be_the_codec_of_most_tensors_and_has_no_feedback_of_its_own() -> None:
    assert codecs.leaves_rate(codecs.get("small-tensors", codec="auto")) and not codecs.leaves_rate(codecs.get("topk"))
    with pytest.raises(ConfigError, match="codec error-feedback: auto has a rate of its own .* take deadzone"):
        codecs.get("error-feedback", codec="auto")


def test_a_fixed_error_that_no_dead_zone_has_is_refused_before_a_run() -> None:
    with pytest.raises(ConfigError, match="error = 2 is out of range"):
        auto.for_scheme(codecs.get("auto", error=2.0), repaired=True)
    assert auto.for_scheme(codecs.get("auto", error=2.0), repaired=False) == codecs.get("auto", error=2.0)
