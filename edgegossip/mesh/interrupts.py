"""Ctrl-C, and other signals whose handlers raise, while the main thread runs an event loop.

Python calls a handler between any two instructions of the main thread. Where that is a coroutine of gRPC, the KeyboardInterrupt
ends it, and gRPC prints a traceback of it. So while the main thread is in a loop the handler is put off: the loop is stopped, and
the handler called where the loop was run from. A second signal is not put off: the loop may be stuck.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Handler = Callable[[int, FrameType | None], Any]

_before: dict[int, _Handler] = {}  # the handlers that were there
_users = 0
_stop: Callable[[], object] | None = None  # of the loop that the main thread is in
_came: list[int] = []  # put off


def install() -> None:
    """Take part in the handlers of this process, as far as they are Python's. In the main thread, or nothing happens."""
    global _users
    _users += 1
    if not _in_main_thread():
        return
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not _handle:
            _before[number] = handler
            signal.signal(number, _handle)


def uninstall() -> None:
    """When the last one does, things are as they were."""
    global _users
    _users -= 1
    if _users or not _in_main_thread():
        return
    for number in list(_before):
        if signal.getsignal(number) is _handle:
            signal.signal(number, _before.pop(number))


def held(work: Callable[[], object], stop: Callable[[], object]) -> None:
    """Do `work`. A signal that comes meanwhile is put off, and `stop` called; then this raises what its handler does, unless it
    is itself within another such piece of work. In another thread than the main one nothing of it happens."""
    global _stop
    if not _in_main_thread():
        work()
        return
    outer, _stop = _stop, stop
    try:
        work()
    finally:
        _stop = outer
        if outer is None and _came:
            number = _came.pop()
            _before[number](number, None)


def _handle(number: int, frame: FrameType | None) -> None:
    global _stop
    if _stop is None or _came:
        _came.clear()
        _stop = None
        _before[number](number, frame)
    else:
        _came.append(number)
        _stop()


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident
