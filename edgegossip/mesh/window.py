"""How many bytes may be under way on one stream: enough to fill the link, little enough that it stays awake.

What is handed to the kernel before the link can take it delays everything behind it: at 1 Mbit/s the usual socket buffers hold
half a minute of data, and a keepalive question would wait behind all of it. So a stream has about the delivery rate times
(twice the smallest round trip + QUEUE_S) under way, both measured on acknowledgements as BBR does (Cardwell et al., "BBR:
Congestion-Based Congestion Control", 2016, section 3): a rate sample is what was delivered between the sending of a chunk and
its acknowledgement. Unlike BBR the estimate is the median of the last few samples and not their maximum, and the window at most
doubles with a sample: shaped links let the first kilobytes pass at once. Pure: the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

QUEUE_S = 0.5  # time that data may wait in buffers on the way
MIN_CHUNK_BYTES = 16 << 10
MIN_BYTES = 2 * MIN_CHUNK_BYTES
FIRST_BYTES = 64 << 10  # before anything is measured
MAX_BYTES = 8 << 20
_SAMPLES = 8


class Window:
    """State of one stream. Positions count the bytes of frames since the stream began."""

    def __init__(self, max_chunk_bytes: int) -> None:
        self._max_chunk_bytes = max_chunk_bytes
        self._resize(FIRST_BYTES)
        self._sent = 0
        self._delivered = 0
        self._asked = 0  # position that the last asked-for acknowledgement covers
        self._under_way: deque[tuple[int, float, int]] = deque()  # end position, time sent, delivered when it was sent
        self._rates: deque[float] = deque(maxlen=_SAMPLES)  # bytes per second
        self._round_trip_s = float("inf")

    @property
    def position(self) -> int:
        return self._sent

    @property
    def is_empty(self) -> bool:
        """Nothing is under way."""
        return self._sent == self._delivered

    @property
    def has_room(self) -> bool:
        return self._sent == self._delivered or self._sent - self._delivered + self.chunk_bytes <= self.size_bytes

    def send(self, size_bytes: int, now_s: float) -> bool:
        """A chunk goes out. True when its acknowledgement is to be asked for: four times a window, and whenever the next chunk
        could not go out without one."""
        self._sent += size_bytes
        ask = self._sent - self._asked >= self.size_bytes // 4 or not self.has_room
        if ask:
            self._asked = self._sent
            self._under_way.append((self._sent, now_s, self._delivered))
        return ask

    def acknowledge(self, position: int, now_s: float) -> None:
        """Everything before `position` has arrived."""
        self._delivered = max(self._delivered, position)
        while self._under_way and self._under_way[0][0] <= position:
            end, sent_s, delivered_then = self._under_way.popleft()
            if end == position:
                took_s = max(now_s - sent_s, 1e-6)
                self._round_trip_s = min(self._round_trip_s, took_s)
                self._rates.append((position - delivered_then) / took_s)
                wanted = _median_low(self._rates) * (2 * self._round_trip_s + QUEUE_S)
                self._resize(int(min(MAX_BYTES, 2 * self.size_bytes, max(MIN_BYTES, wanted))))

    def _resize(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.chunk_bytes = min(self._max_chunk_bytes, max(MIN_CHUNK_BYTES, size_bytes // 4))  # of the next chunk


def _median_low(values: Iterable[float]) -> float:
    """As statistics.median_low, whose module brings decimal and fractions along: 0.6 MiB that a board would keep."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
