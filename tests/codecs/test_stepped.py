"""dither and deadzone: what their parameters promise, and how near they come to the entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.codecs import claims
from edgegossip.codecs.claims import entropy_bits
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, Vec

LARGE = 1 << 18


def layout_of(*sizes: int) -> Layout:
    return Layout.of(TensorSpec(f"t{k}", (int(n),)) for k, n in enumerate(sizes))


def heavy(n: int, seed: int = 1) -> Vec:
    """Values like a gradient's: a generalised normal of shape 0.6."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(1 / 0.6, 1, n) ** (1 / 0.6) * rng.choice([-1, 1], n)
    return (x / np.sqrt(np.mean(x**2))).astype(np.float32)


def sent(name: str, x: Vec, layout: Layout, key: int = 1, **params: Any) -> tuple[int, Vec]:
    """Bytes of the message, and what arrives."""
    codec = codecs.get(name, **params)
    body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(key, 0))
    return memoryview(body).nbytes, codec.decode(body, layout)


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Layout, Vec]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layout = layout_of(*rng.integers(0, 3000, rng.integers(1, 5)))
    parts = [heavy(t.size, int(rng.integers(2**31))) * rng.choice([1e-3, 1.0, 50.0]) for t in layout.tensors]
    x = np.concatenate(parts) * (rng.random(layout.size) < rng.choice([0.05, 1.0]))
    return layout, x.astype(np.float32)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(vectors(), st.sampled_from(["dither", "deadzone"]), st.integers(200, 6000), st.sampled_from([0.0, 0.5, 1.0]))
def test_bytes_are_never_exceeded(drawn: tuple[Layout, Vec], name: str, most: int, allocation: float) -> None:
    layout, x = drawn
    most = max(most, codecs.get(name, bytes=1, allocation=allocation).least_bytes(layout))
    assert sent(name, x, layout, bytes=most, allocation=allocation)[0] <= most


def test_bytes_are_used() -> None:
    layout, x = layout_of(LARGE), heavy(LARGE)
    for name in ("dither", "deadzone"):
        for most in (4500, 40_000, 150_000):
            spread = 160 if name == "dither" else 0  # four deviations of what its dithers take
            assert 0.97 * most - spread <= sent(name, x, layout, bytes=most)[0] <= most


@pytest.mark.parametrize(("most", "magnitude"), [(60, 0.1), (200, 1e-30), (700, 3e38)])
def test_a_dead_zone_sends_some_of_what_is_all_alike(most: int, magnitude: float) -> None:
    """No step sends some of them. Other messages send others, so that error feedback gets to
    all."""
    layout = layout_of(5000, 800)
    x = np.random.default_rng(3).choice([-1, 1], layout.size).astype(np.float32) * np.float32(magnitude)
    seen, shares = np.zeros(layout.size, bool), []
    for key in range(1, 13):
        size, y = sent("deadzone", x, layout, key, bytes=most)
        assert size <= most and (y != 0).any() and y[y != 0] == pytest.approx(x[y != 0], rel=0.1)
        seen |= y != 0
        shares.append((y != 0).mean())
    assert seen.mean() > 0.8 * (1 - (1 - np.mean(shares)) ** 12)


@pytest.mark.parametrize("values", [200, 9000, 200_000])
@pytest.mark.parametrize("allocation", [0.0, 1.0])
@pytest.mark.parametrize(("name", "worst"), [("dither", 16.0), ("deadzone", 0.99)])
def test_too_few_bytes_are_refused_with_the_fewest_that_say_something(
    name: str, worst: float, allocation: float, values: int
) -> None:
    """As soon as the model is known; with that many the error is one that `error` may ask for,
    too."""
    layout, x = layout_of(*[values // 40] * 40), heavy(values)
    for few in (1, 10, 12):
        with pytest.raises(ConfigError, match=f"bytes = {few} hold next to nothing of {values:,} values") as refused:
            codecs.get(name, bytes=few, allocation=allocation).init(layout)
        least = int(str(refused.value).rsplit(" ", 1)[1])
    assert codecs.relative_error(x, sent(name, x, layout, bytes=least, allocation=allocation)[1]) < worst
    with pytest.raises(ConfigError, match=f"the smallest that do are {least}"):
        codecs.get(name, bytes=least - 1, allocation=allocation).init(layout)


@pytest.mark.parametrize("allocation", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("error", [0.02, 0.25, 0.8])
def test_the_error_is_what_was_asked_for(error: float, allocation: float) -> None:
    layout = layout_of(LARGE // 2, 60_000, 900)
    x = heavy(layout.size) * np.repeat([1.0, 0.05, 20.0], [LARGE // 2, 60_000, 900]).astype(np.float32)
    for name in ("dither", "deadzone"):
        _, y = sent(name, x, layout, error=error, allocation=allocation)
        assert codecs.relative_error(x, y) == pytest.approx(error, rel=0.03), name


def coarse(n: int) -> dict[str, Vec]:
    """Vectors for which no step gives just any error: a value more or less is much of it."""
    rng = np.random.default_rng(3)
    spike = np.eye(1, n, n // 2, dtype=np.float32)[0]
    signs = rng.choice([-1, 1], n).astype(np.float32)
    return {
        "one loud value": spike,
        "one among quiet ones": spike + np.float32(1e-30) * heavy(n),
        "all alike": np.full(n, 0.1, np.float32),
        "signs": signs,
        "small integers": np.round(3 * rng.standard_normal(n)).astype(np.float32),
    }


@pytest.mark.parametrize("n", [1, 60, 5000])
@pytest.mark.parametrize("allocation", [0.0, 0.5])
@pytest.mark.parametrize("error", [1e-3, 0.1, 0.5, 0.9])
def test_where_no_step_gives_the_error_of_a_dead_zone_it_is_smaller(error: float, allocation: float, n: int) -> None:
    """Above all not 1: nothing would be said, in no round."""
    layout = layout_of(n)
    for what, x in coarse(n).items():
        _, y = sent("deadzone", x, layout, error=error, allocation=allocation)
        assert codecs.relative_error(x, y) <= 1.011 * error, what


@pytest.mark.parametrize("name", ["dither", "deadzone"])
def test_a_quiet_tensor_does_not_make_loud_ones_coarse(name: str) -> None:
    """A value is at most 2^21 of its own tensor's steps."""
    layout = layout_of(LARGE // 8, 600)
    x = heavy(layout.size)
    x[-600:] *= np.float32(1e-3)
    _, y = sent(name, x, layout, error=1e-4, allocation=1.0)
    for part, arrived in zip(layout.views(x).values(), layout.views(y).values(), strict=True):
        assert codecs.relative_error(part, arrived) == pytest.approx(1e-4, rel=0.1)


@pytest.mark.parametrize("error", [1e-3, 0.25])
@pytest.mark.parametrize("name", ["dither", "deadzone"])
def test_steps_of_tiny_tensors_have_a_reciprocal(name: str, error: float) -> None:
    """An error is below the smallest normal number, or what was asked for."""
    layout = layout_of(4096, 64)
    x = heavy(layout.size) * np.repeat([1e-35, 1e-40], [4096, 64]).astype(np.float32)
    _, y = sent(name, x, layout, error=error, allocation=1.0)
    away = np.linalg.norm(y.astype(np.float64) - x)
    assert away <= 1.1 * error * np.linalg.norm(x.astype(np.float64)) + 2.0**-126 * np.sqrt(layout.size)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(0.01, 8), st.sampled_from([0.5, 1.0, 3.0]))
def test_the_error_of_dither_is_uniform_whatever_a_value_is(value: float, step: float) -> None:
    """Each value of a vector of one and the same has its own u: mean and variance are those of a
    uniform error, and no u is more likely in one place of a row than in another."""
    n = 1 << 15
    x = np.full(n, value, np.float32)
    error = (sent("dither", x, layout_of(n), step=step, key=7)[1].astype(np.float64) - x) / step
    assert np.abs(error).max(initial=0) <= 0.5 + 1e-5
    for place in error.reshape(-1, 8).T:
        assert abs(place.mean()) <= 4 / np.sqrt(12 * place.size)
        assert place.var() == pytest.approx(1 / 12, rel=0.1)
    assert error.var() == pytest.approx(1 / 12, rel=0.02)


@pytest.mark.parametrize("step", [0.02, 0.1, 0.5, 1.0, 2.0, 5.0])
def test_a_body_is_within_two_percent_of_the_entropy(step: float) -> None:
    """From 0.14 to 7 bits a value, of values that have nothing in common but their law."""
    x = heavy(LARGE)
    coded = 8 * sent("deadzone", x, layout_of(LARGE), step=step)[0]
    q = np.sign(x) * np.floor(np.abs(x) / np.float32(step) + np.float32(1 / 3))
    assert coded <= 1.02 * LARGE * entropy_bits(np.unique(q, return_counts=True)[1])


def test_a_dead_zone_that_would_send_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="error = 1 is out of range: .* sends nothing; the nearest is 0.99"):
        codecs.get("deadzone", error=1.0)
    assert codecs.get("deadzone", error=0.99).error == 0.99 and codecs.get("dither", error=16.0).error == 16.0


@pytest.mark.parametrize("name", ["dither", "deadzone"])
def test_one_parameter_says_how_fine(name: str) -> None:
    with pytest.raises(ConfigError, match=f"codec {name}: error and bytes are both given; give one of them"):
        codecs.get(name, error=0.1, bytes=1000)
    assert codecs.get(name) == codecs.get(name, error=0.25)


def test_what_dither_claims() -> None:
    layout, x = layout_of(5000, 0, 300), heavy(5300)
    stated = claims.claims_of(codecs.get("dither", error=0.3, allocation=0.4), x, layout)
    assert stated.unbiased and stated.variance == pytest.approx(0.09, rel=0.01)
    assert claims.claims_of(codecs.get("deadzone"), x, layout) == claims.Claims(False, 1.0)
    assert claims.claims_of(codecs.get("dither"), np.zeros(5300, np.float32), layout).variance == 0.0


def test_several_chunks_are_one_vector() -> None:
    n = (1 << 20) + 12_345
    x, layout = heavy(n), layout_of(n - 100, 100)
    for name in ("dither", "deadzone"):
        assert codecs.relative_error(x, sent(name, x, layout, error=0.3)[1]) == pytest.approx(0.3, rel=0.02)
