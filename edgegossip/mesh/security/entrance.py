"""Before the door: the port itself, and how many strangers may stand there at a time."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from edgegossip.mesh.address import Address
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.security.rates import Buckets
from edgegossip.types import HostError

_HESITATES_S = 0.25  # a caller has to speak first, and does so at once
_LISTENS_LONGER = 1.5  # than keepalive_s, after which the other end asks
_QUESTIONS = 2  # of the kernel, before it gives up a connection
_LONGEST_S = 32767  # that the kernel takes
_IPV4_MAPPED = bytes(10) + b"\xff\xff"


def listen(where: Address) -> socket.socket:
    """A listening socket that does not block. Raises HostError."""
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where.host, where.port))
        listener.listen(256)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno or 0).lower()
        raise HostError(f"cannot listen on {where}: {reason}; choose another port (0 takes any free one)") from error
    return listener


def ready(connection: socket.socket, limits: MeshLimits) -> None:
    """An accepted connection, before anything is read. The kernel asks a silent one whether its host is there, as gRPC does from
    the other end, and gives it up when it was not answered for keepalive_timeout_s: that wakes no process. Raises OSError."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; elsewhere the system's own times count
        idle_s = _seconds(_LISTENS_LONGER * limits.keepalive_s)
        pause_s = _seconds(limits.keepalive_timeout_s / _QUESTIONS)
        # The kernel asks nothing while something is under way, which it would repeat for a quarter of an hour. That goes for
        # bytes that a stopped process does not take, too, whose gRPC would cut us off as soon.
        lost_ms = 1000 * (idle_s + _QUESTIONS * pause_s)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        for name, value in zip(names, (idle_s, pause_s, _QUESTIONS, lost_ms), strict=True):
            connection.setsockopt(socket.IPPROTO_TCP, name, value)


def _seconds(wanted_s: float) -> int:
    return min(_LONGEST_S, max(1, round(wanted_s)))


class Stranger(Protocol):
    """Somebody that has not finished the TLS handshake."""

    address: str  # host:port
    deadline_s: float  # handshake_s after it came

    @property
    def silent(self) -> bool:
        """Whether it has not asked for anything yet."""


S = TypeVar("S", bound=Stranger)


class Crowd:
    """The limits of who may be listened to at all. Where it is full newcomers are not turned away: strangers that hold every
    place would keep out those with a certificate, who need theirs for a moment only."""

    def __init__(self, limits: MeshLimits) -> None:
        self._limits = limits
        self._rates = Buckets(limits.connections_per_s, limits.connection_burst)

    def why_not(self, host: str, now_s: float) -> str:
        """Why a newcomer from this host is not even listened to, empty when it is."""
        if not self._rates.take(host, now_s):
            return f"more than {self._limits.connections_per_s:g} connections a second"
        return ""

    def who_makes_way(self, host: str, strangers: Sequence[S], now_s: float) -> tuple[S, str] | None:
        """Who has to go before a newcomer from this host may stay, and why; None while there is room. It is one from the same
        address, if that has too many: one that hesitates, or else one from the network that has most, the oldest first."""
        limits, own = self._limits, [s for s in strangers if host_of(s.address) == host]
        if len(own) >= limits.max_strangers_per_address:
            return self._first(own, now_s), f"{len(own)} of its connections have not finished the TLS handshake"
        if len(strangers) < limits.max_strangers:
            return None
        return self._first(strangers, now_s), f"{len(strangers)} connections have not finished the TLS handshake"

    def _first(self, crowd: Sequence[S], now_s: float) -> S:
        networks = Counter(network_of(host_of(s.address)) for s in crowd)

        def order(s: S) -> tuple[bool, int, float]:
            hesitates = s.silent and now_s - (s.deadline_s - self._limits.handshake_s) > _HESITATES_S
            return not hesitates, -networks[network_of(host_of(s.address))], s.deadline_s

        return min(crowd, key=order)


def host_of(address: str) -> str:
    """Of host:port, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def network_of(host: str) -> bytes:
    """What one machine may have many addresses of: the first 64 bits in IPv6 (RFC 4291, 2.5.4), nothing less than all in IPv4."""
    host = host.partition("%")[0]
    if ":" not in host:
        return host.encode()
    address = socket.inet_pton(socket.AF_INET6, host)
    return socket.inet_ntoa(address[12:]).encode() if address.startswith(_IPV4_MAPPED) else address[:8]
