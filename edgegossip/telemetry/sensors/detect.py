"""Which sensors a machine has. To add one: a reader with `find(root)` in a file here, and its line
in `FINDERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edgegossip.telemetry.sensors.base import Sensor
from edgegossip.telemetry.sensors.power import POWER, find_ina2xx, find_ina3221
from edgegossip.telemetry.sensors.processor import CpuCooling, Cpufreq, PiThrottled, ThermalZones, UnderVoltage
from edgegossip.telemetry.sensors.tegrastats import Tegrastats

ROOT = Path("/")
FINDERS: tuple[Callable[[Path], Sensor | None], ...] = (
    ThermalZones.find,
    Cpufreq.find,
    PiThrottled.find,
    UnderVoltage.find,
    CpuCooling.find,
    find_ina3221,
    find_ina2xx,
)


def detect(root: Path = ROOT) -> tuple[Sensor, ...]:
    """The sensors that are there and answer. `tegrastats` is started only on a board that has it
    and shows no power otherwise."""
    sensors = [sensor for find in FINDERS if (sensor := find(root)) is not None]
    if not powers(sensors) and (tegrastats := Tegrastats.find(root)) is not None:
        sensors.append(tegrastats)
    return tuple(sensors)


def powers(sensors: Sequence[Sensor]) -> tuple[Sensor, ...]:
    """Those that measure power. A current sensor in the supply sees all that the board's own rails
    see and more."""
    rails = {sensor.name: sensor for sensor in sensors if sensor.name in ("ina2xx", "ina3221", "tegrastats")}
    best = next((rails[name] for name in ("ina2xx", "ina3221", "tegrastats") if name in rails), None)
    return () if best is None else (best,)


def sample(sensors: Sequence[Sensor]) -> Mapping[str, float]:
    """One value of each metric. Where several say something, it is throttled as soon as one says
    so, and the hottest counts; else the first one does."""
    values: dict[str, float] = {}
    for sensor in sensors:
        for name, value in sensor.read().items():
            most = name in ("sys/throttled", "sys/temperature_c")
            values[name] = max(values[name], value) if most and name in values else values.get(name, value)
    return values


def watts_of(sensor: Sensor) -> Callable[[], float | None]:
    """A function that reads its power."""
    return lambda: sensor.read().get(POWER)
