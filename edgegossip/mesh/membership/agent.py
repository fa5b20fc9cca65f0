"""One member of one run, on the mesh's port: the detector's calls become messages, messages calls,
and what is found out events.

`Agent` drives the detector, asks others for it (`client.Connections`) and answers what it is asked.
`EventDelegate` tells the log and the node what the detector found out. `MembershipService` is the
listening side: who may ask, and what is refused with which reason. Everything happens on the
transport's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import GenericRpcHandler, grpc
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.base import CallerGone, MeshLimits, Moved, TransportEvent, Verdict, loop_s
from edgegossip.mesh.connections import (
    MACHINE,
    MeshMachine,
    other_name,
    other_receiver,
    other_run,
    other_version,
    place_of,
)
from edgegossip.mesh.membership import wire
from edgegossip.mesh.membership.client import Connections, OwnAddress
from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.manifest import Manifest
from edgegossip.mesh.membership.protocol import (
    Ack,
    Changed,
    MemberEntry,
    Nack,
    Output,
    Ping,
    PingReq,
    Refuted,
    Rival,
    Rows,
    SendMessage,
    Stalled,
    Status,
    SwimSettings,
    rows_of,
)
from edgegossip.security.limits import RateLimitedLog, TokenBuckets, network_of
from edgegossip.types import DecodeError, EdgegossipError, NodeId, PeerError
from edgegossip.untrusted import Refusal, printable

if TYPE_CHECKING:
    from edgegossip.mesh.tls_security import TlsSecurity
    from edgegossip.security.identity import Identity

# Of one member. News that goes on and on makes 5 a second, probes for others 5 more: what a
# member cannot be made to do by others is a reason to refuse it, and no strike until it has gone on
# in spite of many refusals.
CALLS_PER_S, CALL_BURST, PATIENCE = 20.0, 300.0, 100.0
_JOIN_TOKENS = 5.0  # a question to join counts as so many: its answer is the whole manifest
_CALL_S = 5.0  # bound of one call; the detector's own times are shorter
_LEAVE_S = 1.0
_TELL_STALL_S = 5.0
_TROUBLE_S = 600.0  # between two lines about the same trouble with a member
# Lines about one member, whatever it does or others say of it. One that really comes and goes takes
# longer over it.
_COMES_S, _COMES_BURST = 4.0, 32.0


class Agent:
    """Takes part in one run as one member. `service` goes into the transport's services, then
    `start` begins; `known` is what a member told about the others, and `seeds` where we reached
    members ourselves. `post` takes Verdict and Moved. `log`, thread-safe, takes sentences: a kind
    (member-here, member-dead, member-left, refused or notice), the text, the peer, and the fields
    of a Refusal."""

    def __init__(
        self,
        manifest: Manifest,
        name: NodeId,
        post: Callable[[TransportEvent], None],
        log: Callable[..., None],
        *,
        known: Rows = (),
        seeds: Mapping[NodeId, str] | None = None,
        security: TlsSecurity | None = None,
        settings: SwimSettings | None = None,
        machine: MeshMachine = MACHINE,
    ) -> None:
        self.manifest, self.name, self.security = manifest, name, security
        self.settings = settings or SwimSettings()
        self.me = manifest.members.index(name)
        self.detector: Detector | None = None
        self.service = MembershipService(self)
        self.known = known
        self._seeds = {
            manifest.members.index(peer): at for peer, at in (seeds or {}).items() if peer in manifest.members
        }
        self._where = OwnAddress("", certain=True)
        self.events = EventDelegate(manifest.members, self.me, post, log)
        self._random = machine.threads.random
        self._connections = Connections(replace(MeshLimits(), keepalive_s=3600.0), security, machine)
        self._questions: dict[tuple[int, int], asyncio.Future[Ack | Nack]] = {}  # of others, by sender and number
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False

    # -- from start to stop

    async def start(self, address: str, *, certain: bool = True) -> None:
        """Take part, reachable at this address; empty: not known yet. Not `certain`: it is a
        guess."""
        self._where = OwnAddress(address, certain=certain)
        session, random = self._random.getrandbits(63), Random(self._random.getrandbits(64))
        self.detector = Detector(
            len(self.manifest.members), self.me, address, session, random, loop_s(), self.settings, self.known
        )
        self.events.begin(self.detector.table)
        self._arm()

    async def stop(self) -> None:
        """Leave on purpose: tell a few members, for at most a second."""
        if self.detector is None:
            return
        before = set(self._tasks)
        self.act(lambda detector, now_s: detector.leave(now_s))
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        telling = self._tasks - before
        if telling:
            await asyncio.wait(telling, timeout=_LEAVE_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LEAVE_S)
        await self._connections.close()

    def act(self, what: Callable[[Detector, float], list[Output]]) -> None:
        """Let the detector take something in, and do what it asks for."""
        if self.detector is None or self._ending:
            return
        try:
            self._perform(what(self.detector, loop_s()))
        finally:
            self._arm()

    def suspect(self, peer: NodeId) -> None:
        """Probe this peer now: the transport lost it."""
        self.act(lambda detector, now_s: detector.suspect(self.manifest.members.index(peer), now_s))

    def mark_alive(self, peer: NodeId) -> None:
        """Take in that the transport reached this peer: it is there, whatever was said."""
        self.act(lambda detector, now_s: detector.mark_alive(self.manifest.members.index(peer), now_s))

    def note_heard(self, peer: NodeId) -> None:
        """Take in that this peer answered just now, elsewhere than here."""
        self.act(lambda detector, now_s: detector.note_heard(self.manifest.members.index(peer), now_s))

    async def on_revocations(self) -> None:
        """Evict who is on our revocation list, which is a newer one, until it shows a better
        certificate."""
        for k, peer in enumerate(self.manifest.members):
            if k != self.me and self._revoked(peer):
                self.act(lambda detector, now_s, k=k: detector.evict(k, now_s))  # type: ignore[misc]
        await self._connections.drop_revoked()
        if self.security is not None:
            # Our own certificate cannot be read now: others sign, or the next list makes us.
            with suppress(EdgegossipError):
                self.manifest = await asyncio.to_thread(_countersigned, self.manifest, self.security.identity)

    def _revoked(self, peer: NodeId) -> bool:
        return self.security is not None and self.security.revoked(peer)

    def was_reached(self, at: str, caller: str) -> None:
        """Take in that somebody at the host `caller` says that it reached us at this address."""
        if self._where.reached(printable(at, 300), caller):
            self.act(lambda detector, now_s: detector.move(self._where.address, now_s))

    # -- questions of others

    async def answer(self, sender: int, message: Ping | PingReq) -> Ack | Nack | None:
        """Return the detector's answer; None when there is nothing to say in time."""
        key = sender, message.number
        future: asyncio.Future[Ack | Nack] = asyncio.get_running_loop().create_future()
        self._questions[key] = future
        try:
            self.act(lambda detector, now_s: detector.receive(sender, message, now_s))
            async with asyncio.timeout(_CALL_S):
                return await future
        except TimeoutError:
            return None
        finally:
            self._questions.pop(key, None)

    # -- what the detector asks for

    def _arm(self) -> None:
        """Call the detector when it wants to be called. A timer that is due stays: messages that
        keep coming may not put it off again and again, and those that are there already may be read
        before it."""
        now_s = loop_s()
        if self._timer is not None:
            if (
                self.detector is not None
                and max(self._timer.when(), self.detector.wake_s) <= now_s
                and not self._ending
            ):
                return
            self._timer.cancel()
        if self.detector is not None and not self._ending:
            wake_s = max(self.detector.wake_s, now_s + 0.001)
            self._timer = asyncio.get_running_loop().call_at(wake_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.act(lambda detector, now_s: detector.tick(now_s))

    def _perform(self, outputs: list[Output]) -> None:
        for output in outputs:
            if not isinstance(output, SendMessage):
                assert self.detector is not None
                self.events.notify(output, self.detector.table)
            elif isinstance(output.message, Ack | Nack):
                future = self._questions.get((output.to, output.message.number))
                if future is not None and not future.done():
                    future.set_result(output.message)
            else:
                self._spawn(self._ask(output.to, output.message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, to: int, message: Ping | PingReq) -> None:
        """Make one call; its answer, or that there is none, goes to the detector."""
        assert self.detector is not None
        peer, address = self.manifest.members[to], self.detector.table[to].address
        try:
            told = await self._ask_somewhere(to, address, message)
        except (PeerError, grpc.RpcError, grpc.aio.BaseError, OSError, TimeoutError, asyncio.CancelledError) as error:
            if self._ending:
                raise
            if isinstance(error, PeerError):
                self.events.trouble(to, address, str(error))
            if self._revoked(peer):
                self.act(lambda detector, now_s: detector.evict(to, now_s))
            self.act(lambda detector, now_s: detector.failed(to, message.number, now_s))
            return
        self.act(lambda detector, now_s: detector.receive(to, told, now_s))

    async def _ask_somewhere(self, to: int, address: str, message: Ping | PingReq) -> Ack | Nack:
        """Ask where it answered last, whatever others say of its address since; if that is of no
        use, at its address, and where we reached it when we joined. Raises PeerError and gRPC's
        errors."""
        places = [self.events.places.get(to, address), address, self._seeds.get(to, address)]
        *first, last = dict.fromkeys(places)
        for place in first:
            try:
                told = await self._ask_at(to, place, message)
            except (PeerError, grpc.RpcError, grpc.aio.BaseError, OSError, TimeoutError):
                if self._ending:
                    raise
            else:
                self.events.answered(to, place)
                return told
        told = await self._ask_at(to, last, message)
        self.events.answered(to, last)
        return told

    async def _ask_at(self, to: int, address: str, message: Ping | PingReq) -> Ack | Nack:
        peer = self.manifest.members[to]
        request = wire.request(self.manifest, self.name, peer, message)
        async with asyncio.timeout(_CALL_S):
            data = await self._connections.call(peer, address, request)
        told = wire.parse_response(data, message.number, len(self.manifest.members))
        if isinstance(told, str):
            raise PeerError(f"it refuses us: {told}")
        return told


class EventDelegate:
    """Tells what the detector finds out: as sentences for the log, and as events for the node,
    which `post` takes (Verdict and Moved).

    The log hears of it at once, on the transport's loop: the node may be busy with a round, and a
    death is to be told within seconds."""

    def __init__(
        self,
        members: Sequence[NodeId],
        me: int,
        post: Callable[[TransportEvent], None],
        log: Callable[..., None],
        clock: Callable[[], float] = loop_s,
    ) -> None:
        self._members, self._me, self._post, self._log = members, me, post, log
        self._clock = clock
        self._refusals, self._troubles, self._notices = RateLimitedLog(), RateLimitedLog(_TROUBLE_S), RateLimitedLog()
        self._comings = TokenBuckets(1 / _COMES_S, _COMES_BURST)
        self._unsure: set[int] = set()  # who are said to be gone: nothing is told of them until they were asked
        self._split = False  # was said
        self.places: dict[int, str] = {}  # where members that are here answered us last
        self._told: dict[int, str] = {}  # where the node was told that members are

    def begin(self, table: Sequence[MemberEntry]) -> None:
        """Tell what was known before we took part."""
        for k, entry in enumerate(table):
            if k != self._me and entry.status is not Status.ABSENT:
                self._changed(Changed(k, MemberEntry(), entry), table)

    def trouble(self, member: int, address: str, why: str) -> None:
        """Tell that a member cannot be asked. The same is told every ten minutes."""
        if self._troubles.worth((member, why), self._clock(), member):
            where = address or "an unknown address"
            self._log("notice", f"cannot ask {self._members[member]} at {where}: {printable(why)}")

    def answered(self, member: int, address: str) -> None:
        """Take note of where a member answered us, and tell the node, if it knows of another
        place."""
        self.places[member] = address
        told, peer = self._told.get(member, ""), self._members[member]
        if told == address:
            return
        self._told[member] = address
        if self._notices.worth(("found", member), self._clock(), member):
            self._log("notice", f"{peer} is reached at {address}" + f", and not at {told}" * bool(told), peer)
        self._post(Moved(peer, address))

    def refused(self, refusal: Refusal) -> None:
        """Tell that somebody was refused. The same is told at most once a minute."""
        source = refusal.who, network_of(refusal.address)
        if self._refusals.worth((source, refusal.why), self._clock(), source):
            self._log("refused", str(refusal), **refusal.fields)

    def notify(self, output: Output, table: Sequence[MemberEntry]) -> None:
        """Tell what the detector says, in view of what is known of all."""
        match output:
            case Changed():
                self._changed(output, table)
            case Refuted(by, was) if was.status is Status.DEAD:
                if self._notices.worth(("refuted", by), self._clock(), by):
                    self._log("notice", f"{self._members[by]} says that we had been named dead: we are here")
            case Stalled(seconds) if seconds >= _TELL_STALL_S:
                text = f"this board did not run for {seconds:.0f} s: nobody is blamed for keeping silent meanwhile"
                self._log("notice", text)
            case Rival(address):
                own = self._members[self._me]
                self._log("notice", f"another process takes part as {own}, at {address}: give each board its own name")

    def _changed(self, change: Changed, table: Sequence[MemberEntry]) -> None:
        peer, before, after = self._members[change.member], change.before, change.after
        if not after.here:
            self.places.pop(change.member, None)
        elif (
            after.address and (after.address != before.address or not before.here) and change.member not in self.places
        ):
            self._told[change.member] = after.address
            self._post(Moved(peer, after.address))
        unsure = change.member in self._unsure or not before.here
        self._unsure.discard(change.member)
        if unsure and after.status is Status.SUSPECT:
            self._unsure.add(change.member)
            return
        if after.here and (unsure or not before.here):
            known = "here" if before.status is Status.ABSENT else "back"
            self._say(change.member, "here", f"{peer} is {known}, at {after.address or 'an unknown address'}")
            again = before.status is not Status.ABSENT and before.session != after.session
            self._post(Verdict(peer, True, f"{peer} is {known}", restarted=again))
        elif after.here and (before.session, before.address) != (after.session, after.address):
            what = "was restarted" if before.session != after.session else "has moved"
            self._say(change.member, "here", f"{peer} {what}, at {after.address}")
            if before.session != after.session:
                self._post(Verdict(peer, True, f"{peer} {what}", restarted=True))
        elif after.status is Status.DEAD and before.status not in (Status.DEAD, Status.LEFT):
            here = sum(entry.here for entry in table)
            why = "we got no answer" if change.asked else "others say so"
            why = "its certificate was revoked" if change.revoked else why
            reason = f"{why}; {here} of {len(table)} members are here"
            self._say(change.member, "dead", f"{peer} is dead: {reason}")
            self._post(Verdict(peer, False, reason))
        elif after.status is Status.LEFT and before.status is not Status.LEFT:
            self._say(change.member, "left", f"{peer} left")
            self._post(Verdict(peer, False, f"{peer} left", left=True))
        self._look_for_split(table)

    def _say(self, member: int, kind: str, text: str) -> None:
        """Tell a line about a member, unless there were too many."""
        if self._comings.take(member, self._clock()):
            self._log(f"member-{kind}", text, self._members[member])

    def _look_for_split(self, table: Sequence[MemberEntry]) -> None:
        dead = [name for name, entry in zip(self._members, table, strict=True) if entry.status is Status.DEAD]
        split = len(dead) >= 2 and 3 * len(dead) >= len(table)
        if split and not self._split:
            text = f"the run may be split: {', '.join(dead)} are out of reach at once; they are tried on and on"
            self._log("notice", text)
        self._split = split or (self._split and bool(dead))


class Misbehaviour(PeerError):
    """Raised for what no board of the fleet does that works as it should."""


class MembershipService(GenericRpcHandler):
    """Serves Join and Probe for one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.on_revocations = agent.on_revocations
        # Being refused is no misbehaviour yet: others may make an honest board ask too often.
        self._asked, self._refused = TokenBuckets(CALLS_PER_S, CALL_BURST), TokenBuckets(CALLS_PER_S, PATIENCE)

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        methods = {
            wire.PROBE: partial(self._serve, pb.ProbeRequest, 1.0, self._probe, wire.refusal),
            wire.JOIN: partial(self._serve, pb.JoinRequest, _JOIN_TOKENS, self._join, _refusal_to_join),
        }
        method = methods.get(handler_call_details.method)
        return grpc.unary_unary_rpc_method_handler(method) if method else None

    async def _serve(
        self,
        kind: type[pb.ProbeRequest | pb.JoinRequest],
        tokens: float,
        answer: Callable[[Any, grpc.aio.ServicerContext], Awaitable[bytes]],
        refusal: Callable[[str], bytes],
        request: bytes,
        context: grpc.aio.ServicerContext,
    ) -> bytes:
        """Answer a question of this kind, or refuse it."""
        who, place = "", place_of(context, self._agent.security)
        try:
            certified = self._certified(context, tokens)
            who = certified or ""
            asked = wire.parse(kind, request)
            said = asked.sender if isinstance(asked, pb.ProbeRequest) else asked.name
            who = certified or printable(said, 64)
            if certified is not None and certified != said:
                raise Misbehaviour(other_name(said, certified))
            return await answer(asked, context)
        except PeerError as error:
            return refusal(self._refuse(who, place, error, context))

    async def _probe(self, asked: pb.ProbeRequest, context: grpc.aio.ServicerContext) -> bytes:
        agent, sender = self._agent, self._check(asked)
        await self._require_started(context)
        answer = await agent.answer(sender, wire.message_of(asked, len(agent.manifest.members)))
        if answer is None:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")
            raise AssertionError
        return wire.response(answer)

    async def _join(self, asked: pb.JoinRequest, context: grpc.aio.ServicerContext) -> bytes:
        agent = self._agent
        self._check_joiner(asked)
        await self._require_started(context)
        assert agent.detector is not None
        host = addresses.parse(place_of(context, agent.security), "address of a peer").host
        agent.was_reached(asked.reached, host)
        return pb.JoinResponse(
            manifest=agent.manifest.content,
            signature=agent.manifest.signature,
            seen_as=host,
            rows=wire.rows(rows_of(agent.detector.table)),
            name=agent.name,
        ).SerializeToString()

    async def _require_started(self, context: grpc.aio.ServicerContext) -> None:
        """Send a caller away who comes too early: it may try again, and is blamed for nothing."""
        if self._agent.detector is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self._agent.name} is only starting")

    def _certified(self, context: grpc.aio.ServicerContext, tokens: float) -> NodeId | None:
        """Say who calls, by its certificate, before anything that it says is looked at; None
        without certificates, where nobody can be blamed by name. Raises PeerError for who asks too
        often, Misbehaviour for who insists, and CallerGone."""
        if self._agent.security is None:
            return None
        try:
            certified = self._agent.security.identify(context)
        except CallerGone:
            raise
        except PeerError as error:
            raise Misbehaviour(str(error)) from error
        now_s = loop_s()
        if not self._asked.take(certified, now_s, tokens):
            reason = f"it asks more than {CALLS_PER_S:g} times a second"
            raise PeerError(reason) if self._refused.take(certified, now_s) else Misbehaviour(reason)
        return certified

    def _refuse(self, who: str, place: str, error: PeerError, context: grpc.aio.ServicerContext) -> str:
        """Return the reason, which the log hears too. Who broke the protocol is kept out for a
        while."""
        self._agent.events.refused(Refusal(who, place, printable(str(error))))
        if self._agent.security is not None and isinstance(error, DecodeError | Misbehaviour):
            self._agent.security.misbehaved(context, str(error))
        return str(error)

    def _check(self, asked: pb.ProbeRequest) -> int:
        """Return the sender's place among the members. Raises PeerError."""
        agent = self._agent
        if asked.protocol_version != wire.PROTOCOL_VERSION:
            raise PeerError(other_version("membership", asked.protocol_version, agent.name, wire.PROTOCOL_VERSION))
        if asked.run_id != agent.manifest.run_id:
            raise PeerError(other_run(asked.run_id, agent.name, agent.manifest.run_id))
        if asked.receiver != agent.name:
            raise PeerError(other_receiver(asked.receiver, agent.name))
        if asked.manifest != agent.manifest.hash:
            raise PeerError(
                f"its manifest of this run is not that of {agent.name} (version {agent.manifest.version}): "
                "start one of the two again with --join"
            )
        if asked.sender not in agent.manifest.members or asked.sender == agent.name:
            raise PeerError(f"{printable(asked.sender, 64)} is no other member of this run")
        return agent.manifest.members.index(asked.sender)

    def _check_joiner(self, asked: pb.JoinRequest) -> None:
        """Raise PeerError for who cannot join."""
        agent = self._agent
        if asked.protocol_version != wire.PROTOCOL_VERSION:
            raise PeerError(other_version("membership", asked.protocol_version, agent.name, wire.PROTOCOL_VERSION))
        if asked.run_id and asked.run_id != agent.manifest.run_id:
            raise PeerError(other_run(asked.run_id, agent.name, agent.manifest.run_id))
        if asked.name not in agent.manifest.members:
            members = ", ".join(agent.manifest.members)
            raise PeerError(f"{printable(asked.name, 64)} is not a member of this run; its members are {members}")
        if asked.name == agent.name:
            raise PeerError(f"{agent.name} is the name of the member that was asked: give each board its own name")


def _refusal_to_join(reason: str) -> bytes:
    return pb.JoinResponse(refusal=reason).SerializeToString()


def _countersigned(manifest: Manifest, signer: Identity) -> Manifest:
    """Return the manifest signed by us, if who has signed it was revoked: or no board could join
    any more. Takes some 0.1 s on a small board."""
    try:
        manifest.verify(signer)
        return manifest
    except PeerError:
        return manifest.signed_by(signer)
