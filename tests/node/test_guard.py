"""The guard of a small board: laws of its policy, and a workload that does as it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip import training
from edgegossip.node.guard import BAND_C, CALM_S, MB, RECOVERY_S, SLACK, Guard, GuardedWorkload
from edgegossip.recipe import GuardSection
from edgegossip.types import LocalUpdate
from tests import one_thread
from tests.node.fakes import ListSink, Quadratic
from tests.training.fakes import recipe

_one_thread = one_thread.one_thread

LEAST = 0.25
ACTS = GuardSection(least=LEAST)
HOT = "sys/temperature_c"
FROM_C = ACTS.temperature_c

# (seconds since the last look, degrees, is it throttled, charge, megabytes): all at once
LOOKS = st.lists(
    st.tuples(
        st.floats(0.0, 120.0), st.floats(20.0, 110.0), st.booleans(), st.floats(0.0, 100.0), st.floats(1.0, 300.0)
    ),
    max_size=40,
)
Looks = list[tuple[float, float, bool, float, float]]


def readings(look: tuple[float, float, bool, float, float]) -> dict[str, float]:
    _, degrees, throttled, charge, free = look
    battery = {"sys/battery_percent": charge, "sys/on_battery": 1.0, "sys/available_bytes": free * MB}
    return {HOT: degrees, "sys/throttled": float(throttled), **battery}


def played(looks: Looks, section: GuardSection = ACTS) -> tuple[list[tuple[float, float]], list[list[Any]]]:
    """The shares of steps and of time after each look, and what was said."""
    guard, now_s, shares, said = Guard(section), 0.0, list[tuple[float, float]](), list[list[Any]]()
    for look in looks:
        now_s += look[0]
        said.append(guard.take(readings(look), now_s))
        shares.append((guard.steps, guard.duty))
    return shares, said


@given(LOOKS)
def test_shares_lie_between_the_least_and_all_and_steps_go_before_rest(looks: Looks) -> None:
    for steps, duty in played(looks)[0]:
        assert LEAST <= steps <= 1.0 and LEAST <= duty <= 1.0
        assert duty == 1.0 or steps == LEAST


@given(LOOKS, st.floats(0.0, 50.0), st.floats(0.0, 50.0), st.booleans())
def test_a_board_that_is_worse_off_all_the_time_never_does_more(
    looks: Looks, hotter: float, emptier: float, throttled: bool
) -> None:
    worse = [(s, t + hotter, b or throttled, max(0.0, c - emptier), m) for s, t, b, c, m in looks]
    for (steps, duty), (fewer, slower) in zip(played(looks)[0], played(worse)[0], strict=True):
        assert steps >= fewer and duty >= slower


@given(LOOKS)
def test_a_share_that_fell_comes_back_no_faster_than_it_may(looks: Looks) -> None:
    shares = [2.0, *(steps + duty for steps, duty in played(looks)[0])]
    for (passed_s, *_), before, after in zip(looks, shares, shares[1:], strict=False):
        assert after <= before + (1.0 - LEAST) * passed_s / RECOVERY_S + 1e-9


@given(
    st.floats(FROM_C, FROM_C + 2 * BAND_C), st.lists(st.tuples(st.floats(0.0, 600.0), st.floats(0.0, 1.0)), max_size=30)
)
def test_a_temperature_that_wanders_by_less_than_the_slack_moves_nothing(
    peak: float, looks: list[tuple[float, float]]
) -> None:
    shares, _ = played([(0.0, peak, False, 100.0, 300.0)])
    wandering = [(s, peak - BAND_C * SLACK * (1 - 1e-6) * down, False, 100.0, 300.0) for s, down in looks]
    after, _ = played([(0.0, peak, False, 100.0, 300.0), *wandering])
    assert np.asarray(after) == pytest.approx(np.asarray([shares[0]] * len(after)))


@given(LOOKS)
def test_strain_is_said_seldom_and_its_end_once(looks: Looks) -> None:
    _, said = played(looks)
    seconds, flat = sum(look[0] for look in looks), [strain for one in said for strain in one]
    for of_memory in (False, True):
        own = [strain for strain in flat if (strain.cause == "short of memory") == of_memory]
        assert [strain.over for strain in own] == [k % 2 == 1 for k in range(len(own))]
        assert sum(not strain.over for strain in own) <= 1 + seconds / CALM_S


@given(LOOKS)
def test_a_guard_that_only_tells_leaves_all_work_alone(looks: Looks) -> None:
    shares, said = played(looks, GuardSection())
    assert shares == [(1.0, 1.0)] * len(looks)
    assert {strain.cause for one in said for strain in one} <= {"battery", "short of memory"}


@given(st.lists(st.floats(-20.0, FROM_C), max_size=20))
def test_a_cool_board_does_all_of_it(degrees: list[float]) -> None:
    guard = Guard(ACTS)
    for k, one in enumerate(degrees):
        assert guard.take({HOT: one, "sys/throttled": 0.0, "sys/battery_percent": 3.0, "sys/on_battery": 0.0}, k) == []
        assert guard.steps == guard.duty == 1.0


def test_without_sensors_nothing_is_held_back() -> None:
    guard = Guard(ACTS)
    assert guard.take({}, 0.0) == [] and guard.take({}, 1e6) == []
    assert guard.steps == guard.duty == 1.0


@pytest.mark.parametrize(
    ("now", "steps", "duty"),
    [
        ({HOT: 80.5}, 0.625, 1.0),
        ({HOT: 83.0}, LEAST, 1.0),
        ({HOT: 85.5}, LEAST, 0.625),
        ({HOT: 99.0}, LEAST, LEAST),
        ({"sys/battery_percent": 12.5, "sys/on_battery": 1.0}, 0.625, 1.0),
        ({"sys/battery_percent": 5.0, "sys/on_battery": 1.0, HOT: 76.0}, LEAST, 1.0),
    ],
)
def test_the_shares_of_a_reading(now: Mapping[str, float], steps: float, duty: float) -> None:
    guard = Guard(ACTS)
    (strain,) = guard.take(now, 0.0)
    assert (guard.steps, guard.duty) == pytest.approx((steps, duty)) and not strain.over
    assert strain.value in now.values()


def test_a_throttled_processor_takes_fewer_steps_the_longer_it_is_and_never_rests_for_that_alone() -> None:
    guard, shares = Guard(ACTS), []
    for now_s in range(0, 121, 30):
        guard.take({"sys/throttled": 1.0}, float(now_s))
        shares.append(guard.steps)
    assert shares == pytest.approx([1.0, 0.625, LEAST, LEAST, LEAST]) and guard.duty == 1.0


def test_memory_that_ran_low_is_spared_until_there_is_twice_as_much() -> None:
    guard, found = Guard(ACTS), []
    for now_s, free in ((0, 300), (1, 60), (200, 100), (400, 200), (430, 200), (470, 200)):
        guard.take({"sys/available_bytes": free * MB}, float(now_s))
        found.append(guard.short_of_memory)
    assert found == [False, True, True, False, False, False] and guard.steps == guard.duty == 1.0


class Clock:
    """Virtual seconds; a workload's step takes one."""

    def __init__(self) -> None:
        self.now_s, self.rests = 0.0, list[float]()

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now_s += seconds


class Steps(Quadratic):
    """Four steps a round."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(np.ones(4, np.float32))
        self.clock, self.share, self.spared, self.step_s = clock, 1.0, False, 1.0

    def take_share(self, share: float, *, spare_memory: bool = False) -> float:
        self.share, self.spared = share, spare_memory
        return share

    def local_update(self, x: Any, round: int) -> LocalUpdate:
        self.clock.now_s += 4 * self.share * self.step_s
        return super().local_update(x, round)


def test_a_hot_board_takes_fewer_steps_then_rests_and_says_so() -> None:
    clock, sink, now = Clock(), ListSink(), {HOT: 60.0}
    inner = Steps(clock)
    guarded = GuardedWorkload.of(inner, ACTS, "pi", lambda: now, sink)  # type: ignore[arg-type]
    guarded._now, guarded._rest = lambda: clock.now_s, clock.rest
    x = guarded.initial(1)
    cool = guarded.local_update(x, 0)
    assert (cool.rested_s, dict(cool.metrics), clock.rests, clock.now_s) == (0.0, {}, [], 4.0)
    now[HOT] = 80.5
    hot = guarded.local_update(x, 1)
    assert (hot.rested_s, hot.metrics, clock.rests, clock.now_s) == (0.0, {"share": 0.625}, [], 6.5)
    now[HOT] = 85.5
    hotter = guarded.local_update(x, 2)
    assert hotter.rested_s == pytest.approx(0.6) and hotter.metrics == {"share": 0.25 * 0.625}
    now.update({HOT: 40.0, "sys/available_bytes": 10.0 * MB})
    for round in range(3, 300):
        guarded.local_update(x, round)
    assert inner.share == 1.0 and inner.spared
    assert [(name, text) for _, name, text in sink.events] == [
        ("strained", "pi is at 80 C: it does less of each round's work for a while"),
        ("strained", "pi has 10 MB of memory left, and is about to swap: it takes its batches in parts for a while"),
        ("relieved", "pi has cooled down"),
    ]


@pytest.mark.parametrize(
    ("low", "well", "began", "ended"),
    [
        (
            {"sys/battery_percent": 12.0, "sys/on_battery": 1.0},
            {"sys/battery_percent": 90.0, "sys/on_battery": 0.0},
            "has 12 % of its battery left",
            "runs on its battery no more, or is charged",
        ),
        (
            {"sys/throttled": 1.0},
            {"sys/throttled": 0.0},
            "is throttled by heat or a weak supply",
            "is throttled no more",
        ),
        (
            {"sys/available_bytes": 60.0 * MB},
            {"sys/available_bytes": 4e9},
            "has 60 MB of memory left",
            "is short of memory no more",
        ),
    ],
)
def test_what_strains_a_board_is_said_and_that_it_is_over(
    low: dict[str, float], well: dict[str, float], began: str, ended: str
) -> None:
    clock, sink, now = Clock(), ListSink(), dict(low)
    guarded = GuardedWorkload.of(Steps(clock), ACTS, "pi", lambda: now, sink)  # type: ignore[arg-type]
    guarded._now, guarded._rest = lambda: clock.now_s, clock.rest
    x = guarded.initial(1)
    for round in range(200):
        now = low if round < 3 else well
        guarded.local_update(x, round)
    (_, strained, first), (_, relieved, last) = sink.events
    assert (strained, relieved) == ("strained", "relieved")
    assert first.startswith(f"pi {began}") and last == f"pi {ended}"


@pytest.mark.parametrize(("share", "steps"), [(1.0, 8), (0.6, 5), (0.25, 2), (0.05, 1)])
def test_fewer_steps_are_the_first_of_the_round_and_counted(share: float, steps: int) -> None:
    few = training.build_workload(recipe(training={"local_steps": 8, "batch_size": 10}), 0)
    plain = training.build_workload(recipe(training={"local_steps": steps, "batch_size": 10}), 0)
    few.take_share(1.0, spare_memory=True)  # until the board has memory again
    assert few.take_share(share) == steps / 8
    x = few.initial(3)
    update, expected = few.local_update(x, 0), plain.local_update(x, 0)
    assert (update.steps, update.examples) == (steps, 10 * steps)
    np.testing.assert_array_equal(update.delta, expected.delta)


@pytest.mark.parametrize(("norm", "memory"), [("groupnorm", "normal"), ("groupnorm", "low"), ("batchnorm", "normal")])
def test_a_batch_in_parts_is_the_batch_and_layers_that_see_it_whole_keep_it(norm: str, memory: str) -> None:
    settings: dict[str, Any] = {"model": {"name": "resnet20", "norm": norm}, "training": {"batch_size": 10}}
    plain = training.build_workload(recipe(**settings), 0)
    settings["training"]["memory"] = memory
    spared = training.build_workload(recipe(**settings), 0)
    spared.take_share(1.0, spare_memory=memory != "low")
    x = plain.initial(3)
    one, other = spared.local_update(x, 0).delta, plain.local_update(x, 0).delta
    np.testing.assert_allclose(one, other, atol=1e-4)
    assert np.array_equal(one, other) == (norm == "batchnorm")
