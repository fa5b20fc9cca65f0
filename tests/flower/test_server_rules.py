"""Small rules of the coordinator: who takes part, how many levels, how far it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip import recipe as recipes
from edgegossip.checkpoint.memory import from_bytes, to_bytes
from edgegossip.codecs.levels import LevelRule, levels_for
from edgegossip.flower import Coordinator, CoordinatorKeeper
from edgegossip.flower.combine import Through, combiner, make_strategy
from edgegossip.flower.payload import Channel
from edgegossip.flower.progress import Progress
from edgegossip.flower.sampling import sample
from edgegossip.flower.server_levels import ServerLevels
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import CheckpointSection, ServerSection
from edgegossip.types import ConfigError, DataError
from tests.flower.conftest import Memory

LAYOUT = Layout.of([TensorSpec("a", (5, 2))])


def _frame(loss: float, examples: float, lr: float) -> Frame:
    aux = {Aux.LOSS: loss, Aux.EXAMPLES: examples, Aux.LEARNING_RATE: lr}
    return Frame(Kind.UPDATE, 1, b"", LAYOUT.hash, b"r" * 16, 0, 1, 1, b"", dict(aux))


def test_a_share_of_the_boards_is_drawn_anew_each_round_and_everyone_gets_a_turn() -> None:
    boards = list(range(100, 110))
    server = ServerSection(fraction=0.3)
    rounds = [sample(boards, server, 10, 1, r) for r in range(40)]
    assert {len(r) for r in rounds} == {3} and len({tuple(r) for r in rounds}) > 20
    assert set().union(*rounds) == set(boards)
    assert rounds == [sample(boards, server, 10, 1, r) for r in range(40)]
    assert sample(boards, ServerSection(), 10, 1, 0) == boards
    assert len(sample(boards, ServerSection(fraction=0.0, min_nodes=4), 10, 1, 0)) == 4
    assert sample(boards[:2], server, 10, 1, 0) == boards[:2]


def test_levels_follow_the_mean_loss_and_the_learning_rate() -> None:
    rule = ServerLevels.of(codecs.get("elasticl", s0=20, smoothing=0.5))
    assert rule is not None and rule.aux() == {Aux.LEVELS: 20.0}
    rule = rule.after([_frame(1.0, 1.0, 0.1), _frame(3.0, 3.0, 0.1)])
    assert rule.loss == 2.5 and rule.aux() == {Aux.LEVELS: 20.0}
    rule = rule.after([_frame(0.5, 1.0, 0.05)])
    assert rule.levels == levels_for(LevelRule(20, 0.1, 2.5), 1.5, 0.05) == 13
    assert rule.after([]) == rule
    assert ServerLevels.of(codecs.get("co3")) is None


def _levels_after(*rounds: list[Frame]) -> list[int]:
    rule = ServerLevels.of(codecs.get("elasticl", s0=20, smoothing=0.0))
    assert rule is not None
    levels = []
    for frames in rounds:
        rule = rule.after(frames)
        levels.append(rule.levels)
    return levels


@pytest.mark.parametrize("loss", [0.0, 1e-9, 1e3, 1e15, 1e24])
@pytest.mark.parametrize("examples", [1.0, 1e12])
@pytest.mark.parametrize("boards", [2, 3, 10])
@pytest.mark.parametrize("at", [0, 1])
def test_one_board_cannot_decide_for_all(loss: float, examples: float, boards: int, at: int) -> None:
    honest = [[_frame(f, 10.0, 0.1)] * boards for f in (4.0, 1.0, 0.25)]
    lied = [list(frames) for frames in honest]
    lied[at][0] = _frame(loss, examples, 0.1)
    if boards > 2 or at > 0:
        for told, right in zip(_levels_after(*lied), _levels_after(*honest), strict=True):
            most = 10.0 if boards > 2 else 40.0  # of two the round before has a say, whose loss was 4 times as high
            assert right / most**0.5 - 0.5 <= told <= right * most**0.5 + 0.5
    assert all(1 <= levels < 32767 for levels in _levels_after(*lied))


def test_one_boards_learning_rate_does_not_decide_for_all() -> None:
    honest = [[_frame(f, 10.0, 0.1)] * 4 for f in (4.0, 1.0)]
    for rate in (1e-30, 1e6):
        lied = [[*frames[:3], _frame(1.0, 10.0, rate)] for frames in honest]
        assert _levels_after(*lied)[0] == 20 and 5 < _levels_after(*lied)[1] < 80


def _played(lie: Callable[[int, float], Frame | None], honest: int, planned: float | None) -> list[int]:
    """Levels round after round, of two answers where one is a lie and `honest` ones where not."""
    rule, levels = ServerLevels.of(codecs.get("elasticl")), []
    for round in range(60):
        loss, kept = 2.3 * 0.99**round, rule
        assert kept is not None
        false, true = lie(round, loss), _frame(loss, 100.0, 0.1)
        kept = kept.after([true] * honest if false is None else [false, true], planned)
        progress = Progress(round, np.zeros(LAYOUT.size, np.float32), levels=kept)
        plain = from_bytes(to_bytes(progress.plain()))
        rule = Progress.from_plain(plain, LAYOUT, ServerLevels.of(codecs.get("elasticl"))).levels
        assert rule == kept
        levels.append(kept.levels)
    return levels


@pytest.mark.parametrize("planned", [0.1, 0.3, None])
@pytest.mark.parametrize("honest", [2, 10])
@pytest.mark.parametrize(("loss", "rate"), [(1e-25, 0.1), (0.0, 0.1), (1e20, 0.1), (None, 1e6), (None, 1e-20)])
def test_a_liar_among_the_first_two_does_not_decide_for_the_whole_run(
    loss: float | None, rate: float, honest: int, planned: float | None
) -> None:
    right = _played(lambda round, told: None, honest, planned)
    lied = _played(
        lambda round, told: None if round else _frame(told if loss is None else loss, 100.0, rate), honest, planned
    )
    assert all(0.3 * a < b < 3.5 * a for a, b in zip(right[8:], lied[8:], strict=True))


@pytest.mark.parametrize("planned", [0.1, 0.3, None])
@pytest.mark.parametrize("rate", [1e6, 1e-20])
def test_one_of_two_learning_rates_does_not_decide_later_on(rate: float, planned: float | None) -> None:
    right = _played(lambda round, told: None, 2, planned)
    assert _played(lambda round, told: _frame(told, 100.0, rate) if round >= 20 else None, 2, planned) == right
    if planned:
        assert _played(lambda round, told: _frame(told, 100.0, rate), 2, planned) == right


@pytest.mark.parametrize("boards", [1, 2, 3])
def test_levels_of_honest_boards_are_the_papers_whatever_the_recipe_says(boards: int) -> None:
    rule, right = ServerLevels.of(codecs.get("elasticl", smoothing=0.0)), LevelRule(127, 0.1, 2.0)
    assert rule is not None
    for round in range(20):
        loss, rate = 2.0 * 0.8**round, 0.1 * 0.5 ** (round // 5)
        rule = rule.after([_frame(loss, 10.0, rate)] * boards, 0.01)
        assert rule.levels == levels_for(right, rule.loss or 0.0, rate)
        assert rule.loss == pytest.approx(loss) and rule.first == pytest.approx((2.0, 0.1))


def test_levels_stay_where_nobody_says_of_how_many_examples() -> None:
    assert _levels_after([_frame(1.0, 0.0, 0.1)] * 2, [_frame(1.0, 5.0, 0.1)]) == [0, 20]


def test_progress_survives_bytes_with_the_strategys_moments() -> None:
    channel = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32"))
    made = combiner(make_strategy("fedadam", {"eta": 0.01}), channel, uniform=False)
    assert isinstance(made, Through)
    strategy = made._strategy
    strategy.m_t, strategy.v_t = {"a": np.ones((5, 2))}, {"a": np.full((5, 2), 2.0)}  # type: ignore[attr-defined]
    levels = ServerLevels(20, 0.9, 1.5, (2.0, 0.1), 17)
    x = np.arange(LAYOUT.size, dtype=np.float32)
    progress = Progress(7, x, x + 1, made.snapshot(), levels, 3, 6, {"pi": (6, {"train/loss": 0.5})}, "ab12")
    again = Progress.from_plain(from_bytes(to_bytes(progress.plain())), LAYOUT, ServerLevels(20, 0.9))
    assert (again.round, again.levels, again.evaluations, again.evaluate_next) == (7, levels, 3, 6)
    assert again.instance == "ab12"
    assert again.records == {"pi": (6, {"train/loss": 0.5})}
    np.testing.assert_array_equal(again.reference, x + 1)
    other = combiner(make_strategy("fedadam", {"eta": 0.01}), channel, uniform=False)
    other.restore(again.strategy)
    assert isinstance(other, Through)
    np.testing.assert_array_equal(other._strategy.v_t["a"], np.full((5, 2), 2.0))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["fedavgm", "fedyogi", "krum"])
def test_strategies_give_back_what_they_keep(name: str) -> None:
    channel = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32"))
    made = combiner(make_strategy(name, {}), channel, uniform=False)
    other = combiner(make_strategy(name, {}), channel, uniform=False)
    other.restore(made.snapshot())
    assert other.snapshot().keys() == made.snapshot().keys()


def test_a_run_has_a_number_of_its_own_that_outlives_its_coordinator(tmp_path: Path, sink: Memory) -> None:
    recipe, codec = recipes.from_dict({"run": {"mode": "server"}}), codecs.get("fp32")

    def begin(folder: str) -> Coordinator:
        keeper = CoordinatorKeeper(tmp_path / folder, LAYOUT, b"r" * 16, ("a",), codec, CheckpointSection(), sink)
        x = np.zeros(LAYOUT.size, np.float32)
        return Coordinator(recipe, LAYOUT, x, ["a"], sink, tmp_path, run_id=b"r" * 16, keeper=keeper)

    first = begin("one")
    number = first._plan.instance
    assert number and begin("two")._plan.instance != number
    assert first._keeper is not None
    first._keeper.save(Progress(3, np.zeros(LAYOUT.size, np.float32), instance=number))
    first._keeper.close(over=False)
    assert begin("one")._plan.instance == number


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="server.strategy_params of fedadam: .*etta"):
        make_strategy("fedadam", {"etta": 1})
    with pytest.raises(ConfigError, match="server.fraction"):
        make_strategy("fedavg", {"min_train_nodes": 2})
    with pytest.raises(ConfigError, match="server.strategy_params.fraction_train: .*server.fraction"):
        make_strategy("fedmedian", {"fraction_train": 0.5})
    with pytest.raises(ConfigError, match="server.strategy_params.fraction_evaluate: .*evaluation"):
        make_strategy("fedavg", {"fraction_evaluate": 0.5})
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
    for wrong in ({}, {"format": 2}, {"format": 1, "round": 1, "model": np.zeros(3, np.float32), "reference": None}):
        with pytest.raises(DataError):
            Progress.from_plain(wrong, LAYOUT, None)


@pytest.mark.parametrize(
    ("boards", "server", "enough"),
    [
        (7, {}, True),
        (6, {}, False),
        (9, {"quorum": 7}, True),
        (9, {"quorum": 6}, False),
        (14, {"fraction": 0.5}, True),
        (13, {"fraction": 0.4}, False),
        (13, {"fraction": 0.4, "min_nodes": 7}, True),
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
        with pytest.raises(ConfigError, match=r"bulyan needs 4\*1 \+ 3 = 7 answers, got 6.*server.quorum"):
            begin()
