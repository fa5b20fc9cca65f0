"""A coroutine that begins at once and is waited for later, as tasks of Python 3.12's eager task factory do."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any


class Begun:
    """`coroutine` has run up to its first wait when this is made, outside any task; `await` it once, in a task, for the rest and
    for what it raises."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._error: Exception | None = None
        self._over = False
        try:
            self._waits_for = coroutine.send(None)
            if self._waits_for is not None:  # asyncio's mark that a task takes the future next; none does yet
                self._waits_for._asyncio_future_blocking = False
        except StopIteration:
            self._over = True
        except Exception as error:
            self._error = error

    @property
    def has_ended(self) -> bool:
        """It needs no waiting any more: `await` gives its outcome at once."""
        if self._error is None and not self._over and self._waits_for is not None and self._waits_for.done():
            try:
                self._waits_for = self._coroutine.send(None)
            except StopIteration:
                self._over = True
            except Exception as error:
                self._error = error
        return self._over or self._error is not None

    @property
    def has_succeeded(self) -> bool:
        return self.has_ended and self._error is None

    def __await__(self) -> Generator[Any, Any, None]:
        if self._error is not None:
            raise self._error
        if self._waits_for is not None and not self._over:
            self._waits_for._asyncio_future_blocking = True
        while not self._over:
            try:
                try:
                    sent = yield self._waits_for
                except BaseException as error:
                    self._waits_for = self._coroutine.throw(error)
                else:
                    self._waits_for = self._coroutine.send(sent)
            except StopIteration:
                self._over = True
