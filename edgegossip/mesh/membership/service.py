"""The listening side of the membership service: who may ask, and what is refused with which reason."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.membership import wire
from edgegossip.mesh.membership.messages import Ack, Nack
from edgegossip.mesh.membership.table import rows_of
from edgegossip.mesh.text import printable
from edgegossip.types import ConfigError, NodeId, PeerError

if TYPE_CHECKING:
    from edgegossip.mesh.membership.agent import Agent

SERVICE = "edgegossip.v1.Membership"


class MembershipService(grpc.GenericRpcHandler):
    """Join and Probe, for one agent."""

    descriptor = pb.DESCRIPTOR  # what reflection tells

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.on_revocations = agent.on_revocations

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        methods = {f"/{SERVICE}/Probe": self._probe, f"/{SERVICE}/Join": self._join}
        method = methods.get(handler_call_details.method)
        return grpc.unary_unary_rpc_method_handler(method) if method else None

    async def _probe(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        agent, who = self._agent, printable(context.peer(), 64)
        try:
            asked = wire.parse_request(request)
            who = f"{printable(asked.sender, 64)} at {self._place(context)}"
            sender = self._check(asked, context)
            answer = await agent.answer(sender, wire.message_of(asked, len(agent.manifest.members)))
        except PeerError as error:
            agent.news.refused(who, str(error))
            return wire.refusal(str(error))
        if isinstance(answer, Ack | Nack):
            return wire.response(answer)
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")
        raise AssertionError

    async def _join(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        agent, who = self._agent, printable(context.peer(), 64)
        try:
            asked = wire.parse_join_request(request)
            who = f"{printable(asked.name, 64)} at {self._place(context)}"
            self._check_joiner(asked, context)
        except PeerError as error:
            agent.news.refused(who, str(error))
            return pb.JoinResponse(refusal=str(error)).SerializeToString()
        if agent.detector is None:  # worth trying again, unlike a refusal
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{agent.name} is only starting")
            raise AssertionError
        agent.was_reached(asked.reached)
        host = addresses.parse(self._place(context), "address of a peer").host
        return pb.JoinResponse(
            manifest=agent.manifest.content,
            signature=agent.manifest.signature,
            seen_as=host,
            rows=wire.rows(rows_of(agent.detector.table)),
            name=agent.name,
        ).SerializeToString()

    def _check(self, asked: pb.ProbeRequest, context: grpc.aio.ServicerContext) -> int:
        """The sender's place among the members. Raises PeerError."""
        agent = self._agent
        if asked.protocol_version != wire.PROTOCOL_VERSION:
            raise PeerError(_other_version(asked.protocol_version, agent.name))
        if asked.run_id != agent.manifest.run_id:
            theirs = asked.run_id[:16].hex() or "without id"
            raise PeerError(f"it belongs to run {theirs}, {agent.name} to run {agent.manifest.run_id.hex()}")
        if asked.receiver != agent.name:
            raise PeerError(f"it looks for {printable(asked.receiver, 64)}, but this is {agent.name}")
        if asked.manifest != agent.manifest.hash:
            raise PeerError(
                f"its manifest of this run is not that of {agent.name} (version {agent.manifest.version}): "
                "start one of the two again with --join"
            )
        if asked.sender not in agent.manifest.members or asked.sender == agent.name:
            raise PeerError(f"{printable(asked.sender, 64)} is no other member of this run")
        self._check_identity(asked.sender, context)
        if agent.detector is None:
            raise PeerError(f"{agent.name} is only starting")
        return agent.manifest.members.index(asked.sender)

    def _check_joiner(self, asked: pb.JoinRequest, context: grpc.aio.ServicerContext) -> None:
        """Raises PeerError."""
        agent = self._agent
        if asked.protocol_version != wire.PROTOCOL_VERSION:
            raise PeerError(_other_version(asked.protocol_version, agent.name))
        if asked.run_id and asked.run_id != agent.manifest.run_id:
            raise PeerError(
                f"it belongs to run {asked.run_id[:16].hex()}, {agent.name} to {agent.manifest.run_id.hex()}"
            )
        if asked.name not in agent.manifest.members:
            members = ", ".join(agent.manifest.members)
            raise PeerError(f"{printable(asked.name, 64)} is not a member of this run; its members are {members}")
        if asked.name == agent.name:
            raise PeerError(f"{agent.name} is the name of the member that was asked: give each board its own name")
        self._check_identity(asked.name, context)

    def _check_identity(self, name: NodeId, context: grpc.aio.ServicerContext) -> None:
        if self._agent.security is None:
            return
        certified = self._agent.security.identify(context)
        if certified != name:
            raise PeerError(f"it says to be {printable(name, 64)}, but its certificate is that of {certified}")

    def _place(self, context: grpc.aio.ServicerContext) -> str:
        """host:port of who called."""
        if self._agent.security is not None:
            return self._agent.security.place(context)
        return unquote(context.peer()).partition(":")[2]


def checked_address(text: str) -> str:
    """An address that somebody named, or nothing when it is none."""
    try:
        return str(addresses.parse(printable(text, 300), "address"))
    except ConfigError:
        return ""


def _other_version(theirs: int, name: NodeId) -> str:
    return (
        f"it speaks membership protocol {theirs}, {name} speaks {wire.PROTOCOL_VERSION}: "
        "install the same edgegossip on both boards"
    )
