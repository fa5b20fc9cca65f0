"""How long to wait before asking again. A question costs the SuperLink about 3 ms of CPU, an answer that lies there costs time."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.05  # of the time already waited: at most so much longer than needed


class Pace:
    """Waits between polls: short while an answer is near, growing with the time it has already taken."""

    def __init__(self, least_s: float = 0.01, most_s: float = 2.0, now: Callable[[], float] = time.monotonic) -> None:
        self._least_s, self._most_s, self._now = least_s, most_s, now
        self._start_s = now()

    def restart(self) -> None:
        """Something came: the next thing may be near."""
        self._start_s = self._now()

    def waited_s(self) -> float:
        """Since the last restart."""
        return self._now() - self._start_s

    def next_s(self) -> float:
        """How long to sleep now."""
        return min(self._most_s, max(self._least_s, SHARE * self.waited_s()))
