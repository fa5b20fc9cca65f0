"""Several sinks at once. One that may hang, a disk or a terminal, is behind a queue and a thread of
its own and holds nobody.

A record is with the sink before the next one of this process is taken, as long as the sink answers
within PATIENCE_S: so kill -9 costs the one that came last at most, and a caller that comes seldom
never waits. (Writing in the caller's thread would lose none, but nothing wakes a thread from a
write to a disk that hangs.) When a write takes longer nobody waits for it: records queue up until
the sink has caught up. A full queue takes no more; what is missing is counted, and told to the sink
when it is back.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from edgegossip.telemetry.lines import EventRecord, Record
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.types import HostError

PATIENCE_S = 0.1  # for the record before, once; a card that erases a block takes longer now and then
MOST_RECORDS = 4096  # that wait: some 10 MB at worst
HANGS_S = 5.0  # a sink that takes so long for one record is said to hang
CLOSE_S = 5.0  # for what waits at the end


class Tee(RecordSink):
    """With one time stamp for all of them."""

    def __init__(
        self, *sinks: RecordSink, start_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(start_s, clock)
        self._sinks = tuple(Queued(sink) if sink.what else sink for sink in sinks)
        self._queued = tuple(sink for sink in self._sinks if isinstance(sink, Queued))

    def write(self, record: Record) -> None:
        for sink in self._sinks:
            sink.write(record)
        for sink in self._queued:
            if (text := sink.trouble()) is not None:
                self._tell_others(sink, EventRecord(record.node, record.t_s, "notice", text))

    def close(self) -> None:
        with ExitStack() as stack:  # each of them, whatever another one raises
            for sink in reversed(self._sinks):
                stack.callback(sink.close)

    def _tell_others(self, about: RecordSink, record: EventRecord) -> None:
        for sink in self._sinks:
            if sink is not about:
                sink.write(record)


class Queued(RecordSink):
    """`sink` is written to, and closed, in a thread of this object's own."""

    def __init__(self, sink: RecordSink) -> None:
        super().__init__(sink.start_s)
        self._sink, self.what = sink, sink.what
        self._news = threading.Condition(threading.Lock())
        self._queue: deque[Record] = deque()
        self._thread: threading.Thread | None = None
        self._since_s: float | None = None  # when the present write began
        self._hangs = self._told = self._closed = False
        self._waiting, self._lost = 0, 0
        self._fault: BaseException | None = None

    def write(self, record: Record) -> None:
        """Raises what the sink raised on a record before."""
        with self._news:
            if self._closed:
                raise HostError(f"{self.what} is closed")
            if self._busy and not self._hangs:
                self._hangs = not self._wait(PATIENCE_S)
            if self._fault is not None:
                raise self._fault
            if len(self._queue) >= MOST_RECORDS:
                self._lost += 1
                return
            self._queue.append(record)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"records {self.what}", daemon=True)
                self._thread.start()
            elif self._since_s is None:
                self._news.notify_all()

    def trouble(self) -> str | None:
        """Once each time that the sink hangs: a sentence for the others."""
        since_s = self._since_s
        if self._told or since_s is None or time.monotonic() - since_s < HANGS_S:
            return None
        self._told = True
        return f"{self.what} has not answered for {HANGS_S:.0f} s; the run goes on, and the records for it wait"

    def close(self) -> None:
        """Idempotent. Waits CLOSE_S at most."""
        with self._news:
            if self._closed:
                return
            self._closed = True
            self._news.notify_all()
        if self._thread is None:
            self._sink.close()
        else:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                text = f"{self.what} has not answered for {CLOSE_S:.0f} s: {len(self._queue) + 1} records or more are missing"
                print(f"!! {text} there", file=sys.stderr)
        if self._fault is not None:
            raise self._fault

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
                if self._lost:
                    self._sink.write(self._missing(record))
                self._sink.write(record)
            self._sink.close()
        except BaseException as error:  # a mistake of the caller's, such as a value that is no scalar: it hears of it
            with self._news:
                self._fault, self._since_s = error, None
                self._queue.clear()
                self._news.notify_all()

    def _next(self) -> Record | None:
        with self._news:
            self._since_s = None
            if not self._queue:
                self._hangs = self._told = False
                if self._waiting:
                    self._news.notify_all()
            while not self._queue:
                if self._closed:
                    return None
                self._news.wait()
            self._since_s = time.monotonic()
            return self._queue.popleft()

    def _missing(self, record: Record) -> EventRecord:
        with self._news:
            lost, self._lost = self._lost, 0
        text = f"{lost} records are missing here: {self.what} took none for a while"
        return EventRecord(record.node, record.t_s, "records-lost", text, {"records": lost})
