"""Sinks other than the run folder: a pipe to the parent process, and several sinks at once.

Each sink takes measurements of its own process (`metrics`, `event`; it puts the time on them) and
whole records of another process (`write`; relayed as they are).

In a `Tee`, a sink that may hang, a disk or a terminal, is behind a queue and a thread of its own
and holds nobody. A record is with the sink before the next one of this process is taken, as long as
the sink answers within PATIENCE_S: so kill -9 costs the one that came last at most, and a caller
that comes seldom never waits. (Writing in the caller's thread would lose none, but nothing wakes a
thread from a write to a disk that hangs.) When a write takes longer nobody waits for it: records
queue up until the sink has caught up. A full queue takes no more; what is missing is counted, and
told to the sink when it is back.

A fault of a sink ends the run, as a full disk does; one of a sink that is not `needed`, a tracker's
server say, costs its records and is told once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from typing_extensions import override

from edgegossip.telemetry.records import EventRecord, MetricsRecord, Record, to_line
from edgegossip.types import HostError, NodeId, Round

HEARTBEAT = b".\n"


class RecordSink(ABC):
    """Is a records.Sink that also relays. Time 0 of `t_s` is when the sink was made, or `start_s`
    of the same clock."""

    what = ""  # of a sink that may hang: what it is, for sentences. Such a one belongs into a Tee
    needed = True  # in a Tee: a fault of it is the run's

    def __init__(self, start_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_s = clock() if start_s is None else start_s
        self._order = threading.RLock()  # what is stamped first is written first

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Any]) -> None:
        """Record what `node` measured in round `step`. Names as in records.METRICS; more may be
        added."""
        with self._order:
            self.write(MetricsRecord(node, step, self.elapsed_s(), values))

    def event(self, node: NodeId, name: str, text: str, **fields: Any) -> None:
        """Record something that happened to `node`: a word for programs, a sentence for people, and
        fields."""
        with self._order:
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
        """Return the present `t_s`."""
        return self._clock() - self._start_s

    @abstractmethod
    def write(self, record: Record) -> None:
        """Take in a record as it is. Thread-safe."""

    @abstractmethod
    def close(self) -> None:
        """End it: nothing may be written afterwards. Idempotent."""


def write_all(fd: int, data: bytes) -> None:
    """Call os.write until all of it is out; a pipe or a full disk may take less than it is
    given."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class PipeSink(RecordSink):
    """Writes JSON lines to a file descriptor, each in one write. The descriptor stays the caller's
    and is not closed.

    Raises HostError when nobody reads any more: a board whose parent is gone has no reason to go
    on.
    """

    def __init__(self, fd: int, start_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(start_s, clock)
        self._fd = fd
        self._lock = threading.Lock()

    @override
    def write(self, record: Record) -> None:
        line = to_line(record)
        try:
            with self._lock:
                write_all(self._fd, line)
        except BrokenPipeError:
            raise HostError("the process that reads this board's records is gone") from None

    def beat(self) -> None:
        """Write a line that is no record, HEARTBEAT: this process is running, whatever it is busy
        with."""
        with self._lock:
            write_all(self._fd, HEARTBEAT)

    @override
    def close(self) -> None:
        """Nothing is buffered, so there is nothing to do."""


PATIENCE_S = 0.1  # for the record before, once; a card that erases a block takes longer now and then
MOST_RECORDS = 4096  # that wait: some 10 MB at worst
HANGS_S = 5.0  # a sink that takes so long for one record is said to hang
CLOSE_S = 5.0  # for what waits at the end
SEND_S = 60.0  # the same, of a sink that is not needed: its server may be far, and nothing else waits any more


class Tee(RecordSink):
    """Writes to several sinks, with one time stamp for all of them."""

    def __init__(
        self, *sinks: RecordSink, start_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(start_s, clock)
        self._sinks = tuple(Queued(sink) if sink.what else sink for sink in sinks)
        self._queued = tuple(sink for sink in self._sinks if isinstance(sink, Queued))

    @override
    def write(self, record: Record) -> None:
        for sink in self._sinks:
            sink.write(record)
        for sink in self._queued:
            if (text := sink.trouble()) is not None:
                self._tell_others(sink, EventRecord(record.node, record.t_s, "notice", text))

    @override
    def close(self) -> None:
        with ExitStack() as stack:  # each of them, whatever another one raises
            for sink in reversed(self._sinks):
                stack.callback(sink.close)

    def _tell_others(self, about: RecordSink, record: EventRecord) -> None:
        for sink in self._sinks:
            if sink is not about:
                sink.write(record)


class Queued(RecordSink):
    """Writes to `sink`, and closes it, in a thread of its own."""

    def __init__(self, sink: RecordSink) -> None:
        super().__init__(sink.start_s)
        self._sink, self.what = sink, sink.what
        self._news = threading.Condition(threading.Lock())
        self._queue: deque[Record] = deque()
        self._thread: threading.Thread | None = None
        self._since_s: float | None = None  # when the present write began
        self._fell = ""  # what a sink that is not needed said when it failed first; not told yet
        self._fails = False
        self._hangs = self._told = self._closed = False
        self._waiting, self._lost = 0, 0
        self._last_lost: Record | None = None
        self._fault: BaseException | None = None

    @override
    def write(self, record: Record) -> None:
        """Queue a record. Raises what the sink raised on a record before."""
        with self._news:
            if self._closed:
                raise HostError(f"{self.what} is closed")
            if self._busy and not self._hangs:
                self._hangs = not self._wait(PATIENCE_S)
            if self._fault is not None:
                raise self._fault
            if len(self._queue) >= MOST_RECORDS:
                self._lost, self._last_lost = self._lost + 1, record
                return
            if self._lost:
                self._queue.append(self._missing())  # what waits is older than what was lost
            self._queue.append(record)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"records {self.what}", daemon=True)
                self._thread.start()
            elif self._since_s is None:
                self._news.notify_all()

    def trouble(self) -> str | None:
        """Return a sentence for the others, once each time that the sink hangs, and once when it
        fails."""
        if self._fell:
            fell, self._fell = self._fell, ""
            return f"{self.what}: {fell}; the run goes on, and records are missing there"
        since_s = self._since_s
        if self._told or since_s is None or time.monotonic() - since_s < HANGS_S:
            return None
        self._told = True
        return f"{self.what} has not answered for {HANGS_S:.0f} s; the run goes on, and the records for it wait"

    @override
    def close(self) -> None:
        """End the thread and the sink; waits CLOSE_S or SEND_S at most. Idempotent."""
        with self._news:
            if self._closed:
                return
            self._closed = True
            self._news.notify_all()
        if self._thread is None:
            self._do(self._sink.close)
        else:
            patience_s = CLOSE_S if self._sink.needed else SEND_S
            self._thread.join(patience_s)
            if self._thread.is_alive():
                text = f"{self.what} has not answered for {patience_s:.0f} s: {len(self._queue) + 1} records or more are missing"
                print(f"!! {text} there", file=sys.stderr)
        if self._fault is not None:
            raise self._fault
        if self._fell:  # on its last records: nobody else hears of it
            print(f"!! {self.trouble()}", file=sys.stderr)

    @property
    def _busy(self) -> bool:
        return bool(self._queue) or self._since_s is not None

    def _wait(self, patience_s: float) -> bool:
        self._waiting += 1
        try:
            return self._news.wait_for(lambda: not self._busy or self._fault is not None, patience_s)
        finally:
            self._waiting -= 1

    def _work(self) -> None:
        try:
            while (record := self._next()) is not None:
                self._do(self._sink.write, record)
            self._do(self._sink.close)
        except BaseException as error:  # a mistake of the caller's, such as a value that is no scalar: it hears of it
            with self._news:
                self._fault, self._since_s = error, None
                self._queue.clear()
                self._news.notify_all()

    def _do(self, act: Callable[..., None], *record: Record) -> None:
        try:
            act(*record)
        except Exception as error:
            if self._sink.needed:
                raise
            if not self._fails:
                self._fails, self._fell = True, " ".join(str(error).split())[:300] or type(error).__name__

    def _next(self) -> Record | None:
        with self._news:
            self._since_s = None
            if not self._queue:
                self._hangs = self._told = False
                if self._waiting:
                    self._news.notify_all()
            while not self._queue:
                if self._lost:
                    return self._missing()
                if self._closed:
                    return None
                self._news.wait()
            self._since_s = time.monotonic()
            return self._queue.popleft()

    def _missing(self) -> EventRecord:
        """Where records are missing, and of when the last of them was. With the lock."""
        (lost, self._lost), last = (self._lost, 0), self._last_lost
        assert last is not None
        text = f"{lost} records are missing here: {self.what} took none for a while"
        return EventRecord(last.node, last.t_s, "records-lost", text, {"records": lost})
