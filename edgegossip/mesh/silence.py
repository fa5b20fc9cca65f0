"""When a peer has been silent for too long: a deadline that follows what was seen, and who watches it.

The deadline is the median of the last waits for an acknowledgement plus K deviations, as retransmission timers have it (Jacobson,
"Congestion Avoidance and Control", 1988; RFC 6298), with the median and the median absolute deviation in place of means, so that
a few stalls do not stretch it. It doubles each time that it is missed (RFC 6298, 5.5), until the peer is heard again.

A missed deadline alone does not end a stream, for the peer may be busy, or we. It is asked over the same connection whether it is
there (grpc.health.v1), and the log hears which of the two it is. Dead connections are the keepalive's business, which gRPC's core
answers whatever Python does; a process that has not answered for `hung_s` either is given up here. However far the deadline has
doubled by then, it is asked in time for that.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.standard import HEALTH
from edgegossip.types import PeerError

K = 6.0
_TO_SIGMA = 1.4826  # median absolute deviation to standard deviation, of a normal distribution
_SAMPLES = 32
_ENOUGH = 8  # before that the deadline is the longest
_ASK_AT = 0.75  # of hung_s without a sign of life: time to ask, so that the answer can come before it is over
_LAST = 0.1  # of hung_s: every question has at least so long


class Deadline:
    """Seconds between `least_s` and `most_s`. Pure."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s, self._most_s = least_s, max(least_s, most_s)
        self._seen_s: deque[float] = deque(maxlen=_SAMPLES)
        self._factor = 1.0

    def see(self, took_s: float) -> None:
        """It took that long."""
        self._seen_s.append(took_s)
        self._factor = 1.0

    def miss(self) -> None:
        """It took longer, and goes on."""
        self._factor *= 2.0

    @property
    def usual_s(self) -> float:
        """What it takes, as seen: the median."""
        return _median(self._seen_s) if self._seen_s else 0.0

    @property
    def limit_s(self) -> float:
        limit_s = self._most_s
        if len(self._seen_s) >= _ENOUGH:
            usual_s = self.usual_s
            deviation_s = _TO_SIGMA * _median([abs(s - usual_s) for s in self._seen_s])
            limit_s = min(self._most_s, max(self._least_s, usual_s + K * deviation_s))
        return limit_s * self._factor


class Silence:
    """Watches one stream. `is_alive` asks the peer and waits at most so many seconds. `tell` hears of a deadline missed: silent
    for how long, what is usual, whether the peer is alive. A peer that gives no sign of life for `hung_s`, neither an
    acknowledgement nor an answer to a question, is given up, at most a tenth later."""

    def __init__(
        self,
        deadline: Deadline,
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
        """Something went out that the peer will acknowledge."""
        if self._since_s is None:
            self._since_s = self._sign_s = now_s
            if self._sleeping is not None:
                self._sleeping.set()

    def heard(self, now_s: float, *, more: bool) -> None:
        """An acknowledgement came in; there is `more` to come."""
        if self._since_s is not None:
            self._deadline.see(now_s - self._since_s)
        self._since_s = now_s if more else None
        self._sign_s = now_s

    async def watch(self) -> None:
        """Raises PeerError when the peer does not answer any more."""
        while True:
            if self._since_s is None:
                self._sleeping = asyncio.Event()
                await self._sleeping.wait()
                self._sleeping = None
                continue
            wait_s = self._due_s(self._since_s) - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            await self._ask(self._since_s)

    def _due_s(self, since_s: float) -> float:
        """When to ask next: at the deadline; and when the last sign of life is so old that the peer may hang, then and once
        more when its time is over."""
        doubt_s = self._sign_s + _ASK_AT * self._hung_s
        if self._asked_s >= doubt_s:
            doubt_s = self._sign_s + self._hung_s
        return min(since_s + self._deadline.limit_s, doubt_s)

    async def _ask(self, since_s: float) -> None:
        self._asked_s = now_s = time.monotonic()
        left_s = max(self._sign_s + self._hung_s - now_s, _LAST * self._hung_s)
        alive = await self._is_alive(min(self._deadline.limit_s, left_s))
        if self._since_s == since_s:  # nothing came meanwhile
            self._missed(since_s, alive)

    def _missed(self, since_s: float, alive: bool) -> None:
        now_s, usual_s = time.monotonic(), self._deadline.usual_s
        silent_s = now_s - since_s
        if alive:
            self._sign_s = now_s
        elif now_s - self._sign_s >= 0.99 * self._hung_s:  # a timer may be early by a hair
            raise PeerError(f"it does not answer: silent for {silent_s:.0f} s, where {usual_s:.2g} s is usual")
        if silent_s >= self._deadline.limit_s:
            self._deadline.miss()
            self._tell(silent_s, usual_s, alive)


async def is_alive(channel: grpc.aio.Channel, limit_s: float) -> bool:
    """Whether the peer's process answers on this connection."""
    try:
        await channel.unary_unary(f"/{HEALTH}/Check")(b"", timeout=limit_s)
    except grpc.aio.AioRpcError as error:
        return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
    return True


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
