"""The mean of encoded updates: exact, and not at the mercy of one board."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.base import Ctx
from edgegossip.engine.combine import Mean, WeightedUpdate, with_outer
from edgegossip.engine.server_frames import Channel
from edgegossip.frame import Aux, Kind
from edgegossip.gossip.outer import OuterOptimizer, make
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, Vec

LAYOUT = Layout.of([TensorSpec("a", (30, 10)), TensorSpec("b", (17,))])
RNG = np.random.default_rng(5)
X = RNG.normal(size=LAYOUT.size).astype(np.float32)


def _channel(name: str = "fp32") -> Channel:
    return Channel.of(LAYOUT, b"r" * 16, codecs.get(name))


def _share(channel: Channel, name: str, delta: Vec, examples: float = 10.0) -> WeightedUpdate:
    aux = {Aux.EXAMPLES: examples, Aux.LOSS: 1.0, Aux.LEARNING_RATE: 0.1}
    state = channel.codec.init(LAYOUT)
    return WeightedUpdate(name, channel.frame(Kind.UPDATE, delta, state, Ctx(len(name), 0), 1, dict(aux))[0], examples)


def _deltas(count: int) -> list[Vec]:
    return [(0.1 * RNG.normal(size=LAYOUT.size)).astype(np.float32) for _ in range(count)]


def test_a_body_that_cannot_be_decoded_changes_nothing() -> None:
    channel = _channel()
    good = [_share(channel, f"b{k}", d, 5.0 + k) for k, d in enumerate(_deltas(3))]
    bad = replace(good[1], frame=replace(good[1].frame, body=bytes(8)))
    average = Mean(channel)
    for _ in range(2):  # the first round looks at each update, later ones do not
        made = average.combine(0, X, [good[0], bad, good[2]])
        assert made.model is not None and list(made.refused) == ["b1"]
        alone = Mean(channel).combine(0, X, [good[0], good[2]]).model
        np.testing.assert_allclose(made.model, alone, atol=1e-6)


@pytest.mark.parametrize("boards", [2, 3, 6])
@pytest.mark.parametrize("before", [0, 3])
def test_an_update_out_of_all_proportion_is_refused(boards: int, before: int) -> None:
    channel = _channel()
    average = Mean(channel)
    for _ in range(before):
        assert not average.combine(0, X, [_share(channel, f"b{k}", d) for k, d in enumerate(_deltas(boards))]).refused
    deltas = _deltas(boards)
    deltas[1] = (deltas[1] * 1e6).astype(np.float32)
    shares = [_share(channel, f"b{k}", d) for k, d in enumerate(deltas)]
    made = average.combine(0, X, shares)
    assert list(made.refused) == ["b1"] and "times as long as the typical one" in made.refused["b1"]
    assert made.model is not None and float(np.abs(made.model - X).max()) < 1.0


def test_a_single_board_is_held_against_its_own_past() -> None:
    channel = _channel()
    average = Mean(channel)
    assert average.combine(0, X, [_share(channel, "b", _deltas(1)[0])]).model is not None
    made = average.combine(0, X, [_share(channel, "b", (1e7 * _deltas(1)[0]).astype(np.float32))])
    assert made.model is None and list(made.refused) == ["b"]


def test_a_liar_that_grows_slowly_moves_the_model_no_further_than_the_filter_lets_it() -> None:
    channel, x = _channel(), X
    average = Mean(channel)
    for round in range(60):
        lie = np.full(LAYOUT.size, 0.1 * 1.3**round, np.float32)
        shares = [_share(channel, f"b{k}", d) for k, d in enumerate([*_deltas(3), lie])]
        made = average.combine(round, x, shares)
        assert made.model is not None
        assert np.linalg.norm(made.model - x) < 1000.0  # an honest update is 1.8 long, a lie at the end 10^7
        x = made.model


def test_two_that_start_with_very_different_updates_are_both_heard() -> None:
    channel = _channel()
    average = Mean(channel)
    for _ in range(3):
        a, b = _deltas(2)
        a = (1e-5 * a).astype(np.float32)
        made = average.combine(0, np.zeros_like(X), [_share(channel, "a", a), _share(channel, "b", b)])
        assert not made.refused and made.model is not None
        np.testing.assert_allclose(made.model, (a + b) / 2, rtol=0, atol=0.05 * np.abs(a).max())
    again = Mean(channel)
    again.restore(average.snapshot())
    for one in (average, again):
        a, b = _deltas(2)
        made = one.combine(0, X, [_share(channel, "a", a), _share(channel, "b", (1e6 * b).astype(np.float32))])
        assert list(made.refused) == ["b"] and "of the run so far" in made.refused["b"]


def test_what_would_overflow_is_refused_and_zeros_are_taken() -> None:
    channel = _channel()
    huge = np.full(LAYOUT.size, 3e38, np.float32)
    made = Mean(channel).combine(0, np.abs(X) + np.float32(3e38), [_share(channel, "b", huge)])
    assert made.model is None and "not be finite" in made.refused["b"]
    average = Mean(channel)
    zeros = [_share(channel, f"b{k}", np.zeros(LAYOUT.size, np.float32)) for k in range(3)]
    made = average.combine(0, X, zeros)
    assert not made.refused and made.model is not None
    np.testing.assert_array_equal(made.model, X)
    deltas = _deltas(3)
    made = average.combine(0, X, [_share(channel, f"b{k}", d) for k, d in enumerate(deltas)])
    assert not made.refused and made.model is not None
    np.testing.assert_allclose(made.model, X + np.mean(deltas, axis=0), atol=1e-6)


@pytest.mark.parametrize("length", [0.1, 1e4], ids=["usual", "suspicious"])
def test_beside_the_model_there_is_one_vector_of_its_size(length: float) -> None:
    layout = Layout.of([TensorSpec("w", (1_000_000,))])
    channel = Channel.of(layout, b"r" * 16, codecs.get("minmax8"))
    x = np.ones(layout.size, np.float32)

    def shares(scale: float) -> list[WeightedUpdate]:
        aux = {Aux.EXAMPLES: 1.0, Aux.LOSS: 1.0, Aux.LEARNING_RATE: 0.1}
        state, ctx = channel.codec.init(layout), Ctx(0, 0)
        frames = [channel.frame(Kind.UPDATE, scale * k * x, state, ctx, 1, dict(aux))[0] for k in (1, 2)]
        return [WeightedUpdate(f"b{k}", frame, 1.0) for k, frame in enumerate(frames)]

    average, now = Mean(channel), shares(0.1)
    for made_of in (now, shares(length)):
        tracemalloc.start()
        made = average.combine(0, x, made_of)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert made.model is not None
        assert peak < 1.2 * x.nbytes


def _round(channel: Channel, deltas: list[Vec]) -> list[WeightedUpdate]:
    return [_share(channel, f"b{k}", d, 5.0 + k) for k, d in enumerate(deltas)]


@pytest.mark.parametrize(
    "optimizer",
    [
        OuterOptimizer("nesterov", lr=0.7, momentum=0.9),
        OuterOptimizer("heavy-ball", lr=0.5, momentum=0.8),
        OuterOptimizer("adam", lr=0.05, betas=(0.9, 0.99), epsilon=1e-3),
    ],
    ids=lambda o: o.kind,
)
def test_an_outer_optimiser_steps_by_the_mean_and_goes_on_from_a_snapshot(optimizer: OuterOptimizer) -> None:
    """DiLoCo's and SlowMo's steps and algorithm 2 of FedOpt, in float64; a combiner that is made
    anew in every round, from the snapshot of the one before."""
    channel, x = _channel(), X
    expected, m, v = X.astype(np.float64), np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    snapshot = with_outer(Mean(channel), optimizer, LAYOUT).snapshot()
    for k in range(8):
        combiner = with_outer(Mean(channel), optimizer, LAYOUT)
        combiner.restore(snapshot)
        shares = _round(channel, _deltas(3))
        made = combiner.combine(k, x, shares)
        snapshot = combiner.snapshot()
        assert made.model is not None and not made.refused
        moved = np.zeros(LAYOUT.size)
        for share in shares:
            moved += share.weight / 18.0 * channel.codec.decode(share.frame.body, LAYOUT)
        if optimizer.kind == "adam":
            m, v = 0.9 * m + 0.1 * moved, 0.99 * v + 0.01 * moved**2
            expected = expected + optimizer.lr * m / (np.sqrt(v) + optimizer.epsilon)
        else:
            m = optimizer.momentum * m + moved
            expected = expected + optimizer.lr * (moved + optimizer.momentum * m if optimizer.kind == "nesterov" else m)
        np.testing.assert_allclose(made.model, expected, rtol=0, atol=1e-5)
        x = made.model


def test_a_round_without_a_model_leaves_the_outer_memory_as_it_was() -> None:
    channel = _channel()
    around = with_outer(Mean(channel), make("nesterov"), LAYOUT)
    shares = _round(channel, _deltas(2))
    around.combine(0, X, shares)
    kept = [part.copy() for part in around.snapshot()["outer"]]
    bad = [replace(share, frame=replace(share.frame, body=bytes(8))) for share in shares]
    assert around.combine(1, X, bad).model is None
    huge = with_outer(Mean(channel), make("nesterov", lr=1000.0), LAYOUT)
    large = _round(channel, [np.full(LAYOUT.size, 1e36, np.float32)] * 2)
    made = huge.combine(0, X, large)
    assert made.model is None and "outer step is so large" in made.why
    np.testing.assert_array_equal(around.snapshot()["outer"], kept)


def test_values_that_are_not_trained_take_no_outer_step() -> None:
    layout = Layout.of([TensorSpec("w", (4,)), TensorSpec("mean", (2,), trainable=False)])
    channel = Channel.of(layout, b"r" * 16, codecs.get("fp32"))
    delta, x = np.arange(1, 7, dtype=np.float32), np.zeros(6, np.float32)
    frame = channel.frame(Kind.UPDATE, delta, channel.codec.init(layout), Ctx(1, 0), 1, {Aux.EXAMPLES: 1.0})[0]
    made = with_outer(Mean(channel), make("nesterov"), layout).combine(0, x, [WeightedUpdate("a", frame, 1.0)])
    assert made.model is not None
    np.testing.assert_allclose(made.model, [*(0.7 * 1.9 * delta[:4]), 5, 6], rtol=1e-6)


def test_a_consensus_of_its_own_is_for_gossip() -> None:
    with pytest.raises(ConfigError, match="outer.consensus is for run.mode = gossip"):
        with_outer(Mean(_channel()), make("heavy-ball", consensus=0.5), LAYOUT)
