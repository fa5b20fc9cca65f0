"""Sinks other than the run folder: a pipe to the parent process. Several at once: tee.py.

Each sink takes measurements of its own process (`metrics`, `event`; it puts the time on them) and
whole records of another process (`write`; relayed as they are).
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from edgegossip.telemetry.lines import EventRecord, MetricsRecord, Record, to_line
from edgegossip.types import HostError, NodeId, Round

HEARTBEAT = b".\n"


class RecordSink(ABC):
    """A records.Sink that also relays. Time 0 of `t_s` is when the sink was made, or `start_s` of
    the same clock."""

    what = ""  # of a sink that may hang: what it is, for sentences. Such a one belongs into a Tee

    def __init__(self, start_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_s = clock() if start_s is None else start_s

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Any]) -> None:
        """Record what `node` measured in round `step`. Names as in records.METRICS; more may be
        added."""
        self.write(MetricsRecord(node, step, self.elapsed_s(), values))

    def event(self, node: NodeId, name: str, text: str, **fields: Any) -> None:
        """Record something that happened to `node`: a word for programs, a sentence for people, and
        fields."""
        self.write(EventRecord(node, self.elapsed_s(), name, text, fields))

    def begin(self, age_s: float = 0.0) -> None:
        """Let `t_s` be age_s now: boards' own clocks begin when they run, and loading takes
        seconds."""
        self._start_s = self._clock() - age_s

    @property
    def start_s(self) -> float:
        """When `t_s` was 0, on the sink's clock."""
        return self._start_s

    def elapsed_s(self) -> float:
        return self._clock() - self._start_s

    @abstractmethod
    def write(self, record: Record) -> None:
        """Take in a record as it is. Thread-safe."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent. Nothing may be written afterwards."""


def write_all(fd: int, data: bytes) -> None:
    """os.write until all of it is out; a pipe or a full disk may take less than it is given."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class PipeSink(RecordSink):
    """JSON lines to a file descriptor, each in one write. The descriptor stays the caller's and is
    not closed.

    Raises HostError when nobody reads any more: a board whose parent is gone has no reason to go
    on.
    """

    def __init__(self, fd: int, start_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(start_s, clock)
        self._fd = fd
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        line = to_line(record)
        try:
            with self._lock:
                write_all(self._fd, line)
        except BrokenPipeError:
            raise HostError("the process that reads this board's records is gone") from None

    def beat(self) -> None:
        """A line that is no record, HEARTBEAT: this process is running, whatever it is busy
        with."""
        with self._lock:
            write_all(self._fd, HEARTBEAT)

    def close(self) -> None:
        """Nothing is buffered, so there is nothing to do."""
