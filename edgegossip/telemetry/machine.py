"""A machine's sensors as values of metrics records: looked for at the first sample, so that a board
that only waits has none of it in memory, and read at most once a second; energy is exact from
sample to sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgegossip.telemetry.sensors.base import Sensor
    from edgegossip.telemetry.sensors.energy import EnergyMeter

EVERY_S = 1.0  # temperature and clock change no faster than matters


class MachineSampler:
    """`sample` gives sys/temperature_c, sys/frequency_hz, sys/throttled, sys/power_w and
    sys/energy_j as far as there are sensors. Not thread-safe."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._slow: tuple[Sensor, ...] | None = None  # None: not looked for yet
        self._energy: EnergyMeter | None = None
        self._last: Mapping[str, float] = {}
        self._sampled_s = -math.inf

    def begin(self) -> None:
        """Look for sensors, and count energy from now on. Idempotent."""
        if self._slow is None:
            self._find()

    def sample(self) -> dict[str, float]:
        """Energy is of the time since the last call, or since `begin`."""
        self.begin()
        now_s = self._clock()
        values = dict(self._read(now_s) if now_s - self._sampled_s >= EVERY_S else self._last)
        if self._energy is not None:
            watts, joules = self._energy.take()
            found = {"sys/power_w": watts, "sys/energy_j": joules}
            values |= {name: value for name, value in found.items() if value is not None}
        return values

    def _find(self) -> None:
        from edgegossip.telemetry.sensors.detect import detect, powers, watts_of
        from edgegossip.telemetry.sensors.energy import EnergyMeter

        sensors = detect(self._root)
        power = powers(sensors)
        self._slow = tuple(s for s in sensors if s.name not in ("ina2xx", "ina3221"))
        if power:
            self._energy = EnergyMeter(watts_of(power[0]), clock=self._clock)

    def _read(self, now_s: float) -> Mapping[str, float]:
        from edgegossip.telemetry.sensors.detect import sample

        self._sampled_s = now_s
        values = dict(sample(self._slow or ()))
        values.pop("sys/power_w", None)  # that is the energy meter's
        self._last = values
        return values

    def close(self) -> None:
        """Idempotent."""
        if self._energy is not None:
            self._energy.close()
        for sensor in self._slow or ():
            if hasattr(sensor, "close"):
                sensor.close()
