"""Flower's strategies in the server engine, what they need, and how far a run is in bytes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from edgegossip import codecs
from edgegossip import recipe as recipes
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.codecs.base import Ctx
from edgegossip.engine.combine import Mean, WeightedUpdate, with_outer
from edgegossip.engine.server_frames import Channel
from edgegossip.engine.server_records import Progress
from edgegossip.flower import Coordinator, CoordinatorCheckpointer
from edgegossip.flower.checkpoints import BoardCheckpointer
from edgegossip.flower.combine import StrategyAdapter, combiner, make_strategy
from edgegossip.frame import Aux, Kind
from edgegossip.gossip.outer import make
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import CheckpointSection
from edgegossip.types import ConfigError, DataError, RunError
from tests.engine.fleet import Run, garbage, with_frame
from tests.engine.test_server_bad_boards import moved_statistics, scaled
from tests.flower.conftest import Memory

LAYOUT = Layout.of([TensorSpec("a", (5, 2))])


def test_the_moments_of_a_strategy_survive_bytes() -> None:
    channel = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32"))
    made = combiner(make_strategy("fedadam", {"eta": 0.01}), channel, uniform=False)
    assert isinstance(made, StrategyAdapter)
    strategy = made._strategy
    strategy.m_t, strategy.v_t = {"a": np.ones((5, 2))}, {"a": np.full((5, 2), 2.0)}  # type: ignore[attr-defined]
    progress = Progress(7, np.zeros(LAYOUT.size, np.float32), strategy=made.snapshot())
    again = from_bytes(to_bytes(progress))
    other = combiner(make_strategy("fedadam", {"eta": 0.01}), channel, uniform=False)
    other.restore(again.strategy)
    assert isinstance(other, StrategyAdapter)
    np.testing.assert_array_equal(other._strategy.v_t["a"], np.full((5, 2), 2.0))  # type: ignore[attr-defined]


def test_a_strategy_gets_back_the_arrays_of_the_model_that_it_keeps(in_run: int) -> None:
    channel = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32"))
    made, other = (combiner(make_strategy("fedavgm", {}), channel, uniform=False) for _ in range(2))
    x = np.arange(LAYOUT.size, dtype=np.float32)
    made.choose(0, x, [97, 98])
    other.restore(from_bytes(to_bytes(made.snapshot())))
    assert isinstance(other, StrategyAdapter)
    np.testing.assert_array_equal(other._strategy.current_arrays["a"].numpy(), x.reshape(5, 2))  # type: ignore[attr-defined]


def test_heavy_ball_outside_is_flowers_fedavgm(in_run: int) -> None:
    """One optimiser has two names; ours keeps no model a board."""
    channel, rng = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32")), np.random.default_rng(1)
    params = {"server_learning_rate": 0.6, "server_momentum": 0.8}
    flowers = combiner(make_strategy("fedavgm", params), channel, uniform=True)
    ours = with_outer(Mean(channel, uniform=True), make("heavy-ball", lr=0.6, momentum=0.8), LAYOUT)
    x = y = rng.normal(size=LAYOUT.size).astype(np.float32)
    for round in range(6):
        shares = []
        for name in "ab":
            delta = rng.normal(size=LAYOUT.size).astype(np.float32)
            aux = {Aux.EXAMPLES: 1.0, Aux.LOSS: 1.0, Aux.LEARNING_RATE: 0.1}
            frame = channel.frame(Kind.UPDATE, delta, LAYOUT, Ctx(round, 0), round, aux)[0]
            shares.append(WeightedUpdate(name, frame, 1.0, address=ord(name)))
        flowers.choose(round, x, [97, 98])
        a, b = flowers.combine(round, x, shares).model, ours.combine(round, y, shares).model
        assert a is not None and b is not None
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
        x, y = a, b


@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_a_strategy_with_an_optimiser_of_its_own_takes_no_other(name: str) -> None:
    with pytest.raises(ConfigError, match=f"server.strategy = {name} and outer.optimizer = nesterov: .*say server"):
        make_strategy(name, {}, make("nesterov"))
    make_strategy("krum", {}, make("nesterov"))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"name": "another"}, "board"),
        ({"members": ("a", "c")}, "boards"),
        ({"layout": Layout.of([TensorSpec("a", (2, 5))])}, "model"),
        ({"run_id": b"s" * 16}, "run"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    changed: dict[str, Any], what: str, tmp_path: Path, sink: Memory
) -> None:
    def made(**other: Any) -> tuple[CoordinatorCheckpointer, BoardCheckpointer]:
        given = {"name": "it", "layout": LAYOUT, "run_id": b"r" * 16, "members": ("a", "b"), **other}
        given |= {"section": CheckpointSection(), "sink": sink}
        coordinator = CoordinatorCheckpointer(folder=tmp_path / "one", **given)
        return coordinator, BoardCheckpointer(folder=tmp_path / "two", **given)

    board = SimpleNamespace(round=3, snapshot=lambda: {"round": 3}, restore=lambda found: None)
    coordinators, boards = made()
    coordinators.save(Progress(3, np.zeros(LAYOUT.size, np.float32)))
    boards.save(board)
    for kept in (coordinators, boards):
        kept.close(over=False)
    coordinators, boards = made(**changed)
    for go_on in (coordinators.load, lambda: boards.restore(board)):
        with pytest.raises(ConfigError, match=f"is of another run: its {what} is"):
            go_on()


def test_a_checkpoint_whose_vectors_are_not_of_the_model_is_refused(tmp_path: Path, sink: Memory) -> None:
    kept = CoordinatorCheckpointer("it", tmp_path, LAYOUT, b"r" * 16, ("a",), CheckpointSection(), sink)
    kept.save(Progress(3, np.zeros(LAYOUT.size, np.float32), corrections={"a": np.zeros(2, np.float32)}))
    kept.flush()
    with pytest.raises(DataError, match="the coordinator's checkpoint cannot be used"):
        kept.load()
    kept.close(over=False)


def test_a_run_has_a_number_of_its_own_that_outlives_its_coordinator(tmp_path: Path, sink: Memory) -> None:
    recipe = recipes.from_dict({"run": {"mode": "server"}})

    def begin(folder: str) -> Coordinator:
        checkpointer = CoordinatorCheckpointer(
            "coordinator", tmp_path / folder, LAYOUT, b"r" * 16, ("a",), CheckpointSection(), sink
        )
        x = np.zeros(LAYOUT.size, np.float32)
        return Coordinator(recipe, LAYOUT, x, ["a"], sink, tmp_path, run_id=b"r" * 16, checkpointer=checkpointer)

    first = begin("one")
    number = first._plan.instance
    assert number and begin("two")._plan.instance != number
    assert first._checkpointer is not None
    first._checkpointer.save(Progress(3, np.zeros(LAYOUT.size, np.float32), instance=number))
    first._checkpointer.close(over=False)
    assert begin("one")._plan.instance == number


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="server.strategy_params of fedadam: .*etta"):
        make_strategy("fedadam", {"etta": 1})
    with pytest.raises(ConfigError, match="server.fraction"):
        make_strategy("fedavg", {"min_train_nodes": 2})
    with pytest.raises(ConfigError, match="server.strategy_params.weighted_by_key: .*server.weighting"):
        make_strategy("fedadam", {"weighted_by_key": "loss"})
    for name, params, reason in (
        ("fedadam", {"eta": "x"}, "eta = 'x' of fedadam: a number is needed"),
        ("fedadam", {"tau": float("nan")}, "not finite"),
        ("fedavgm", {"server_momentum": True}, "a number is needed"),
        ("krum", {"num_malicious_nodes": "one"}, "a whole number is needed"),
        ("krum", {"num_malicious_nodes": -1}, "at least 0"),
        ("multikrum", {"num_nodes_to_select": 1.5}, "a whole number is needed"),
        ("fedtrimmedavg", {"beta": 0.5}, "from 0 to below 0.5"),
        ("bulyan", {"selection_rule": "krum"}, "not for a recipe"),
    ):
        with pytest.raises(ConfigError, match=reason):
            make_strategy(name, params)
    make_strategy("fedadam", {"eta": 1, "beta_1": 0.5})
    with pytest.raises(ConfigError, match="did you mean fedadam"):
        make_strategy("fedadm", {})


@pytest.mark.parametrize(
    ("boards", "server", "enough"),
    [
        (8, {}, True),
        (7, {}, False),
        (9, {"quorum": 8}, True),
        (9, {"quorum": 7}, False),
        (16, {"fraction": 0.5}, True),
        (14, {"fraction": 0.5}, False),
        (13, {"fraction": 0.4, "min_nodes": 8}, True),
    ],
)
def test_a_strategy_that_no_round_can_satisfy_is_refused(boards: int, server: dict[str, Any], enough: bool) -> None:
    given = {"strategy": "bulyan", "strategy_params": {"num_malicious_nodes": 1}, **server}
    recipe = recipes.from_dict({"run": {"mode": "server", "nodes": boards}, "server": given})

    def begin() -> Coordinator:
        zeros = np.zeros(LAYOUT.size, np.float32)
        return Coordinator(recipe, LAYOUT, zeros, [f"board-{k}" for k in range(boards)], Memory(), Path("nowhere"))

    if enough:
        begin()
    else:
        with pytest.raises(ConfigError, match=r"= 7 answers, and 1 more for liars that send none, got 7.*quorum"):
            begin()


@pytest.mark.parametrize("codec", ["fp32", "4-bit-elastiquant", "co3"])
@pytest.mark.parametrize("uniform", [False, True])
def test_it_is_flowers_average_of_the_decoded_models(codec: str, uniform: bool) -> None:
    channel, rng = Channel.of(LAYOUT, b"r" * 16, codecs.get(codec)), np.random.default_rng(5)
    x, shares = rng.normal(size=LAYOUT.size).astype(np.float32), []
    for k in range(5):
        delta, weight = (0.1 * rng.normal(size=LAYOUT.size)).astype(np.float32), 10.0 + 7 * k
        aux: dict[int, float] = {Aux.EXAMPLES: weight, Aux.LOSS: 1.0}
        frame, _ = channel.frame(Kind.UPDATE, delta, channel.codec.init(LAYOUT), Ctx(k, 0), 1, aux)
        shares.append(WeightedUpdate(f"b{k}", frame, weight))
    models = [x + channel.codec.decode(s.frame.body, LAYOUT) for s in shares]
    records = [
        RecordDict({"a": ArrayRecord({"x": Array(m)}), "m": MetricRecord({"n": 1.0 if uniform else s.weight})})
        for m, s in zip(models, shares, strict=True)
    ]
    made = Mean(channel, uniform=uniform).combine(0, x, shares)
    assert made.model is not None and not made.refused
    np.testing.assert_allclose(made.model, aggregate_arrayrecords(records, "n")["x"].numpy(), atol=1e-6)


def with_strategy(run: Run, name: str, malicious: int = 0, **params: Any) -> Run:
    """The run with Flower's strategy of this name."""

    def make(plan: Any) -> Any:
        channel = Channel.of(plan.layout, plan.run_id, plan.codec)
        return combiner(make_strategy(name, params), channel, plan.weighting == "uniform", malicious)

    run.make_combiner = make
    return run


def _params(strategy: str) -> dict[str, Any]:
    return {"server_momentum": 0.5} if strategy == "fedavgm" else {}


@pytest.mark.parametrize("strategy", ["fedavgm", "fedadam", "fedmedian", "krum"])
def test_flowers_strategies_run_and_go_on_from_a_checkpoint(strategy: str, in_run: int) -> None:
    whole, again = (with_strategy(Run(), strategy, **_params(strategy)) for _ in range(2))
    x = whole.play()
    np.testing.assert_array_equal(again.play(whole.saved[2]), x)
    assert not np.array_equal(x, whole.initial)


@pytest.mark.parametrize(
    "strategy", ["fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedmedian", "fedtrimmedavg", "krum", "multikrum"]
)
@pytest.mark.parametrize("factor", [1e5, 1e25])
def test_no_strategy_sees_an_update_out_of_all_proportion(strategy: str, factor: float, in_run: int) -> None:
    run = with_strategy(Run(boards=5), strategy, **_params(strategy))
    run.boards[2].spoil = {3: with_frame(lambda f: scaled(f, factor))}
    x = run.play()
    (text,) = run.texts("refused")
    assert text.startswith("refused the update of board-2: ") and "times as long as the typical one" in text
    steps = [np.abs(b.model - a.model).max() for a, b in pairwise(run.saved)]
    assert min(steps) > 0.0 and max(steps) < 2.0 and np.isfinite(x).all()


@pytest.mark.parametrize("strategy", ["fedavgm", "fedmedian"])
def test_a_strategy_hears_a_board_whose_sensor_is_of_another_scale(strategy: str, in_run: int) -> None:
    run = with_strategy(Run(boards=4, rounds=6), strategy, **_params(strategy))
    run.boards[3].spoil = dict.fromkeys(range(6), with_frame(lambda f: moved_statistics(f, 1e8)))
    run.play()
    assert not [text for text in run.texts("refused") if "times as long" in text]
    assert run.used[2:] == [4] * 4


def test_with_a_strategy_of_two_boards_one_may_be_nearly_done(in_run: int) -> None:
    run, again = (with_strategy(Run(boards=2, rounds=8), "fedmedian") for _ in range(2))
    run.boards[0].spoil = dict.fromkeys(range(8), with_frame(lambda f: scaled(f, 1e-5)))
    run.boards[1].spoil = again.boards[1].spoil = {5: with_frame(lambda f: scaled(f, 1e5))}
    run.play()
    (text,) = run.texts("refused")
    assert text.startswith("refused the update of board-1: ") and "times as long as the typical one of the run" in text
    again.play(run.saved[4])  # the first round of a process that has seen no honest one
    assert len(again.texts("refused")) == 1


def test_a_strategy_that_lacks_answers_says_of_what(in_run: int) -> None:
    run = with_strategy(Run(boards=4, rounds=9), "bulyan", num_malicious_nodes=1)
    with pytest.raises(RunError, match=r"no usable update for 3 rounds; bulyan needs 4\*1 \+ 3 = 7 answers, got 4$"):
        run.play()
    assert run.texts("refused")[0] == "round 0 changes nothing: bulyan needs 4*1 + 3 = 7 answers, got 4"
    assert not run.texts("quarantine")


@pytest.mark.parametrize(
    ("boards", "strategy", "malicious", "params"),
    [
        (8, "fedtrimmedavg", 2, {"beta": 0.25}),
        (8, "multikrum", 0, {"num_malicious_nodes": 2, "num_nodes_to_select": 6}),
        (8, "bulyan", 0, {"num_malicious_nodes": 1}),
        (4, "fedmedian", 1, {}),
    ],
)
def test_no_liar_gets_in_by_a_round_in_which_an_honest_board_is_missing(
    boards: int, strategy: str, malicious: int, params: dict[str, Any], in_run: int
) -> None:
    run, calm = (with_strategy(Run(boards=boards, rounds=12), strategy, malicious, **params) for _ in range(2))
    liars = malicious or params["num_malicious_nodes"]
    for board in [*run.boards[:liars], *calm.boards[:liars]]:
        board.spoil = dict.fromkeys(range(12), with_frame(lambda f: scaled(f, -20.0)))
    run.boards[-1].lost = frozenset({6})
    steps = []
    for one in (run, calm):
        one.play()
        assert len(one.saved) == 12
        steps.append(max(float(np.linalg.norm(b.model - a.model)) for a, b in pairwise(one.saved)))
    assert boards - 1 in run.used and boards - 1 not in calm.used
    assert steps[0] < 1.5 * steps[1]


@pytest.mark.parametrize(("spoiled", "lost"), [(range(20), ()), ((), range(2, 20))])
def test_a_liar_that_sends_nothing_of_use_ends_no_run(spoiled: Any, lost: Any, in_run: int) -> None:
    run = with_strategy(Run(boards=8, rounds=20), "bulyan", num_malicious_nodes=1)
    run.boards[0].spoil, run.boards[0].lost = dict.fromkeys(spoiled, garbage), frozenset(lost)
    run.play()
    assert len(run.rounds) == 20


@pytest.mark.parametrize("strategy", ["krum", "fedmedian"])
def test_a_record_of_a_round_names_whose_model_lay_far_off(strategy: str, in_run: int) -> None:
    run = with_strategy(Run(boards=6), strategy)
    run.boards[4].spoil = dict.fromkeys(range(2, 20), with_frame(lambda f: scaled(f, -20.0)))
    run.play()
    far = {
        step: [k for k in values if k.startswith("far/")] for _, step, values in run.records if "server/used" in values
    }
    assert far[1] == [] and far[3] == ["far/board-4"]
