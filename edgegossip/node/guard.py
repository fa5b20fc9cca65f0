"""Spares a small board before its kernel does: hot, throttled or on a low battery it takes fewer of
each round's steps and then rests, and with little memory left it says so before the machine swaps.

`Guard` is the policy, pure: readings of sensors and the time go in, shares of steps and of time
come out. `GuardedWorkload` puts it around what a board trains.

*How hard pressed.* Each reading has a pressure: 0 where [guard] of the recipe has its key, 1 at
BAND_C above a temperature and at a quarter of a charge, and so on. A processor that is throttled
right now adds to the pressure, 1 in ONSET_S, up to 1: its kernel was quicker. The highest counts.

*Steps first, rest last.* Up to a pressure of 1 the share of a round's steps falls to `guard.least`.
A board that has fewer of them waits for the others, and cools meanwhile; nobody waits for it as
they would once its clock is held down. Where all are hot nobody waits: their kernels then hold the
clocks down, which takes less power for the same work than resting at full clock does. Only where
that is not enough, from a pressure of 1 to 2, the board rests, until it computes `guard.least` of
the time. A workload whose steps are not the guard's to leave out (a script's) has the rest alone.

*Hysteresis.* Pressure goes up at once. It goes down only once the readings are SLACK below it, and
no faster than 1 in RECOVERY_S: what has fallen because of its own effect on the temperature does
not come back with it. This is the play operator (Visintin, "Differential models of hysteresis",
1994, section III.2) with a bounded rate; both are monotone in the readings, so a board that was
hotter all the time never does more. What is said goes by CALM_S besides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from typing_extensions import override

from edgegossip.recipe import GuardSection
from edgegossip.telemetry.records import Sink
from edgegossip.training.base import AroundWorkload, Workload
from edgegossip.types import LocalUpdate, Metrics, NodeId, Round, Vec

BAND_C = 5.0  # above guard.temperature_c
SLACK = 0.6  # of a pressure: 3 degrees
MOST = 2.0
ONSET_S, RECOVERY_S, CALM_S = 60.0, 300.0, 60.0
ENOUGH = 2.0  # times guard.memory_mb: a board that has as much again is not short of it any more
MB, SHORT = 1_000_000, "short of memory"


@dataclass(frozen=True, slots=True)
class Strain:
    """Says that a board is under strain, or no more, and by which reading."""

    cause: str  # heat, throttled, battery, SHORT
    value: float  # degrees, 1, percent, bytes
    over: bool = False


class _Track:
    """Tells when a strain begins and ends: it is over once there was none for CALM_S."""

    def __init__(self) -> None:
        self.cause = ""  # of the one that goes on
        self._last_s = -math.inf  # when there was one

    def take(self, cause: str, value: float, *, pressed: bool, now_s: float) -> list[Strain]:
        self._last_s = now_s if pressed else self._last_s
        if pressed and not self.cause:
            self.cause = cause
            return [Strain(cause, value)]
        if self.cause and now_s - self._last_s >= CALM_S:
            before, self.cause = self.cause, ""
            return [Strain(before, value, over=True)]
        return []


class Guard:
    """Is the policy of one board.

    Example:
        guard = Guard(GuardSection(least=0.25))
        guard.take({"sys/temperature_c": 80.5}, now_s=0.0)  # [Strain("heat", 80.5)]
        guard.steps, guard.duty  # 0.625, 1.0
    """

    def __init__(self, section: GuardSection) -> None:
        self._section = section
        self._acts = section.least < 1.0
        self._pressure, self._at_s = 0.0, -math.inf
        self._work, self._memory = _Track(), _Track()

    @property
    def steps(self) -> float:
        """The share of a round's steps that the board should take, in [guard.least, 1]."""
        return 1.0 - (1.0 - self._section.least) * min(1.0, self._pressure)

    @property
    def duty(self) -> float:
        """The share of the time in which it should compute, in [guard.least, 1]."""
        return 1.0 - (1.0 - self._section.least) * max(0.0, self._pressure - 1.0)

    @property
    def short_of_memory(self) -> bool:
        """Whether it should spare memory."""
        return self._acts and bool(self._memory.cause)

    def take(self, readings: Mapping[str, float], now_s: float) -> list[Strain]:
        """Take what the sensors say, by the names of records.METRICS, at a time that does not go
        back. Return what strain begins or ends. A reading that is missing presses nothing."""
        passed_s, self._at_s = max(0.0, now_s - self._at_s), now_s
        passed_s = passed_s if math.isfinite(passed_s) else 0.0
        pressures = self._pressures(readings, passed_s)
        cause = max(pressures, key=lambda name: pressures[name][0], default="")
        pressure, value = pressures.get(cause, (-math.inf, math.nan))
        before = self._pressure
        released = max(pressure + SLACK, before - passed_s / RECOVERY_S)
        self._pressure = min(MOST, max(0.0, pressure, min(before, released)))
        news = self._work.take(cause, value, pressed=self._pressure > 0.0, now_s=now_s)
        return news + self._take_memory(readings.get("sys/available_bytes"), now_s)

    def _pressures(self, readings: Mapping[str, float], passed_s: float) -> dict[str, tuple[float, float]]:
        """Each cause's pressure, not cut to 0..MOST, and the reading that it is of."""
        section, found = self._section, {}
        degrees, percent = readings.get("sys/temperature_c"), readings.get("sys/battery_percent")
        if self._acts and degrees is not None:
            found["heat"] = ((degrees - section.temperature_c) / BAND_C, degrees)
        if self._acts and readings.get("sys/throttled"):
            found["throttled"] = (min(1.0, self._pressure + passed_s / ONSET_S), 1.0)
        if percent is not None and readings.get("sys/on_battery") and section.battery_percent:
            found["battery"] = ((section.battery_percent - percent) / (0.75 * section.battery_percent), percent)
        return found

    def _take_memory(self, available: float | None, now_s: float) -> list[Strain]:
        least = MB * self._section.memory_mb * (ENOUGH if self._memory.cause else 1.0)
        pressed = available is not None and available < least
        return self._memory.take(SHORT, available or 0.0, pressed=pressed, now_s=now_s)


class GuardedWorkload(AroundWorkload):
    """Trains as the workload inside does, as much of it as the guard lets it."""

    def __init__(
        self,
        workload: Workload,
        guard: Guard,
        readings: Callable[[], Mapping[str, float]],
        say: Callable[[Strain], None] = lambda strain: None,
        now: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        """`readings` are the sensors', `say` hears of strain. `now` and `rest` are of one clock, in
        seconds."""
        super().__init__(workload)
        self._guard, self._readings, self._say = guard, readings, say
        self._now, self._rest = now, rest

    @classmethod
    def of(
        cls,
        workload: Workload,
        section: GuardSection,
        name: NodeId,
        readings: Callable[[], Mapping[str, float]],
        sink: Sink,
    ) -> GuardedWorkload:
        """Guard a board of that name, as its recipe says; `sink` gets the events."""
        return cls(workload, Guard(section), readings, partial(_tell, sink, name, section))

    @override
    def local_update(self, x: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        guard = self._guard
        for strain in guard.take(self._readings(), self._now()):
            self._say(strain)
        given = (x, round) if correction is None else (x, round, correction)
        taken, duty = self._workload.take_share(guard.steps, spare_memory=guard.short_of_memory), guard.duty
        began_s = self._now()
        local = self._workload.local_update(*given)
        if taken * duty == 1.0:
            return local
        computed_s = self._now() - began_s
        if duty < 1.0:
            self._rest(computed_s * (1.0 - duty) / duty)
        rested_s = self._now() - began_s - computed_s
        return replace(local, rested_s=rested_s, metrics={**local.metrics, "share": taken * duty})

    @override
    def take_share(self, share: float, *, spare_memory: bool = False) -> float:
        return self._workload.take_share(share, spare_memory=spare_memory)

    @override
    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics | None:
        return self._workload.evaluate(x, examples)


def _tell(sink: Sink, name: NodeId, section: GuardSection, strain: Strain) -> None:
    """Put it into the records."""
    if strain.over:
        ended = {"heat": "has cooled down", "battery": "runs on its battery no more, or is charged"}
        text = ended.get(strain.cause, f"is {strain.cause} no more")
        sink.event(name, "relieved", f"{name} {text}", cause=strain.cause)
        return
    began = {
        "heat": f"is at {strain.value:.0f} C",
        "throttled": "is throttled by heat or a weak supply",
        "battery": f"has {strain.value:.0f} % of its battery left",
        SHORT: f"has {strain.value / MB:.0f} MB of memory left, and is about to swap",
    }
    does = "takes its batches in parts" if strain.cause == SHORT else "does less of each round's work"
    text = f"{name} {began[strain.cause]}" + (f": it {does} for a while" if section.least < 1.0 else "")
    sink.event(name, "strained", text, cause=strain.cause, value=strain.value)
