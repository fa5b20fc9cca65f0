"""Events on their way from the transport's loop to the node, with a bound on the bytes that wait."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from contextlib import suppress

from edgegossip.mesh.base import Received, TransportEvent
from edgegossip.mesh.limits import LEAST_FRAME_BYTES
from edgegossip.mesh.turns import TurnLoop


class _Wake:
    """Takes the place of an event for whoever waits in `get`."""


class Inbox:
    """A queue of events. Frames take room from the moment their first chunk arrives until `get` hands them out."""

    def __init__(self, turns: TurnLoop, max_bytes: int, unmeasured_bytes: int) -> None:
        self._events: queue.SimpleQueue[TransportEvent | _Wake | None] = queue.SimpleQueue()
        self._turns, self._loop = turns, turns.loop
        self._limit_bytes = max_bytes  # the most that `bound` may allow
        self._max_bytes = min(max_bytes, unmeasured_bytes)
        self._most_at_once = (
            unmeasured_bytes if unmeasured_bytes < max_bytes else math.inf
        )  # when nothing else is there
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._waiting = 0
        self._last_call = False
        self._room = asyncio.Event()

    def post(self, event: TransportEvent) -> None:
        self._put(event)

    def close(self) -> None:
        """Wake whoever waits in `get`; what is queued can still be taken."""
        self._put(None)

    def wake(self) -> None:
        """Let one `get`, the present one or the next, return None."""
        self._put(_Wake())

    def _put(self, event: TransportEvent | _Wake | None) -> None:
        self._events.put(event)
        self._turns.stop_wait()

    def get(self, timeout_s: float | None) -> TransportEvent | None:
        try:
            event = self._next(timeout_s)
        except queue.Empty:
            return None
        if event is None:
            self._events.put(None)  # stays closed for the next caller
        elif isinstance(event, _Wake):
            return None
        elif isinstance(event, Received):
            self.release(len(event.data))
        return event

    def _next(self, timeout_s: float | None) -> TransportEvent | _Wake | None:
        """The first event. Whoever waits for it runs the loop; raises queue.Empty."""
        if self._events.empty() and timeout_s != 0:
            end_s = None if timeout_s is None else time.monotonic() + timeout_s
            if not self._turns.wait(lambda: not self._events.empty(), timeout_s):
                return self._events.get(timeout=None if end_s is None else max(0.0, end_s - time.monotonic()))
        return self._events.get_nowait()

    def bound(self, max_bytes: int) -> None:
        """From now on no more than this may wait, or one frame, whose size has a bound by now. What waits stays."""
        with self._lock:
            self._max_bytes, self._most_at_once = min(self._limit_bytes, max_bytes), math.inf
            wake = self._waiting > 0
        if wake:
            self._wake_senders()

    def wait_no_more(self) -> None:
        """From now on, and for whoever waits, `reserve` takes what has room and refuses the rest. On the loop."""
        self._last_call = True
        self._room.set()

    def try_reserve(self, size_bytes: int) -> bool:
        """Whether a frame of this size may come in now; if so, its room is taken."""
        with self._lock:
            return self._reserve(size_bytes)

    async def reserve(self, size_bytes: int) -> bool:
        """Wait until a frame of this size may come in. A frame may when nothing else is there, but for one that is larger than
        what is not measured yet may be. False when it may not and it is no use to wait."""
        while True:
            with self._lock:
                if self._reserve(size_bytes):
                    return True
                if self._last_call:
                    return False
                self._waiting += 1
                self._room.clear()
            try:
                await self._room.wait()
            finally:
                with self._lock:
                    self._waiting -= 1

    def release(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= max(size_bytes, LEAST_FRAME_BYTES)
            wake = self._waiting > 0
        if wake:
            self._wake_senders()

    def _reserve(self, size_bytes: int) -> bool:
        """With the lock held."""
        size_bytes = max(size_bytes, LEAST_FRAME_BYTES)
        if self._used_bytes + size_bytes > (self._max_bytes if self._used_bytes else self._most_at_once):
            return False
        self._used_bytes += size_bytes
        return True

    def _wake_senders(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it everyone who waited
            self._loop.call_soon_threadsafe(self._room.set)
