"""The calling side of membership: the first question of a board that wants to join
(`request_join`), the connections over which members probe each other, and the address that is our
own, where nobody told it."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.address import Address
from edgegossip.mesh.base import MeshLimits, Unreachable, loop_s
from edgegossip.mesh.connections import MACHINE, ChannelFactory, MeshMachine, words_of_rpc_error
from edgegossip.mesh.membership import wire
from edgegossip.mesh.membership.manifest import Manifest, parse
from edgegossip.mesh.membership.protocol import Rows
from edgegossip.types import ConfigError, NodeId, PeerError
from edgegossip.untrusted import printable

if TYPE_CHECKING:
    from edgegossip.mesh.tls_security import TlsSecurity

_CALL_S = 5.0  # bound of a question to join

# A connection that was not used for so long is closed: the listening end would go on asking whether
# we are there. Longer than two that watch each other are ever silent, however slow they are.
_IDLE_S = 14.0


# -- joining


class RefusedToJoin(PeerError):
    """Raised when a member answered that we cannot take part, or what it told cannot be trusted: no
    use to try again."""


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """Holds what a member told us of its run; nothing is verified yet but its form."""

    manifest: Manifest
    rows: Rows
    by: NodeId  # as its certificate says, else as it says itself
    seen_as: str  # the host that it sees us at


def request_join(
    seed: addresses.Address, name: NodeId, security: TlsSecurity | None, run_id: bytes = b"", attempt: int = 0
) -> JoinAnswer:
    """Ask the member that listens at `seed` what its run is. Any member may be asked, before
    anything else is running. Waits for some seconds at most; `attempt` counts the tries, which take
    turns where a name has several addresses. Raises Unreachable or RefusedToJoin."""
    try:
        return asyncio.run(_request_join(seed, name, security, run_id, attempt))
    except (TimeoutError, OSError) as error:
        number = getattr(error, "errno", None)  # asyncio's own text has the address in it once more
        raise Unreachable(f"{seed}: {os.strerror(number).lower() if number else 'it does not answer'}") from error
    except grpc.RpcError as error:
        raise Unreachable(f"{seed}: {words_of_rpc_error(error)}") from error
    except RefusedToJoin:
        raise
    except Unreachable as error:
        raise error if str(error).startswith(str(seed)) else Unreachable(f"{seed}: {error}") from error
    except PeerError as error:
        raise RefusedToJoin(f"{seed}: {error}") from error


async def _request_join(
    seed: addresses.Address, name: NodeId, security: TlsSecurity | None, run_id: bytes, attempt: int
) -> JoinAnswer:
    try:
        where = await addresses.resolve(seed, attempt)
    except PeerError as error:
        raise Unreachable(str(error)) from error
    request = pb.JoinRequest(protocol_version=wire.PROTOCOL_VERSION, name=name, reached=str(seed), run_id=run_id)
    options: list[tuple[str, int | str]] = list(MeshLimits().channel_options())
    target, member = addresses.grpc_target(where), None
    if security is None:
        opened = grpc.insecure_channel(target, options=options)
    else:
        member = await security.check(None, where)
        options += security.channel_options(member)
        opened = grpc.secure_channel(target, security.channel_credentials(member), options=options)
    with opened as channel:  # not grpc.aio: its loop would have to live on
        call = channel.unary_unary(wire.JOIN)
        data = await asyncio.to_thread(call, request.SerializeToString(), timeout=_CALL_S)
    told = wire.parse(pb.JoinResponse, data)
    if told.refusal:
        raise RefusedToJoin(f"{seed} refuses us: {printable(told.refusal, 1000)}")
    manifest = parse(told.manifest, told.signature)
    host = told.seen_as if told.seen_as.isprintable() and len(told.seen_as) < 256 else ""
    by = member or printable(told.name, 64)
    return JoinAnswer(manifest, wire.parse_rows(told.rows, len(manifest.members)), by, host)


# -- our own address


class OwnAddress:
    """Finds out what others reach us at.

    A board that listens on all addresses of its machine does not know which of them the others can
    use. Who joins through it says which one it reached. A board on the same machine says 127.0.0.1,
    which is of no use to anybody else; a tunnel or a liar says what this machine does not have. So
    a better guess replaces a worse one, and never the other way round.

    `address` is what we have so far, empty for nothing."""

    def __init__(self, address: str, *, certain: bool) -> None:
        self.address, self._certain = address, certain

    def reached(self, at: str, caller: str) -> bool:
        """Take in that somebody at the host `caller` reached us, it says, at `at`. Return whether
        that is our address from now on."""
        where = _parse_address(at)
        if self._certain or where is None or (where.is_local and not Address(caller, 1).is_local):
            return False
        if _rank(where) <= _rank(_parse_address(self.address)):
            return False
        self.address = str(where)
        return True


def _rank(where: Address | None) -> int:
    if where is None or where.is_local:
        return 0 if where is None else 1
    return 3 if where.is_numeric and _has_address(where.host) else 2


def _has_address(host: str) -> bool:
    """Return whether a numeric address is one of this machine's: only then can a socket be bound to
    it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _parse_address(text: str) -> Address | None:
    try:
        return addresses.parse(text, "address") if text else None
    except ConfigError:
        return None


# -- connections


@dataclass(slots=True)
class _Connection:
    address: str = ""
    channel: Any = None
    method: Any = None
    attempts: int = 0
    used_s: float = 0.0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class Connections:
    """Calls members, and opens and closes connections for that. A connection is opened when it is
    needed and kept while it is used, without keepalive pings of its own: the probes are that. One
    that fails is closed, because TCP would be slow to try again. On the loop."""

    def __init__(self, limits: MeshLimits, security: TlsSecurity | None, machine: MeshMachine = MACHINE) -> None:
        self._channels, self._security = ChannelFactory(limits, security, machine=machine), security
        self._connections: dict[NodeId, _Connection] = {}

    async def call(self, peer: NodeId, address: str, request: bytes) -> bytes:
        """Make one Probe call. Raises PeerError, or gRPC's errors; then the connection is
        closed."""
        if not address:
            raise PeerError("its address is not known yet")
        connection = self._connections.setdefault(peer, _Connection())
        connection.used_s = loop_s()
        await self._shut_idle(connection.used_s - _IDLE_S)
        async with connection.opening:
            is_new = connection.channel is None or connection.address != address or self._revoked(peer)
            if is_new:
                await self._open(connection, peer, address)
        channel = connection.channel
        try:
            data = bytes(await connection.method(request))
            if self._revoked(peer):  # the list came while we waited
                raise PeerError("its certificate was revoked")
            return data
        except BaseException as error:
            if connection.channel is channel:
                await self._shut(connection)
            # It may have ended since it was used, with the peer's process: another may be there.
            gone = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE
            if is_new or not gone:
                raise
        return await self.call(peer, address, request)

    async def drop_revoked(self) -> None:
        """Cut off whoever is on our revocation list, which is a newer one."""
        for peer, connection in list(self._connections.items()):
            if self._revoked(peer):
                await self._shut(connection)

    def _revoked(self, peer: NodeId) -> bool:
        return self._security is not None and self._security.revoked(peer)

    async def close(self) -> None:
        """Close every connection."""
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
        connection.method, connection.address = connection.channel.unary_unary(wire.PROBE), address

    async def _shut(self, connection: _Connection) -> None:
        channel, connection.channel = connection.channel, None
        if channel is not None:
            with suppress(Exception):  # of gRPC's own: what is broken is closed
                await channel.close()
