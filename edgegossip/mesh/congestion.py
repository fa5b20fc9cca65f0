"""Congestion control and stall detection: what a sender learns from acknowledgements. How much may
be under way on a stream, and when its peer has been silent too long.

*How much* (`CongestionWindow`). What is handed to the kernel before the link can take it delays
everything behind it: at 1 Mbit/s the usual socket buffers hold half a minute of data, and a
keepalive question would wait behind all of it. So a stream has about the delivery rate times (twice
the smallest round trip + QUEUE_S) under way, both measured on acknowledgements as BBR does
(Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016, section 3): a rate sample is
what was delivered between the sending of a chunk and its acknowledgement. Unlike BBR the estimate
is the median of the last few samples and not their maximum, and the window at most doubles with a
sample: shaped links let the first kilobytes pass at once.

*How long* (`StallDetector`). A peer that owes an acknowledgement and is silent may be busy, or we
are. So it is asked over the same connection whether it is there, and the log hears which of the two
it is. Dead connections are the keepalive's business, which gRPC's core answers whatever Python
does; a process that has not answered for `hung_s` either is given up here.

`CongestionWindow` is pure: the caller passes the time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from edgegossip.mesh.base import loop_s
from edgegossip.types import PeerError

QUEUE_S = 0.5  # time that data may wait in buffers on the way
MIN_CHUNK_BYTES = 16 << 10
MIN_BYTES = 2 * MIN_CHUNK_BYTES
FIRST_BYTES = 64 << 10  # before anything is measured
MAX_BYTES = 8 << 20
_RATES = 8  # samples of the delivery rate that count

_QUESTIONS = 4  # to a silent peer, in hung_s


class CongestionWindow:
    """Bounds how much is under way on one stream. Positions count the bytes of frames since the
    stream began."""

    def __init__(self, max_chunk_bytes: int) -> None:
        self._max_chunk_bytes = max_chunk_bytes
        self._resize(FIRST_BYTES)
        self._sent = 0
        self._delivered = 0
        self._asked = 0  # position that the last asked-for acknowledgement covers
        self._under_way: deque[tuple[int, float, int]] = deque()  # end position, time sent, delivered when it was sent
        self._rates: deque[float] = deque(maxlen=_RATES)  # bytes per second
        self._round_trip_s = float("inf")

    @property
    def position(self) -> int:
        """How many bytes of frames went out."""
        return self._sent

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return self._sent == self._delivered

    @property
    def has_room(self) -> bool:
        """Whether another chunk may go out."""
        return self._sent == self._delivered or self._sent - self._delivered + self.chunk_bytes <= self.size_bytes

    def send(self, size_bytes: int, now_s: float, *, ends_frame: bool = False) -> bool:
        """Count a chunk that goes out; return whether its acknowledgement is to be asked for: four
        times a window, whenever the next chunk could not go out without one, and when it
        `ends_frame` of many."""
        self._sent += size_bytes
        ask = ends_frame or self._sent - self._asked >= self.size_bytes // 4 or not self.has_room
        if ask:
            self._asked = self._sent
            self._under_way.append((self._sent, now_s, self._delivered))
        return ask

    def acknowledge(self, position: int, now_s: float) -> None:
        """Take in that everything before `position` has arrived."""
        self._delivered = max(self._delivered, position)
        # Chunks that were sent before the acknowledged one are done without a sample: one
        # acknowledgement spoke for all.
        while self._under_way and self._under_way[0][0] <= position:
            end, sent_s, delivered_then = self._under_way.popleft()
            if end == position:
                took_s = max(now_s - sent_s, 1e-6)
                # The smallest round trip is that of an empty link; what queues up on it makes the
                # others longer.
                self._round_trip_s = min(self._round_trip_s, took_s)
                self._rates.append((position - delivered_then) / took_s)
                wanted = _median_low(self._rates) * (2 * self._round_trip_s + QUEUE_S)
                self._resize(int(min(MAX_BYTES, 2 * self.size_bytes, max(MIN_BYTES, wanted))))

    def _resize(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.chunk_bytes = min(self._max_chunk_bytes, max(MIN_CHUNK_BYTES, size_bytes // 4))  # of the next chunk


class StallDetector:
    """Watches one stream for a peer that is silent. `is_alive` asks the peer and waits at most so
    many seconds; `tell` hears for how long it has been silent, and what came of the question. A
    peer that gives no sign of life for `hung_s`, neither an acknowledgement nor an answer, is given
    up."""

    def __init__(
        self, hung_s: float, is_alive: Callable[[float], Awaitable[bool]], tell: Callable[[float, bool], None]
    ) -> None:
        self._hung_s, self._is_alive, self._tell = hung_s, is_alive, tell
        self._owed = asyncio.Event()  # an acknowledgement is waited for,
        self._since_s = 0.0  # since then

    def sent(self, now_s: float) -> None:
        """Take in that something went out which the peer will acknowledge."""
        if not self._owed.is_set():
            self._since_s = now_s
            self._owed.set()

    def heard(self, now_s: float, *, more: bool) -> None:
        """Take in that an acknowledgement came; there is `more` to come."""
        self._since_s = now_s
        if not more:
            self._owed.clear()

    async def watch(self) -> None:
        """Ask the peer whenever it is silent. Ends with PeerError when it does not answer any
        more."""
        pause_s, asked_s, answered_s = self._hung_s / _QUESTIONS, 0.0, 0.0
        while True:
            await self._owed.wait()
            # What comes in meanwhile puts the question off, hence the look at the clock after each
            # sleep.
            wait_s = max(self._since_s, asked_s) + pause_s - loop_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            asked_s, since_s = loop_s(), self._since_s
            alive = await self._is_alive(pause_s)
            now_s = loop_s()
            answered_s = now_s if alive else answered_s
            if self._since_s != since_s or not self._owed.is_set():
                continue
            if now_s - max(since_s, answered_s) >= 0.99 * self._hung_s:  # a timer may be early by a hair
                raise PeerError(f"it does not answer: silent for {now_s - since_s:.0f} s")
            self._tell(now_s - since_s, alive)


def _median_low(values: Iterable[float]) -> float:
    """Return what statistics.median_low does, whose module brings decimal and fractions along: 0.6
    MiB that a board would keep."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
