"""Times of several functions, measured in turn, so that whatever else the machine does meets all of
them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

import numpy as np

Work = Mapping[str, Callable[[], object]]
_SWEPT = 32 << 20  # float32 values: 128 MiB, several times the last cache of what this runs on


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each function in each round, in order: `rounds` of them, fewer of a slow function
    that sat out."""

    rounds: int
    seconds: Mapping[str, Sequence[float]]

    def __contains__(self, name: str) -> bool:
        return name in self.seconds

    def median(self, name: str) -> float:
        """Return the median seconds of a function."""
        return median(self.seconds[name])

    def medians(self) -> dict[str, float]:
        """Return the median seconds of each function."""
        return {name: self.median(name) for name in self.seconds}

    def quartiles(self, name: str) -> tuple[float, float]:
        """Return the seconds that a quarter, and three quarters, of the rounds stayed below."""
        return quartiles(self.seconds[name])

    def paired(self, reference: str, name: str) -> float:
        """Return how many times as long as `name` the reference took: the median over rounds of the
        ratio of both times of one round. A machine whose speed changes in the meantime changes
        both. Neither may have sat out: ValueError."""
        pairs = zip(self.seconds[reference], self.seconds[name], strict=True)
        return median(over / under for over, under in pairs)

    def unpaired(self, reference: str, name: str) -> float:
        """Return the same as the ratio of two medians, for a reference that has times of some
        rounds only."""
        return self.median(reference) / self.median(name)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile, interpolated; one value is both."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return low, high


def in_turn(
    work: Work,
    repeat: int,
    slow: Collection[str] = (),
    *,
    at_least_s: float = 0.0,
    slow_budget_s: float = 2.0,
    before: Callable[[], object] | None = None,
) -> Times:
    """Take the times of each function in `repeat` rounds, and more until they have taken
    `at_least_s` seconds, after one round to warm up that does not count. Before it is timed a
    function runs once more, so that it finds the caches as it leaves them itself, whatever ran
    before; or `before` runs in its place, such as `cache_sweep()`.

    The functions named in `slow` (the rivals, for which that makes no difference) are only timed,
    and sit out once they have taken `slow_budget_s` seconds; one that took that long in the first
    round is judged by that round."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    first: dict[str, float] = {}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name, function in work.items():
            first[name] = _time(function)
        rounds, start = 0, perf_counter()
        while rounds < repeat or perf_counter() - start < at_least_s:
            rounds += 1
            for name, function in work.items():
                if name not in slow:
                    (before or function)()
                elif first[name] + sum(taken[name]) >= slow_budget_s:
                    continue
                taken[name].append(_time(function))
    finally:
        if was_enabled:
            gc.enable()
    return Times(rounds, {name: taken[name] or [first[name]] for name in work})


def cache_sweep() -> Callable[[], object]:
    """Return a function after which nothing that was there before is in a cache: it reads 128
    MiB."""
    memory = np.ones(_SWEPT, np.float32)
    return memory.max


def _time(function: Callable[[], object]) -> float:
    start = perf_counter()
    function()
    return perf_counter() - start
