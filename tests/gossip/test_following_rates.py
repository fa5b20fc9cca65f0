"""`auto`: the averaging rate follows how coarse messages are, so boards stay together at any speed
of their links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.auto import for_scheme
from edgegossip.gossip.averaging import default_eta, difference_eta, follows, on_probe, rate_of
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate

TOPOLOGIES = {"sparse-push": "directed-ring", "quant-sgp": "directed-ring"}
ALGORITHMS = ["choco-sgd", "deep-squeeze", "motef", "sparse-push", "quant-sgp"]


def fleet_of(make_fleet: Any, algorithm: str, n: int = 600, codec: Any = None) -> Any:
    fleet = make_fleet(TOPOLOGIES.get(algorithm, "ring"), nodes=4, n=n, algorithm=algorithm, alike=True)
    fleet.codec = codec or for_scheme(codecs.get("auto"), True)
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    fleet.say_hello()
    return fleet


def distances(fleet: Any, allowed: Any, rounds: int, seed: int, tail: float = 0.0) -> list[float]:
    """How far apart boards are that train for optima of their own, in lengths of how far they would
    be alone, round by round; and that their mean goes where it should."""
    rng, n = np.random.default_rng(seed), fleet.start.shape[1]
    optima = rng.normal(size=(4, n)) * np.exp(tail * rng.normal(size=n))
    alone, found = np.linalg.norm(optima - optima.mean(0)), []
    for _ in range(rounds):
        before = np.stack([fleet.algorithm.model(s) for s in fleet.states])
        deltas = (-0.05 * (before - optima)).astype(np.float32)
        for k, bytes_ in enumerate(list(allowed())):
            update = LocalUpdate(delta=deltas[k], lr=0.05, loss=1.0, examples=1, steps=1, allowed=bytes_)
            fleet.states[k], actions = fleet.algorithm.step(fleet.states[k], update)
            fleet.carry_out(k, actions)
        fleet.deliver_all()
        models = np.stack([fleet.algorithm.model(s) for s in fleet.states])
        found.append(float(np.linalg.norm(models - models.mean(0)) / alone))
    if fleet.algorithm.name in ("choco-sgd", "deep-squeeze"):
        np.testing.assert_allclose(models.mean(0), (before + deltas).mean(0), atol=1e-5)
    return found


def grows(found: list[float]) -> bool:
    """Whether boards end further apart than they ever were, or than they would be alone."""
    cut = 2 * len(found) // 3
    return float(np.mean(found[cut:])) > 1.1 * max(found[:cut]) or max(found) > 1.0


def budgets() -> Iterator[Any]:
    """Each algorithm with one size of messages; with the others it is slow."""
    for a, algorithm in enumerate(ALGORITHMS):
        for b, bits in enumerate((0.0, 0.86, 8.0)):
            yield pytest.param(algorithm, bits, marks=() if a % 3 == b else pytest.mark.slow)


@pytest.mark.parametrize(("algorithm", "bits"), [*budgets()])
def test_however_few_bytes_a_message_gets_boards_do_not_drift_apart(
    make_fleet: Any, algorithm: str, bits: float
) -> None:
    fleet = fleet_of(make_fleet, algorithm, 1000)
    size = max(64, int(bits * 1000 / 8))
    allowed = [dict.fromkeys(fleet.members, size)] * 4
    found = distances(fleet, lambda: allowed, 300 if algorithm == "deep-squeeze" and not bits else 100, 1)
    assert not grows(found)
    assert found[-1] < (0.01 if bits == 8.0 and algorithm == "motef" else 0.05 if bits == 8.0 else 0.8)


@pytest.mark.parametrize("algorithm", ["motef", *(pytest.param(a, marks=pytest.mark.slow) for a in ALGORITHMS[:2])])
def test_boards_whose_messages_differ_mix_alike(make_fleet: Any, algorithm: str) -> None:
    """An edge goes by the coarser of its two ends, whichever that is in this round."""
    fleet = fleet_of(make_fleet, algorithm, 1000)
    rng = np.random.default_rng(0)
    found = distances(
        fleet, lambda: [dict.fromkeys(fleet.members, int(b)) for b in rng.choice([64, 125, 1000], 4)], 100, 3
    )
    assert not grows(found) and found[-1] < 0.8


@pytest.mark.parametrize("finer", [0, 1])
def test_a_correction_goes_by_the_coarser_end_of_its_edge(make_fleet: Any, finer: int) -> None:
    """What one end adds the other takes off."""
    fleet = fleet_of(make_fleet, "motef")
    fine, coarse = dict.fromkeys(fleet.members, 700), dict.fromkeys(fleet.members, 64)
    distances(fleet, lambda: [fine] * 4, 30, 4)
    distances(fleet, lambda: [fine if k % 2 == finer else coarse for k in range(4)], 3, 4)
    corrections = [{j: edge.correction for j, edge in s.math.edges.items()} for s in fleet.states]
    for i, one in enumerate(corrections):
        for j, correction in one.items():
            np.testing.assert_allclose(correction, -corrections[j][i], atol=1e-5)
    assert np.abs(corrections[0][1]).max() > 1e-3


def test_a_rate_goes_by_the_bytes_of_the_values_that_are_coded() -> None:
    """And not by statistics beside them, which travel exact."""
    auto = for_scheme(codecs.get("auto"), True)
    plain = Layout.of([TensorSpec("w", (4000,))])
    layout = Layout.of([TensorSpec("w", (4000,)), TensorSpec("mean", (3000,), trainable=False)])
    both = codecs.for_layout(auto, layout)
    x = np.random.default_rng(0).normal(size=7000).astype(np.float32)
    rates = []
    for codec, of, extra in ((auto, plain, 0), (both, layout, 4 * 3000)):
        ctx = codecs.Ctx(key=1, round=0, bytes=500 + extra)
        body, _ = codec.encode(x[: of.size], codec.init(of), ctx)
        rates.append(rate_of(difference_eta, 1.0, codec, body, of))
    assert rates[0] == rates[1] == pytest.approx(0.623, abs=0.01)
    assert default_eta(on_probe(auto, 4000)) == pytest.approx(0.562, abs=0.01)  # with an error of a half
    assert follows(auto) and follows(both) and not follows(replace(auto, error=0.3))
    assert not follows(codecs.get("deadzone", bytes=500))
