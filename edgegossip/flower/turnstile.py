"""How many questions a second the gate takes from those who have not been let in yet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

A_SECOND, AT_ONCE = 10.0, 64.0  # a signature takes the coordinator some 20 ms
STRANGERS_A_SECOND, STRANGERS_AT_ONCE = 5.0, 32.0
MAX_OPEN = 32  # questions of one address at the same time, before it is known whose they are
STRANGE_S = 60.0  # that an address which was refused is taken for a stranger's
MAX_STRANGERS = 1000  # remembered


class Rate:
    """At most so many a second in the long run, and so many at once."""

    def __init__(self, a_second: float, at_once: float, now: Callable[[], float] = time.monotonic) -> None:
        self._a_second, self._at_once, self._now = a_second, at_once, now
        self._left, self._then = at_once, now()

    def allows(self) -> bool:
        now = self._now()
        self._left = min(self._at_once, self._left + self._a_second * (now - self._then))
        self._then = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Turnstile:
    """Addresses that were refused of late, or ask very much at once, have a rate of their own, so that they cannot keep boards
    out that come from elsewhere."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._boards, self._strangers = Rate(A_SECOND, AT_ONCE, now), Rate(STRANGERS_A_SECOND, STRANGERS_AT_ONCE, now)
        self._refused: dict[str, float] = {}  # when, by address, the latest last
        self._open: Counter[str] = Counter()

    def allows(self, address: str) -> bool:
        """Whether a question from there is taken now."""
        refused = self._refused.get(address)
        strange = refused is not None and self._now() - refused < STRANGE_S
        rate = self._strangers if strange or self._open[address] > MAX_OPEN else self._boards
        return rate.allows()

    def refused(self, address: str) -> None:
        """Who asked from there may not come in."""
        self._refused.pop(address, None)
        self._refused[address] = self._now()
        while len(self._refused) > MAX_STRANGERS:
            del self._refused[next(iter(self._refused))]

    @contextmanager
    def asking(self, address: str) -> Iterator[None]:
        """While a question from there is open."""
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
