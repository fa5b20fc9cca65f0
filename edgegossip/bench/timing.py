"""Times of several functions, measured in turn, so that whatever else the machine does meets all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping
from statistics import median
from time import perf_counter

import numpy as np

Work = Mapping[str, Callable[[], object]]
_SWEPT = 32 << 20  # float32 values: 128 MiB, several times the last cache of what this runs on


def interleaved(
    work: Work,
    repeat: int,
    slow: Collection[str] = (),
    *,
    at_least_s: float = 0.0,
    slow_budget_s: float = 2.0,
    before: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Median seconds of each function over `repeat` rounds, and more until they have taken `at_least_s` seconds, after one
    round to warm up that does not count. Before it is timed a function runs once more, so that it finds the caches as it
    leaves them itself, whatever ran before; or `before` runs in its place, such as `cache_sweep()`.

    The functions named in `slow` (the rivals, for which that makes no difference) are only timed, and sit out once they have
    taken `slow_budget_s` seconds; one that took that long in the first round is judged by that round."""
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
    return {name: median(taken[name] or [first[name]]) for name in work}


def cache_sweep() -> Callable[[], object]:
    """A function after which nothing that was there before is in a cache: it reads 128 MiB."""
    memory = np.ones(_SWEPT, np.float32)
    return memory.max


def _time(function: Callable[[], object]) -> float:
    start = perf_counter()
    function()
    return perf_counter() - start
