"""Connections of the membership service, one a member."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from edgegossip.mesh import address as addresses
from edgegossip.mesh.connections import Channels, Security
from edgegossip.mesh.limits import MeshLimits
from edgegossip.types import NodeId, PeerError

# A connection that was not used for so long is closed: the listening end would go on asking whether we are there. Longer than two
# that watch each other are ever silent, however slow they are.
_IDLE_S = 14.0
PROBE = "/edgegossip.v1.Membership/Probe"


@dataclass(slots=True)
class _Line:
    address: str = ""
    channel: Any = None
    method: Any = None
    attempts: int = 0
    used_s: float = 0.0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class Lines:
    """Calls members; opens and closes connections for that. On the loop."""

    def __init__(self, limits: MeshLimits, security: Security | None) -> None:
        self._channels, self._security = Channels(limits, security), security
        self._lines: dict[NodeId, _Line] = {}

    async def call(self, peer: NodeId, address: str, request: bytes) -> bytes:
        """One Probe. Raises PeerError, or gRPC's errors; then the connection is closed."""
        if not address:
            raise PeerError("its address is not known yet")
        line = self._lines.setdefault(peer, _Line())
        line.used_s = time.monotonic()
        await self._shut_idle(line.used_s - _IDLE_S)
        async with line.opening:
            if line.channel is None or line.address != address or self._revoked(peer):
                await self._open(line, peer, address)
        channel = line.channel
        try:
            data = bytes(await line.method(request))
            if self._revoked(peer):  # the list came while we waited
                raise PeerError("its certificate was revoked")
            return data
        except BaseException:
            if line.channel is channel:
                await self._shut(line)
            raise

    async def drop_revoked(self) -> None:
        """Our revocation list is a newer one: whoever is on it is cut off."""
        for peer, line in list(self._lines.items()):
            if self._revoked(peer):
                await self._shut(line)

    def _revoked(self, peer: NodeId) -> bool:
        return self._security is not None and self._security.revoked(peer)

    async def close(self) -> None:
        for line in list(self._lines.values()):  # others come while we wait
            await self._shut(line)

    async def _shut_idle(self, before_s: float) -> None:
        for line in list(self._lines.values()):
            if line.used_s < before_s and line.channel is not None and not line.opening.locked():
                await self._shut(line)

    async def _open(self, line: _Line, peer: NodeId, address: str) -> None:
        await self._shut(line)
        line.attempts += 1
        where = await addresses.resolve(addresses.parse(address, f"address of {peer}"), line.attempts)
        await self._channels.check(peer, where)
        line.channel = self._channels.open(peer, where)
        line.method, line.address = line.channel.unary_unary(PROBE), address

    async def _shut(self, line: _Line) -> None:
        channel, line.channel = line.channel, None
        if channel is not None:
            with suppress(Exception):  # of gRPC's own: what is broken is closed
                await channel.close()
