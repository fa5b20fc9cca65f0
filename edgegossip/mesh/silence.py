"""When a peer has been silent for too long: a deadline that follows what was seen, and who watches it.

The deadline is the median of the last waits for an acknowledgement plus K deviations, as retransmission timers have it (Jacobson,
"Congestion Avoidance and Control", 1988; RFC 6298), with the median and the median absolute deviation in place of means, so that
a few stalls do not stretch it. It doubles each time that it is missed (RFC 6298, 5.5), until the peer is heard again.

A missed deadline alone does not end a stream, for the peer may be busy, or we. It is asked over the same connection whether it is
there (grpc.health.v1), and the log hears which of the two it is. Dead connections are the keepalive's business, which gRPC's core
answers whatever Python does; a process that has not answered for `hung_s` either is given up here.
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
    for how long, what is usual, whether the peer is alive. A peer that is not is given up after `hung_s`."""

    def __init__(
        self,
        deadline: Deadline,
        hung_s: float,
        is_alive: Callable[[float], Awaitable[bool]],
        tell: Callable[[float, float, bool], None],
    ) -> None:
        self._deadline, self._hung_s, self._is_alive, self._tell = deadline, hung_s, is_alive, tell
        self._since_s: float | None = None  # an acknowledgement is waited for
        self._sleeping: asyncio.Event | None = None

    def sent(self, now_s: float) -> None:
        """Something went out that the peer will acknowledge."""
        if self._since_s is None:
            self._since_s = now_s
            if self._sleeping is not None:
                self._sleeping.set()

    def heard(self, now_s: float, *, more: bool) -> None:
        """An acknowledgement came in; there is `more` to come."""
        if self._since_s is not None:
            self._deadline.see(now_s - self._since_s)
        self._since_s = now_s if more else None

    async def watch(self) -> None:
        """Raises PeerError when the peer does not answer any more."""
        while True:
            if self._since_s is None:
                self._sleeping = asyncio.Event()
                await self._sleeping.wait()
                self._sleeping = None
                continue
            limit_s, silent_s = self._deadline.limit_s, time.monotonic() - self._since_s
            if silent_s < limit_s:
                await asyncio.sleep(limit_s - silent_s)
                continue
            waited_from_s = self._since_s
            alive = await self._is_alive(limit_s)
            if self._since_s == waited_from_s:  # nothing came meanwhile
                self._missed(time.monotonic() - waited_from_s, alive)

    def _missed(self, silent_s: float, alive: bool) -> None:
        usual_s = self._deadline.usual_s
        if not alive and silent_s >= self._hung_s:
            raise PeerError(f"it does not answer: silent for {silent_s:.0f} s, where {usual_s:.2g} s is usual")
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
