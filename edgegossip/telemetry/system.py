"""What this process takes from its machine: CPU load, resident and peak memory, threads and open
descriptors."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil


class ProcessSampler:
    """CPU load and memory of one process, cheap enough to ask for in every round.

    The kernel counts CPU time in ticks of about 10 ms, so a load over a few milliseconds would be
    noise: between two samples `min_interval_s` pass, and until then the last one is returned again.
    """

    def __init__(
        self, pid: int | None = None, min_interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._process = psutil.Process(pid)
        self._min_interval_s = min_interval_s
        self._clock = clock
        self._process.cpu_percent(None)  # the first calls only set the reference points
        psutil.cpu_percent(None)
        self._sampled_s = clock()
        self._last: dict[str, float | int | None] = {
            "sys/cpu_percent": None,
            "sys/machine_percent": None,
            **self._held(),
        }

    def sample(self) -> dict[str, float | int | None]:
        """{"sys/cpu_percent": 100 for one core busy all the time, or None before the first interval
        is over, "sys/machine_percent": load of the whole machine, 100 for all cores busy,
        "sys/rss_bytes": resident bytes, "sys/peak_rss_bytes": the most that they ever were,
        "sys/threads": its threads, those of libraries too, "sys/descriptors": its open file
        descriptors}, None for what the system does not tell. Returns the last sample when the
        process is gone."""
        now_s = self._clock()
        if now_s - self._sampled_s >= self._min_interval_s:
            try:
                loads = {
                    "sys/cpu_percent": self._process.cpu_percent(None),
                    "sys/machine_percent": psutil.cpu_percent(None),
                }
                self._last = {**loads, **self._held()}
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
                "sys/peak_rss_bytes": peak_rss_bytes(self._process.pid),
                "sys/threads": int(self._process.num_threads()),
                "sys/descriptors": descriptors,
            }


def peak_rss_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """The most that the process ever had resident (VmHWM of proc(5)). Not `getrusage`: what that
    says is handed down from the process that started this one, which may have been larger. None
    where the system does not tell."""
    try:
        status = (proc / str(pid) / "status").read_bytes()
    except OSError:
        return None
    at = status.find(b"VmHWM:")
    words = status[at:].split(None, 2) if at >= 0 else []
    return 1024 * int(words[1]) if len(words) > 1 and words[1].isdigit() else None
