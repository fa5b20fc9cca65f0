"""Boards of a study that heat up: laws of their temperature, and fleets with and without the
guard."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.node.guard import Guard
from edgegossip.recipe import GuardSection, Recipe, with_settings
from edgegossip.studies.cases import StudyCase, StudyPlan, Variant, make_cases
from edgegossip.studies.heat import CLEARS_C, HeatModel, HotBoard
from edgegossip.studies.run_case import DataSetCache, run_case
from edgegossip.studies.summary import cells, rows
from edgegossip.sweep.results import Result
from edgegossip.types import ConfigError
from tests import one_thread

_one_thread = one_thread.one_thread

MODELS = st.fixed_dictionaries(
    {
        "boards": st.just(1),
        "ambient_c": st.floats(-20.0, 70.0),
        "k_per_w": st.floats(1.0, 20.0),
        "j_per_k": st.floats(1.0, 50.0),
        "busy_w": st.floats(3.0, 15.0),
        "clock": st.floats(0.2, 1.0),
    }
)
WORK = st.lists(st.tuples(st.floats(0.0, 300.0), st.floats(0.0, 300.0)), min_size=1, max_size=8)  # idle, then work


def model(**settings: Any) -> HeatModel:
    found = HeatModel.of({"boards": 1, **settings}, Recipe())
    assert found is not None
    return found


def board(of: HeatModel) -> HotBoard:
    return HotBoard(of, Guard(GuardSection()))


@given(MODELS, WORK)
def test_work_takes_its_time_and_what_the_clock_adds_while_it_is_held_down(
    settings: dict[str, Any], work: list[tuple[float, float]]
) -> None:
    hot, now_s = board(of := model(**settings)), 0.0
    for idle_s, work_s in work:
        hot.begin(now_s + idle_s)
        before_s, ends_s, gone = hot.throttled_s, *hot.compute(work_s)
        if gone:
            assert hot.temperature_c >= of.off_c - 1e-6
            return
        assert ends_s - now_s - idle_s == pytest.approx(
            work_s + (1 - of.clock) * (hot.throttled_s - before_s), abs=1e-6
        )
        now_s = ends_s


@given(MODELS, WORK)
def test_a_temperature_stays_between_where_idling_and_working_lead(
    settings: dict[str, Any], work: list[tuple[float, float]]
) -> None:
    hot, now_s = board(of := model(**settings)), 0.0
    idle_c, busy_c = (of.ambient_c + of.k_per_w * watts for watts in (of.idle_w, of.busy_w))
    for idle_s, work_s in work:
        hot.begin(now_s + idle_s)
        now_s, gone = hot.compute(work_s)
        assert idle_c - 1e-6 <= hot.temperature_c <= hot.hottest_c <= max(busy_c, idle_c) + 1e-6
        if gone:
            return
        assert hot.throttled or hot.temperature_c <= of.throttle_c + 1e-6


def integrated(of: HeatModel, work_s: float, step_s: float = 0.001) -> tuple[float, float]:
    """Degrees and seconds at the end of the work, by Euler's method."""
    degrees, throttled, now_s = of.ambient_c + of.k_per_w * of.idle_w, False, 0.0
    while work_s > 0:
        throttled = degrees >= of.throttle_c or (throttled and degrees > of.throttle_c - CLEARS_C)
        clock = of.clock if throttled else 1.0
        watts = of.idle_w + (of.busy_w - of.idle_w) * clock**2
        degrees += step_s * (watts - (degrees - of.ambient_c) / of.k_per_w) / of.j_per_k
        work_s, now_s = work_s - clock * step_s, now_s + step_s
    return degrees, now_s


def test_it_is_what_a_small_step_integration_finds() -> None:
    of = model(j_per_k=2.0)
    hot = board(of)
    hot.begin(0.0)
    for work_s in (10.0, 20.0, 45.0):
        ends_s, gone = hot.compute(work_s)
        assert not gone
    assert (hot.temperature_c, ends_s) == pytest.approx(integrated(of, 75.0), abs=0.02)
    assert hot.hottest_c == pytest.approx(80.0) and 0.0 < hot.throttled_s < ends_s


def test_a_board_that_idles_too_hot_is_gone_at_once_and_one_that_idles_hot_is_throttled() -> None:
    hot, hotter = board(model(ambient_c=50.0)), board(model(ambient_c=60.0))
    assert hotter.compute(1.0) == (0.0, True)
    ends_s, gone = hot.compute(1.0)
    assert ends_s == pytest.approx(1 / 0.6) and hot.throttled and not gone


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"board": 1}, "unknown key heat.board; did you mean heat.boards"),
        ({"ambient_c": 30.0}, "heat.boards is missing"),
        ({"boards": 5}, "heat.boards = 5: the run has 4 boards"),
        ({"boards": 1, "clock": 0.0}, "heat.clock = 0.0: out of range .from 0.05 to 1"),
        ({"boards": 1, "busy_w": 1.0}, "heat.busy_w = 1 must be at least heat.idle_w"),
        ({"boards": 1, "run.mode": "server"}, "heat.boards = 1 needs run.mode = gossip"),
    ],
)
def test_what_is_no_heat_is_refused(settings: dict[str, Any], words: str) -> None:
    about = {"run.nodes": 4, "run.mode": settings.pop("run.mode", "gossip")}
    with pytest.raises(ConfigError, match=words):
        HeatModel.of(settings, with_settings(Recipe(), about))


SLOW = {"link.mbit": 8.0, "link.compute_s": 16.0}
ROOM = {**SLOW, "heat.boards": 4}
BOX = {**SLOW, "heat.boards": 2, "heat.ambient_c": 45.0}
TARGET = 0.85

Played = Callable[..., Result]


@pytest.fixture(scope="module")
def played() -> Played:
    """Plays four boards that learn digits, each case once."""
    data, done = DataSetCache(), dict[str, Result]()

    def play(**settings: Any) -> Result:
        case = case_of(settings)
        key = f"{case.key} {case.recipe.run.threads}"
        done[key] = done.get(key) or run_case(case, data)
        return done[key]

    return play


def case_of(settings: dict[str, Any]) -> StudyCase:
    fleet = {"run.nodes": 4, "run.rounds": 46, "evaluation.every": 2, "model.params.hidden": [8]}
    fleet |= {"data.train_examples": 400, "data.test_examples": 100}
    fleet |= {"training.batch_size": 8, "training.local_steps": 4, "training.lr": 0.01}
    (case,) = make_cases(with_settings(Recipe(), fleet), StudyPlan(variants=(Variant(settings),)))
    return case


def seconds_to_target(result: Result) -> float:
    return next((point["virtual_s"] for point in result["curve"] if point["accuracy"] >= TARGET), math.inf)


@pytest.mark.parametrize(
    ("where", "lost"), [pytest.param(ROOM, 0, marks=pytest.mark.slow), (BOX, 2)], ids=["room", "box"]
)
def test_with_the_guard_no_board_is_lost_and_the_target_is_reached_no_later(
    played: Played, where: dict[str, Any], lost: int
) -> None:
    free, guarded = played(**where), played(**where, **{"guard.least": 0.25})
    assert free["state"] == guarded["state"] == "done"
    assert (len(free["lost"]), guarded["lost"]) == (lost, [])
    cool_s = seconds_to_target(played(**SLOW))
    assert cool_s < seconds_to_target(free) < math.inf  # so heat was there before the target
    assert seconds_to_target(guarded) <= 1.05 * seconds_to_target(free)


def test_a_run_with_lost_boards_is_the_same_in_two_lanes(played: Played) -> None:
    one, two = played(**BOX), played(**BOX, **{"run.threads": 2})
    assert one["lost"] == ["board-0", "board-1"] and one["curve"][-1]["round"] == 43
    for key in ("accuracy", "loss", "curve", "heated", "lost", "virtual_s"):
        assert one[key] == two[key]


def test_a_run_that_loses_all_boards_has_failed_and_the_table_says_how_hot_they_were(played: Played) -> None:
    settings = {**BOX, "heat.boards": 4}
    result = played(**settings)
    assert (result["state"], result["reason"]) == ("failed", "every board became too hot, and is lost")
    case = case_of(settings)
    found = dict(zip(*cells(rows([case], {case.key: result}, target=TARGET)), strict=True))
    assert (found["seeds"], found["lost"], found["hottest C"]) == ("0 (1 failed)", "4", "90.0")
    assert found["accuracy %"] == "-"
