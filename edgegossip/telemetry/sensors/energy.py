"""Joules from samples of power: the trapezoid rule on a monotonic clock.

The rule's error goes with the square of the time between samples; a step of power is wrong by half
of it times the time between the two samples around it at most, which is why there are twenty a
second, and one more at each end of a round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

EVERY_S = 0.05


class Energy:
    """The integral of power over time. Samples come in the order of their times. Pure."""

    def __init__(self) -> None:
        self._joules = 0.0
        self._last: tuple[float, float] | None = None
        self._broken = False  # a sample was missing since the last `take`

    def add(self, now_s: float, watts: float | None) -> None:
        """A sample; None when it could not be read: what comes between the samples around it is not
        known."""
        if watts is None:
            self._last, self._broken = None, True
            return
        if self._last is not None:
            before_s, before_w = self._last
            self._joules += (watts + before_w) / 2 * max(0.0, now_s - before_s)
        self._last = now_s, watts

    def take(self) -> float | None:
        """Joules between the last samples of this call and the call before; None when they are not
        all known."""
        joules, whole = self._joules, not self._broken
        self._joules, self._broken = 0.0, self._last is None
        return joules if whole and self._last is not None else None


class EnergyMeter:
    """Samples power on a thread of its own, which ends with the process. Thread-safe."""

    def __init__(
        self,
        watts: Callable[[], float | None],
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watts, self._every_s, self._clock = watts, every_s, clock
        self._energy, self._lock, self._stop = Energy(), threading.Lock(), threading.Event()
        self._last_w: float | None = None
        self._sample()
        threading.Thread(target=self._run, daemon=True, name="power").start()

    def take(self) -> tuple[float | None, float | None]:
        """Watts at this moment, and joules since the last call; None for what is not known."""
        with self._lock:
            self._sample()
            return self._last_w, self._energy.take()

    def close(self) -> None:
        self._stop.set()

    def _sample(self) -> None:
        before_s = self._clock()
        self._last_w = self._watts()
        self._energy.add((before_s + self._clock()) / 2, self._last_w)  # a chip on I2C takes its time to answer

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            with self._lock:
                self._sample()
