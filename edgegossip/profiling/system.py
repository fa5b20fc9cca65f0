"""What this process takes from its machine: CPU load, resident memory, threads and open descriptors, from psutil."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


class ProcessSampler:
    """CPU load and memory of one process, cheap enough to ask for in every round.

    The kernel counts CPU time in ticks of about 10 ms, so a load over a few milliseconds would be noise: between two
    samples `min_interval_s` pass, and until then the last one is returned again.
    """

    def __init__(
        self, pid: int | None = None, min_interval_s: float = 0.25, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._process = psutil.Process(pid)
        self._min_interval_s = min_interval_s
        self._clock = clock
        self._process.cpu_percent(None)  # the first call only sets the reference point
        self._sampled_s = clock()
        self._last: dict[str, float | int | None] = {"sys/cpu_percent": None, **self._held()}

    def sample(self) -> dict[str, float | int | None]:
        """{"sys/cpu_percent": 100 for one core busy all the time, or None before the first interval is over,
        "sys/rss_bytes": resident bytes, "sys/threads": its threads, those of libraries too, "sys/descriptors": its open file
        descriptors, None where the system does not tell}. Returns the last sample when the process is gone."""
        now_s = self._clock()
        if now_s - self._sampled_s >= self._min_interval_s:
            try:
                self._last = {"sys/cpu_percent": self._process.cpu_percent(None), **self._held()}
            except psutil.Error:
                pass  # a process that ended has no load any more; what is known of it stays
            self._sampled_s = now_s
        return dict(self._last)

    def _held(self) -> dict[str, int | None]:
        """What a leak would make grow."""
        with self._process.oneshot():
            descriptors = self._process.num_fds() if hasattr(self._process, "num_fds") else None
            return {
                "sys/rss_bytes": int(self._process.memory_info().rss),
                "sys/threads": int(self._process.num_threads()),
                "sys/descriptors": descriptors,
            }
