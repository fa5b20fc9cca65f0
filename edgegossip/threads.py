"""What a board's process has of its machine beside disk and network: the time, chance, and threads
with what they wait on. A simulator has others, whose time is virtual."""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from random import Random, SystemRandom
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
END_S = 5.0  # for a loop's thread to end


class Condition(Protocol):
    """Is what a thread waits on for another, as `threading.Condition`."""

    def __enter__(self) -> object:
        """Lock it."""

    def __exit__(self, *_exc: Any) -> Any:
        """Unlock it."""

    def wait(self, timeout: float | None = None) -> object:
        """Wait for `notify_all`, unlocked meanwhile."""

    def notify_all(self) -> None:
        """Wake all who wait."""


class Queue(Protocol):
    """Carries what one thread has for another, as `queue.SimpleQueue`."""

    def put(self, item: Any) -> None:
        """Append something."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take what came first. Raises queue.Empty when nothing came in time."""


class LoopThread:
    """Runs an asyncio loop in a thread of its own. `at_exit` is called at the end of a program that
    has not called `end`."""

    def __init__(self, name: str, at_exit: Callable[[], None]) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._at_exit = atexit.register(at_exit)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there, from any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 30.0) -> T:
        """Run a coroutine there and return what it does. Raises TimeoutError."""
        return self.submit(work).result(timeout_s)

    def end(self) -> None:
        """Stop the loop and end the thread."""
        atexit.unregister(self._at_exit)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self.loop.close()


class Threads:
    """Is what the operating system offers. `random` draws what nobody is to foresee."""

    random: Random = SystemRandom()

    def now(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let this thread rest."""
        time.sleep(seconds)

    def start(self, work: Callable[[], None], name: str) -> None:
        """Let a thread do this."""
        threading.Thread(target=work, name=name, daemon=True).start()

    def condition(self) -> Condition:
        """Return what several threads may wait on."""
        return threading.Condition()

    def queue(self) -> Queue:
        """Return an empty queue."""
        return queue.SimpleQueue()

    def loop(self, name: str, at_exit: Callable[[], None]) -> LoopThread:
        """Return a new loop that runs."""
        return LoopThread(name, at_exit)


THREADS = Threads()
