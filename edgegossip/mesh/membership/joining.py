"""The first question of a board that wants to join: what is the run? Any member may be asked,
before anything else is running."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.connections import Unreachable, words_of_rpc_error
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.membership import messages
from edgegossip.mesh.membership.manifest import Manifest, parse
from edgegossip.mesh.membership.table import Rows
from edgegossip.types import NodeId, PeerError
from edgegossip.untrusted import printable

if TYPE_CHECKING:
    from edgegossip.mesh.tls_security import TlsSecurity

JOIN = "/edgegossip.v1.Membership/Join"
_CALL_S = 5.0


class RefusedToJoin(PeerError):
    """A member answered that we cannot take part, or what it told cannot be trusted: no use to try
    again."""


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """What a member told us of its run; nothing is verified yet but its form."""

    manifest: Manifest
    rows: Rows
    by: NodeId  # as its certificate says, else as it says itself
    seen_as: str  # the host that it sees us at


def ask(
    seed: addresses.Address, name: NodeId, guard: TlsSecurity | None, run_id: bytes = b"", attempt: int = 0
) -> JoinAnswer:
    """Ask the member that listens at `seed`. Waits for some seconds at most. Raises Unreachable or
    RefusedToJoin."""
    try:
        return asyncio.run(_ask(seed, name, guard, run_id, attempt))
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


async def _ask(
    seed: addresses.Address, name: NodeId, guard: TlsSecurity | None, run_id: bytes, attempt: int
) -> JoinAnswer:
    try:
        where = await addresses.resolve(seed, attempt)
    except PeerError as error:
        raise Unreachable(str(error)) from error
    request = pb.JoinRequest(protocol_version=messages.PROTOCOL_VERSION, name=name, reached=str(seed), run_id=run_id)
    options: list[tuple[str, int | str]] = list(MeshLimits().channel_options())
    target, member = addresses.grpc_target(where), None
    if guard is None:
        opened = grpc.insecure_channel(target, options=options)
    else:
        member = await _who_listens(where, guard)
        await guard.check(member, where)
        options += guard.channel_options(member)
        opened = grpc.secure_channel(target, guard.channel_credentials(member), options=options)
    with opened as channel:  # not grpc.aio: its loop would have to live on
        call = channel.unary_unary(JOIN)
        data = await asyncio.to_thread(call, request.SerializeToString(), timeout=_CALL_S)
    told = messages.parse_join_response(data)
    if told.refusal:
        raise RefusedToJoin(f"{seed} refuses us: {printable(told.refusal, 1000)}")
    manifest = parse(told.manifest, told.signature)
    host = told.seen_as if told.seen_as.isprintable() and len(told.seen_as) < 256 else ""
    by = member or printable(told.name, 64)
    return JoinAnswer(manifest, messages.parse_rows(told.rows, len(manifest.members)), by, host)


async def _who_listens(where: addresses.Address, guard: TlsSecurity) -> NodeId:
    """The name in the certificate of a seed, of which we know the address only: any board of our
    fleet is right."""
    import ssl

    from edgegossip.security import tls

    context = tls.client_context(guard.identity)
    context.check_hostname = False  # the chain is checked; the name is what we ask for
    try:
        async with asyncio.timeout(_CALL_S):
            _, writer = await asyncio.open_connection(where.host, where.port, ssl=context, server_hostname="seed")
    except (ssl.SSLEOFError, ConnectionError) as error:
        raise Unreachable(f"{where}: it ended the connection during the TLS handshake") from error
    except ssl.SSLError as error:
        raise RefusedToJoin(f"{where}: {tls.words(error)}") from error
    try:
        subject, _ = tls.peer_of(writer.get_extra_info("ssl_object").getpeercert(), guard.identity.fleet)
    finally:
        writer.transport.abort()
    if subject.role != "board":
        raise RefusedToJoin(f"{where}: {subject.name} is a {subject.role}, where a board is due")
    return subject.name
