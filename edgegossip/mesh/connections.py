"""Where connections are made, with or without TLS: the server that listens, the channels to peers,
and why one failed.

`TlsSecurity` says who we are, and who a peer is. Without one everything goes in the clear and a
peer is who its Hello says. More services than the mesh's own are added to the server before it
starts, and use `ChannelFactory`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.base import MeshLimits
from edgegossip.threads import THREADS, Threads
from edgegossip.types import HostError, NodeId, PeerError
from edgegossip.untrusted import printable

if TYPE_CHECKING:
    from edgegossip.mesh.tls_security import TlsSecurity


@dataclass(frozen=True, slots=True)
class MeshMachine:
    """Is what a board's mesh runs on: threads, gRPC, and addresses to listen on. A simulator has
    its own."""

    threads: Threads = THREADS
    aio: Any = grpc.aio  # what channels and servers are made with
    listen_address: Callable[..., addresses.Address] = addresses.listen_address


MACHINE = MeshMachine()


class ChannelFactory:
    """Opens connections to peers. The caller closes them."""

    def __init__(
        self,
        limits: MeshLimits,
        security: TlsSecurity | None = None,
        before_disconnect: Callable[[], object] = lambda: None,
        machine: MeshMachine = MACHINE,
    ) -> None:
        self._limits, self._security, self._before_disconnect = limits, security, before_disconnect
        self._aio = machine.aio

    async def check(self, peer: NodeId, where: addresses.Address) -> None:
        """See, before `open`, that it is `peer` who listens there, and exchange revocations. Raises
        PeerError with the reason. Without security there is nothing to see."""
        if self._security is None:
            return
        try:
            await self._security.check(peer, where, self._before_disconnect)
        except TimeoutError as error:
            raise PeerError("it does not answer") from error
        except OSError as error:
            raise PeerError(words_of_os_error(error)) from error

    def open(self, peer: NodeId, where: addresses.Address) -> grpc.aio.Channel:
        """Return a fresh connection to `peer` at a numeric address; nothing is sent before the
        first call. On the loop."""
        target, options = addresses.grpc_target(where), self._limits.channel_options()
        if self._security is None:
            return self._aio.insecure_channel(target, options=options)
        credentials = self._security.channel_credentials(peer)
        return self._aio.secure_channel(target, credentials, options=[*options, *self._security.channel_options(peer)])


def place_of(context: grpc.aio.ServicerContext, security: TlsSecurity | None) -> str:
    """Return host:port of who called."""
    return addresses.of_caller(context.peer()) if security is None else security.place(context)


async def serve(
    where: addresses.Address,
    handlers: Iterable[grpc.GenericRpcHandler],
    limits: MeshLimits,
    security: TlsSecurity | None = None,
    inside: str = "",
    machine: MeshMachine = MACHINE,
) -> tuple[grpc.aio.Server, addresses.Address]:
    """Start a server with these services; return it and where it listens. Raises HostError when it
    cannot listen.

    With `security` (already started, hence `inside`) peers reach it through the TLS front end
    only."""
    server = machine.aio.server(options=limits.server_options(secured=security is not None))
    server.add_generic_rpc_handlers(tuple(handlers))
    try:
        if security is None:
            port = server.add_insecure_port(str(where))
        else:
            port = server.add_secure_port(inside, security.server_credentials())
    except RuntimeError:
        port = 0
    if not port:
        raise HostError(
            f"cannot listen on {where}: the port was taken a moment ago; choose another (0 takes any free one)"
        )
    await server.start()
    if security is None:
        return server, addresses.Address(where.host, port)
    try:
        return server, security.listen(where)
    except HostError:
        await server.stop(None)
        raise


# -- why a connection failed

_ERRNO = re.compile(r"(?:connect|recvmsg|sendmsg|read|write|system)\w*:? ?(?:error: )?([A-Z][A-Za-z ]+?) \(\d+\)")
_WORDS = (
    ("Connection refused", "connection refused"),
    ("Connection reset", "the connection was reset"),
    ("Broken pipe", "the connection was reset"),
    ("No route to host", "no route to host"),
    ("Network is unreachable", "the network is unreachable"),
    ("keepalive", "the connection was silent"),  # it may be we who were stopped
    ("ping timeout", "the connection was silent"),
    ("Connection timed out", "it does not answer"),
    ("timed out", "it does not answer"),
    ("Timeout", "it does not answer"),
    ("Socket closed", "the connection was closed"),
    ("GOAWAY", "the connection was closed"),
    ("RST_STREAM", "the stream was closed"),
    ("Trying to connect an http1.x server", "what listens there is no edgegossip board"),
    ("FRAME_SIZE_ERROR", "what listens there is no edgegossip board"),
    ("Server preface", "what listens there is no edgegossip board"),
    ("settings frame", "what listens there is no edgegossip board"),
)
_AWAY = (
    "connection refused",
    "it does not answer",
    "the connection was silent",
    "no route to host",
    "host is down",
    "the network is unreachable",
)


def words_of_rpc_error(error: grpc.aio.AioRpcError) -> str:
    """Say why a call failed, in a few words such as 'connection refused'."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "what listens there is no edgegossip board"
    if words := _known_words(details):
        return words
    found = _ERRNO.search(details)
    if found:
        return found.group(1).lower()
    return (details.splitlines() or [str(error.code())])[0][:200]


def says_nobody_is_there(cause: str) -> bool:
    """Return whether a cause says no more than that the peer is away."""
    return cause.endswith(_AWAY)


def words_of_os_error(error: OSError) -> str:
    """Say the same of what the operating system reports."""
    number = error.errno or 0
    text = os.strerror(number) if number > 0 and number in errno.errorcode else error.strerror or ""
    return _known_words(text) or text[:200].lower() or "it does not answer"


def _known_words(text: str) -> str:
    """Say it in words that a user knows; empty when we have none."""
    return next((words for pattern, words in _WORDS if pattern.lower() in text.lower()), "")


# -- why a caller is refused, be it at `Hello`, `Probe` or `Join`


def other_version(protocol: str, theirs: int, node: NodeId, ours: int) -> str:
    """Say that it speaks another version of this protocol."""
    return f"it speaks {protocol} protocol {theirs}, {node} speaks {ours}: install the same edgegossip on both boards"


def other_run(theirs: bytes, node: NodeId, ours: bytes) -> str:
    """Say that it belongs to another run."""
    return f"it belongs to run {theirs[:16].hex() or 'without id'}, {node} to run {ours.hex()}"


def other_receiver(wanted: str, node: NodeId) -> str:
    """Say that it looks for another board."""
    return f"it looks for {printable(wanted, 64)}, but this is {node}"


def other_name(said: str, certified: NodeId) -> str:
    """Say that it goes by another name than its certificate does."""
    return f"it says to be {printable(said, 64)}, but its certificate is that of {certified}"
