"""The listening side: streams that peers open to us, checked message by message. Lives on the transport's loop.

Nothing is allocated for a frame before its declared size is checked and the inbox has room; while it has none the stream is
not read, so HTTP/2 flow control holds the sender back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any

from edgegossip.mesh import wire
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.address import of_caller, without_port
from edgegossip.mesh.answers import Answers
from edgegossip.mesh.base import Notice
from edgegossip.mesh.channels import CallerGone, Security
from edgegossip.mesh.inbox import Inbox
from edgegossip.mesh.intake import Ended, Intake, Refused, Source
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.patient import Patient
from edgegossip.mesh.text import printable
from edgegossip.security.limits import RateLimitedLog, TokenBuckets
from edgegossip.types import DecodeError, NodeId, PeerError

SERVICE = "edgegossip.v1.Mesh"
_MISBEHAVIOUR = {
    mesh_pb2.REFUSAL_CODE_MALFORMED,
    mesh_pb2.REFUSAL_CODE_OVERSIZE,
    mesh_pb2.REFUSAL_CODE_IDENTITY,
}
_FRAMES_OF_A_PEER = 2  # that may wait until the node takes them; then their senders wait
_LEAST_INBOX_BYTES = 32 << 20
_MAX_EARLY = 64  # streams that may wait until the peers are known


class Inbound(grpc.GenericRpcHandler):
    """`allow` names who may open streams; until it is called they wait."""

    def __init__(
        self,
        node: NodeId,
        run_id: bytes,
        session: int,
        limits: MeshLimits,
        inbox: Inbox,
        on_goodbye: Callable[[NodeId, int], None],
        security: Security | None = None,
    ) -> None:
        self._node, self._run_id, self._session = node, run_id, session
        self._limits, self._inbox, self._on_goodbye = limits, inbox, on_goodbye
        self._security = security
        self._hellos = TokenBuckets(limits.hellos_per_s, limits.hello_burst)
        self._silence_s = limits.silence_s(security is not None)
        self._intake = Intake(node, inbox, limits.max_frame_bytes, limits.hello_s + limits.grace_s)
        self._sources: dict[NodeId, Source] = {}
        self._frame_bytes: int | None = None  # of the largest frame of the run, once it is known
        self._closed: dict[NodeId, str] = {}
        self._ending = False
        self._streams: set[asyncio.Task[None]] = set()
        self._peers_known = asyncio.Event()
        self._early = 0
        self._teller = RateLimitedLog()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method == f"/{SERVICE}/Exchange":
            return grpc.stream_stream_rpc_method_handler(self._exchange)
        return None

    def limit_frames(self, max_frame_bytes: int) -> None:
        """From now on refuse larger frames, and let no more wait than a few of each peer."""
        self._intake.max_frame_bytes = self._frame_bytes = max_frame_bytes
        self._bound()

    def allow(self, peer: NodeId) -> None:
        self._sources.setdefault(peer, Source())
        self._bound()

    def allows(self, peer: NodeId) -> bool:
        return peer in self._sources

    def _bound(self) -> None:
        if self._frame_bytes is not None:
            self._inbox.bound(max(_LEAST_INBOX_BYTES, _FRAMES_OF_A_PEER * self._frame_bytes * len(self._sources)))

    def ready(self) -> None:
        """The peers are known: decide about who waits."""
        self._peers_known.set()

    def shut(self, peer: NodeId, reason: str) -> None:
        """Take nothing from this peer any more."""
        self._closed[peer] = reason
        source = self._sources.get(peer)
        if source is not None and source.task is not None:
            source.task.cancel()

    def end(self, expected: Collection[NodeId]) -> None:
        """Let every stream end once all that it took in is acknowledged: at once when its frames have no room, when the
        sender is not among the `expected`, who were told that we leave, and otherwise when the sender ends it."""
        self._ending = True
        self._inbox.wait_no_more()
        for task in self._streams - {self._sources[sender].task for sender in expected}:
            task.cancel()

    # -- one stream ------------------------------------------------------------------------------------------

    async def _exchange(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        who, task = self._place(context), asyncio.current_task()
        if task is None or self._ending:
            return
        self._streams.add(task)
        try:
            try:
                hello = await self._hello(context)
                who = f"{printable(hello.sender, 64)} at {who}"
                self._check_identity(hello.sender, context)
                self._check_rate(hello.sender)
                source = self._accept(hello)
                await self._serve(hello.sender, source, context)
            except DecodeError as error:
                raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, str(error)) from error
        except Refused as refused:
            self._tell(who, refused)
            await self._refuse(context, refused)
            if self._security is not None and refused.code in _MISBEHAVIOUR:
                self._security.misbehaved(context, refused.reason)
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            if not self._ending or context.cancelled():
                raise
        except Ended:
            pass
        except (grpc.aio.BaseError, grpc.RpcError):
            pass  # the connection broke; the sender's end tells its story
        finally:
            self._streams.discard(task)

    async def _hello(self, context: grpc.aio.ServicerContext) -> mesh_pb2.Hello:
        request: Any = await self._within(self._silence_s, Patient(context.read()), "said nothing")
        if request is grpc.aio.EOF:
            raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, "the stream ended before Hello")
        parsed = wire.parse_request(request)
        if isinstance(parsed, wire.ChunkView) or parsed.WhichOneof("kind") != "hello":
            raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, "the first message of a stream must be Hello")
        if not self._peers_known.is_set():
            if self._early >= _MAX_EARLY:
                raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, f"{self._node} does not know its peers yet")
            self._early += 1
            try:
                await self._within(
                    self._limits.hello_s, self._peers_known.wait(), f"came before {self._node} knew its peers"
                )
            finally:
                self._early -= 1
        return parsed.hello

    def _place(self, context: grpc.aio.ServicerContext) -> str:
        return printable(self._security.place(context) if self._security else of_caller(context.peer()), 64)

    def _check_rate(self, sender: NodeId) -> None:
        """Raises Refused for a flood of Hellos. Without certificates a stranger could flood in another's name."""
        if self._security is not None and not self._hellos.take(sender, time.monotonic()):
            reason = f"it opens more than {self._limits.hellos_per_s:g} streams a second"
            raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, reason)

    def _check_identity(self, sender: NodeId, context: grpc.aio.ServicerContext) -> None:
        """Raises Refused when the caller's certificate does not make it `sender`."""
        if self._security is None:
            return
        try:
            certified = self._security.identify(context)
        except CallerGone as error:
            raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, str(error)) from error
        except PeerError as error:
            raise Refused(mesh_pb2.REFUSAL_CODE_IDENTITY, str(error)) from error
        if certified != sender:
            reason = f"it says to be {printable(sender, 64)}, but its certificate is that of {printable(certified, 64)}"
            raise Refused(mesh_pb2.REFUSAL_CODE_IDENTITY, reason)

    async def _within(self, limit_s: float, awaitable: Awaitable[Any], what: str) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await awaitable
        except TimeoutError as error:
            raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, f"it {what} for {limit_s:g} s") from error

    def _accept(self, hello: mesh_pb2.Hello) -> Source:
        """The sender's record, with its older stream told to end. Raises Refused."""
        if hello.protocol_version != wire.PROTOCOL_VERSION:
            raise Refused(
                mesh_pb2.REFUSAL_CODE_PROTOCOL_VERSION,
                f"it speaks mesh protocol {hello.protocol_version}, {self._node} speaks {wire.PROTOCOL_VERSION}: "
                "install the same edgegossip on both boards",
            )
        if hello.run_id != self._run_id:
            theirs = hello.run_id[:16].hex() or "without id"
            reason = (
                f"it belongs to run {theirs}, {self._node} to run {self._run_id.hex()}: "
                "start every board with the same recipe and settings"
            )
            raise Refused(mesh_pb2.REFUSAL_CODE_RUN_ID, reason)
        if hello.receiver != self._node:
            reason = f"it looks for {printable(hello.receiver, 64)}, but this is {self._node}: check the addresses"
            raise Refused(mesh_pb2.REFUSAL_CODE_WRONG_RECEIVER, reason)
        source = self._sources.get(hello.sender)
        if source is None:
            reason = f"{printable(hello.sender, 64)} is not among the peers of {self._node}"
            raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, reason)
        if hello.sender in self._closed:
            raise Refused(mesh_pb2.REFUSAL_CODE_CLOSED, self._closed[hello.sender])
        if source.task is not None:
            source.task.cancel()
        source.task = asyncio.current_task()
        if source.session != hello.session:
            self._intake.drop(source)
            source.session, source.completed = hello.session, 0
        return source

    async def _serve(self, sender: NodeId, source: Source, context: grpc.aio.ServicerContext) -> None:
        task = source.task
        lost = False  # rather than ended by either side: it may go on where it was
        answers = Answers(context)
        try:
            welcome = mesh_pb2.Welcome(session=self._session, completed=source.completed)
            if source.part is not None:
                welcome.partial, welcome.partial_received = source.part.transfer, source.part.received
            await answers.write(mesh_pb2.ExchangeResponse(welcome=welcome))
            answers.start()
            while (request := await Patient(context.read())) is not grpc.aio.EOF:
                parsed = wire.parse_request(request)
                if isinstance(parsed, wire.ChunkView):
                    received = await self._intake.take(sender, source, parsed, answers)
                    if parsed.acknowledge or received == parsed.total:
                        answers.acknowledge(parsed.transfer, received, at_once=parsed.acknowledge)
                    if received == parsed.total:
                        await asyncio.sleep(0)  # whoever waits for the frame has it before the next is asked for
                elif parsed.WhichOneof("kind") == "goodbye":
                    self._on_goodbye(sender, source.session)
                    return
                else:
                    raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, "only chunks may follow Hello")
            lost = True  # without a goodbye
        except asyncio.CancelledError:
            lost = sender not in self._closed
            await self._cancelled(sender, source, task, context)
        except (grpc.aio.BaseError, grpc.RpcError):
            lost = True
            raise
        finally:
            if source.task is task:
                source.task = None
            self._intake.leave(source, answers, keep=lost)
            await answers.stop()

    async def _cancelled(self, sender: NodeId, source: Source, task: object, context: grpc.aio.ServicerContext) -> None:
        """Why this stream was cancelled: closed by us, superseded, or ended by us or by gRPC."""
        if sender in self._closed:
            raise Refused(mesh_pb2.REFUSAL_CODE_CLOSED, self._closed[sender]) from None
        if source.task is not task and not context.cancelled():
            reason = f"a newer stream of {sender} to {self._node} took over"
            raise Refused(mesh_pb2.REFUSAL_CODE_SUPERSEDED, reason) from None
        raise asyncio.CancelledError

    # -- refusals --------------------------------------------------------------------------------------------

    def _tell(self, who: str, refused: Refused) -> None:
        """The same reason of the same caller at most once a minute, and few lines altogether."""
        sender, source = who.partition(" at ")[0], without_port(who)
        if self._teller.worth((source, refused.code), time.monotonic(), source):
            about = sender if sender in self._sources else None
            self._inbox.post(Notice(about, f"refused {who}: {refused.reason}"))

    async def _refuse(self, context: grpc.aio.ServicerContext, refused: Refused) -> None:
        refusal = mesh_pb2.Refusal(code=refused.code, reason=refused.reason, transfer=refused.transfer)
        with suppress(TimeoutError, grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            async with asyncio.timeout(1.0):  # to a connection that hangs, too
                await Patient(context.write(mesh_pb2.ExchangeResponse(refusal=refusal).SerializeToString()))
