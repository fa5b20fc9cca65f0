"""The listening side of the membership service: who may ask, and what is refused with which reason."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.channels import CallerGone
from edgegossip.mesh.membership import wire
from edgegossip.mesh.membership.messages import Ack, Nack
from edgegossip.mesh.membership.table import rows_of
from edgegossip.mesh.text import printable
from edgegossip.security.limits import RequestLimiter, Verdict
from edgegossip.types import ConfigError, DecodeError, NodeId, PeerError

if TYPE_CHECKING:
    from edgegossip.mesh.membership.agent import Agent

SERVICE = "edgegossip.v1.Membership"
# Of one member. News that goes on and on makes some 7 a second, errands for others 5 more: what a member cannot be made to do by
# others is a reason to refuse it, and no strike until it has gone on in spite of many refusals.
CALLS_PER_S, CALL_BURST = 20.0, 300.0
_JOIN_TOKENS = 5.0  # a question to join counts as so many: its answer is the whole manifest


class Misbehaviour(PeerError):
    """What no board of the fleet does that works as it should."""


class MembershipService(grpc.GenericRpcHandler):
    """Join and Probe, for one agent."""

    descriptor = pb.DESCRIPTOR  # what reflection tells

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.on_revocations = agent.on_revocations
        self._questions = RequestLimiter(CALLS_PER_S, CALL_BURST)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        methods = {f"/{SERVICE}/Probe": self._probe, f"/{SERVICE}/Join": self._join}
        method = methods.get(handler_call_details.method)
        return grpc.unary_unary_rpc_method_handler(method) if method else None

    async def _probe(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        agent, place = self._agent, self._place(context)
        who = place
        try:
            certified = self._certified(context, 1.0)
            who = f"{certified} at {place}" if certified else place
            asked = wire.parse_request(request)
            who = f"{printable(asked.sender, 64)} at {place}"
            _check_name(asked.sender, certified)
            sender = self._check(asked)
            answer = await agent.answer(sender, wire.message_of(asked, len(agent.manifest.members)))
        except PeerError as error:
            return wire.refusal(self._refuse(who, error, context))
        if isinstance(answer, Ack | Nack):
            return wire.response(answer)
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")
        raise AssertionError

    async def _join(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        agent, place = self._agent, self._place(context)
        who = place
        try:
            certified = self._certified(context, _JOIN_TOKENS)
            who = f"{certified} at {place}" if certified else place
            asked = wire.parse_join_request(request)
            who = f"{printable(asked.name, 64)} at {place}"
            _check_name(asked.name, certified)
            self._check_joiner(asked)
        except PeerError as error:
            return pb.JoinResponse(refusal=self._refuse(who, error, context)).SerializeToString()
        if agent.detector is None:  # worth trying again, unlike a refusal
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{agent.name} is only starting")
            raise AssertionError
        host = addresses.parse(place, "address of a peer").host
        agent.was_reached(asked.reached, host)
        return pb.JoinResponse(
            manifest=agent.manifest.content,
            signature=agent.manifest.signature,
            seen_as=host,
            rows=wire.rows(rows_of(agent.detector.table)),
            name=agent.name,
        ).SerializeToString()

    def _certified(self, context: grpc.aio.ServicerContext, tokens: float) -> NodeId | None:
        """Who calls, by its certificate, before anything that it says is looked at; None without certificates, where nobody
        can be blamed by name. Raises PeerError for who asks too often, Misbehaviour for who insists, and CallerGone."""
        if self._agent.security is None:
            return None
        try:
            certified = self._agent.security.identify(context)
        except CallerGone:
            raise
        except PeerError as error:
            raise Misbehaviour(str(error)) from error
        verdict = self._questions.take(certified, time.monotonic(), tokens)
        if verdict is not Verdict.ALLOWED:
            reason = f"it asks more than {CALLS_PER_S:g} times a second"
            raise PeerError(reason) if verdict is Verdict.TOO_OFTEN else Misbehaviour(reason)
        return certified

    def _refuse(self, who: str, error: PeerError, context: grpc.aio.ServicerContext) -> str:
        """The reason, which the log hears too. Who broke the protocol is kept out for a while."""
        self._agent.news.refused(who, str(error))
        if self._agent.security is not None and isinstance(error, DecodeError | Misbehaviour):
            self._agent.security.misbehaved(context, str(error))
        return str(error)

    def _check(self, asked: pb.ProbeRequest) -> int:
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
        if agent.detector is None:
            raise PeerError(f"{agent.name} is only starting")
        return agent.manifest.members.index(asked.sender)

    def _check_joiner(self, asked: pb.JoinRequest) -> None:
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

    def _place(self, context: grpc.aio.ServicerContext) -> str:
        """host:port of who called."""
        if self._agent.security is not None:
            return self._agent.security.place(context)
        return addresses.of_caller(context.peer())


def _check_name(said: NodeId, certified: NodeId | None) -> None:
    """Raises Misbehaviour."""
    if certified not in (None, said):
        raise Misbehaviour(f"it says to be {printable(said, 64)}, but its certificate is that of {certified}")


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
