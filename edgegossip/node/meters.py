"""What this process and its sockets did in a round, what it holds, and what the machine's sensors
say, as values of its metrics record. One a node; call once a round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from edgegossip.telemetry.machine import MachineSampler, ProcessSampler
from edgegossip.telemetry.records import Value
from edgegossip.telemetry.sockets import SocketMeter, SocketTotals

SOCKETS_SHARE = 0.002
SOCKETS_EVERY_S = 1.0  # at least: what was not read before `kill -9` is in no record
TASKS_EVERY_S = 1.0


class NodeMeters:
    """Measures bytes since the last call on this process's TCP sockets; its CPU load and memory;
    temperature, clock, power and energy of its machine where there are sensors. Thread-safe."""

    def __init__(self) -> None:
        self._sockets, self._system, self._machine = SocketMeter(), ProcessSampler(), MachineSampler()
        self._lock = threading.Lock()
        self._before = SocketTotals()
        self._sockets_after_s = 0.0  # before then they are read only when it is due
        self._tasks: Callable[[], int] | None = None
        self._last_tasks, self._tasks_after_s = 0, 0.0

    def watch(self, tasks: Callable[[], int]) -> None:
        """Count these coroutines, too, from now on."""
        self._tasks = tasks

    def begin(self) -> None:
        """Look for the machine's sensors: rounds begin. A board that waits has not loaded them
        yet."""
        with self._lock:
            self._machine.begin()

    def readings(self) -> Mapping[str, float]:
        """Return what the machine's sensors say, no older than a second; power is not among it."""
        with self._lock:
            return self._machine.readings()

    def __call__(self, *, due: bool = True) -> dict[str, Value]:
        """Return the values of the round that ends. Reading sockets takes a tenth of a millisecond
        and more: where it is not `due`, they are left for a later round, for up to SOCKETS_EVERY_S,
        to spend no more than SOCKETS_SHARE of the CPU time on them. Nothing is lost by that: the
        next record that has them has all since the last one."""
        with self._lock:
            values: dict[str, Value] = {**self._system.sample(), **self._machine.sample()}
            if self._tasks is not None:
                values["sys/tasks"] = self._count_tasks(self._tasks)
            totals = self._sample_when_due(due)
            if totals is not None:
                new, self._before = totals - self._before, totals
                values |= {
                    "net/sent_bytes": new.sent_bytes,
                    "net/link_bytes": new.sent_link_bytes,
                    "net/received_bytes": new.received_bytes,
                }
        return values

    def _count_tasks(self, tasks: Callable[[], int]) -> int:
        """Count coroutines, at most once in TASKS_EVERY_S: it takes a tenth of what a round's
        record takes."""
        now_s = time.perf_counter()
        if now_s >= self._tasks_after_s:
            self._last_tasks, self._tasks_after_s = tasks(), now_s + TASKS_EVERY_S
        return self._last_tasks

    def _sample_when_due(self, due: bool) -> SocketTotals | None:
        now_s = time.perf_counter()
        if not due and now_s < self._sockets_after_s:
            return None
        before_s = time.thread_time()  # not the clock: another program may have had the processor for long
        totals = self._sockets.sample()
        self._sockets_after_s = now_s + min((time.thread_time() - before_s) / SOCKETS_SHARE, SOCKETS_EVERY_S)
        return totals

    def sample_sockets(self) -> None:
        """Take note of what the sockets carried so far, before one of them is closed."""
        with self._lock:
            self._sockets.sample()
