"""What this process and its sockets did in a round, what it holds, and what the machine's sensors
say, as values of its metrics record. One a node; call once a round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from edgegossip.telemetry.machine import MachineSampler, ProcessSampler
from edgegossip.telemetry.records import Value
from edgegossip.telemetry.sockets import SocketMeter, SocketTotals

EVERY_S = 1.0  # for what takes long to read


class NodeMeters:
    """Measures bytes since the last call on this process's TCP sockets; its CPU load and memory;
    temperature, clock, power and energy of its machine where there are sensors. Thread-safe."""

    def __init__(self) -> None:
        self._sockets, self._system, self._machine = SocketMeter(), ProcessSampler(), MachineSampler()
        self._lock = threading.Lock()
        self._before = SocketTotals()
        self._next_s = 0.0
        self._tasks: Callable[[], int] | None = None
        self._last_tasks = 0

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
        and more, counting coroutines a tenth of a round's record: where it is not `due`, they are
        left for a later round, for up to EVERY_S. Nothing is lost by that: the next record that has
        what sockets carried has all since the last one."""
        now_s = time.perf_counter()
        with self._lock:
            due |= now_s >= self._next_s
            values: dict[str, Value] = {**self._system.sample(), **self._machine.sample()}
            if self._tasks is not None:
                self._last_tasks = self._tasks() if due else self._last_tasks
                values["sys/tasks"] = self._last_tasks
            if due and (totals := self._sockets.sample()) is not None:
                self._next_s = now_s + EVERY_S
                new, self._before = totals - self._before, totals
                values |= {
                    "net/sent_bytes": new.sent_bytes,
                    "net/link_bytes": new.sent_link_bytes,
                    "net/received_bytes": new.received_bytes,
                }
        return values

    def sample_sockets(self) -> None:
        """Take note of what the sockets carried so far, before one of them is closed."""
        with self._lock:
            self._sockets.sample()
