"""Statistics of batch norm arrive exact with any codec, and are mixed in full: the averaging rate
is for what messages get wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.gossip import topologies
from edgegossip.layout import Layout, TensorSpec

LAYOUT = Layout.of([TensorSpec("w", (40, 10)), TensorSpec("mean", (6,), False), TensorSpec("var", (6,), False)])


WITH_MEMORY = ("error-feedback", {"codec": {"name": "topk", "ratio": 0.1}})


@pytest.mark.parametrize(
    ("algorithm", "codec"),
    [
        ("choco-sgd", ("deadzone", {"error": 0.5})),
        ("choco-sgd", ("auto", {})),
        ("deep-squeeze", ("topk", {"ratio": 0.1})),
        ("motef", ("auto", {})),
        ("dpsgd", WITH_MEMORY),
    ],
)
def test_a_round_averages_them_whatever_the_rate_of_the_weights_is(make_fleet: Any, algorithm: str, codec: Any) -> None:
    name, params = codec
    fleet = make_fleet("ring", nodes=4, n=LAYOUT.size, algorithm=algorithm, alike=True)
    fleet.layout, fleet.codec = LAYOUT, codecs.for_layout(codecs.get(name, **params), LAYOUT)
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    fleet.say_hello()
    measured = np.random.default_rng(3).normal(size=(4, 12)) * np.logspace(-2, 6, 12)
    for k in range(4):
        delta = np.zeros(LAYOUT.size)
        delta[400:] = measured[k] - fleet.start[k, 400:]
        fleet.step(k, delta)
    fleet.deliver_all()
    found = np.stack([fleet.algorithm.model(s)[400:] for s in fleet.states])
    scale = np.abs(measured).max(0)
    np.testing.assert_allclose(found / scale, fleet.topology.matrix(0) @ measured / scale, rtol=0, atol=1e-5)


def test_one_neighbour_or_several_they_are_mixed_in_full(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=2, n=LAYOUT.size, algorithm="dpsgd", alike=True, eta=0.5)
    fleet.layout, fleet.codec = LAYOUT, codecs.get("fp32")
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    fleet.say_hello()
    for k in range(2):
        fleet.step(k, np.full(LAYOUT.size, k))
    fleet.deliver_all()
    a, b = (fleet.algorithm.model(s) - fleet.start[0] for s in fleet.states)
    np.testing.assert_allclose([a[400:], b[400:]], 0.5, rtol=0, atol=1e-5)
    assert not np.allclose(a[:400], b[:400], atol=0.1)


@pytest.mark.parametrize("algorithm", ["sgp", "quant-sgp", "sparse-push"])
def test_under_push_sum_they_are_what_was_measured_whatever_a_board_weighs(make_fleet: Any, algorithm: str) -> None:
    edges = [(0, 1), (1, 0), (1, 2), (2, 0)]  # of which no doubly stochastic weights come
    fleet = make_fleet(
        topologies.build("own", 3, [edges], directed=True, weights="column"),
        nodes=3,
        n=LAYOUT.size,
        algorithm=algorithm,
        alike=True,
    )
    fleet.layout = LAYOUT
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    fleet.say_hello()
    fleet.play(20)
    light = min(range(3), key=lambda k: fleet.algorithm.audit(fleet.states[k]).weight)
    assert fleet.algorithm.audit(fleet.states[light]).weight < 0.9
    for k in range(3):
        fleet.step(k, np.where(np.arange(LAYOUT.size) < 400, 0.0, 1e-3 - fleet.algorithm.model(fleet.states[k])))
    fleet.deliver_all()
    np.testing.assert_allclose([fleet.algorithm.model(s)[400:] for s in fleet.states], 1e-3, rtol=0.01)


@pytest.mark.parametrize(
    ("codec", "exact"),
    [
        (codecs.get("fp32"), True),
        (codecs.for_layout(codecs.get("deadzone"), LAYOUT), True),
        (codecs.for_layout(codecs.get("small-tensors", codec="deadzone"), LAYOUT), True),
        (codecs.get("small-tensors", codec="deadzone", below=2), False),
        (codecs.get("deadzone"), False),
        (codecs.error_feedback(codecs.get("small-tensors", codec="deadzone")), True),
        (
            codecs.by_tensor([codecs.get("deadzone"), codecs.error_feedback(codecs.get("bf16"))], lambda t: t.size < 9),
            True,
        ),
    ],
)
def test_what_a_codec_rounds_is_not_taken_for_exact(codec: Any, exact: bool) -> None:
    assert codecs.exact_from(codec, LAYOUT) == (400 if exact else 412)
    trained = Layout.of([TensorSpec("w", (5,))])
    assert codecs.exact_from(codec, trained) == 5
