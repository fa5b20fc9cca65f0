"""Virtual time: a heap of what is to happen and when. Nothing in a simulation reads any other
clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, TypeAlias

Event: TypeAlias = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class Clock:
    """Events of one instant happen in the order in which they were put in, so that a seed gives the
    same run again."""

    __slots__ = ("_count", "_heap", "_stopped", "now")

    def __init__(self) -> None:
        self.now = 0.0  # virtual seconds
        self._heap: list[Event] = []
        self._count = 0
        self._stopped = False

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Call what(*args) at `when`, or now if that has passed; never once the clock has
        stopped."""
        if self._stopped:
            return
        self._count += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._count, what, args))

    def after(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay_s, what, *args)

    def run(self, until: float) -> bool:
        """Everything up to `until`, or until `stop` is called. Whether nothing is left to
        happen."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, what, args = pop(heap)
            what(*args)
        return not heap

    def stop(self) -> None:
        """Forget everything that was to happen, and what is still asked for."""
        self._stopped = True
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)
