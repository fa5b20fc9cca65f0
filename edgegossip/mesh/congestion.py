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

*How long* (`TimeoutEstimator`, `StallDetector`). The deadline is the median of the last waits for
an acknowledgement plus K deviations, as retransmission timers have it (Jacobson, "Congestion
Avoidance and Control", 1988; RFC 6298), with the median and the median absolute deviation in place
of means, so that a few stalls do not stretch it. It doubles each time that it is missed (RFC 6298,
5.5), until the peer is heard again. A missed deadline alone does not end a stream, for the peer may
be busy, or we. It is asked over the same connection whether it is there, and the log hears which of
the two it is. Dead connections are the keepalive's business, which gRPC's core answers whatever
Python does; a process that has not answered for `hung_s` either is given up here. However far the
deadline has doubled by then, it is asked in time for that.

`CongestionWindow` and `TimeoutEstimator` are pure: the caller passes the time.
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

K = 6.0
_TO_SIGMA = 1.4826  # median absolute deviation to standard deviation, of a normal distribution
_WAITS = 32  # that count
_ENOUGH = 8  # before that the deadline is the longest
_ASK_AT = 0.75  # of hung_s without a sign of life: time to ask, so that the answer can come before it is over
_LAST = 0.1  # of hung_s: every question has at least so long


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


class TimeoutEstimator:
    """Estimates how long an acknowledgement may take: seconds between `least_s` and `most_s`."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s, self._most_s = least_s, max(least_s, most_s)
        self._seen_s: deque[float] = deque(maxlen=_WAITS)
        self._factor = 1.0

    def see(self, took_s: float) -> None:
        """Take in that it took that long."""
        self._seen_s.append(took_s)
        self._factor = 1.0

    def miss(self) -> None:
        """Take in that it took longer, and goes on."""
        self._factor *= 2.0

    @property
    def usual_s(self) -> float:
        """What it takes, as seen: the median."""
        return _median(self._seen_s) if self._seen_s else 0.0

    @property
    def limit_s(self) -> float:
        """How long it may take now."""
        limit_s = self._most_s
        if len(self._seen_s) >= _ENOUGH:
            usual_s = self.usual_s
            deviation_s = _TO_SIGMA * _median([abs(s - usual_s) for s in self._seen_s])
            limit_s = min(self._most_s, max(self._least_s, usual_s + K * deviation_s))
        return limit_s * self._factor


class StallDetector:
    """Watches one stream for a peer that is silent. `is_alive` asks the peer and waits at most so
    many seconds. `tell` hears of a deadline missed: silent for how long, what is usual, whether the
    peer is alive. A peer that gives no sign of life for `hung_s`, neither an acknowledgement nor an
    answer to a question, is given up, at most a tenth later."""

    def __init__(
        self,
        deadline: TimeoutEstimator,
        hung_s: float,
        is_alive: Callable[[float], Awaitable[bool]],
        tell: Callable[[float, float, bool], None],
    ) -> None:
        self._deadline, self._hung_s, self._is_alive, self._tell = deadline, hung_s, is_alive, tell
        self._since_s: float | None = None  # an acknowledgement is waited for
        self._sign_s = 0.0  # the last sign of life, or when one began to be due
        self._asked_s = 0.0
        self._sleeping: asyncio.Event | None = None

    def sent(self, now_s: float) -> None:
        """Take in that something went out which the peer will acknowledge."""
        if self._since_s is None:
            self._since_s = self._sign_s = now_s
            if self._sleeping is not None:
                self._sleeping.set()

    def heard(self, now_s: float, *, more: bool) -> None:
        """Take in that an acknowledgement came; there is `more` to come."""
        if self._since_s is not None:
            self._deadline.see(now_s - self._since_s)
        self._since_s = now_s if more else None
        self._sign_s = now_s

    async def watch(self) -> None:
        """Ask the peer whenever it is silent too long. Ends with PeerError when it does not answer
        any more."""
        while True:
            # Nothing is owed: sleep until `sent` says that something is.
            if self._since_s is None:
                self._sleeping = asyncio.Event()
                await self._sleeping.wait()
                self._sleeping = None
                continue
            # Something is owed. What comes in meanwhile puts the question off, hence the look at
            # the clock after each sleep.
            wait_s = self._due_s(self._since_s) - loop_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            await self._ask(self._since_s)

    def _due_s(self, since_s: float) -> float:
        """Say when to ask next: at the deadline; and when the last sign of life is so old that the
        peer may hang, then and once more when its time is over."""
        hung_at_s = self._sign_s + _ASK_AT * self._hung_s
        if self._asked_s >= hung_at_s:
            hung_at_s = self._sign_s + self._hung_s
        return min(since_s + self._deadline.limit_s, hung_at_s)

    async def _ask(self, since_s: float) -> None:
        self._asked_s = now_s = loop_s()
        left_s = max(self._sign_s + self._hung_s - now_s, _LAST * self._hung_s)
        alive = await self._is_alive(min(self._deadline.limit_s, left_s))
        if self._since_s == since_s:  # nothing came meanwhile
            self._missed(since_s, alive)

    def _missed(self, since_s: float, alive: bool) -> None:
        now_s, usual_s = loop_s(), self._deadline.usual_s
        silent_s = now_s - since_s
        if alive:
            self._sign_s = now_s
        elif now_s - self._sign_s >= 0.99 * self._hung_s:  # a timer may be early by a hair
            raise PeerError(f"it does not answer: silent for {silent_s:.0f} s, where {usual_s:.2g} s is usual")
        if silent_s >= self._deadline.limit_s:
            self._deadline.miss()
            self._tell(silent_s, usual_s, alive)


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _median_low(values: Iterable[float]) -> float:
    """Return what statistics.median_low does, whose module brings decimal and fractions along: 0.6
    MiB that a board would keep."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
