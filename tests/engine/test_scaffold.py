"""SCAFFOLD: the paper's lines, and that codecs, drawn boards and restarts leave c the mean of all
c_i."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.engine.combine import Mean, WeightedUpdate, with_control, with_outer
from edgegossip.engine.scaffold import way_of
from edgegossip.engine.server_frames import Channel, Downlink, Replica, Uplink
from edgegossip.frame import Aux
from edgegossip.gossip.outer import OuterOptimizer
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate, PeerError, UsageError, Vec

LAYOUT = Layout.of([TensorSpec("a", (40,)), TensorSpec("mean", (3,), trainable=False)])
RUN, N, STEPS, LR = b"r" * 16, 5, 6, 0.05
RNG = np.random.default_rng(3)
CURVE = RNG.uniform(0.5, 4.0, (N, 40))  # the boards' losses are sum_k CURVE (x - TARGET)^2 / 2
TARGET = RNG.normal(size=(N, 40))
BEST = (CURVE * TARGET).sum(0) / CURVE.sum(0)
START = np.concatenate([RNG.normal(size=40), np.zeros(3)]).astype(np.float32)


def gradient(board: int, y: NDArray[np.floating]) -> NDArray[np.float64]:
    return CURVE[board] * (y - TARGET[board])


def reference(drawn: Sequence[Sequence[int]], server_step: float = 1.0) -> Iterator[NDArray[np.float64]]:
    """Algorithm 1 of the paper with option II, line by line; yields x after each round."""
    x, c, own = START[:40].astype(np.float64), np.zeros(40), np.zeros((N, 40))
    for sample in drawn:
        moved, changed = [], []
        for i in sample:
            y = x.copy()
            for _ in range(STEPS):
                y = y - LR * (gradient(i, y) - own[i] + c)
            after = own[i] - c + (x - y) / (STEPS * LR)
            moved.append(y - x)
            changed.append(after - own[i])
            own[i] = after
        x = x + server_step * np.mean(moved, axis=0)
        c = c + len(sample) / N * np.mean(changed, axis=0)
        yield x


@dataclass
class Run:
    """Boards and a coordinator that share the product's ends of the frames."""

    codec: str = "fp32"
    down: str = "fp32"
    strategy: str = "scaffold"
    outer: OuterOptimizer | None = None
    params: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        channel = Channel.of(LAYOUT, RUN, codecs.get(self.codec, **self.params))
        mean = with_control(Mean(channel, uniform=True), self.strategy, channel, N)
        self.combiner = with_outer(mean, self.outer, LAYOUT)
        self.downlink = Downlink(LAYOUT, RUN, codecs.get(self.down))
        self.boards = [(Replica(LAYOUT, RUN, codecs.get(self.down)), Uplink(channel, f"b{k}")) for k in range(N)]
        self.holds: dict[int, int] = {}
        self.x, self.round, self.down_bytes = START, 0, 0

    def play(self, sample: Sequence[int]) -> None:
        difference = self.downlink.publish(self.x, self.round, None, self.combiner.control())
        shares = []
        for k in sample:
            replica, uplink = self.boards[k]
            known = difference is not None and self.holds.get(k) == self.round - 1
            frame = difference if known and difference else self.downlink.whole(self.round)
            self.down_bytes += len(frame.body)
            _, x = replica.open(b"".join(wire.build(frame)))
            self.holds[k] = self.round
            update = self.train(k, x, uplink.correction(replica.control))
            shares.append(WeightedUpdate(f"b{k}", uplink.frame(update, self.round, {}), 1.0))
        made = self.combiner.combine(self.round, self.x, shares)
        assert made.model is not None and not made.refused
        self.x, self.round = made.model, self.round + 1

    @staticmethod
    def train(board: int, x: Vec, correction: Vec | None) -> LocalUpdate:
        y = x[:40].astype(np.float64)
        for _ in range(STEPS):
            y = y - LR * (gradient(board, y) + (0.0 if correction is None else correction[:40]))
        delta = np.concatenate([y - x[:40], np.full(3, 0.1)]).astype(np.float32)
        return LocalUpdate(delta, LR, 1.0, 1, STEPS, corrected=correction is not None)

    def off(self) -> float:
        return float(np.linalg.norm(self.x[:40] - BEST) / np.linalg.norm(BEST))

    def boards_mean(self) -> NDArray[np.float64]:
        own = [np.zeros(40) if u.control is None else u.control for _, u in self.boards]
        return np.mean(own, axis=0)


def drawn(rounds: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(8)
    return [sorted(rng.choice(N, count, replace=False).tolist()) for _ in range(rounds)]


@pytest.mark.parametrize("count", [N, 2], ids=["all boards", "two drawn"])
@pytest.mark.parametrize("step", [1.0, 0.6])
def test_it_is_the_papers_algorithm(count: int, step: float) -> None:
    run = Run(outer=None if step == 1.0 else OuterOptimizer("heavy-ball", lr=step, momentum=0.0))
    for sample, x in zip(samples := drawn(25, count), reference(samples, step), strict=True):
        run.play(sample)
        np.testing.assert_allclose(run.x[:40], x, atol=2e-5)


@pytest.mark.no_cover
@pytest.mark.parametrize("codec", ["fp32", "qsgd", "topk", "deadzone"])
@pytest.mark.parametrize("down", ["fp32", "fp16", "minmax8"])
@pytest.mark.parametrize("count", [N, 2])
def test_c_is_the_mean_of_all_c_i_whatever_is_lost(codec: str, down: str, count: int) -> None:
    run = Run(codec, down)
    for sample in drawn(12, count):
        run.play(sample)
        control = run.combiner.control()
        assert control is not None and not control[40:].any()
        if down != "minmax8":  # which loses much of c on its way down
            np.testing.assert_allclose(control[:40], run.boards_mean(), atol=2e-3 if down == "fp16" else 2e-5)


def test_it_comes_to_the_optimum_where_fedavg_stays_away() -> None:
    corrected, compressed, plain = Run(), Run("minmax8", "fp16"), Run(strategy="fedavg")
    for run in (corrected, compressed, plain):
        for sample in drawn(150, N):
            run.play(sample)
    assert corrected.off() < 1e-5 and compressed.off() < 0.01 and plain.off() > 0.03
    assert plain.combiner.control() is None


@pytest.mark.no_cover
@pytest.mark.parametrize("error", [1.0, 1.5, 2.0])
def test_updates_that_lose_more_than_they_hold_do_not_run_away(error: float) -> None:
    """Their noise would go into the control variates, and make the next updates longer. What stays
    is that of the statistics, which change in every round here."""
    run, plain = (Run("dither", strategy=name, params={"error": error}) for name in ("scaffold", "fedavg"))
    for sample in drawn(300, N):
        run.play(sample)
        plain.play(sample)
    assert run.off() < 0.15 and run.off() < 0.5 * plain.off()


def test_control_variates_go_as_far_as_the_codec_allows() -> None:
    """1 / (1 + e^2), and both ends know it before a message has come."""
    assert way_of(codecs.get("fp32"), 5000) == 1.0
    assert way_of(codecs.get("dither", error=2.0), 5000) == pytest.approx(1 / 5, rel=0.05)
    assert way_of(codecs.get("auto", error=2.0), 5000) == way_of(codecs.get("dither", error=2.0), 5000)
    coarsest = way_of(codecs.get("auto"), 5000)
    assert 0 < coarsest < 0.1 and coarsest == way_of(codecs.get("auto", bytes=3000), 5000)


def test_differences_carry_the_control_variate_too() -> None:
    whole, small = Run(), Run(down="fp16")
    for run in (whole, small):
        for sample in drawn(10, N):
            run.play(sample)
    assert small.down_bytes == 0.55 * whole.down_bytes  # all but the first of ten rounds are fp16, both bodies


def test_a_coordinator_that_is_started_again_goes_on_bit_for_bit() -> None:
    whole, cut = Run(), Run()
    for k, sample in enumerate(drawn(8, 3)):
        whole.play(sample)
        if k == 4:
            again = Run()
            again.combiner.restore(cut.combiner.snapshot())
            cut.combiner, cut.downlink = again.combiner, again.downlink
        cut.play(sample)
    np.testing.assert_array_equal(whole.x, cut.x)


def test_a_round_without_a_step_leaves_all_control_variates() -> None:
    run = Run()
    for sample in drawn(3, N):
        run.play(sample)
    before, mine = run.combiner.control(), run.boards[0][1].control
    assert before is not None and mine is not None
    still = LocalUpdate(np.zeros(LAYOUT.size, np.float32), 0.0, 1.0, 1, STEPS, corrected=True)
    uplink = run.boards[0][1]
    uplink.correction(before)
    made = run.combiner.combine(3, run.x, [WeightedUpdate("b0", uplink.frame(still, 3, {}), 1.0)])
    assert made.model is not None
    np.testing.assert_array_equal(run.combiner.control(), before)
    np.testing.assert_array_equal(uplink.control, mine)


def test_training_that_was_not_corrected_is_refused() -> None:
    run = Run()
    run.downlink.publish(run.x, 0, None, run.combiner.control())
    replica, uplink = run.boards[0]
    replica.open(b"".join(wire.build(run.downlink.whole(0))))
    uplink.correction(replica.control)
    with pytest.raises(UsageError, match="scaffold corrects each step.*server.strategy = fedavg"):
        uplink.frame(run.train(0, run.x, None), 0, {})


def test_a_frame_that_is_cut_at_no_place_of_its_body_is_refused() -> None:
    run = Run()
    run.downlink.publish(run.x, 0, {Aux.LEVELS: 7.0}, run.combiner.control())
    frame = run.downlink.whole(0, {Aux.LEVELS: 7.0})
    assert frame.aux[Aux.LEVELS] == 7.0
    for cut in (-1.0, 0.5, 1e9, float(len(frame.body))):
        bad = wire.Frame(**{**{f: getattr(frame, f) for f in frame.__slots__}, "aux": {**frame.aux, Aux.SPLIT: cut}})
        with pytest.raises(PeerError):
            run.boards[0][0].open(b"".join(wire.build(bad)))
