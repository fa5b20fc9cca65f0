"""The sending side: one edge to each peer, the frames that wait for it, and the streams that carry
them, one after the other.

Lives on the transport's loop. A frame's way out, from top to bottom:

    Edge        is the peer as we see it: up, lost, down; opens one stream after the other
    FrameQueue  keeps every frame until it is acknowledged or given up
    Stream      writes frames in chunks, as a CongestionWindow allows; reads acknowledgements
    Slicer      takes a chunk's data off a frame; `wire.chunk_message` joins it

After a lost stream the next one starts with the first byte that the peer does not have yet, which
its Welcome tells; so a frame arrives at most once in the life of both processes.

A stream ends in one of three ways: it breaks or the peer ends it; we leave, and say goodbye behind
the last frame; or the peer left, and we write nothing more. In the last two our half is closed and
the peer's answers are read until it closes its half: what it acknowledged before it left still
counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random

from edgegossip.frame import LEAST_FRAME_BYTES
from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.base import MeshLimits, Notice, PeerDown, PeerUp, SendFailed, SendReceipt, TransportEvent, loop_s
from edgegossip.mesh.congestion import CongestionWindow, StallDetector
from edgegossip.mesh.connections import ChannelFactory, says_nobody_is_there, words_of_rpc_error
from edgegossip.mesh.shelf import Shelf, Views
from edgegossip.mesh.wire import GRPC_PREFIX_BYTES, METHOD, SERVICE, chunk_message, parse_response
from edgegossip.security.limits import TokenBuckets
from edgegossip.types import NodeId, PeerError
from edgegossip.untrusted import printable

_MAX_TOLD = 16  # different causes that one outage may put into the log
_MAX_DIFFERENCE = 800  # characters that tell what two boards have not alike
_FRAMES_TO_A_PEER = 10  # that may wait: a full state of a stream is 7 at most, and messages go on
_LEAST_QUEUE_BYTES = 8 << 20
# A peer that comes and goes is taken back so often: each time is told, and sets the node to work.
_COMES_S, _COMES_BURST = 4.0, 32.0
_NOT_NEEDED = "it is not needed any more"
_MAX_HELD_S = 1.0  # a peer cannot make its acknowledgements older than that


class Status(Enum):
    """Says what a peer is to us, as its edge sees it."""

    NEW = "never reached"
    UP = "up"
    LOST = "lost"  # within the grace time
    LEAVING = "leaving"  # it said goodbye; its last acknowledgements are on their way
    DOWN = "down"
    UNFIT = "given up"  # what boards must have alike differs
    CLOSED = "closed"


_GONE = (Status.LEAVING, Status.DOWN, Status.UNFIT, Status.CLOSED)  # nothing is sent to it


class RefusesUs(PeerError):
    """Raised when the peer answered, and takes no stream of ours."""


class Disagrees(PeerError):
    """Raised when the peer refuses us because we do not train the same."""


@dataclass(slots=True)
class QueuedFrame:
    """Keeps account of a frame until it is acknowledged."""

    frame_id: int
    views: Views
    frame_bytes: int
    start_s: float
    transfer: int = 0  # counted on this edge
    first_byte_s: float = 0.0
    message_bytes: int = 0  # resent chunks count again
    resume_bytes: int = 0  # of it are with the peer already when the present stream takes it up
    start_position: int = 0  # on the present stream, see CongestionWindow
    written_bytes: int = 0  # on the present stream
    acknowledged_bytes: int = 0

    @property
    def is_written(self) -> bool:
        """Whether all of it is on the present stream."""
        return self.written_bytes == self.frame_bytes


class OutgoingEdge:
    """Sends to one peer. `hello` opens every stream; `post` takes the events."""

    def __init__(
        self,
        peer: NodeId,
        hello: bytes,
        limits: MeshLimits,
        channels: ChannelFactory,
        post: Callable[[TransportEvent], None],
        random: Random,
        shelf: Shelf,
    ) -> None:
        self.peer = peer
        self._random, self._shelf = random, shelf
        self.address: addresses.Address | None = None  # None: not known yet
        self.status = Status.NEW
        self._hello = hello
        self._limits, self._channels = limits, channels
        self._post = post
        self._queue = FrameQueue()
        self._max_queue_bytes = limits.max_queue_bytes
        self._stream: FrameStream | None = None  # the present one, once it is welcome
        self._channel: grpc.aio.Channel | None = None
        self._place = ""  # where the present attempt goes
        self._dropped = ""  # why we ended the present connection
        self._peer_session: int | None = None
        self._left_session: int | None = None  # said goodbye: not to be taken for a peer that came back
        self._leaving = self._resting = False
        self._told: set[str] = set()  # what the log heard of the present outage
        self._comings, self._came = TokenBuckets(1 / _COMES_S, _COMES_BURST), False
        self._down_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._beside: asyncio.Task[None] | None = None  # that ends the connection

    # -- what the transport calls

    def connect(self, address: addresses.Address) -> None:
        """Try this peer at this address from the next attempt on."""
        is_first, self.address = self.address is None, address
        if is_first and self.status is Status.NEW:
            self._set_down_timer(self._limits.first_contact_s)
            self._begin()

    def _begin(self, after: asyncio.Task[None] | None = None) -> None:
        work = self._run(after)
        self._task = asyncio.get_running_loop().create_task(work, name=f"edge to {self.peer}")

    def limit_frames(self, max_frame_bytes: int) -> None:
        """Let no more wait from now on than a few frames of this size: a peer that is alive and
        takes nothing would else fill our memory with models that are old when it does."""
        few_bytes = max(_LEAST_QUEUE_BYTES, _FRAMES_TO_A_PEER * max_frame_bytes)
        self._max_queue_bytes = min(self._limits.max_queue_bytes, few_bytes)

    def enqueue(self, frame: QueuedFrame) -> None:
        """Send this frame when its turn comes, or fail it at once."""
        if self.status in _GONE:
            self._failed(frame, f"{self.peer} is {self.status.value}")
            return
        queued_bytes, max_bytes = self._queue.queued_bytes, self._max_queue_bytes
        if queued_bytes and queued_bytes + frame.frame_bytes > max(max_bytes, 2 * frame.frame_bytes):
            self._failed(frame, f"{queued_bytes} bytes wait for {self.peer} already, the limit is {max_bytes}")
            return
        try:
            frame.views = self._shelf.lend(frame.views)
        except OSError as error:
            self._failed(frame, f"{queued_bytes} bytes wait for {self.peer} already, and the disk fails: {error}")
            return
        self._queue.add(frame)
        if self._stream is not None:
            self._stream.wake()

    def peer_left(self, session: int) -> None:
        """Take in that the peer said goodbye on its own stream to us. It takes no more frames, but
        what it acknowledged before may come in after its goodbye, which took another connection."""
        self._left_session = session
        if self.status is Status.UP and self._stream is not None:
            self.status = Status.LEAVING
            self._start_timer(self._limits.linger_s, self._left)
            self._stream.end(goodbye=False)
        elif self.status is not Status.LEAVING:
            self._left()

    async def shut(self, reason: str, disagrees: bool = False) -> None:
        """Give up the peer for good and at once; `disagrees`: it does not train what we do."""
        if self.status is not Status.CLOSED:
            self._end(Status.CLOSED, PeerDown(self.peer, reason, closed=True, disagrees=disagrees))
        await self._stop_task()

    def pause(self, reason: str, length_s: float) -> None:
        """Give the peer up for so long; then it is tried again."""
        if self.status not in (Status.UNFIT, Status.CLOSED):
            self.give_up(reason, disagrees=False)
            self._start_timer(length_s, self.reopen)

    def give_up(self, reason: str, *, disagrees: bool = True) -> None:
        """Try this peer no more until `reopen`, as a rule because it does not train what we do."""
        self._cancel_down_timer()
        if self.status in (Status.UNFIT, Status.CLOSED):
            return
        known = self.status is Status.DOWN and not disagrees
        self._end(Status.UNFIT, None if known else PeerDown(self.peer, reason, disagrees=disagrees))
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def rest(self) -> None:
        """End the connection without a word, and open no other."""
        if self.status not in (Status.UNFIT, Status.CLOSED):
            self._cancel_down_timer()
            self.status, self._resting = Status.NEW, True
            # Not by cancelling our task: gRPC keeps a connection whose reader was cancelled.
            self._beside = asyncio.get_running_loop().create_task(self.drop(_NOT_NEEDED))

    def reopen(self) -> None:
        """Try the peer again, if it had been given up: another process of it agrees with us."""
        if self.status is Status.UNFIT:
            self.status = Status.DOWN if self.address else Status.NEW
            if self.address:
                self._begin()

    async def drop(self, reason: str) -> None:
        """End the present connection. The peer is tried again, and may show a better certificate
        then."""
        if self._channel is not None:
            self._dropped = reason
            await self._channel.close()

    async def offer_revocations(self) -> None:
        """Let the peer know our revocation list, if it can be reached."""
        if self.status is Status.UP and self.address:
            with suppress(PeerError, TimeoutError):
                async with asyncio.timeout(self._limits.hello_s):
                    await self._channels.check(self.peer, await addresses.resolve(self.address, 0))

    async def leave(self) -> bool:
        """Flush, say goodbye, end. The caller bounds the time; whatever is left then fails in
        `finish`. Return whether the peer was told, or leaves as well."""
        if self.status not in (Status.UP, Status.LEAVING) and self._queue.settled.is_set():
            return False
        await self._queue.settled.wait()
        self._leaving = True
        if self._stream is not None:
            self._stream.end(goodbye=True)
        if self._task is None or self.status not in (Status.UP, Status.LEAVING):
            return False
        await asyncio.wait({self._task})
        return True

    async def finish(self) -> None:
        """End without waiting for the network."""
        self.status = Status.CLOSED
        await self._stop_task()
        self._fail_all("the transport was closed")

    async def _stop_task(self) -> None:
        self._cancel_down_timer()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    # -- streams, one after the other

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        """Open one stream after the other. `before`: who did this until the peer was given up, and
        may be at its last words."""
        if before is not None:
            await asyncio.wait({before})
        attempt = 0
        while not (self._leaving or self._resting):
            began_s = loop_s()
            try:
                await self._try_stream(attempt)
            except Disagrees as error:
                self.give_up(str(error))
                return
            except PeerError as error:
                self._lost(self._dropped or str(error), answered=isinstance(error, RefusesUs))
            except Exception as error:  # of gRPC's own; whatever it is, the peer is tried again
                self._lost(f"{type(error).__name__}: {error}")
            if self.status is Status.LEAVING:
                self._left()
            # A stream that lived for a while is followed by another at once; attempts that fail in
            # a row get rarer.
            attempt = 0 if loop_s() - began_s > self._limits.hello_s else attempt + 1
            if not self._leaving:
                ceiling_s = min(self._limits.backoff_max_s, self._limits.backoff_min_s * 2 ** min(attempt - 1, 16))
                await asyncio.sleep(self._random.uniform(ceiling_s / 2, ceiling_s))
            while self._came and not self._leaving and not self._comings.take("", loop_s()):
                await asyncio.sleep(self._limits.backoff_max_s)
            self._came = False

    async def _try_stream(self, attempt: int) -> None:
        """Serve one stream from opening to its end. Raises PeerError with the cause."""
        assert self.address is not None
        self._dropped, self._place = "", str(self.address)
        try:
            # See who listens there before a connection is made; each of these steps has its own
            # `hello_s`.
            async with asyncio.timeout(self._limits.hello_s):
                where = await addresses.resolve(self.address, attempt)
                self._place += "" if where == self.address else f" ({where.host})"
                await self._channels.check(self.peer, where)
            async with self._channels.open(self.peer, where) as channel:
                self._channel = channel
                call = channel.stream_stream(METHOD)()
                try:
                    async with asyncio.timeout(self._limits.hello_s):
                        stream = await self._open(call)
                    await stream.pump()
                finally:
                    self._stream = self._channel = None
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            raise PeerError(self._dropped or words_of_rpc_error(error)) from error
        except TimeoutError as error:
            raise PeerError("it does not answer") from error

    async def _open(self, call: grpc.aio.StreamStreamCall) -> FrameStream:
        """Return a stream that the peer has welcomed, with the queue set to what the peer has
        already."""
        stalls = StallDetector(self._limits.hung_s, self._is_alive, self._slow)
        stream = FrameStream(call, self._queue, self._limits, self._acknowledged, self._failed, stalls)
        welcome = await stream.open(self._hello)
        # The process that said goodbye may still welcome a stream while it lingers: that is no peer
        # to send to.
        if welcome.session == self._left_session:
            raise PeerError("it is leaving")
        if self._resting:
            raise PeerError(_NOT_NEEDED)
        # Another process than before has nothing of what we sent: down, then up.
        if self._peer_session not in (None, welcome.session) and self.status in (Status.UP, Status.LOST):
            self._go_down(f"{self.peer} was restarted")
        self._peer_session = welcome.session
        # The same process says how far it is. What it has counts as acknowledged, the rest waits
        # again.
        for frame in self._queue.restart(welcome.completed, welcome.partial, welcome.partial_received):
            self._acknowledged(frame, loop_s())
        self._stream = stream
        self._came_up()
        return stream

    async def _is_alive(self, limit_s: float) -> bool:
        """Return whether the peer's process answers on this connection, if only that it has no such
        method."""
        if self._channel is None:
            return False
        try:
            await self._channel.unary_unary(f"/{SERVICE}/IsAlive")(b"", timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
        return True

    # -- what becomes of frames and of the peer

    def _acknowledged(self, frame: QueuedFrame, there_s: float) -> None:
        times = (frame.start_s, frame.first_byte_s, max(there_s, frame.first_byte_s))
        self._post(SendReceipt(frame.frame_id, self.peer, frame.frame_bytes, frame.message_bytes, *times))

    def _failed(self, frame: QueuedFrame, reason: str) -> None:
        self._post(SendFailed(frame.frame_id, self.peer, reason))

    def _fail_all(self, reason: str) -> None:
        for frame in self._queue.clear():
            self._failed(frame, reason)

    def _came_up(self) -> None:
        self._came = True
        self._cancel_down_timer()
        self._told.clear()
        if self.status in (Status.NEW, Status.DOWN):
            self._post(PeerUp(self.peer))
        elif self.status is Status.LOST:
            self._post(Notice(self.peer, f"{self.peer} is back", answered=True))
        self.status = Status.UP

    def _lost(self, cause: str, *, answered: bool = False) -> None:
        """Take in that a stream ended or could not be opened."""
        if self._resting:
            return
        was, cause = self.status, f"at {self._place}: {cause}"
        if was is Status.UP:
            self.status = Status.LOST
            self._set_down_timer(self._limits.grace_s, f"lost {self.peer} {cause}")
        if was in _GONE or cause in self._told or len(self._told) >= _MAX_TOLD:
            return
        self._told.add(cause)
        if was is Status.LOST and says_nobody_is_there(cause):
            return  # that it is away was said when it was lost
        verb = "lost" if was is Status.UP else "cannot reach"
        self._post(Notice(self.peer, f"{verb} {self.peer} {cause}; trying again", answered=answered))

    def _slow(self, silent_s: float, alive: bool) -> None:
        state = "is alive, but takes no frames" if alive else "does not answer"
        if state not in self._told:
            self._told.add(state)
            text = f"{self.peer} {state} for {silent_s:.1f} s; what is for it waits"
            self._post(Notice(self.peer, text, answered=alive))

    def _go_down(self, reason: str, *, left: bool = False) -> None:
        self._cancel_down_timer()
        if self.status not in (Status.DOWN, Status.UNFIT, Status.CLOSED):
            self._end(Status.DOWN, PeerDown(self.peer, reason, left))

    def _end(self, status: Status, said: PeerDown | None) -> None:
        """Give up what waits for the peer, and say why; without an event nothing waits."""
        self._cancel_down_timer()
        self.status = status
        if said is not None:
            self._fail_all(said.reason)
            self._post(said)

    def _left(self) -> None:
        self._go_down(f"{self.peer} left", left=True)

    def _set_down_timer(self, after_s: float, why: str = "") -> None:
        reason = f"{why or f'{self.peer} was never reached at {self.address}'}; out of reach for {after_s:g} s"
        self._start_timer(after_s, lambda: self._go_down(reason))

    def _start_timer(self, after_s: float, then: Callable[[], None]) -> None:
        self._cancel_down_timer()
        self._down_timer = asyncio.get_running_loop().call_later(after_s, then)

    def _cancel_down_timer(self) -> None:
        if self._down_timer is not None:
            self._down_timer.cancel()
            self._down_timer = None


class FrameQueue:
    """Keeps frames for one peer, in order, each from `add` until it is acknowledged or given up."""

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.settled = asyncio.Event()  # nothing is left
        self.settled.set()
        self._waiting: deque[QueuedFrame] = deque()  # not on the present stream yet
        self._sent: deque[QueuedFrame] = deque()  # on the present stream, not acknowledged
        self._transfers = 0

    @property
    def has_waiting(self) -> bool:
        """Whether a frame is not on the present stream yet."""
        return bool(self._waiting)

    @property
    def under_way(self) -> QueuedFrame | None:
        """The first frame on the present stream that is not acknowledged."""
        return self._sent[0] if self._sent else None

    def add(self, frame: QueuedFrame) -> None:
        """Put a frame at the end, and give it the next transfer number."""
        self._transfers += 1
        frame.transfer = self._transfers
        self.queued_bytes += max(frame.frame_bytes, LEAST_FRAME_BYTES)
        self._waiting.append(frame)
        self.settled.clear()

    def start_next(self) -> QueuedFrame:
        """Return the first waiting frame; from now on it is on the present stream."""
        frame = self._waiting.popleft()
        self._sent.append(frame)
        return frame

    def acknowledge(self) -> QueuedFrame:
        """Take out the frame that is `under_way`."""
        return self._forget(self._sent.popleft())

    def restart(self, completed: int, partial: int = 0, partial_received: int = 0) -> list[QueuedFrame]:
        """Begin on a new stream: everything waits again, but for transfers up to `completed`, which
        are taken out and returned. Of `partial` the peer has that many bytes."""
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        here: list[QueuedFrame] = []
        while self._waiting and self._waiting[0].transfer <= completed:
            here.append(self._forget(self._waiting.popleft()))
        for i, frame in enumerate(self._waiting):
            goes_on = i == 0 and frame.transfer == partial and partial_received < frame.frame_bytes
            frame.resume_bytes = partial_received if goes_on else 0
        return here

    def remove(self, transfer: int) -> list[QueuedFrame]:
        """Take out one transfer, wherever it is."""
        found: list[QueuedFrame] = []
        for frames in (self._sent, self._waiting):
            for frame in [f for f in frames if f.transfer == transfer]:
                frames.remove(frame)
                found.append(self._forget(frame))
        return found

    def clear(self) -> list[QueuedFrame]:
        """Take out all frames, in order."""
        frames = [self._forget(frame) for frame in (*self._sent, *self._waiting)]
        self._sent.clear()
        self._waiting.clear()
        return frames

    def _forget(self, frame: QueuedFrame) -> QueuedFrame:
        self.queued_bytes -= max(frame.frame_bytes, LEAST_FRAME_BYTES)
        if not self.queued_bytes:
            self.settled.set()
        return frame


class FrameStream:
    """Writes the frames of a queue on one stream, and reads what the peer answers. `acknowledged`
    takes every frame that the peer has and when it said so (monotonic seconds), `refused` one that
    it will never take and why."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall,
        queue: FrameQueue,
        limits: MeshLimits,
        acknowledged: Callable[[QueuedFrame, float], None],
        refused: Callable[[QueuedFrame, str], None],
        stalls: StallDetector,
    ) -> None:
        self._stalls = stalls
        self._call, self._queue, self._limits = call, queue, limits
        self._frame_acknowledged, self._frame_refused = acknowledged, refused
        self._window = CongestionWindow(limits.chunk_bytes)
        self._wake = asyncio.Event()  # something for the writer
        self._ending = self._goodbye = False

    def wake(self) -> None:
        """Take in that the queue has a new frame."""
        self._wake.set()

    def end(self, *, goodbye: bool) -> None:
        """Write no more frames, not even the rest of one; with `goodbye` tell the peer that we
        leave. `pump` then returns when the peer has ended its half."""
        if not self._ending:
            self._ending, self._goodbye = True, goodbye
            self._wake.set()

    async def open(self, hello: bytes) -> mesh_pb2.Welcome:
        """Say hello, and return the peer's Welcome. Raises PeerError when it refuses."""
        with suppress(asyncio.InvalidStateError):  # ended already; reading tells why
            await self._call.write(hello)
        return (await self._read()).welcome

    async def pump(self) -> None:
        """Write frames and read acknowledgements. Returns when the stream ended after `end`, else
        raises PeerError with why."""
        loop = asyncio.get_running_loop()
        reader, writer = loop.create_task(self._read_acks()), loop.create_task(self._write_frames())
        watcher = loop.create_task(self._stalls.watch())
        tasks = (watcher, reader, writer)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The reader knows why the stream ended; the writer only notices that it did, and is
            # done first when our half ends. So the reader gets time to hear the rest: as long as
            # our caller allows it when we leave, else `hello_s`.
            writer_failed = writer.done() and (writer.cancelled() or writer.exception() is not None)
            if not watcher.done():
                limit_s = None if self._goodbye and not writer_failed else self._limits.hello_s
                await asyncio.wait({reader, watcher}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if self._ending:
            return
        for task in tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error if isinstance(error, (PeerError, grpc.aio.AioRpcError)) else PeerError("the stream broke")
        raise PeerError("the stream was closed")

    # -- frames

    async def _write_frames(self) -> None:
        while await self._until(lambda: self._queue.has_waiting):
            frame = self._queue.start_next()
            # Take the frame up where the peer has it. Its bytes before that count as written and
            # acknowledged.
            slicer = Slicer(frame.views)
            slicer.take(frame.resume_bytes)
            frame.start_position = self._window.position - frame.resume_bytes
            frame.written_bytes = frame.acknowledged_bytes = frame.resume_bytes
            while not frame.is_written and await self._until(lambda: self._window.has_room):
                await self._call.write(self._next_chunk(frame, slicer))
            del frame, slicer  # until the next one comes: they hold its buffers, which may be a model's
        if self._goodbye:
            await self._call.write(mesh_pb2.ExchangeRequest(goodbye=mesh_pb2.Goodbye()).SerializeToString())
        await self._call.done_writing()

    async def _until(self, ready: Callable[[], bool]) -> bool:
        """Wait until the writer may go on; False when it is to end."""
        while not self._ending and not ready():
            self._wake.clear()
            await self._wake.wait()
        return not self._ending

    def _next_chunk(self, frame: QueuedFrame, slicer: Slicer) -> bytes:
        """Return the message that goes out next, accounted for."""
        pieces = slicer.take(self._window.chunk_bytes)
        size, offset, now_s = sum(map(len, pieces)), frame.written_bytes, loop_s()
        # Unasked, the receiver may hold its last word on a frame for longer than even a large one
        # takes. That is right for small frames, of which one word answers many.
        ends_frame = 0 < offset == frame.frame_bytes - size
        ask = self._window.send(size, now_s, ends_frame=ends_frame)
        message = chunk_message(frame.transfer, offset, frame.frame_bytes, ask, pieces)
        self._stalls.sent(now_s)
        frame.first_byte_s = frame.first_byte_s or now_s
        frame.message_bytes += len(message) + GRPC_PREFIX_BYTES
        frame.written_bytes += size
        return message

    # -- answers

    async def _read_acks(self) -> None:
        while True:
            response = await self._read()
            if response.WhichOneof("kind") != "ack":
                raise PeerError("a second Welcome on one stream")
            self._take_ack(response.ack)

    async def _read(self) -> mesh_pb2.ExchangeResponse:
        """Return the next Welcome or Ack. Raises PeerError when the stream ends or the peer
        refuses."""
        data = await self._call.read()
        if data is grpc.aio.EOF:
            raise PeerError("the stream was closed")
        response = parse_response(data)
        kind = response.WhichOneof("kind")
        if kind == "refusal":
            if response.refusal.code == mesh_pb2.REFUSAL_CODE_AGREEMENT:
                raise Disagrees(printable(response.refusal.reason, _MAX_DIFFERENCE))
            reason = f"refused: {printable(response.refusal.reason)}"
            if response.refusal.code == mesh_pb2.REFUSAL_CODE_OVERSIZE:  # it would be refused again and again
                for frame in self._queue.remove(response.refusal.transfer):
                    self._frame_refused(frame, reason)
            raise RefusesUs(reason)
        if kind is None:
            raise PeerError("an empty message")
        return response

    def _take_ack(self, ack: mesh_pb2.Ack) -> None:
        """Take in that some bytes of a frame, and all frames before it, are in the peer's
        process."""
        now_s = loop_s()
        there_s = now_s - min(ack.held_us / 1e6, _MAX_HELD_S)
        # All frames before the acknowledged one are done.
        while (frame := self._queue.under_way) is not None and frame.transfer < ack.transfer and frame.is_written:
            self._frame_acknowledged(self._queue.acknowledge(), there_s)
        # The acknowledged one has to be the next, and has to get on: no byte twice, none that was
        # not sent.
        if (
            frame is None
            or frame.transfer != ack.transfer
            or not frame.acknowledged_bytes < ack.received <= frame.written_bytes
        ):
            raise PeerError(f"an acknowledgement of transfer {ack.transfer}, which is not under way")
        frame.acknowledged_bytes = ack.received
        self._window.acknowledge(frame.start_position + ack.received, now_s)
        self._stalls.heard(now_s, more=not self._window.is_empty)
        self._wake.set()
        if ack.received == frame.frame_bytes:
            self._frame_acknowledged(self._queue.acknowledge(), there_s)


class Slicer:
    """Takes pieces of any length off the front of buffers that are read one after the other,
    without copies."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._left = [buffer for buffer in reversed(buffers) if len(buffer)]

    def take(self, size_bytes: int) -> list[memoryview]:
        """Return the next `size_bytes`, or fewer at the end, in pieces; empty when nothing is
        left."""
        pieces: list[memoryview] = []
        while size_bytes and self._left:
            buffer = self._left.pop()
            if len(buffer) > size_bytes:
                self._left.append(buffer[size_bytes:])
                buffer = buffer[:size_bytes]
            pieces.append(buffer)
            size_bytes -= len(buffer)
        return pieces
