"""The default averaging rate: small enough for what a message leaves out."""

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.gossip.averaging import default_eta


@pytest.mark.parametrize(("ratio", "rate"), [(0.01, 0.007), (0.1, 0.15), (0.25, 0.375), (0.5, 0.75)])
def test_no_value_is_mixed_too_often_before_it_is_said_anew(ratio: float, rate: float) -> None:
    assert default_eta(codecs.get("topk", ratio=ratio)) == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("name", ["fp32", "fp16", "minmax8"])
def test_what_loses_next_to_nothing_mixes_in_full(name: str) -> None:
    assert default_eta(codecs.get(name)) == 1.0


@pytest.mark.parametrize("name", codecs.names())
def test_it_is_a_plain_number(name: str) -> None:
    """A state holds it, and a checkpoint refuses numpy's scalars."""
    assert type(default_eta(codecs.get(name))) is float


@pytest.mark.parametrize(("ratio", "nodes"), [(0.25, 2), (0.25, 5), (0.1, 4)])
def test_choco_converges_with_it_on_rings(ratio: float, nodes: int) -> None:
    """The plain recursion in numpy: x += eta (W h - h) after h += top-k of x - h."""
    eta, k = default_eta(codecs.get("topk", ratio=ratio)), round(20 * ratio)
    ways = np.eye(nodes) + np.roll(np.eye(nodes), 1, 0) + np.roll(np.eye(nodes), -1, 0) * (nodes > 2)
    w = ways / ways.sum(axis=1, keepdims=True)
    for seed in range(10):
        x = np.random.default_rng(seed).normal(size=(nodes, 20))
        h, before = x.copy(), np.ptp(x, axis=0).max()
        for _ in range(200):
            away = x - h
            largest = np.argsort(-np.abs(away), axis=1)[:, :k]
            np.put_along_axis(h, largest, np.take_along_axis(x, largest, 1), 1)
            x = x + eta * (w @ h - h)
        assert np.ptp(x, axis=0).max() < 0.05 * before
