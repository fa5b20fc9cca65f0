"""The event loop of a transport, run by whoever waits for its events, and by a thread of its own while nobody does.

The pattern is Leader/Followers (Schmidt et al., "Leader/Followers: A Design Pattern for Efficient Multi-threaded Event
Demultiplexing and Dispatching", 2000): a thread that waits for an event demultiplexes it itself, so an event does not cross from
one thread to another, which costs a wake-up and the interpreter lock each time. It differs in that only one other thread follows,
and in that it follows late: a caller that comes back within HANDOVER_S finds the loop as it left it. So work that is put on the
loop while nobody runs it begins HANDOVER_S late at most. 64 KiB there and back take 0.4 ms less than with a thread that has the
loop for itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

from edgegossip.mesh import interrupts

HANDOVER_S = 0.004  # longest time that nobody runs the loop
_LOOKS = 5  # of the thread at a caller that goes on waiting, before it sleeps until it is told


def _nothing() -> None:
    """What to stop where nothing runs."""


class TurnLoop:
    """`wait` runs the loop in the caller's thread, one caller at a time; `name` is that of the thread behind."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.RLock()  # guards all below
        self._turn = threading.Condition(self._lock)
        self._thread_runs = False
        self._caller: object | None = None  # who has the loop, or waits for the thread to leave it
        self._sleeps = False  # the thread waits to be told; else it looks by itself within HANDOVER_S
        self._entered = 0  # callers that took the loop so far
        self._vacant_s = 0.0  # since when nobody runs the loop
        self._alarm: asyncio.TimerHandle | None = None  # lets the caller look at the clock; may come early, never late
        self._actions: deque[Callable[[], None]] = deque()  # left to the loop by `act`, not begun yet
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        interrupts.install()

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Run the loop until `ready`, at most `timeout_s`; `ready` is looked at after each `stop_wait`. False, at once, when the
        loop is another caller's or has ended, or a loop runs in this thread already."""
        if asyncio._get_running_loop() is not None:
            return False
        us = object()
        try:
            try:
                if not self._take(us):
                    return False
                end_s = None if timeout_s is None else self.loop.time() + timeout_s
                while not ready() and not self._ended and (end_s is None or self._wake_by(end_s)):
                    interrupts.held(self.loop.run_forever, self._interrupt)
            finally:
                self._surely_leave(us)
        finally:  # where a Ctrl-C came just before the line above
            self._surely_leave(us)
        return True

    def act(self, action: Callable[[], None]) -> None:
        """Call `action` as the loop would, after those before it: here and now when nobody runs the loop, else soon. It must not
        wait."""
        with self._lock:
            # One that was left to the loop may still be there when nobody runs that any more: an alarm stopped it first.
            if not (self._thread_runs or self._caller or self._actions):
                interrupts.held(action, _nothing)
            elif not self.loop.is_closed():
                self._actions.append(action)
                self.loop.call_soon_threadsafe(self._do_actions)

    def _do_actions(self) -> None:
        while self._actions:
            self._actions.popleft()()

    def stop_wait(self) -> None:
        """Let the caller in `wait` look whether it is `ready`. From any thread; cheap when nobody waits."""
        if not self._caller:
            return
        if asyncio._get_running_loop() is self.loop:
            self.loop.stop()
        else:
            with self._lock:  # `end` closes the loop
                if not self.loop.is_closed():
                    self.loop.call_soon_threadsafe(self.loop.stop)

    def end(self, timeout_s: float) -> None:
        """Stop the loop for good and close it. From a thread that is not in `wait`."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            interrupts.uninstall()
            self._turn.notify_all()
            self.loop.call_soon_threadsafe(self.loop.stop)
            left = self._turn.wait_for(lambda: not (self._thread_runs or self._caller), timeout_s)
        self._thread.join(timeout_s)
        if left and not self._thread.is_alive():
            with self._lock:
                self.loop.close()

    def _interrupt(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _wake_by(self, end_s: float) -> bool:
        """See to it that the loop stops by then; False when it is over. The alarm stays for the next caller: most waits are short
        and setting one for each is a part of their cost."""
        now_s = self.loop.time()
        if now_s >= end_s:
            return False
        if self._alarm is None or not now_s < self._alarm.when() <= end_s:  # of the past: an interrupt came as it rang
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self.loop.call_at(end_s, self._ring)
        return True

    def _ring(self) -> None:
        self._alarm = None
        self.loop.stop()

    def _take(self, us: object) -> bool:
        with self._lock:
            if self._caller or self._ended:
                return False
            self._caller = us
            self._entered += 1
            if self._thread_runs:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._turn.wait_for(lambda: not self._thread_runs)
            return True

    def _surely_leave(self, us: object) -> None:
        """A Ctrl-C can come at any point, here too: a loop that nobody has must not be taken for ours."""
        interrupted: KeyboardInterrupt | None = None
        while self._caller is us:
            try:
                self._leave()
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def _leave(self) -> None:
        with self._lock:
            if self._sleeps or self._ended:
                self._turn.notify_all()
            self._caller, self._vacant_s = None, time.monotonic()

    def _run(self) -> None:
        while self._begin():
            self.loop.run_forever()
            with self._lock:
                self._thread_runs = False
                self._turn.notify_all()

    def _begin(self) -> bool:
        """Wait until the loop has been vacant long enough; False when it has ended. While callers come and go this thread looks
        by itself: to tell it of each of them would cost them a wake-up and the interpreter lock."""
        with self._lock:
            seen = looks = 0
            while not self._ended:
                left_s = HANDOVER_S if self._caller else self._vacant_s + HANDOVER_S - time.monotonic()
                if left_s <= 0:
                    self._thread_runs = True
                    return True
                looks = looks + 1 if self._caller and self._entered == seen else 0
                seen = self._entered
                self._sleeps = looks > _LOOKS
                self._turn.wait(None if self._sleeps else left_s)
                self._sleeps = False
            return False
