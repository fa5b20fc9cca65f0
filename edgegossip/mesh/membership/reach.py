"""How members reach each other: the address that is our own, where nobody told it, and a connection
to each other member."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from edgegossip.mesh import address as addresses
from edgegossip.mesh.address import Address
from edgegossip.mesh.connections import Channels, Security
from edgegossip.mesh.limits import MeshLimits
from edgegossip.types import ConfigError, NodeId, PeerError

_UNKNOWN, _LOOPBACK, _SAID, _OURS = range(4)

# A connection that was not used for so long is closed: the listening end would go on asking whether
# we are there. Longer than two that watch each other are ever silent, however slow they are.
_IDLE_S = 14.0
PROBE = "/edgegossip.v1.Membership/Probe"


class OwnAddress:
    """What others reach us at, from the worst guess to the surest.

    A board that listens on all addresses of its machine does not know which of them the others can
    use. Who joins through it says which one it reached. A board on the same machine says 127.0.0.1,
    which is of no use to anybody else; a tunnel or a forwarded port has an address that this
    machine does not have. So a better guess replaces a worse one, and never the other way round.

    `address` is what we have so far, empty for nothing. `port`: we listen there on all addresses of
    this machine; None: our address is certain. `is_own` tells whether a numeric host is an address
    of this machine."""

    def __init__(self, address: str, port: int | None = None, is_own: Callable[[str], bool] | None = None) -> None:
        self.address, self._port, self._is_own = address, port, is_own or has_address

    def reached(self, at: str, caller: str) -> bool:
        """Somebody at the host `caller` reached us, it says, at `at`. Whether that is our address
        from now on."""
        where = _parse(at)
        if where is None or (_is_loopback(where) and not _is_loopback(Address(caller, 1))):
            return False
        return self._take(where)

    def beside(self, others: Iterable[str]) -> bool:
        """The addresses of other members: one on this machine has a host that is ours, too. Whether
        it is from now on."""
        if self._port is None or self._rank(_parse(self.address)) > _LOOPBACK:
            return False
        found = (Address(where.host, self._port) for text in others if (where := _parse(text)) is not None)
        return any(self._rank(where) == _OURS and self._take(where) for where in found)

    def _take(self, where: Address) -> bool:
        if self._port is None or self._rank(where) <= self._rank(_parse(self.address)):
            return False
        self.address = str(where)
        return True

    def _rank(self, where: Address | None) -> int:
        if where is None:
            return _UNKNOWN
        if _is_loopback(where):
            return _LOOPBACK
        return _OURS if where.is_numeric and where.port == self._port and self._is_own(where.host) else _SAID


def has_address(host: str) -> bool:
    """Whether a numeric address is one of this machine's: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _is_loopback(where: Address) -> bool:
    return where.host == "localhost" or where.is_loopback


def _parse(text: str) -> Address | None:
    try:
        return addresses.parse(text, "address") if text else None
    except ConfigError:
        return None


@dataclass(slots=True)
class _Connection:
    address: str = ""
    channel: Any = None
    method: Any = None
    attempts: int = 0
    used_s: float = 0.0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class Connections:
    """Calls members; opens and closes connections for that. On the loop."""

    def __init__(self, limits: MeshLimits, security: Security | None) -> None:
        self._channels, self._security = Channels(limits, security), security
        self._connections: dict[NodeId, _Connection] = {}

    async def call(self, peer: NodeId, address: str, request: bytes) -> bytes:
        """One Probe. Raises PeerError, or gRPC's errors; then the connection is closed."""
        if not address:
            raise PeerError("its address is not known yet")
        connection = self._connections.setdefault(peer, _Connection())
        connection.used_s = time.monotonic()
        await self._shut_idle(connection.used_s - _IDLE_S)
        async with connection.opening:
            if connection.channel is None or connection.address != address or self._revoked(peer):
                await self._open(connection, peer, address)
        channel = connection.channel
        try:
            data = bytes(await connection.method(request))
            if self._revoked(peer):  # the list came while we waited
                raise PeerError("its certificate was revoked")
            return data
        except BaseException:
            if connection.channel is channel:
                await self._shut(connection)
            raise

    async def drop_revoked(self) -> None:
        """Our revocation list is a newer one: whoever is on it is cut off."""
        for peer, connection in list(self._connections.items()):
            if self._revoked(peer):
                await self._shut(connection)

    def _revoked(self, peer: NodeId) -> bool:
        return self._security is not None and self._security.revoked(peer)

    async def close(self) -> None:
        for connection in list(self._connections.values()):  # others come while we wait
            await self._shut(connection)

    async def _shut_idle(self, before_s: float) -> None:
        for connection in list(self._connections.values()):
            if connection.used_s < before_s and connection.channel is not None and not connection.opening.locked():
                await self._shut(connection)

    async def _open(self, connection: _Connection, peer: NodeId, address: str) -> None:
        await self._shut(connection)
        connection.attempts += 1
        where = await addresses.resolve(addresses.parse(address, f"address of {peer}"), connection.attempts)
        await self._channels.check(peer, where)
        connection.channel = self._channels.open(peer, where)
        connection.method, connection.address = connection.channel.unary_unary(PROBE), address

    async def _shut(self, connection: _Connection) -> None:
        channel, connection.channel = connection.channel, None
        if channel is not None:
            with suppress(Exception):  # of gRPC's own: what is broken is closed
                await channel.close()
