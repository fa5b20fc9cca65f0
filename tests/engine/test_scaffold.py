"""SCAFFOLD: the paper's equations in float64 with unequal examples and steps, drawn boards, updates
that are lost, boards that go or begin anew and codecs both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.engine.combine import Combined, Mean, WeightedUpdate, with_control, with_outer
from edgegossip.engine.scaffold import TURNS, way_of
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
START = np.concatenate([RNG.normal(size=40), np.zeros(3)]).astype(np.float32)
SAME, UNEQUAL = (1.0,) * N, (5.0, 10.0, 20.0, 40.0, 80.0)

Lost = Mapping[int, Sequence[int]]  # by round: boards whose update is not used


def gradient(board: int, y: NDArray[np.floating]) -> NDArray[np.float64]:
    return CURVE[board] * (y - TARGET[board])


def best(weights: Sequence[float]) -> NDArray[np.float64]:
    """Where the mean of the losses with these weights is least."""
    found: NDArray[np.float64] = np.average(TARGET, axis=0, weights=np.array(weights)[:, None] * CURVE)
    return found


class Paper:
    """Algorithm 1 of the paper with option II, line by line, in float64. Sums are weighted by
    `examples`; a board that was never heard counts as much as the mean of those that were."""

    def __init__(self, examples: Sequence[float], steps: Sequence[int], server_step: float = 1.0) -> None:
        self.n, self.steps, self.server_step = np.array(examples), steps, server_step
        self.x, self.c, self.own = START[:40].astype(np.float64), np.zeros(40), np.zeros((N, 40))
        self.heard: set[int] = set()

    def play(self, sample: Sequence[int], lost: Sequence[int] = ()) -> None:
        moved, used = [], [i for i in sample if i not in lost]
        for i in used:
            y = self.x.copy()
            for _ in range(self.steps[i]):
                y = y - LR * (gradient(i, y) - self.own[i] + self.c)
            moved.append(y - self.x)
        before = self.own.copy()
        for i, move in zip(used, moved, strict=True):
            self.own[i] = before[i] - self.c - move / (self.steps[i] * LR)
        self.x = self.x + self.server_step * np.average(moved, axis=0, weights=self.n[used])
        if len(set(self.n)) == 1:
            self.c = self.c + (self.own - before).sum(0) / N
            return
        self.heard |= set(used)
        known = sorted(self.heard)
        total = self.n[known].sum() / len(known) * N
        self.c = (self.n[known, None] * self.own[known]).sum(0) / total


@dataclass
class Run:
    """Boards and a coordinator that share the product's ends of the frames."""

    codec: str = "fp32"
    down: str = "fp32"
    strategy: str = "scaffold"
    outer: OuterOptimizer | None = None
    params: dict[str, float] = field(default_factory=dict)
    down_params: dict[str, float] = field(default_factory=dict)
    examples: Sequence[float] | None = None  # None: all count the same
    steps: Sequence[int] = (STEPS,) * N

    def __post_init__(self) -> None:
        self.channel = Channel.of(LAYOUT, RUN, codecs.get(self.codec, **self.params))
        self.down_codec = codecs.get(self.down, **self.down_params)
        self.begin()
        self.boards = [self.board(k) for k in range(N)]
        self.x, self.round, self.down_bytes = START, 0, 0

    def begin(self) -> None:
        """A process of the coordinator: it does not know what boards hold."""
        uniform = self.examples is None
        mean = with_outer(Mean(self.channel, uniform=uniform), self.outer, LAYOUT)
        self.combiner = with_control(mean, self.strategy, self.channel, N, uniform=uniform)
        self.downlink = Downlink(LAYOUT, RUN, self.down_codec)
        self.holds: dict[int, int] = {}

    def board(self, k: int) -> tuple[Replica, Uplink]:
        return Replica(LAYOUT, RUN, self.down_codec), Uplink(self.channel, f"b{k}")

    def ask(self, k: int, difference: wire.Frame | None) -> tuple[wire.Frame, Vec]:
        known = difference is not None and self.holds.get(k) == self.round - 1
        frame = difference if known and difference else self.downlink.whole(self.round)
        if (correction := self.combiner.correction(f"b{k}")) is not None:
            frame = self.downlink.with_correction(frame, f"b{k}", correction)
        self.down_bytes += len(frame.body)
        self.holds[k] = self.round
        return self.boards[k][0].open(b"".join(wire.build(frame)))

    def play(self, sample: Sequence[int], lost: Sequence[int] = ()) -> Combined:
        difference, shares = self.downlink.publish(self.x, self.round), []
        for k in sample:
            frame, x = self.ask(k, difference)
            replica, uplink = self.boards[k]
            made = uplink.frame(self.train(k, x, replica.correction), self.round, frame.aux)
            weight = 1.0 if self.examples is None else self.examples[k]
            had = self.downlink.corrections.get(f"b{k}")
            if k not in lost:
                shares.append(WeightedUpdate(f"b{k}", made, weight, correction=had))
        made_of = self.combiner.combine(self.round, self.x, shares)
        assert made_of.model is not None
        self.x, self.round = made_of.model, self.round + 1
        return made_of

    def train(self, board: int, x: Vec, correction: Vec | None) -> LocalUpdate:
        y, steps = x[:40].astype(np.float64), self.steps[board]
        for _ in range(steps):
            y = y - LR * (gradient(board, y) + (0.0 if correction is None else correction[:40]))
        delta = np.concatenate([y - x[:40], np.full(3, 0.1)]).astype(np.float32)
        return LocalUpdate(delta, LR, 1.0, 1, steps, corrected=correction is not None)

    def off(self, weights: Sequence[float] = SAME) -> float:
        return float(np.linalg.norm(self.x[:40] - best(weights)) / np.linalg.norm(best(weights)))

    def control(self) -> Vec:
        """c - c_i of a board whose c_i is zero, for it was never heard."""
        control = self.combiner.correction("nobody")
        assert control is not None and not control[40:].any()
        return control[:40]

    def own(self, k: int) -> Vec:
        correction = self.combiner.correction(f"b{k}")
        assert correction is not None
        own: Vec = self.control() - correction[:40]
        return own


def drawn(rounds: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(8)
    return [sorted(rng.choice(N, count, replace=False).tolist()) for _ in range(rounds)]


LOST: Lost = {0: [2], 3: [0, 3], 7: [4], 20: [1]}


@pytest.mark.parametrize("count", [N, 2], ids=["all boards", "two drawn"])
@pytest.mark.parametrize("examples", [None, UNEQUAL], ids=["uniform", "examples"])
@pytest.mark.parametrize("steps", [(STEPS,) * N, (6, 3, 12, 1, 6)], ids=["as many steps", "other steps"])
@pytest.mark.parametrize("lost", [{}, LOST], ids=["nothing lost", "updates lost"])
def test_it_is_the_papers_algorithm(
    count: int, examples: Sequence[float] | None, steps: Sequence[int], lost: Lost
) -> None:
    run, paper = Run(examples=examples, steps=steps), Paper(examples or SAME, steps)
    for round, sample in enumerate(drawn(30, count)):
        missing = [k for k in lost.get(round, ()) if set(sample) - set(lost[round])]
        run.play(sample, missing)
        paper.play(sample, missing)
        np.testing.assert_allclose(run.x[:40], paper.x, atol=1e-5)
        np.testing.assert_allclose(run.control(), paper.c, atol=1e-5)
    for k in range(N):
        np.testing.assert_allclose(run.own(k), paper.own[k], atol=2e-5)


def test_a_coordinators_step_is_the_outer_optimisers() -> None:
    run = Run(outer=OuterOptimizer("heavy-ball", lr=0.6, momentum=0.0))
    paper = Paper(SAME, run.steps, server_step=0.6)
    for sample in drawn(25, 2):
        run.play(sample)
        paper.play(sample)
        np.testing.assert_allclose(run.x[:40], paper.x, atol=1e-5)


def test_it_comes_to_the_optimum_where_fedavg_stays_away() -> None:
    corrected, compressed, plain = Run(), Run("minmax8", "fp16"), Run(strategy="fedavg")
    for run in (corrected, compressed, plain):
        for sample in drawn(150, N):
            run.play(sample)
    assert corrected.off() < 1e-5 and compressed.off() < 0.01 and plain.off() > 0.03
    assert plain.combiner.correction("b0") is None


def test_a_board_that_lost_its_disk_changes_nothing() -> None:
    whole, again = Run(), Run()
    for round, sample in enumerate(drawn(20, 3)):
        whole.play(sample)
        again.play(sample)
        if round == 9:
            again.boards[2] = again.board(2)
            again.holds.pop(2, None)
    np.testing.assert_array_equal(whole.x, again.x)


def test_boards_that_are_gone_do_not_hold_the_others_for_good() -> None:
    """A gradient of long ago would pull them away from where their own losses are least."""
    run, here = Run(), range(N - 1)
    run.play(range(N))
    for round in range(150):
        run.play(here)
        gone = np.abs(run.own(N - 1)).max()
        assert (gone > 0.0) == (round < TURNS * N / len(here) - 2)
    assert run.off((*SAME[:-1], 0.0)) < 1e-4
    for _ in range(150):
        run.play(range(N))
    assert run.off() < 1e-4


def test_an_update_that_is_refused_or_says_no_steps_leaves_its_control_variate() -> None:
    run = Run()
    for sample in drawn(3, N):
        run.play(sample)
    before = [run.own(k) for k in range(N)]
    train = run.train
    far: dict[int, Callable[[LocalUpdate], LocalUpdate]] = {
        0: lambda u: replace(u, delta=u.delta * 1e6),
        1: lambda u: replace(u, lr=1e-9),
        2: lambda u: replace(u, lr=0.0),
    }
    run.train = lambda board, x, correction: far.get(board, lambda u: u)(train(board, x, correction))  # type: ignore
    assert list(run.play(range(N)).refused) == ["b0"]
    for k in range(N):
        assert np.allclose(run.own(k), before[k], atol=1e-6) == (k < 3)
    assert np.abs(run.control()).max() < 10.0


@pytest.mark.parametrize("sample", [(0, 1), (0, 1, 2)])
def test_of_two_gradients_neither_is_the_typical_one(sample: tuple[int, ...]) -> None:
    run = Run()
    train = run.train
    run.train = lambda k, x, had: replace(u := train(k, x, had), lr=u.lr / (100.0 if k == 1 else 1.0))  # type: ignore
    run.play(sample)
    assert run.own(0).any() and run.own(1).any() == (len(sample) == 2)


def test_updates_of_a_round_that_makes_no_model_leave_all_control_variates() -> None:
    run = Run(outer=OuterOptimizer("heavy-ball", lr=1e38, momentum=0.0))
    frame, x = run.ask(0, run.downlink.publish(run.x, 0))
    far = replace(run.train(0, x, run.boards[0][0].correction), delta=np.full(LAYOUT.size, 1e3, np.float32))
    share = WeightedUpdate("b0", run.boards[0][1].frame(far, 0, frame.aux), 1.0)
    assert run.combiner.combine(0, run.x, [share]).model is None
    assert not run.own(0).any() and not run.control().any()


def test_control_variates_go_as_far_as_the_codec_allows() -> None:
    """1 / (1 + e^2), known before a message has come."""
    assert way_of(codecs.get("fp32"), 5000) == 1.0
    assert way_of(codecs.get("dither", error=2.0), 5000) == pytest.approx(1 / 5, rel=0.05)
    assert way_of(codecs.get("auto", error=2.0), 5000) == way_of(codecs.get("dither", error=2.0), 5000)
    coarsest = way_of(codecs.get("auto"), 5000)
    assert 0 < coarsest < 0.1 and coarsest == way_of(codecs.get("auto", bytes=3000), 5000)


def test_with_an_error_as_large_as_the_update_control_variates_go_half_the_way_and_their_mean_is_c() -> None:
    run, exact = Run("dither", params={"error": 1.0}), Run()
    run.play(range(N))
    exact.play(range(N))
    own, after = (np.array([of.own(k) for k in range(N)]) for of in (run, exact))
    assert (own * after).sum() == pytest.approx((after * after).sum() / 2, rel=0.2)
    np.testing.assert_allclose(run.control(), own.mean(axis=0), atol=1e-6)


def test_a_board_that_is_asked_again_in_a_round_is_sent_the_same_correction() -> None:
    run = Run(down="elastiquant")
    for _ in range(3):
        run.play(range(N))
    run.downlink.publish(run.x, run.round)
    first = [run.ask(0, None)[1].copy(), run.boards[0][0].correction]
    np.testing.assert_array_equal(first, [run.ask(0, None)[1], run.boards[0][0].correction])


def test_training_that_was_not_corrected_is_refused() -> None:
    run = Run()
    run.downlink.publish(run.x, 0)
    frame, x = run.ask(0, None)
    with pytest.raises(UsageError, match="scaffold corrects each step.*server.strategy = fedavg"):
        run.boards[0][1].frame(run.train(0, x, None), 0, frame.aux)


def test_a_frame_that_is_cut_at_no_place_of_its_body_is_refused() -> None:
    run = Run()
    run.downlink.publish(run.x, 0)
    frame = run.downlink.with_correction(run.downlink.whole(0, {Aux.LEVELS: 7.0}), "b0", START)
    assert frame.aux[Aux.LEVELS] == 7.0
    for cut in (-1.0, 0.5, 1e9, float(len(frame.body))):
        with pytest.raises(PeerError):
            run.boards[0][0].open(b"".join(wire.build(replace(frame, aux={**frame.aux, Aux.CORRECTION: cut}))))


def test_a_rate_that_is_claimed_too_small_moves_the_others_no_more_than_the_update_does() -> None:
    """One update of 50 times the usual length: divided by a rate 990 times too small it would be a
    gradient of 50,000 times the usual one, and part of every board's correction for many rounds."""

    class Lying(Run):
        rate = 1.0

        def train(self, board: int, x: Vec, correction: Vec | None) -> LocalUpdate:
            update = super().train(board, x, correction)
            if (board, self.round) != (4, 10):
                return update
            return replace(update, delta=update.delta * np.float32(-50.0), lr=update.lr / self.rate)

    off = {}
    for rate in (1.0, 990.0):
        run = Lying()
        run.rate = rate
        for _ in range(13):
            run.play(range(N))
        off[rate] = run.off()
    assert off[990.0] <= 2.0 * off[1.0]
