"""Awaiting an operation of gRPC so that the awaiter can be cancelled, and the operation still ends in its own time.

grpc.aio frees what it allocated for a batch of operations when the coroutine that awaits it goes on after it, and never if that
coroutine was cancelled: some 100 bytes a time (grpc/grpc#43360; grpcio 1.85 has it). A peer decides how often that happens, by
opening streams that supersede one another. `asyncio.shield` would do, for a task and two turns of the loop each time; this costs
neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Patient(Generic[T]):
    """`await Patient(operation)` is `await operation`, but a cancelled awaiter leaves the operation running.

    What it returns or raises after that is dropped. It is only ever sent None, so it may await futures and tasks of the running
    loop and whatever is made of these; an awaiter that is cancelled does not cancel them.
    """

    __slots__ = ("_operation",)

    def __init__(self, operation: Coroutine[Any, None, T]) -> None:
        self._operation = operation

    def __await__(self) -> Generator[Any, None, T]:
        while True:
            try:
                waits_for = self._operation.send(None)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                yield waits_for if waits_for is None else _Waiter(waits_for)
            except BaseException:
                _go_on_after(waits_for, self._operation)
                raise


class _Waiter:
    """Stands for a future towards the task that awaits it. Cancelling wakes the task and leaves the future as it is.

    It is what asyncio calls a future-like object: `_asyncio_future_blocking` is its protocol for those that are not its own.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_future", "_wake", "_wake_context")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        future._asyncio_future_blocking = False  # the task awaits us in its place
        self._asyncio_future_blocking = True
        self._future, self._cancelled = future, False
        self._wake: Callable[[Any], object] | None = None
        self._wake_context: Context | None = None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._future.get_loop()

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._wake, self._wake_context = wake, context
        self._future.add_done_callback(wake, context=context)

    def cancel(self, msg: object = None) -> bool:
        """Called by `Task.cancel`. False when the task is to wake anyway."""
        if self._cancelled or self._wake is None or self._future.done():
            return False
        self._cancelled = True
        self._future.remove_done_callback(self._wake)
        self._future.get_loop().call_soon(self._wake, self, context=self._wake_context)
        return True

    def result(self) -> None:
        """What a task that `cancel` woke asks for first."""
        raise asyncio.CancelledError


def _go_on_after(waits_for: asyncio.Future[Any] | None, operation: Coroutine[Any, None, Any]) -> None:
    """Let the operation come to its end with nobody who awaits it."""

    def go_on(_done: object = None) -> None:
        try:
            next_one = operation.send(None)
        except BaseException:  # its end, whatever that was: nobody asks any more
            return
        _go_on_after(next_one, operation)

    if waits_for is None:
        asyncio.get_running_loop().call_soon(go_on)
    else:
        waits_for._asyncio_future_blocking = False
        waits_for.add_done_callback(go_on)
