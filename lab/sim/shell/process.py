"""A process in virtual time: its threads, what they wait on, and its asyncio loop, all on the
simulator's clock.

Threads are real ones of which one runs at a time: one that waits hands over to the clock, and is
handed back to when its time has come or somebody woke it. So the product's own code blocks where it
always does, and what happens follows from the seed. A loop has no thread: the clock calls it.

A process that stands still does nothing of all that until it goes on; then what has come meanwhile
comes in an order that nobody knows, timers before frames or after them, as the seed says. One that
is killed ends where it is: every wait raises `Killed`, and nothing that it still does has any
effect."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from random import Random
from types import ModuleType
from typing import Any, TypeVar

from typing_extensions import override

from edgegossip.threads import Condition, LoopThread, Queue, Threads
from lab.sim.network import Clock

T = TypeVar("T")
MISTAKES = ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError
_PASSES = 50  # of tasks that are cancelled, until they have ended


class Killed(BaseException):
    """Raised in a thread whose process is gone."""


class _Thread:
    """Is a thread that runs while the clock waits for it."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.ended = self.interrupted = False
        self.waits = 0  # counts its waits, so that an old alarm does not end a new one
        self._process, self._work = process, work
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        threading.Thread(target=self._run, daemon=True).start()

    def run(self) -> None:
        """Let it run until it waits or ends."""
        self._process.running, before = self, self._process.running
        self._go.release()
        self._back.acquire()
        self._process.running = before

    def wait(self) -> None:
        """Hand over to the clock; called by the thread itself."""
        self._back.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if self._process.alive:
                self._work()
        except Killed:
            pass
        except BaseException as error:
            self._process.crashed(error)
        self.ended = True
        self._back.release()


class Process(Threads):
    """Is one process. `crashed` hears of an exception that ended a thread."""

    def __init__(self, clock: Clock, random: Random, crashed: Callable[[BaseException], None]) -> None:
        self.clock, self.random, self.crashed = clock, Random(random.getrandbits(64)), crashed
        self._order = Random(random.getrandbits(64))
        self.alive, self.paused = True, False
        self.running: _Thread | None = None
        self._threads: list[_Thread] = []
        self._loops: list[Loop] = []
        self._held: list[tuple[bool, Callable[..., None], tuple[Any, ...]]] = []  # while it stands still
        self.dial: Callable[..., Coroutine[Any, Any, Any]] | None = None  # makes a connection with TLS
        self.constants: dict[tuple[ModuleType, str], Any] = {}  # that its program has otherwise than ours

    # -- what the product asks for

    @override
    def now(self) -> float:
        return self.clock.now

    @override
    def sleep(self, seconds: float) -> None:
        until_s = self.clock.now + seconds
        while self.clock.now < until_s:
            self.block(until_s)

    @override
    def start(self, work: Callable[[], None], name: str) -> None:
        thread = _Thread(self, work)
        self._threads.append(thread)
        self.clock.at(self.clock.now, self.do, False, self._resume, thread, 0)

    @override
    def condition(self) -> Condition:
        return _Condition(self)

    @override
    def queue(self) -> Queue:
        return _Queue(self)

    @override
    def loop(self, name: str, at_exit: Callable[[], None]) -> LoopThread:
        thread = _LoopThread(self)
        self._loops.append(thread.loop)
        return thread

    # -- waiting

    def block(self, until_s: float | None = None) -> None:
        """Let the present thread wait until then, or for `wake`; it may wake without either. Raises
        Killed."""
        thread = self._present()
        thread.waits += 1
        if until_s is not None:
            self.clock.at(until_s, self.do, True, self._resume, thread, thread.waits)
        thread.wait()
        self.check()
        if thread.interrupted:
            thread.interrupted = False
            raise KeyboardInterrupt

    def _present(self) -> _Thread:
        self.check()
        assert self.running is not None
        return self.running

    def check(self) -> None:
        """Raise Killed when the process is gone."""
        if not self.alive:
            raise Killed

    def waker(self) -> Callable[[], None]:
        """Return what ends the next wait of the present thread."""
        thread = self._present()
        waits = thread.waits + 1
        return lambda: self.clock.at(self.clock.now, self.do, False, self._resume, thread, waits)

    def _resume(self, thread: _Thread, waits: int) -> None:
        if not thread.ended and thread.waits == waits:
            thread.run()

    def do(self, timer: bool, what: Callable[..., None], *args: Any) -> None:
        """Do something in this process, now or once it goes on; `timer`: because it is time."""
        if not self.alive:
            return
        if self.paused:
            self._held.append((timer, what, args))
        elif not self.constants:
            what(*args)
        else:
            ours = {(module, name): getattr(module, name) for module, name in self.constants}
            _set(self.constants)
            try:
                what(*args)
            finally:
                _set(ours)

    # -- faults

    def unpause(self) -> None:
        """Let it go on."""
        self.paused = False
        held, self._held = self._held, []
        timers_first = self._order.random() < 0.5
        for _, what, args in sorted(held, key=lambda one: one[0] is not timers_first):
            self.do(False, what, *args)

    def interrupt(self) -> None:
        """Ask it to stop, as Ctrl-C does: its first thread hears it where it waits."""
        thread = self._threads[0]
        if not thread.ended:
            thread.interrupted = True
            self.do(False, self._resume, thread, thread.waits)

    def kill(self) -> None:
        """End it, wherever it is. Not called by one of its own threads."""
        self.alive = self.paused = False
        for loop in self._loops:
            loop.end()
        for thread in self._threads:
            while not thread.ended:
                thread.run()


def _set(constants: Mapping[tuple[ModuleType, str], Any]) -> None:
    for (module, name), value in constants.items():
        setattr(module, name, value)


class _Condition(Condition):
    """No other thread runs between two waits, so there is nothing to lock."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._wake: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exc: Any) -> None:
        pass

    @override
    def wait(self, timeout: float | None = None) -> None:
        self._wake.append(self._process.waker())
        self._process.block(None if timeout is None else self._process.now() + timeout)

    @override
    def notify_all(self) -> None:
        wake, self._wake = self._wake, []
        for one in wake:
            one()


class _Queue(Queue):
    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._changed = process.condition()

    @override
    def put(self, item: Any) -> None:
        self._items.append(item)
        self._changed.notify_all()

    @override
    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        until_s = None if timeout is None else self._process.now() + timeout
        while not self._items:
            self._process.check()
            left_s = None if until_s is None else until_s - self._process.now()
            if left_s is not None and left_s <= 0:
                raise queue.Empty
            self._changed.wait(left_s)
        return self._items.popleft()


class _Task(asyncio.Task[Any]):
    """Has a number for its hash, so that sets of tasks have one order whatever their addresses."""

    def __init__(self, coro: Any, *, loop: Loop, **named: Any) -> None:
        loop.tasks += 1
        self.number = loop.tasks
        super().__init__(coro, loop=loop, **named)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Loop(asyncio.AbstractEventLoop):
    """Is the loop of a process: what asyncio asks of one, but for files and sockets."""

    def __init__(self, process: Process) -> None:
        self._process, self._clock = process, process.clock
        self.tasks = 0  # that were ever made
        self._soon: deque[asyncio.Handle] = deque()

    @override
    def time(self) -> float:
        return self._clock.now

    @override
    def get_debug(self) -> bool:
        return False

    @override
    def is_running(self) -> bool:
        return True

    @override
    def is_closed(self) -> bool:
        return not self._process.alive

    @override
    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append(handle)
        self._clock.at(self._clock.now, self._process.do, False, self._next)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    @override
    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.at(when, self._process.do, True, self._run, handle)
        return handle

    @override
    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return _Task(coro, loop=self, name=name, context=context)

    @override
    def set_exception_handler(self, handler: Any) -> None:
        pass

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, MISTAKES) and self._process.alive:  # others end a connection, as their waiters know
            self._process.crashed(error)

    @override
    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_tls: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        assert self._process.dial is not None
        protocol = protocol_factory()
        return await self._process.dial(host, protocol), protocol

    @override
    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    @override
    async def shutdown_default_executor(self) -> None:
        pass

    def _next(self) -> None:
        self._run(self._soon.popleft())

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)

    def end(self) -> None:
        """Let every task end, of a process that is killed."""
        for _ in range(_PASSES):
            tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            while self._soon:
                self._next()


class _LoopThread(LoopThread):
    """Calls into a loop that the clock drives."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.loop: Loop = Loop(process)  # type: ignore[abstract]

    @override
    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._process.alive:
            work.close()
            raise Killed
        future = Future[T]()
        self.loop.create_task(work).add_done_callback(partial(_copy, future))
        return future

    @override
    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 30.0) -> T:
        process, future = self._process, self.submit(work)
        until_s = process.now() + timeout_s
        while not future.done() and process.now() < until_s:
            wake = process.waker()
            future.add_done_callback(lambda _, wake=wake: wake())  # type: ignore[misc]
            process.block(until_s)
        return future.result(0)

    @override
    def end(self) -> None:
        pass


def _copy(future: Future[Any], task: asyncio.Task[Any]) -> None:
    """Let a thread have what became of a task."""
    if task.cancelled():
        future.cancel()
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
