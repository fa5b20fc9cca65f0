"""The one place where connections are made: the server that listens and the channels to peers, with or without TLS.

`Security` is the seam for credentials: it says who we are, and who a peer is. Without one everything goes in the clear and a
peer is who its Hello says. More services than the mesh's own are added to the server before it starts, and use `Channels`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.limits import MeshLimits
from edgegossip.types import HostError, NodeId


class Security(Protocol):
    """Credentials of one node. All methods are called on the transport's loop and do not wait."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of the listening side."""

    def channel_credentials(self, peer: NodeId) -> grpc.ChannelCredentials:
        """Of a connection that we open to `peer`."""

    def channel_options(self, peer: NodeId) -> list[tuple[str, int | str]]:
        """Further gRPC options of that connection, such as the name that its certificate must bear."""

    def identify(self, context: grpc.aio.ServicerContext) -> NodeId:
        """Who called, by its certificate. Raises PeerError with the reason when it may not come in."""


class Channels:
    """Opens connections to peers. The caller closes them."""

    def __init__(self, limits: MeshLimits, security: Security | None = None) -> None:
        self._limits, self._security = limits, security

    def open(self, peer: NodeId, where: addresses.Address) -> grpc.aio.Channel:
        """A fresh connection to `peer` at a numeric address; nothing is sent before the first call. On the loop."""
        target, options = addresses.grpc_target(where), self._limits.channel_options()
        if self._security is None:
            return grpc.aio.insecure_channel(target, options=options)
        credentials = self._security.channel_credentials(peer)
        return grpc.aio.secure_channel(target, credentials, options=[*options, *self._security.channel_options(peer)])


async def serve(
    where: addresses.Address,
    handlers: Iterable[grpc.GenericRpcHandler],
    limits: MeshLimits,
    security: Security | None = None,
) -> tuple[grpc.aio.Server, addresses.Address]:
    """A started server with these services, and where it listens. Raises HostError when it cannot listen."""
    server = grpc.aio.server(options=limits.server_options())
    server.add_generic_rpc_handlers(tuple(handlers))
    try:
        if security is None:
            port = server.add_insecure_port(str(where))
        else:
            port = server.add_secure_port(str(where), security.server_credentials())
    except RuntimeError:
        port = 0
    if not port:
        raise HostError(
            f"cannot listen on {where}: the port was taken a moment ago; choose another (0 takes any free one)"
        )
    await server.start()
    return server, addresses.Address(where.host, port)
