"""The comparison with the references: momentum rules are the usual ones, and a reference that is
wrong is told apart from the implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.base import Ctx
from edgegossip.gossip import messages
from edgegossip.gossip.base import NodeView
from tests.gossip.paper import cases, graphs, references
from tests.gossip.paper.compression import Compression
from tests.gossip.paper.fleet import layout_of
from tests.gossip.paper.momentum import HeavyBall, Nesterov, QuasiGlobal
from tests.gossip.paper.problem import Problem
from tests.gossip.paper.references import Point, Run

pytestmark = pytest.mark.no_cover

NODES, N = 8, 6


@pytest.mark.parametrize(("nesterov", "momentum"), [(False, HeavyBall(0.9)), (True, Nesterov(0.9))])
def test_elastiquants_momentum_is_the_usual_one_of_the_mean_gradient(nesterov: bool, momentum: Any) -> None:
    """With one learning rate, section 3.4's rule is Polyak's for l = 0, and for l = 1 Nesterov's:
    the iterates of the form with a velocity are its own, looked at one extrapolation ahead."""
    problem, x0 = Problem.of(NODES, N, 3), np.broadcast_to(np.arange(N) / N, (NODES, N))
    topology = graphs.named("complete")(NODES, np.random.default_rng(3))
    run = Run(topology.matrix, x0, problem.gradient, lambda t: 0.05, 1.0, lambda round, node, v: v, 30)
    points = references.parallel_sgd(run, mu=0.9, nesterov=nesterov)
    w = run.x0[0]
    for t, point in enumerate(points):
        g = np.mean([run.g(t, i, w) for i in range(NODES)], axis=0)
        w = w - run.lr(t) * momentum.direction(0, g)
        np.testing.assert_allclose(point.z, np.broadcast_to(w, point.z.shape), atol=1e-12)


def test_quasi_global_momentum_of_one_lonely_node_averages_its_own_steps() -> None:
    """With nobody to mix with, d = m: mhat <- (mu + (1 - mu) beta) mhat + (1 - mu) g."""
    rng = np.random.default_rng(0)
    momentum, x, mhat = QuasiGlobal(0.9), rng.normal(size=N), np.zeros(N)
    for _ in range(20):
        g = rng.normal(size=N)
        new = x - 0.1 * momentum.direction(0, g)
        momentum.mixed(0, x, new, 0.1)
        mhat = (0.9 + 0.1 * 0.9) * mhat + 0.1 * g
        np.testing.assert_allclose(momentum.mhat[0], mhat, atol=1e-12)
        x = new


@pytest.fixture
def compression() -> Callable[..., Compression]:
    """C over recorded bodies of one vector; `sent` may differ from what is asked for later."""

    def make(codec_name: str, sent: np.ndarray, key_off: int = 0, **params: Any) -> Compression:
        codec, layout = codecs.get(codec_name, **params), layout_of(sent.size)
        members = ("a", "b")
        topology = graphs.named("ring")(2, np.random.default_rng(0))
        view = NodeView("a", members, topology, layout, codec, b"r" * 16, 5, 1.0)
        key = messages.round_key(view.seed, 1, 4) + key_off
        body, _ = codec.encode(sent.astype(np.float32), codec.init(layout), Ctx(key, 4))
        return Compression(codec, layout, view, {(4, 1): bytes(body)})

    return make


VECTOR = np.random.default_rng(1).normal(size=30)


@pytest.mark.parametrize("codec", [("fp32", {}), ("minmax8", {}), ("4-bit-qsgd", {}), ("topk", {"ratio": 0.2})])
def test_the_same_vector_up_to_rounding_is_taken(compression: Any, codec: Any) -> None:
    near = VECTOR * (1 + 1e-7)
    c = compression(codec[0], near, **codec[1])
    assert c(4, 1, VECTOR).shape == VECTOR.shape


@pytest.mark.parametrize("codec", [("fp32", {}), ("minmax8", {}), ("4-bit-qsgd", {}), ("topk", {"ratio": 0.2})])
def test_another_vector_is_found_out(compression: Any, codec: Any) -> None:
    with pytest.raises(AssertionError, match="what was sent is not what"):
        compression(codec[0], VECTOR * 1.01, **codec[1])(4, 1, VECTOR)


def test_another_key_is_found_out(compression: Any) -> None:
    with pytest.raises(AssertionError, match="what was sent is not what"):
        compression("4-bit-qsgd", VECTOR, key_off=1)(4, 1, VECTOR)


def test_a_value_on_the_edge_of_a_decision_may_fall_on_either_side(compression: Any) -> None:
    """Two magnitudes that differ by less than float32 tells: top-k may send either."""
    v = np.linspace(0.1, 0.3, 9)
    v[1], v[2] = 1.0, 1.0 + 1e-9
    c = compression("topk", np.where(np.arange(9) == 2, v + 1e-6, v), ratio=0.1)
    sent = c(4, 1, v)
    assert sent[2] == pytest.approx(1.0, abs=2e-6) and sent[1] == 0.0
    assert c.tipped == 2


def wrong_key(run: Run) -> Iterator[Point]:
    return references.dpsgd(replace(run, c=lambda t, i, v: run.c(t, (i + 1) % len(run.x0), v)))


WRONG: dict[str, tuple[str, Callable[[Run], Iterator[Point]]]] = {
    "gradient after mixing": ("dpsgd", lambda run: references.deep_squeeze(run)),
    "adapt with combine": ("dpsgd, adapt then combine", references.dpsgd),
    "adapt then combine": ("choco-sgd, adapt with combine", references.choco_sgd),
    "another averaging rate": ("dpsgd", lambda run: references.dpsgd(replace(run, eta=run.eta * 0.999))),
    "another learning rate": ("dpsgd", lambda run: references.dpsgd(replace(run, lr=lambda t: 1.0001 * run.lr(t)))),
    "the columns for the rows": ("dpsgd", lambda run: references.dpsgd(replace(run, w=lambda t: run.w(t).T))),
    "a round late": ("dpsgd", lambda run: references.dpsgd(replace(run, w=lambda t: run.w(max(0, t - 1))))),
    "another node's message": ("dpsgd", wrong_key),
    "no memory": ("deep-squeeze", references.sgp),
    "memory of the model": ("sparse-push", references.quant_sgp),
    "as printed": ("quant-sgp", lambda run: references.quant_sgp(run, as_printed=True)),
    "no public copy": ("choco-sgd", references.deep_squeeze),
    "gradient at x": ("sgp", lambda run: references.deep_squeeze(run)),
    "one public copy for all rounds": ("quant-sgp", lambda run: references.quant_sgp(replace(run, period=1))),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_reference_does_not_pass(fault: str) -> None:
    name, reference = WRONG[fault]
    case = cases.CASES[name]
    graph = next(g for g in ("time-varying", "circulants", "undirected") if g in case.graphs)
    codec = ("topk", {"ratio": 0.3}, 0.2) if name not in ("dpsgd", "sgp") else ("fp32", {}, 1.0)
    with pytest.raises(AssertionError):
        cases.compare(name, graph, codec, nodes=7, seed=11, reference=reference)
