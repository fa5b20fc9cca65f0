"""Virtual time: what happens when, and messages that take their time on links. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from edgegossip.lab.scale.devices import LinkProfile
from edgegossip.lab.scale.flows import Network


class Timeline:
    """Things that happen at a time, and messages between boards with such interfaces on one
    link."""

    def __init__(self, interfaces_bits_per_s: Sequence[float], link: LinkProfile) -> None:
        self.now_s = 0.0
        self._network, self._latency_s = Network(interfaces_bits_per_s, link), link.latency_s
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._arrivals: dict[int, Callable[[], None]] = {}
        self._count = 0

    def at(self, time_s: float, happens: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (time_s, self._count, happens))

    def send(self, sender: int, receiver: int, size_bytes: int, arrives: Callable[[], None]) -> None:
        self._count += 1
        self._arrivals[self._count] = arrives
        self._network.add(self._count, sender, receiver, size_bytes)

    def step(self) -> bool:
        """Go to what happens next; whether anything does."""
        flow_s = self._network.next_s()
        due_s = self._due[0][0] if self._due else None
        if flow_s is None and due_s is None:
            return False
        until_s = min(s for s in (None if flow_s is None else self.now_s + flow_s, due_s) if s is not None)
        for key in self._network.advance(max(until_s - self.now_s, 0.0)):
            assert isinstance(key, int)
            self.at(until_s + self._latency_s, self._arrivals.pop(key))
        self.now_s = until_s
        while self._due and self._due[0][0] <= self.now_s:
            heapq.heappop(self._due)[2]()
        return True
