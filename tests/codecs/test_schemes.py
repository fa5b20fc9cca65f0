"""What is each scheme's own: terngrad's clip, elasticl's levels, co3's memory and grid."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.co3 import EDGES, GRID
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import UsageError
from tests.codecs.test_quantised import body_of, layout_of, normal


def test_terngrad_clips() -> None:
    x = normal(5000)
    deviation = math.sqrt(float(np.mean(x.astype(np.float64) ** 2)))
    for clip, scale in (
        (2.5, 2.5 * deviation),
        (1.0, deviation),
        (0.0, float(np.abs(x).max())),
        (50.0, float(np.abs(x).max())),
    ):
        codec = codecs.get("terngrad", clip=clip)
        values = codec.decode(body_of(codec, x), layout_of(x.size))
        assert set(np.unique(values)) == {-np.float32(scale), np.float32(0), np.float32(scale)}
        far = np.abs(x) >= scale
        np.testing.assert_array_equal(values[far], np.sign(x[far]) * np.float32(scale))


def levels_in(body: bytes) -> int:
    return int.from_bytes(body[:2], "little")


def test_elasticl_levels_follow_loss_and_learning_rate() -> None:
    codec, layout, x = codecs.get("elasticl", s0=10, smoothing=0.0), layout_of(600), normal(600)
    state, found = codec.init(layout), []
    for loss, lr in (
        (None, 0.1),
        (4.0, 0.0),
        (0.0, 0.1),
        (4.0, 0.1),
        (1.0, 0.1),
        (0.04, 0.1),
        (0.04, 0.05),
        (1e-9, 0.1),
        (400.0, 0.1),
        (4e6, 0.1),
    ):
        body, state = codec.encode(x, state, codecs.Ctx(1, 0, loss, lr))
        s = levels_in(bytes(body))
        found.append(s)
        values = codecs.from_wire(8, b"").decode(body, layout)
        norm = math.sqrt(float(np.sum(x.astype(np.float64) ** 2)))
        assert np.abs(values - x).max() <= norm / s * (1 + 1e-5)
    assert found == [10, 10, 10, 10, 20, 100, 50, 32767, 1, 1]


def test_elasticl_keeps_its_levels_for_an_interval_of_sent_bits() -> None:
    layout, x = layout_of(64), normal(64)
    codec = codecs.get("elasticl", s0=3, smoothing=0.0, stage="raw", interval_bits=1000)
    state, levels = codec.init(layout), []
    for round in range(6):
        body, state = codec.encode(x, state, codecs.Ctx(1, 0, 4.0 / 4.0**round, 0.1))
        levels.append(int.from_bytes(bytes(body)[:2], "little"))
        assert round == 5 or 200 < 8 * len(body) < 250
    assert levels == [3, 3, 3, 3, 3, 96]


def test_elasticl_smooths_the_loss() -> None:
    codec, layout, x = codecs.get("elasticl", s0=100, smoothing=0.5), layout_of(9), normal(9)
    state, smooth = codec.init(layout), None
    for loss in (8.0, 2.0, 2.0, 30.0):
        body, state = codec.encode(x, state, codecs.Ctx(1, 0, loss, 0.1))
        smooth = loss if smooth is None else 0.5 * smooth + 0.5 * loss
        assert levels_in(bytes(body)) == round(100 * math.sqrt(8 / smooth))


@pytest.mark.parametrize("gamma", [0.9, 1.0, 0.3])
def test_co3_is_algorithm_1(gamma: float) -> None:
    """a = g + gamma m; g' = Q(a), the nearest of the grid's numbers over k; m <- a - g'."""
    codec, layout = codecs.get("co3", gamma=gamma, stage="raw"), layout_of(700)
    state, memory = codec.init(layout), np.zeros(700, np.float32)
    for t in range(5):
        g = normal(700, t)
        body, state = codec.encode(g, state, codecs.Ctx(key=t, round=t))
        a = g + np.float32(gamma) * memory
        k = np.frombuffer(bytes(body), "<f4", 1, 1)[0]
        levels = (np.abs(a * k)[:, None] > np.array(EDGES, np.float32)).sum(1)
        sent = np.sign(a) * (np.array(GRID, np.float32)[levels] / k)
        np.testing.assert_array_equal(codec.decode(body, layout), sent)
        memory = a - sent
        np.testing.assert_array_equal(state.memory, memory)


def test_a_coordinators_levels_are_taken_as_they_are() -> None:
    codec = codecs.get("elasticl", s0=20)
    layout = Layout.of([TensorSpec("w", (50,))])
    x, state = normal(50), codec.init(layout)
    body, state = codec.encode(x, state, codecs.Ctx(1, 0, loss=2.0, lr=0.1, levels=77))
    assert body[:2] == (77).to_bytes(2, "little")
    body, state = codec.encode(x, state, codecs.Ctx(2, 1, loss=0.02, lr=0.1))
    lower = int.from_bytes(body[:2], "little")
    assert lower > 20  # its own rule again
    body, _ = codec.encode(x, state, codecs.Ctx(3, 2))  # without a loss: as before
    assert int.from_bytes(body[:2], "little") == lower
    with pytest.raises(UsageError, match="1 to 32767 levels, not 40000"):
        codec.encode(x, state, codecs.Ctx(3, 2, levels=40_000))
