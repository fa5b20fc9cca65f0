"""The listening side: the streams that peers open to us, from Hello to the frame in the node's
hands.

Lives on the transport's loop, but for `Inbox.get`, which is the node's end. A frame's way in, from
top to bottom:

    Inbound          admits a stream (identity, rate, Hello), then reads message by message
    parse_request    makes a ChunkView of a message (wire.py)
    FrameAssembler   puts the chunks of a frame together; keeps what came when the stream breaks
    Shelf            says whether that is in memory or in a file (shelf.py)
    Inbox            has room for so many bytes and no more; hands whole frames to the node
    AckWriter        answers on the same stream

Nothing is allocated for a frame before its declared size is checked and the inbox has room. While
it has none the stream is not read, so that HTTP/2's flow control holds the sender back:
back-pressure reaches the node that sends too much.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from edgegossip import agreement as agreements
from edgegossip.agreement import Agreement
from edgegossip.frame import LEAST_FRAME_BYTES
from edgegossip.memory import Buffer
from edgegossip.mesh._grpc import GenericRpcHandler, grpc
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.base import CallerGone, MeshLimits, Notice, Received, TransportEvent, loop_s
from edgegossip.mesh.connections import other_name, other_receiver, other_run, other_version, place_of
from edgegossip.mesh.shelf import KeptFrame, Shelf
from edgegossip.mesh.wire import METHOD, PROTOCOL_VERSION, ChunkView, parse_request
from edgegossip.security.limits import RateLimitedLog, TokenBuckets, network_of
from edgegossip.threads import Queue
from edgegossip.types import DecodeError, NodeId, PeerError
from edgegossip.untrusted import Refusal, printable

if TYPE_CHECKING:
    from edgegossip.mesh.tls_security import TlsSecurity

ACK_INTERVAL_S = 0.01  # between two acknowledgements that nobody waits for
_MISBEHAVIOUR = {
    mesh_pb2.REFUSAL_CODE_MALFORMED,
    mesh_pb2.REFUSAL_CODE_OVERSIZE,
    mesh_pb2.REFUSAL_CODE_IDENTITY,
}
_FRAMES_OF_A_PEER = 2  # that may wait until the node takes them; then their senders wait
_LEAST_INBOX_BYTES = 32 << 20
_MAX_EARLY = 64  # streams that may wait until the peers are known
_FLUSH_S = 1.0  # for the last words on a stream; its connection may hang


class Refused(Exception):
    """Raised to end a stream with a reason for both logs."""

    def __init__(self, code: mesh_pb2.RefusalCode, reason: str, transfer: int = 0) -> None:
        super().__init__(reason)
        self.code, self.reason, self.transfer = code, reason, transfer


class Ended(Exception):
    """Raised to end a stream without a word: we are leaving."""


@dataclass(slots=True)
class PartialFrame:
    """Holds a frame on its way in. `data` is exactly as long as was declared; None before the
    second chunk is needed."""

    transfer: int
    total: int
    stream: object  # the stream that brought the last chunk; None when that has ended
    kept: KeptFrame | None  # None: there is no place for it, and it is lost
    received: int = 0
    data: Buffer | None = None


@dataclass(slots=True)
class SenderState:
    """Keeps what is known of one sender across its streams."""

    session: int = 0  # of its process; transfers are counted within it
    completed: int = 0  # highest transfer of the session that was handed on
    task: asyncio.Task[None] | None = None  # serves its present stream
    part: PartialFrame | None = None  # the transfer after `completed`


class Inbound(GenericRpcHandler):
    """Serves `Exchange`, the listening end of every stream. `allow` names who may open streams;
    until `ready` is called they wait. `on_goodbye` hears who left, and the session of the process
    that did; `on_fit` hears of every sender whether it agrees with us, "", or why not."""

    def __init__(
        self,
        node: NodeId,
        run_id: bytes,
        session: int,
        limits: MeshLimits,
        inbox: Inbox,
        on_goodbye: Callable[[NodeId, int], None],
        on_fit: Callable[[NodeId, str], None],
        security: TlsSecurity | None,
        shelf: Shelf,
    ) -> None:
        self._node, self._run_id, self._session = node, run_id, session
        self._limits, self._inbox, self._on_goodbye = limits, inbox, on_goodbye
        self._security, self._on_fit = security, on_fit
        self.agreement: Agreement | None = None  # what we must have alike with all; None: nothing said
        self._hellos = TokenBuckets(limits.hellos_per_s, limits.hello_burst)
        keep_s = limits.hello_s + limits.grace_s
        self._shelf = shelf
        self._assembler = FrameAssembler(node, inbox, limits.max_frame_bytes, keep_s, self._shelf)
        self._sources: dict[NodeId, SenderState] = {}
        self._frame_bytes: int | None = None  # of the largest frame of the run, once it is known
        self._differed: set[NodeId] = set()  # who did not agree with us at some time
        self._closed: dict[NodeId, str] = {}  # whom the node closed, and why
        self._ending = False
        self._streams: set[asyncio.Task[None]] = set()
        self._peers_known = asyncio.Event()
        self._early = 0
        self._refusals = RateLimitedLog()

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method == METHOD:
            return grpc.stream_stream_rpc_method_handler(self._exchange)
        return None

    # -- what the transport says

    def allow(self, peer: NodeId) -> None:
        """Let this peer open streams."""
        self._sources.setdefault(peer, SenderState())
        self._bound_inbox()

    @property
    def is_ready(self) -> bool:
        """Whether `ready` was called."""
        return self._peers_known.is_set()

    def ready(self) -> None:
        """Decide about who waits: the peers are known now."""
        self._peers_known.set()

    def limit_frames(self, max_frame_bytes: int) -> None:
        """Refuse larger frames from now on, and let no more wait than a few of each peer. A larger
        frame that is coming in gives its room back, which there might not be for others then; its
        next chunk is refused."""
        self._assembler.max_frame_bytes = self._frame_bytes = max_frame_bytes
        for source in self._sources.values():
            if source.part is not None and source.part.total > max_frame_bytes:
                self._assembler.drop(source)
        self._bound_inbox()

    def arriving(self) -> tuple[int, int]:
        """Return what `Transport.arriving` does. From any thread."""
        parts = [source.part for source in list(self._sources.values())]
        return self._assembler.came_bytes, sum(part.total - part.received for part in parts if part is not None)

    def _bound_inbox(self) -> None:
        self._shelf.bound(self._frame_bytes or 0, len(self._sources))
        if self._frame_bytes is not None:
            self._inbox.bound(max(_LEAST_INBOX_BYTES, _FRAMES_OF_A_PEER * self._frame_bytes * len(self._sources)))

    def shut(self, peer: NodeId, reason: str) -> None:
        """Take nothing from this peer any more. Who says so logs why."""
        self._closed[peer] = reason
        self._refusals.worth((peer, mesh_pb2.REFUSAL_CODE_CLOSED), loop_s())
        source = self._sources.get(peer)
        if source is not None and source.task is not None:
            source.task.cancel()

    def end(self, expected: Collection[NodeId]) -> None:
        """Let every stream end once all that it took in is acknowledged: at once when its frames
        have no room, when the sender is not among the `expected`, who were told that we leave, and
        otherwise when the sender ends it."""
        self._ending = True
        self._inbox.wait_no_more()
        for task in self._streams - {self._sources[sender].task for sender in expected}:
            task.cancel()

    # -- one stream

    async def _exchange(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        """Serve one call from its first message to its end. Whatever goes wrong is told to the
        caller and to our log, and harms no other stream."""
        place = printable(place_of(context, self._security), 64)
        who, task = "", asyncio.current_task()
        if task is None or self._ending:
            return
        self._streams.add(task)
        try:
            try:
                hello = await self._hello(context)
                certified = self._certified(context)
                who = printable(hello.sender, 64) if certified is None else certified
                if certified is not None and certified != hello.sender:
                    raise Refused(mesh_pb2.REFUSAL_CODE_IDENTITY, other_name(hello.sender, certified))
                self._check_rate(hello.sender)
                source = self._accept(hello)
                self._on_fit(hello.sender, "")
                await self._serve(hello.sender, source, context)
            except DecodeError as error:
                raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, str(error)) from error
        except Refused as refused:
            disagrees = refused.code == mesh_pb2.REFUSAL_CODE_AGREEMENT
            # The first time PeerDown says it; a board whose older connection hung is not to blame.
            quiet = disagrees and hello.sender not in self._differed
            if not quiet and refused.code != mesh_pb2.REFUSAL_CODE_SUPERSEDED:
                self._log_refusal(Refusal(who, place, refused.reason), refused.code)
            try:
                await self._refuse(context, refused)
            finally:  # a caller that hears it may be gone at once, and we are cancelled with it
                # Told to our node last: left with nobody it ends, and the caller is to hear why.
                if disagrees:
                    self._differed.add(hello.sender)
                    self._on_fit(hello.sender, refused.reason)
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
        """Return the first message, which has to come soon. Before the node has named its peers
        nobody can be judged: a few callers may wait for that."""
        silence_s = self._limits.silence_s(self._security is not None)
        request: Any = await self._within(silence_s, _read(context), "said nothing")
        if request is grpc.aio.EOF:
            raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, "the stream ended before Hello")
        parsed = parse_request(request)
        if isinstance(parsed, ChunkView) or parsed.WhichOneof("kind") != "hello":
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

    async def _within(self, limit_s: float, awaitable: Awaitable[Any], what: str) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await awaitable
        except TimeoutError as error:
            raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, f"it {what} for {limit_s:g} s") from error

    def _certified(self, context: grpc.aio.ServicerContext) -> NodeId | None:
        """Say who calls, by its certificate; None without certificates. Raises Refused for who is
        no board."""
        if self._security is None:
            return None
        try:
            return self._security.identify(context)
        except CallerGone as error:
            raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, str(error)) from error
        except PeerError as error:
            raise Refused(mesh_pb2.REFUSAL_CODE_IDENTITY, str(error)) from error

    def _check_rate(self, sender: NodeId) -> None:
        """Raise Refused for a flood of Hellos. Without certificates a stranger could flood in
        another's name."""
        if self._security is not None and not self._hellos.take(sender, loop_s()):
            reason = f"it opens more than {self._limits.hellos_per_s:g} streams a second"
            raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, reason)

    def _accept(self, hello: mesh_pb2.Hello) -> SenderState:
        """Return the sender's record, with its older stream told to end. Raises Refused."""
        if hello.protocol_version != PROTOCOL_VERSION:
            reason = other_version("mesh", hello.protocol_version, self._node, PROTOCOL_VERSION)
            raise Refused(mesh_pb2.REFUSAL_CODE_PROTOCOL_VERSION, reason)
        if hello.run_id != self._run_id:
            reason = other_run(hello.run_id, self._node, self._run_id)
            cure = "start every board with the same recipe and settings"
            raise Refused(mesh_pb2.REFUSAL_CODE_RUN_ID, f"{reason}: {cure}")
        if hello.receiver != self._node:
            reason = f"{other_receiver(hello.receiver, self._node)}: check the addresses"
            raise Refused(mesh_pb2.REFUSAL_CODE_WRONG_RECEIVER, reason)
        source = self._sources.get(hello.sender)
        if source is None:
            reason = f"{printable(hello.sender, 64)} is not among the peers of {self._node}"
            raise Refused(mesh_pb2.REFUSAL_CODE_UNKNOWN_SENDER, reason)
        if hello.sender in self._closed:
            raise Refused(mesh_pb2.REFUSAL_CODE_CLOSED, self._closed[hello.sender])
        self._check_agreement(hello)
        # Of two streams of one sender the newer wins: the older one may hang on a connection that
        # is dead already.
        if source.task is not None:
            source.task.cancel()
        source.task = asyncio.current_task()
        # Another process of this sender counts its transfers anew, and does not know what the
        # earlier one had begun.
        if source.session != hello.session:
            self._assembler.drop(source)
            source.session, source.completed = hello.session, 0
        return source

    def _check_agreement(self, hello: mesh_pb2.Hello) -> None:
        """Raise Refused where the two ends do not train the same, and DecodeError for what is no
        agreement. An end that says nothing fits every other."""
        if not hello.agreement:
            return
        theirs = Agreement.from_json(hello.agreement)
        if self.agreement is None:
            return
        sides = f"on {self._node}", f"on {hello.sender}"
        if differs := agreements.difference(self.agreement, theirs, *sides):
            reason = f"{self._node} and {hello.sender} do not fit together: {differs}"
            raise Refused(mesh_pb2.REFUSAL_CODE_AGREEMENT, reason)

    async def _serve(self, sender: NodeId, source: SenderState, context: grpc.aio.ServicerContext) -> None:
        """Serve a stream from Welcome to its end."""
        task = source.task
        broken = False  # rather than ended by either side: the next stream may go on where this one was
        acks = AckWriter(context)
        try:
            # Welcome tells the sender where to go on: behind the last whole frame, or in the middle
            # of the one after it.
            welcome = mesh_pb2.Welcome(session=self._session, completed=source.completed)
            if source.part is not None:
                welcome.partial, welcome.partial_received = source.part.transfer, source.part.received
            await context.write(mesh_pb2.ExchangeResponse(welcome=welcome).SerializeToString())
            acks.start()
            while (request := await _read(context)) is not grpc.aio.EOF:
                parsed = parse_request(request)
                if isinstance(parsed, ChunkView):
                    received = await self._assembler.take(sender, source, parsed, stream=acks)
                    if parsed.acknowledge or received == parsed.total:
                        acks.acknowledge(parsed.transfer, received, at_once=parsed.acknowledge)
                elif parsed.WhichOneof("kind") == "goodbye":
                    self._on_goodbye(sender, source.session)
                    return
                else:
                    raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, "only chunks may follow Hello")
            broken = True  # it ended without a goodbye
        except asyncio.CancelledError:
            # By `shut`, by a newer stream, by `end`, or by gRPC because the connection is gone.
            if sender in self._closed:
                raise Refused(mesh_pb2.REFUSAL_CODE_CLOSED, self._closed[sender]) from None
            broken = True
            if source.task is not task and not context.cancelled():
                reason = f"a newer stream of {sender} to {self._node} took over"
                raise Refused(mesh_pb2.REFUSAL_CODE_SUPERSEDED, reason) from None
            raise
        except (grpc.aio.BaseError, grpc.RpcError):
            broken = True
            raise
        finally:
            if source.task is task:
                source.task = None
            self._assembler.leave(source, stream=acks, keep=broken)
            await acks.stop()

    # -- refusals

    def _log_refusal(self, refusal: Refusal, code: mesh_pb2.RefusalCode) -> None:
        """Tell the log: the same reason of the same caller at most once a minute, and few lines
        altogether."""
        source = refusal.who, network_of(refusal.address)
        same = refusal.who if code == mesh_pb2.REFUSAL_CODE_CLOSED else source
        if self._refusals.worth((same, code), loop_s(), source):
            about = refusal.who if refusal.who in self._sources else None
            self._inbox.post(Notice.of(about, refusal))

    async def _refuse(self, context: grpc.aio.ServicerContext, refused: Refused) -> None:
        refusal = mesh_pb2.Refusal(code=refused.code, reason=refused.reason, transfer=refused.transfer)
        message = mesh_pb2.ExchangeResponse(refusal=refusal).SerializeToString()
        with suppress(TimeoutError, grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            async with asyncio.timeout(_FLUSH_S):
                await asyncio.shield(context.write(message))  # see `_read`


def _read(context: grpc.aio.ServicerContext) -> Awaitable[bytes]:
    """Return the next message of a stream, for a reader that may be cancelled while it waits.

    grpc.aio frees what it allocated for a batch of operations when the coroutine that awaits it
    goes on after it, and never if that coroutine was cancelled (grpc/grpc#43360; grpcio 1.85 has
    it): some 100 bytes a time, as often as a peer opens a stream that supersedes its last one.
    Shielded, the operation ends in its own time.
    """
    return asyncio.shield(context.read())


class FrameAssembler:
    """Puts chunks together, one frame a sender at a time. What has come of a frame outlives its
    stream for `keep_s`, and while the sender's next one is served, which can go on in the middle.
    `max_frame_bytes` may change at any time."""

    def __init__(self, node: NodeId, inbox: Inbox, max_frame_bytes: int, keep_s: float, shelf: Shelf) -> None:
        self._node, self._inbox, self._keep_s, self._shelf = node, inbox, keep_s, shelf
        self.max_frame_bytes = max_frame_bytes
        self._told_of_loss = False
        self.came_bytes = 0  # of frames, altogether

    async def take(self, sender: NodeId, source: SenderState, chunk: ChunkView, stream: object) -> int:
        """Take in one chunk; return how many bytes of its frame are here now. A complete frame is
        in the inbox. Raises Refused, and Ended when there is no room and no use to wait for it."""
        part = source.part
        if part is not None and part.stream is not stream and chunk.offset == 0:
            self.drop(source)  # on its new stream the sender starts this frame anew, or has given it up
            part = None
        if part is None:
            # The first chunk of a frame. Its size is checked, then room is taken for all of it,
            # then it counts as begun.
            self._check_first(source, chunk)
            if not await self._inbox.reserve(chunk.total):
                raise Ended
            if chunk.total > self.max_frame_bytes:  # which was told while the frame waited
                self._inbox.release(chunk.total)
                self._check_first(source, chunk)
            kept = self._shelf.take(sender, chunk.total)
            part = source.part = PartialFrame(chunk.transfer, chunk.total, stream, kept)
        part.stream = stream
        end = part.received + len(chunk.data)
        same = (chunk.transfer, chunk.total, chunk.offset) == (part.transfer, part.total, part.received)
        if not same or not chunk.data or end > part.total:
            raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, "a chunk does not continue the frame before it")
        data, kept = chunk.data, part.kept
        if kept is not None and (len(data) < part.total or kept.in_file):  # else it needs no copy
            try:
                part.data = part.data or self._shelf.buffer(kept, part.total)
                part.data.put(data)
                data = part.data.whole() if end == part.total else data
            except OSError:
                self._shelf.drop(kept)
                part.data = part.kept = None
        self.came_bytes += len(chunk.data)
        part.received = end
        if end == part.total:
            source.part, source.completed = None, part.transfer
            if part.kept is None:
                self._lose(sender, part.total)
            else:
                self._inbox.post(Received(sender, self._shelf.whole(part.kept, data)))
        return end

    def _lose(self, sender: NodeId, size_bytes: int) -> None:
        """Let a frame that has come be lost as on a bad link, and say so once."""
        self._inbox.release(size_bytes)
        if not self._told_of_loss:
            self._told_of_loss = True
            text = f"{self._node} had no room for a message that {sender} sent early, and goes on without it: look at its disk"
            self._inbox.post(Notice(sender, text))

    def leave(self, source: SenderState, stream: object, *, keep: bool) -> None:
        """Let go of the frame that a stream was bringing which has ended, or keep its part for a
        while."""
        part = source.part
        if part is None or part.stream is not stream:
            return
        part.stream = None
        if keep and part.received:
            asyncio.get_running_loop().call_later(self._keep_s, self._expire, source, part)
        else:
            self.drop(source)

    def drop(self, source: SenderState) -> None:
        """Let go of what has come of a frame."""
        if source.part is not None:
            self._inbox.release(source.part.total)
            if source.part.kept is not None:
                self._shelf.drop(source.part.kept)
            source.part = None

    def _expire(self, source: SenderState, part: PartialFrame) -> None:
        if source.part is not part or part.stream is not None:
            return
        if source.task is None:
            self.drop(source)
        else:  # its next stream was told of it, and the first chunk may be long on its way
            asyncio.get_running_loop().call_later(self._keep_s, self._expire, source, part)

    def _check_first(self, source: SenderState, chunk: ChunkView) -> None:
        if chunk.total > self.max_frame_bytes:
            raise Refused(
                mesh_pb2.REFUSAL_CODE_OVERSIZE,
                f"a frame of {chunk.total} bytes, {self._node} takes at most {self.max_frame_bytes}",
                chunk.transfer,
            )
        if chunk.transfer <= source.completed:
            raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, f"transfer {chunk.transfer} is here already")


class Inbox:
    """Queues events on their way from the transport's loop to the node, with a bound on the bytes
    of frames that wait.

    A frame takes room from the moment its first chunk arrives until `get` hands it out. At most
    `unmeasured_bytes` may wait until `bound` says what the run needs, which may be up to
    `max_bytes`. `get`, `post`, `close` and `release` may be called from any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, events: Queue, max_bytes: int, unmeasured_bytes: int) -> None:
        self._loop = loop
        self._events = events  # None among them: closed
        self._limit_bytes = max_bytes  # the most that `bound` may allow
        self._max_bytes = min(max_bytes, unmeasured_bytes)
        # One frame alone may be larger than that, or it could never come in; but not before its
        # size has a bound.
        self._most_at_once = unmeasured_bytes if unmeasured_bytes < max_bytes else math.inf
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._waiting = 0  # streams in `reserve`
        self._last_call = False
        self._room = asyncio.Event()

    def post(self, event: TransportEvent) -> None:
        """Queue an event."""
        self._events.put(event)

    def get(self, timeout_s: float | None) -> TransportEvent | None:
        """Take the next event; None when none came in time, or when the inbox is closed and
        empty."""
        try:
            event: TransportEvent | None = self._events.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
        except queue.Empty:
            return None
        if event is None:
            self._events.put(None)  # stays closed for the next caller
        elif isinstance(event, Received):
            self.release(len(event.data))
        return event

    def close(self) -> None:
        """Wake whoever waits in `get`; what is queued can still be taken."""
        self._events.put(None)

    # -- room for frames

    def bound(self, max_bytes: int) -> None:
        """Let no more than this wait from now on, or one frame, whose size has a bound by now. What
        waits stays."""
        with self._lock:
            self._max_bytes, self._most_at_once = min(self._limit_bytes, max_bytes), math.inf
        self._wake_senders()

    def wait_no_more(self) -> None:
        """Have `reserve` take what has room and refuse the rest from now on, and for whoever waits.
        On the loop."""
        self._last_call = True
        self._room.set()

    async def reserve(self, size_bytes: int) -> bool:
        """Wait until a frame of this size may come in; return whether it may. A frame may when
        nothing else is there, but for one that is larger than what is not measured yet may be.
        False when it may not and it is no use to wait."""
        counted = max(size_bytes, LEAST_FRAME_BYTES)
        while True:
            with self._lock:
                if self._used_bytes + counted <= (self._max_bytes if self._used_bytes else self._most_at_once):
                    self._used_bytes += counted
                    return True
                if self._last_call:
                    return False
                self._waiting += 1
                self._room.clear()
            try:
                await self._room.wait()
            finally:
                with self._lock:
                    self._waiting -= 1

    def release(self, size_bytes: int) -> None:
        """Give back the room of one frame."""
        with self._lock:
            self._used_bytes -= max(size_bytes, LEAST_FRAME_BYTES)
        self._wake_senders()

    def _wake_senders(self) -> None:
        if self._waiting:
            with suppress(RuntimeError):  # the loop has ended, and with it everyone who waited
                self._loop.call_soon_threadsafe(self._room.set)


class AckWriter:
    """Writes acknowledgements on one stream, between `start` and `stop`.

    One that the sender asked for goes out at once, for its window depends on it. The others, of
    whole frames, go out at once too, but no more than one in ACK_INTERVAL_S: one speaks for all
    before it. In a quick exchange of small frames they are otherwise as many messages as the
    frames. As in QUIC (RFC 9000, section 13.2.5) each says how long it was held, so that receipts
    are exact.
    """

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._transfer = self._received = 0  # what has not been said yet; transfer 0: nothing
        self._since_s = self._last_s = 0.0  # when that came in, when an acknowledgement went out last
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False

    def start(self) -> None:
        """Begin to write."""
        self._task = self._loop.create_task(self._write_acks())

    def acknowledge(self, transfer: int, received: int, *, at_once: bool) -> None:
        """Say that `received` bytes of this frame, and all frames before it, are here."""
        self._transfer, self._received, self._since_s = transfer, received, self._loop.time()
        due_s = 0.0 if at_once else self._last_s + ACK_INTERVAL_S
        if due_s <= self._since_s:
            self._due.set()
        elif self._timer is None:
            self._timer = self._loop.call_at(due_s, self._due.set)

    async def stop(self) -> None:
        """Say what is left to say."""
        self._ending = True
        self._due.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_FLUSH_S)
            self._task.cancel()
        self._cancel_timer()

    async def _write_acks(self) -> None:
        with suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):  # the stream's reader tells why
            while not self._ending or self._transfer:
                await self._due.wait()
                self._due.clear()
                self._cancel_timer()
                if self._transfer:
                    self._last_s = self._loop.time()
                    held_us = round((self._last_s - self._since_s) * 1e6)
                    ack = mesh_pb2.Ack(transfer=self._transfer, received=self._received, held_us=held_us)
                    self._transfer = 0
                    await self._context.write(mesh_pb2.ExchangeResponse(ack=ack).SerializeToString())
                if self._ending:
                    self._due.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
