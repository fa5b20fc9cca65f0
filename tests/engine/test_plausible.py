"""Which claims and updates are believed: honest boards always, a liar never for long."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.codecs.levels import LevelRule, levels_for
from edgegossip.engine.plausible import (
    ENOUGH,
    EXAMPLES_RATIO,
    GROWTH,
    REACH,
    SINGLE,
    WARM_UP,
    WARM_UP_GROWTH,
    ExampleClaims,
    Losses,
    NormFilter,
    ServerLevels,
)
from edgegossip.engine.quarantine import PATIENCE, RoundQuarantine
from edgegossip.frame import Aux, Frame, Kind
from tests.engine.toy import LAYOUT

# Lengths

X = np.ones(100, np.float32)
NAMES = ("b0", "b1", "b2")


class Fleet:
    """Boards that each pull the model (a number) towards 0 by a tenth; the last one sends `factor`
    times that."""

    def __init__(self, boards: int, factor: float) -> None:
        self.judge, self.model, self.highest, self.refused = NormFilter(), 10.0, 10.0, 0
        self._left_out, self._round = RoundQuarantine(PATIENCE), 0
        self._factors = {f"b{k}": 1.0 for k in range(boards - 1)} | {"liar": factor}

    def round(self, names: list[str]) -> None:
        self._round += 1
        names = [name for name in names if not self._left_out.reason(name, self._round)]
        base = np.full(1, self.model, np.float32)
        updates = {name: -0.1 * self.model * self._factors[name] for name in names}
        lengths = {name: abs(v) for name, v in updates.items()}
        refused = self.judge.refused(lengths, base)
        self.refused += len(refused)
        used = {name: v for name, v in updates.items() if name not in refused}
        for name in used:
            self._left_out.used(name)
        for name, reason in refused.items() if used else ():
            self._left_out.refused(name, self._round, reason)
        if used:
            self.judge.used({name: lengths[name] for name in used}, base)
            self.model += sum(used.values()) / len(used)
        self.highest = max(self.highest, abs(self.model))


@pytest.mark.parametrize("factor", [-90.0, 90.0, 99.0])
@pytest.mark.parametrize(("boards", "part"), [(5, 2), (6, 6), (6, 3), (9, 1), (10, 4)])
def test_a_liar_just_below_the_ratio_does_not_blow_up_the_model(factor: float, boards: int, part: int) -> None:
    fleet, rng = Fleet(boards, factor), np.random.default_rng(1)
    names = [*(f"b{k}" for k in range(boards - 1)), "liar"]
    for _ in range(300):
        fleet.round([names[k] for k in rng.choice(boards, part, replace=False)])
    assert fleet.highest < 1e6  # without a slow memory of what was typical it is 1e115


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(0.3, 1.0), st.booleans())
def test_honest_boards_with_very_unequal_data_are_heard(
    boards: int, part: int, seed: int, shrink: float, warm_up: bool
) -> None:
    judge, rng = NormFilter(), np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(0.0, 1.0, boards)  # a hundred times the data are ten times the way, and noise
    for round in range(40):
        rate = min(1.0, (round + 1) / 20) if warm_up else shrink**round
        some = rng.permutation(boards if round > 10 else max(1, boards // 2))[:part]
        lengths = {f"b{k}": float(rate * sizes[k] * rng.uniform(0.5, 1.5)) for k in some}
        if round % 3:
            assert not judge.refused(lengths, X)
            judge.used(lengths, X)
        else:
            judge.unmeasured()


def test_a_board_that_was_away_is_heard_by_those_that_have_arrived() -> None:
    """They hardly move any more; it has the way to go that it had, and no more than that."""
    judge = NormFilter()
    judge.used({f"b{k}": k + 1.0 for k in range(5)}, X)
    for round in range(60):
        judge.used({f"b{k}": 0.7**round * (k + 1) for k in range(4)}, X)
    here = {f"b{k}": 1e-9 for k in range(4)}
    assert not judge.refused(here | {"b4": 4.9}, X)
    assert (
        judge.refused(here | {"b4": 5.1}, X).keys()
        == judge.refused(here | {"b4": 5.1, "b3": 1e-12}, X).keys()
        == {"b4"}
    )


def test_what_is_known_goes_on_in_another_process() -> None:
    judge = NormFilter()
    for value in (1.0, 2.0, 4.0):
        judge.used({f"b{k}": value * (k + 1) for k in range(4)}, X)
        judge.unmeasured()
    assert judge.reach == 4.0
    again = NormFilter(**asdict(judge))
    assert again == judge and again.last is not judge.last
    for lengths in ({"b0": 900.0}, {"b0": 790.0, "b1": 4.0}, {"b0": 390.0, "b1": 4.0, "b2": 4.0}):
        assert again.refused(lengths, X) == judge.refused(lengths, X)
    for _ in range(9):
        again.unmeasured()
    assert again.reach == REACH


@pytest.mark.parametrize(("boards", "kept", "falls"), [(2, "longest", 1.0), (3, "typical", 1.0 / GROWTH)])
def test_what_is_typical_moves_slowly_and_faster_in_the_first_rounds(boards: int, kept: str, falls: float) -> None:
    judge = NormFilter()
    judge.used(dict.fromkeys(NAMES[:boards], 1.0), X)
    for length, factors in ((1e30, [WARM_UP_GROWTH] * (WARM_UP - 1) + [GROWTH] * 3), (1e-30, [falls] * 3)):
        for factor in factors:
            before = getattr(judge, kept)
            judge.used(dict.fromkeys(NAMES[:boards], length), X)
            assert getattr(judge, kept) == pytest.approx(factor * before)


def test_a_fleet_whose_updates_all_grow_goes_on() -> None:
    judge = NormFilter()
    for power in range(0, 30, 3):
        for boards in (2, 3, 5):
            lengths = {f"b{k}": (k + 1) * 10.0**power for k in range(boards)}
            assert not judge.refused(lengths, X)
            judge.used(lengths, X)


# Examples


@given(st.lists(st.integers(10, 1000), min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 30))
def test_boards_with_a_hundred_times_as_many_examples_are_all_heard(sizes: list[int], part: int, rounds: int) -> None:
    judge, rng = ExampleClaims[int](), np.random.default_rng(1)
    for _ in range(rounds):
        some = rng.choice(len(sizes), min(part, len(sizes)), replace=False)
        claims = {int(k): float(sizes[k]) for k in some}
        assert not judge.refused(claims)
        judge.used(claims)


@pytest.mark.parametrize("asked", [1, 2, 6])
def test_a_claim_that_would_drown_the_others_is_refused(asked: int) -> None:
    judge = ExampleClaims[str]()
    judge.used({f"b{k}": 100.0 * (k + 1) for k in range(6)})
    claims = {"b5": 1e6, **{f"b{k}": 100.0 for k in range(asked - 1)}}
    assert list(judge.refused(claims)) == ["b5"]
    assert list(judge.refused({"new": 1e6})) == ["new"] and not judge.refused({"new": 3e5})


def test_of_two_the_one_that_says_one_example_has_nobody_refused() -> None:
    assert not ExampleClaims[str]().refused({"honest": 60000.0, "liar": 1.0})
    assert list(ExampleClaims[str]().refused({"honest": 60000.0, "liar": 1e12})) == ["liar"]
    assert list(ExampleClaims[str]().refused({"honest": 60000.0, "liar": 1001 * SINGLE})) == ["liar"]
    assert not ExampleClaims[str]().refused({"alone": 1e12})


@pytest.mark.parametrize("boards", [4, 8])
@pytest.mark.parametrize("lie", [1.0, 1e3, 1e12])
@pytest.mark.parametrize("first", [1, 2, 3, 8])
def test_one_liar_from_the_first_round_on_has_nobody_refused_and_no_more_than_the_ratio(
    boards: int, lie: float, first: int
) -> None:
    """Whoever answers beside it in its first round. Beyond a first round of two, which cannot tell
    who lies, it has at most EXAMPLES_RATIO times what the honest boards' larger half claims."""
    judge = ExampleClaims[int]()
    honest = {k: 100.0 * (k + 1) for k in range(1, boards)}
    for answered in (first, boards, boards):
        claims = {0: lie, **{k: v for k, v in honest.items() if k < answered}}
        refused = judge.refused(claims)
        assert not refused.keys() - {0}
        assert len(claims) < ENOUGH or lie <= EXAMPLES_RATIO * max(honest.values()) or refused
        judge.used({k: v for k, v in claims.items() if k not in refused})


@pytest.mark.parametrize(("later", "believed"), [(100.0, True), (101.0, False), (9_990.0, False)])
def test_no_claim_grows_far_beyond_a_boards_first(later: float, believed: bool) -> None:
    judge, honest = ExampleClaims[int](), dict.fromkeys(range(1, 8), 10.0)
    for _ in range(3):
        assert not judge.refused(honest | {0: 10.0})
        judge.used(honest | {0: 10.0})
    assert list(judge.refused(honest | {0: later})) == ([] if believed else [0])
    assert not judge.refused(dict.fromkeys(range(8), later))  # all together may: they are typical


# Losses

HONEST = st.floats(1e-9, 1e3)


@given(st.lists(st.lists(HONEST, min_size=1, max_size=5), max_size=20))
def test_losses_of_honest_boards_are_believed_however_unequal(rounds: list[list[float]]) -> None:
    judge = Losses()
    for losses in rounds:
        assert all(judge.believed(losses)) and judge.makes_sense(losses[0])


@pytest.mark.parametrize("lie", [-1e25, 1e25, -2e5])
@pytest.mark.parametrize("boards", [1, 2, 3, 6])
def test_a_lie_is_not_believed_round_after_round(lie: float, boards: int) -> None:
    judge = Losses()
    judge.believed([2.0] * max(boards, 2))
    for factor in (1.0, 2.0, 3.0):
        assert judge.believed([factor * lie, *[2.0] * (boards - 1)]) == [False, *[True] * (boards - 1)]
        if boards > 1:
            assert not judge.makes_sense(100.0 * lie) and judge.makes_sense(1e4)


def test_a_board_that_is_alone_does_not_raise_what_is_believed_of_it_by_a_few_lies() -> None:
    judge = Losses()
    judge.believed([1.0, 1.0])
    for lie in (1e4, 1e6):  # each is believed
        assert judge.believed([lie]) == [True]
    assert judge.believed([1e10]) == [False]


def test_a_training_that_runs_away_is_recorded() -> None:
    judge = Losses()
    for power in range(2, 24):
        assert judge.believed([1.5 * 10.0**power] * 2) == [True, True]
        assert judge.makes_sense(10.0**power)


def test_without_history_everything_is_believed() -> None:
    assert Losses().believed([1e20]) == [True] and Losses().makes_sense(-1e20) and Losses().believed([]) == []


@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf, 1e26])
def test_an_evaluation_that_is_no_loss_makes_no_sense_before_any_loss_is_known_either(wild: float) -> None:
    judge = Losses()
    assert not judge.makes_sense(wild)
    judge.believed([1.0, 2.0, 3.0])
    assert not judge.makes_sense(wild)


# Levels


def _frame(loss: float, examples: float, lr: float, body: bytes = b"") -> Frame:
    aux = {Aux.LOSS: loss, Aux.EXAMPLES: examples, Aux.LEARNING_RATE: lr}
    return Frame(Kind.UPDATE, 1, b"", LAYOUT.hash, b"r" * 16, 0, 1, 1, body, dict(aux))


def test_levels_follow_the_mean_loss_and_the_learning_rate() -> None:
    rule = ServerLevels.of(codecs.get("elasticl", s0=20, smoothing=0.5))
    assert rule is not None and rule.aux() == {Aux.LEVELS: 20.0}
    rule = rule.after([_frame(1.0, 1.0, 0.1), _frame(3.0, 3.0, 0.1)])
    assert rule.loss == 2.5 and rule.aux() == {Aux.LEVELS: 20.0}
    rule = rule.after([_frame(0.5, 1.0, 0.05)])
    assert rule.levels == levels_for(LevelRule(20, 0.1, 2.5), 1.5, 0.05) == 13
    assert rule.after([]) == rule
    assert ServerLevels.of(codecs.get("co3")) is None


def test_levels_stay_for_an_interval_of_bits_that_a_board_sends() -> None:
    rule, levels = ServerLevels.of(codecs.get("elasticl", s0=20, smoothing=0.0, interval_bits=240)), []
    for round in range(8):  # the first choice, then one each three rounds of 80 bits
        kept = rule and rule.after([_frame(4.0 / 4.0**round, 10.0, 0.1, bytes(10))] * 3)
        rule = from_bytes(to_bytes(kept))
        assert rule is not None and rule == kept
        levels.append(rule.levels)
    assert levels == [20, 20, 20, 160, 160, 160, 1280, 1280]


def _levels_after(*rounds: list[Frame]) -> list[int]:
    rule = ServerLevels.of(codecs.get("elasticl", s0=20, smoothing=0.0))
    assert rule is not None
    levels = []
    for frames in rounds:
        rule = rule.after(frames)
        levels.append(rule.levels)
    return levels


@pytest.mark.parametrize(("loss", "examples"), [(0.0, 1.0), (1e-9, 1e12), (1e3, 1.0), (1e24, 1e12)])
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


def _played(lie: Callable[[int, float], Frame | None], honest: int, planned: float | None) -> list[int]:
    """Levels round after round, of two answers where one is a lie and `honest` ones where not."""
    rule, levels = ServerLevels.of(codecs.get("elasticl")), []
    for round in range(60):
        loss, kept = 2.3 * 0.99**round, rule
        assert kept is not None
        false, true = lie(round, loss), _frame(loss, 100.0, 0.1)
        kept = kept.after([true] * honest if false is None else [false, true], planned)
        rule = from_bytes(to_bytes(kept))
        assert rule == kept
        levels.append(kept.levels)
    return levels


@pytest.mark.parametrize("planned", [0.3, None])
@pytest.mark.parametrize("honest", [2, 10])
@pytest.mark.parametrize(("loss", "rate"), [(0.0, 0.1), (1e20, 0.1), (None, 1e6), (None, 1e-20)])
def test_a_liar_among_the_first_two_does_not_decide_for_the_whole_run(
    loss: float | None, rate: float, honest: int, planned: float | None
) -> None:
    right = _played(lambda round, told: None, honest, planned)
    lied = _played(
        lambda round, told: None if round else _frame(told if loss is None else loss, 100.0, rate), honest, planned
    )
    assert all(0.3 * a < b < 3.5 * a for a, b in zip(right[8:], lied[8:], strict=True))


@pytest.mark.parametrize("boards", [1, 2, 3])
def test_levels_of_honest_boards_are_the_papers_whatever_the_recipe_says(boards: int) -> None:
    rule, right = ServerLevels.of(codecs.get("elasticl", smoothing=0.0)), LevelRule(127, 0.1, 2.0)
    assert rule is not None
    for round in range(20):
        loss, rate = 2.0 * 0.8**round, 0.1 * 0.5 ** (round // 5)
        rule = rule.after([_frame(loss, 10.0, rate)] * boards, 0.01)
        assert rule.levels == levels_for(right, rule.loss or 0.0, rate)
        assert rule.loss == pytest.approx(loss) and rule.first == pytest.approx((2.0, 0.1))
