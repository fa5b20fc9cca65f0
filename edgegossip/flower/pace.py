"""How long to wait before asking again.

A question costs the SuperLink about 3 ms of CPU, and it has one CPU for all boards; an answer that lies there costs time. Rounds
resemble one another, so the first question waits for most of the time that it took lately; then the waits start short and grow
with the time that has already passed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

EXPECTED = 0.7  # of the shortest recent wait: before that an answer is unlikely
SHARE = 0.08  # of the time waited: how much later than necessary an answer may be noticed
MEMORY = 4  # recent waits


class Pace:
    """Waits between polls of one kind of answer."""

    def __init__(
        self,
        least_s: float = 0.02,
        most_s: float = 2.0,
        first_most_s: float = 30.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._least_s, self._most_s, self._first_most_s, self._now = least_s, most_s, first_most_s, now
        self._recent: deque[float] = deque(maxlen=MEMORY)
        self._start_s = now()

    def start(self) -> None:
        """From now on an answer is waited for."""
        self._start_s = self._now()

    def arrived(self) -> None:
        """The answer is there."""
        self._recent.append(self.waited_s())
        self._start_s = self._now()

    def waited_s(self) -> float:
        """Since the last start or arrival."""
        return self._now() - self._start_s

    def next_s(self) -> float:
        """How long to sleep now, seconds."""
        waited_s = self.waited_s()
        expected_s = min(EXPECTED * min(self._recent), self._first_most_s) if self._recent else 0.0
        if waited_s + self._least_s < expected_s:
            return min(self._most_s, expected_s - waited_s)
        return min(self._most_s, max(self._least_s, SHARE * waited_s))
