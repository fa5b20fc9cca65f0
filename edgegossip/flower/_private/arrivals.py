"""The coordinator's TLS port before it is known who is there. Flower's server (uvicorn on asyncio)
takes any number of connections and waits for ever for the head of a request. Here those that have
not asked for anything yet have places, as at the other ports of a fleet, and a time: where places
are full the newcomer stays, and another one goes (limits.ConnectionLimiter). Requests have bounds
of their own: superlink.py."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import gc
import ipaddress
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from edgegossip.security.https import HANDSHAKE_S, SLOWEST_BYTES_PER_S, moved_bytes
from edgegossip.security.limits import ConnectionLimiter, ConnectionLimits, endpoint, host_of
from edgegossip.security.tls import went_away

LIMITS = ConnectionLimits()
TOGETHER = 16  # connections whose memory is given back at a time


class Arrivals:
    """Holds all connections. `refused` hears why a stranger's had to go, and its address. Lives on
    the server's event loop."""

    def __init__(self, refused: Callable[[str, str], None]) -> None:
        self._refused = refused
        self._limiter = ConnectionLimiter(
            LIMITS.connections_per_s,
            LIMITS.connection_burst,
            LIMITS.max_pending_handshakes,
            LIMITS.max_pending_handshakes_per_address,
        )
        self._there: dict[str, Connection] = {}  # by address
        self._over = 0
        self._waiting: list[Connection] = []  # that were never admitted, and have no request here

    def come(self, connection: Connection) -> None:
        """Take in a newcomer, for whom another may have to go."""
        host, now_s = host_of(connection.address), time.monotonic()
        why = "" if _is_own(host) else self._limiter.why_not(host, now_s)
        if why:
            self._end(connection, f"it makes {why}")
            return
        if found := self._limiter.to_evict(host, self._waiting, now_s):
            self._end(found[0], "it connected and asked for nothing, and made room for newer ones")
        self._there[connection.address] = connection
        self._waiting.append(connection)
        self.wait(connection)

    def wait(self, connection: Connection) -> None:
        """Give it the time for what comes next."""
        if self._there.get(connection.address) is connection:
            connection.begin()
            self._look(connection)

    def gone(self, connection: Connection) -> None:
        """Forget it."""
        if connection.timer is not None:
            connection.timer.cancel()
        if self._there.get(connection.address) is connection:
            del self._there[connection.address]
        if connection in self._waiting:
            self._waiting.remove(connection)

    def lost(self, connection: Connection) -> None:
        """Forget it, and now and then give back what such connections held: 300 kB each, in circles
        with the frames of their last request, at which Python looks after hours."""
        self.gone(connection)
        self._over += 1
        if self._over % TOGETHER == 0:
            gc.collect()

    @contextmanager
    def asking(self, client: tuple[str, int] | None) -> Iterator[None]:
        """Hold a request from there open, which has bounds of its own. The next one may come before
        the end of one whose answer has gone."""
        connection = self._there.get(endpoint(*client)) if client else None
        if connection is None:  # without TLS
            yield
            return
        if connection.timer is not None:
            connection.timer.cancel()
        if connection in self._waiting:
            self._waiting.remove(connection)
        connection.requests += 1
        try:
            yield
        finally:
            connection.requests -= 1
            if self._there.get(connection.address) is connection and not connection.requests:
                if not connection.admitted:
                    self._waiting.append(connection)
                self.wait(connection)

    def admit(self, client: tuple[str, int]) -> None:
        """Note that a board asks from there, or the coordinator."""
        if connection := self._there.get(endpoint(*client)):
            connection.admitted = True

    def _look(self, connection: Connection) -> None:
        left_s = connection.left_s()
        if left_s <= 0.0:
            self._end(connection, f"it connected and asked for nothing in {HANDSHAKE_S:g} s")
        else:
            if connection.timer is not None:
                connection.timer.cancel()
            connection.timer = asyncio.get_running_loop().call_later(left_s, self._look, connection)

    def _end(self, connection: Connection, why: str) -> None:
        """End it and say why, unless it is of a board that has done with it."""
        self.gone(connection)
        connection.end()
        if not connection.admitted:
            self._refused(why, connection.address)


class Connection(asyncio.sslproto.SSLProtocol):
    """Is TLS of one connection, as asyncio makes it, which arrivals watch."""

    arrivals: Arrivals
    failed: Callable[[str, str], None]  # hears why a handshake failed, and of whom: asyncio drops it
    address, silent, since_s, admitted, requests = "somebody:0", True, 0.0, False, 0
    timer: asyncio.TimerHandle | None = None
    _tcp: Any = None

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        where = transport.get_extra_info("peername")
        if self._server_side and where:
            self.address, self._tcp = endpoint(where[0], where[1]), transport
            self.arrivals.come(self)

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.arrivals.lost(self)

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.silent = False
        super().buffer_updated(nbytes)

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        if self._server_side and handshake_exc is None:
            self.arrivals.wait(self)
        elif self._server_side and isinstance(handshake_exc, ssl.SSLError) and not went_away(handshake_exc):
            type(self).failed(handshake_exc.reason or str(handshake_exc), self.address)
        super()._on_handshake_complete(handshake_exc)

    def begin(self) -> None:
        """Give what comes next its whole time."""
        self.since_s, self._before = time.monotonic(), self._moved()

    def left_s(self) -> float:
        """Return for how long what comes next may still take."""
        return self.since_s + HANDSHAKE_S + (self._moved() - self._before) / SLOWEST_BYTES_PER_S - time.monotonic()

    def _moved(self) -> int:
        return moved_bytes(self._tcp.get_extra_info("socket")) or 0

    def end(self) -> None:
        """End it at once."""
        if self._tcp is not None:
            self._tcp.abort()


def watch(arrivals: Arrivals, failed: Callable[[str, str], None]) -> None:
    """Have each TLS connection of this process's servers be watched so."""
    Connection.arrivals, Connection.failed = arrivals, staticmethod(failed)
    asyncio.sslproto.SSLProtocol = Connection  # type: ignore[misc]


def _is_own(host: str) -> bool:
    """Return whether this machine itself connects, where a whole fleet and its coordinator may
    be."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
