"""Sensors over recorded trees, and energy against traces whose integral is known."""

import math
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.telemetry.machine import POWER_EVERY_S, Energy, EnergyMeter, MachineSampler
from edgegossip.telemetry.records import METRICS
from edgegossip.telemetry.sensors import Sensor, detect, powers, sample
from tests.telemetry.trees import NAMES, plant

EXPECTED = {
    "raspberry-pi-4": ({"temperature_c": 61.342, "frequency_hz": 1.5e9, "throttled": 1.0}, None),
    "raspberry-pi-5": ({"temperature_c": 48.15, "frequency_hz": 2.4e9, "throttled": 0.0}, None),
    "raspberry-pi-zero-2-ina219": ({"temperature_c": 80.554, "frequency_hz": 6e8, "throttled": 1.0}, 2.18),
    "jetson-nano": ({"temperature_c": 44.5, "frequency_hz": 1.479e9, "throttled": 0.0}, 2.546),
    "jetson-orin-nano": ({"temperature_c": 51.0, "frequency_hz": 1.12e9, "throttled": 1.0}, 5.04 * 0.976),
    "jetson-agx-xavier": ({"temperature_c": 42.0, "frequency_hz": 2.2656e9}, 0.308 + 1.238 + 1.239 + 0.463 + 2.102),
    "pc": ({"temperature_c": 55.0, "throttled": 0.0}, None),
}


def test_every_tree_is_expected_to_say_something():
    assert set(NAMES) == set(EXPECTED)


@pytest.mark.parametrize("name", NAMES)
def test_what_each_board_says(name, tmp_path):
    values, watts = EXPECTED[name]
    found = detect(plant(name, tmp_path))
    said = {key.removeprefix("sys/"): value for key, value in sample(found).items()}
    if watts is None:
        assert not powers(found) and "power_w" not in said
    else:
        assert said.pop("power_w") == pytest.approx(watts)
    assert said == pytest.approx(values)
    assert {f"sys/{key}" for key in values} <= set(METRICS)


def test_a_machine_without_sensors_is_left_in_peace(tmp_path):
    assert detect(tmp_path) == () and sample(()) == {}
    assert MachineSampler(tmp_path).sample() == {}


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_sensors_the_hottest_counts_and_whichever_sees_it_throttled(turned):
    cool = {"sys/temperature_c": 40.0, "sys/throttled": 1.0, "sys/frequency_hz": 1e9}
    hot = {"sys/temperature_c": 70.0, "sys/throttled": 0.0, "sys/frequency_hz": 2e9}
    one, two = (Sensor("", lambda said=said: said) for said in ((hot, cool) if turned else (cool, hot)))
    assert sample((one, two)) == {**one.read(), "sys/temperature_c": 70.0, "sys/throttled": 1.0}


@pytest.mark.parametrize("name", NAMES)
def test_a_sensor_that_goes_away_or_talks_nonsense_gives_no_value(name, tmp_path):
    found = detect(plant(name, tmp_path))
    files = [f for f in tmp_path.rglob("*") if f.is_file()]
    for file in files:
        file.write_text("\x00garbage")
    assert sample(found) == {}
    for file in files:
        file.unlink()
    assert sample(found) == {}


def supply(root: Path, name: str, **files: str) -> None:
    folder = root / "sys/class/power_supply" / name
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_text(content + "\n")


@pytest.mark.parametrize(
    ("status", "drains"), [("Discharging", 1.0), ("Unknown", 1.0), ("Charging", 0.0), ("Full", 0.0)]
)
def test_the_emptiest_battery_counts_and_a_mouse_has_none(tmp_path, status, drains):
    supply(tmp_path, "BAT0", type="Battery", capacity="80", status="Full")
    supply(tmp_path, "ups", type="UPS", capacity="31", status=status)
    supply(tmp_path, "hid-mouse", type="Battery", scope="Device", capacity="3", status="Discharging")
    supply(tmp_path, "AC", type="Mains", online="1")
    assert sample(detect(tmp_path)) == {"sys/battery_percent": 31.0, "sys/on_battery": drains}


@pytest.mark.parametrize(("total", "swap"), [(102396, {"sys/swap_bytes": 1024.0 * 102000}), (0, {})])
def test_memory_is_what_may_still_be_had(tmp_path, total, swap):
    (tmp_path / "proc").mkdir()
    lines = f"MemTotal: 437716 kB\nMemAvailable: 61440 kB\nSwapTotal: {total} kB\nSwapFree: 396 kB\nHugePages_Free: 0\n"
    (tmp_path / "proc/meminfo").write_text(lines)
    assert sample(detect(tmp_path)) == {"sys/available_bytes": 1024.0 * 61440, **swap}


def test_a_sum_of_rails_that_lacks_one_is_no_sum(tmp_path):
    found = detect(plant("jetson-agx-xavier", tmp_path))
    next(tmp_path.rglob("in_power1_input")).write_text("broken")
    assert "sys/power_w" not in sample(found)


def test_a_sensor_in_the_supply_comes_before_the_boards_own_rails(tmp_path):
    plant("raspberry-pi-zero-2-ina219", plant("jetson-agx-xavier", tmp_path))
    (best,) = powers(detect(tmp_path))
    assert best.name == "ina2xx" and best.read() == {"sys/power_w": pytest.approx(2.18)}


@pytest.mark.parametrize("seconds_between", [0.02, POWER_EVERY_S])
def test_joules_of_a_recorded_trace_are_right_to_one_percent(seconds_between):
    """A trace of a board's rounds: 1.9 W at rest, 5.2 W while it computes, ripple of 0.3 W at 1.3
    Hz. Round for round."""

    def trace(s):
        return (5.2 if s % 6 < 4 else 1.9) + 0.3 * math.sin(2 * math.pi * 1.3 * s)

    def integral(begin, end, parts=20_000):
        width = (end - begin) / parts
        return sum(trace(begin + (k + 0.5) * width) for k in range(parts)) * width

    energy, now, rounds = Energy(), 0.0, [(6.0 * k, 6.0 * (k + 1)) for k in range(4)]
    energy.add(0.0, trace(0.0))
    assert energy.take() == 0.0
    for begin, end in rounds:
        while now + seconds_between < end:
            now += seconds_between
            energy.add(now, trace(now))
        energy.add(end, trace(end))
        now = end
        assert energy.take() == pytest.approx(integral(begin, end), rel=0.01)


@given(st.lists(st.tuples(st.floats(0.001, 5), st.floats(0, 50)), min_size=2, max_size=30), st.integers(1, 29))
def test_energy_adds_up_whatever_is_taken_when(samples, cut):
    whole, parts, now, taken = Energy(), Energy(), 0.0, 0.0
    for k, (after_s, watts) in enumerate(samples):
        now += after_s
        whole.add(now, watts)
        parts.add(now, watts)
        if k == cut:
            taken = parts.take()
    assert taken + parts.take() == pytest.approx(whole.take())


def test_energy_with_a_gap_is_not_known():
    energy = Energy()
    assert energy.take() is None
    for now, watts in ((0, 2.0), (1, 2.0), (2, None), (3, 4.0)):
        energy.add(now, watts)
    assert energy.take() is None
    energy.add(4, 4.0)
    assert energy.take() == 4.0
    energy.add(5, None)  # what is not known yet when it is taken is not in the next joules either
    assert energy.take() is None
    energy.add(6, 4.0)
    assert energy.take() is None


def test_power_is_sampled_while_nobody_asks():
    """A round's end alone would see the power of that moment, and call it the round's."""
    said, enough, there = [], threading.Event(), threading.Event()

    def watts():
        if said:  # the first one is taken where the meter is made
            there.wait()
        said.append(1.0 if len(said) < 2 else 5.0)
        if len(said) == 6:
            meter.close()
            enough.set()
        return said[-1]

    meter = EnergyMeter(watts, every_s=0.001, clock=lambda: float(len(said)))  # a second from each to the next
    there.set()
    assert enough.wait(30), said
    assert meter.take() == (5.0, 1.0 + 3.0 + 4 * 5.0)


def test_a_meter_counts_from_call_to_call(tmp_path):
    now = [0.0]
    meter = EnergyMeter(lambda: 3.0, every_s=60.0, clock=lambda: now[0])
    now[0] = 2.0
    assert meter.take() == (3.0, 6.0)
    now[0] = 2.5
    assert meter.take() == (3.0, 1.5)
    meter.close()


def test_a_machine_gives_energy_from_its_beginning_and_heat_once_a_second(tmp_path):
    now = [0.0]
    root = plant("jetson-nano", tmp_path)
    machine = MachineSampler(root, clock=lambda: now[0])
    machine.begin()
    now[0] = 0.5
    first = machine.sample()
    assert first["sys/energy_j"] == pytest.approx(0.5 * 2.546) and first["sys/power_w"] == pytest.approx(2.546)
    (root / "sys/class/thermal/thermal_zone0/temp").write_text("50000\n")
    now[0] = 0.7
    assert machine.sample()["sys/temperature_c"] == 44.5
    now[0] = 1.6
    assert machine.sample()["sys/temperature_c"] == 50.0
    machine.close()


def test_this_machine_answers_whatever_it_has():
    assert all(isinstance(v, float) for v in sample(detect()).values())
