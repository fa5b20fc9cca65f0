"""One outgoing edge: a queue of frames for one peer, and the stream that carries them. Lives on the transport's loop.

A frame stays in the queue until it is acknowledged. After a lost stream the next one starts with the first frame that the
peer does not have yet, which its Welcome tells; so a frame arrives at most once in the life of both processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from edgegossip.mesh import address as addresses
from edgegossip.mesh import causes, wire
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, SendFailed, SendReceipt, TransportEvent
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.outgoing import Outgoing, Status
from edgegossip.mesh.text import printable
from edgegossip.mesh.window import Window
from edgegossip.types import NodeId, PeerError

METHOD = "/edgegossip.v1.Mesh/Exchange"
_MAX_TOLD = 16  # different causes that one outage may put into the log


class Edge:
    """`hello` opens every stream; `post` takes the events."""

    def __init__(
        self,
        peer: NodeId,
        address: addresses.Address,
        hello: bytes,
        limits: MeshLimits,
        post: Callable[[TransportEvent], None],
    ) -> None:
        self.peer = peer
        self.address = address
        self.status = Status.NEW
        self._hello = hello
        self._limits = limits
        self._post = post
        self._waiting: deque[Outgoing] = deque()  # not on the present stream yet
        self._sent: deque[Outgoing] = deque()  # on the present stream, not acknowledged
        self._queued_bytes = 0
        self._transfers = 0
        self._peer_session: int | None = None
        self._leaving = False
        self._window = Window(limits.chunk_bytes)
        self._room = asyncio.Event()
        self._changed = asyncio.Event()  # something for the writer
        self._settled = asyncio.Event()  # the queue is empty, or nobody will empty it
        self._settled.set()
        self._told: set[str] = set()
        self._down_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # -- what the transport calls ----------------------------------------------------------------------------

    def start(self) -> None:
        self._set_down_timer(self._limits.first_contact_s)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"edge to {self.peer}")

    def enqueue(self, frame: Outgoing) -> None:
        if self.status in (Status.DOWN, Status.CLOSED):
            self._post(SendFailed(frame.ticket, self.peer, f"{self.peer} is {self.status.value}"))
            return
        if self._queued_bytes and self._queued_bytes + frame.frame_bytes > self._limits.max_queue_bytes:
            reason = (
                f"{self._queued_bytes} bytes wait for {self.peer} already, the limit is {self._limits.max_queue_bytes}"
            )
            self._post(SendFailed(frame.ticket, self.peer, reason))
            return
        self._transfers += 1
        frame.transfer = self._transfers
        self._queued_bytes += frame.frame_bytes
        self._waiting.append(frame)
        self._settled.clear()
        self._changed.set()

    def peer_left(self) -> None:
        """The peer said goodbye on its own stream to us."""
        self._go_down(f"{self.peer} left", left=True)

    async def shut(self, reason: str) -> None:
        """Give up the peer for good and at once."""
        self._go_down(reason)
        self.status = Status.CLOSED
        await self._stop_task()

    async def leave(self) -> None:
        """Flush, say goodbye, end. The caller bounds the time; whatever is left then fails in `finish`."""
        if self.status is not Status.UP and self._settled.is_set():
            return
        await self._settled.wait()
        self._leaving = True
        self._changed.set()
        if self._task is not None and self.status is Status.UP:
            await asyncio.wait({self._task})

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

    # -- streams, one after the other ------------------------------------------------------------------------

    async def _run(self) -> None:
        attempt = 0
        while not self._leaving:
            began_s = time.monotonic()
            try:
                await self._stream(attempt)
            except PeerError as error:
                self._lost(str(error))
            attempt = 0 if time.monotonic() - began_s > self._limits.hello_s else attempt + 1
            if not self._leaving:
                ceiling_s = min(self._limits.backoff_max_s, self._limits.backoff_min_s * 2 ** min(attempt - 1, 16))
                await asyncio.sleep(random.uniform(ceiling_s / 2, ceiling_s))

    async def _stream(self, attempt: int) -> None:
        """One stream from opening to its end. Raises PeerError with the cause, naming the address that was tried."""
        where: addresses.Address = self.address
        try:
            async with asyncio.timeout(self._limits.hello_s):
                where = await addresses.resolve(self.address, attempt)
            async with grpc.aio.insecure_channel(
                addresses.grpc_target(where), options=self._limits.channel_options()
            ) as channel:
                call = channel.stream_stream(METHOD)()
                try:
                    async with asyncio.timeout(self._limits.hello_s):
                        await self._open(call, where)
                    await self._pump(call)
                finally:
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            raise PeerError(f"at {self._place(where)}: {causes.of_rpc(error)}") from error
        except TimeoutError as error:
            raise PeerError(f"at {self._place(where)}: it does not answer") from error
        except PeerError as error:
            raise PeerError(f"at {self._place(where)}: {error}") from error

    def _place(self, where: addresses.Address) -> str:
        return str(where) if where == self.address else f"{self.address} ({where.host})"

    async def _open(self, call: grpc.aio.StreamStreamCall, where: addresses.Address) -> None:
        with suppress(asyncio.InvalidStateError):  # ended already; reading tells why
            await call.write(self._hello)
        welcome = (await self._read(call)).welcome
        if self._peer_session not in (None, welcome.session) and self.status in (Status.UP, Status.LOST):
            self._go_down(f"{self.peer} was restarted")
        self._peer_session = welcome.session
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._window = Window(self._limits.chunk_bytes)
        while self._waiting and self._waiting[0].transfer <= welcome.completed:
            self._acknowledged(self._waiting.popleft())
        self._came_up()

    async def _read(self, call: grpc.aio.StreamStreamCall) -> mesh_pb2.ExchangeResponse:
        """The next Welcome or Ack. Raises PeerError when the stream ends or the peer refuses."""
        data = await call.read()
        if data is grpc.aio.EOF:
            raise PeerError("the stream was closed")
        response = wire.parse_response(data)
        kind = response.WhichOneof("kind")
        if kind == "refusal":
            self._refused(response.refusal)
        if kind is None:
            raise PeerError("an empty message")
        return response

    def _refused(self, refusal: mesh_pb2.Refusal) -> None:
        reason = f"refused: {printable(refusal.reason)}"
        if refusal.code == mesh_pb2.REFUSAL_CODE_OVERSIZE:  # it would be refused again and again
            for queue in (self._sent, self._waiting):
                for frame in [f for f in queue if f.transfer == refusal.transfer]:
                    queue.remove(frame)
                    self._forget(frame)
                    self._post(SendFailed(frame.ticket, self.peer, reason))
        raise PeerError(reason)

    async def _pump(self, call: grpc.aio.StreamStreamCall) -> None:
        """Write frames and read acknowledgements until either ends."""
        loop = asyncio.get_running_loop()
        reader, writer = loop.create_task(self._read_acks(call)), loop.create_task(self._write_frames(call))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            # The reader knows why the stream ended; the writer only notices that it did.
            await asyncio.wait(
                {reader}, timeout=None if self._leaving and not _failed(writer) else self._limits.hello_s
            )
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.wait({reader, writer})
        if not self._leaving:
            for task in (reader, writer):
                if not task.cancelled() and (error := task.exception()):
                    raise (
                        error if isinstance(error, (PeerError, grpc.aio.AioRpcError)) else PeerError("the stream broke")
                    )
            raise PeerError("the stream was closed")

    async def _read_acks(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            response = await self._read(call)
            if response.WhichOneof("kind") != "ack":
                raise PeerError("a second Welcome on one stream")
            self._take_ack(response.ack)

    def _take_ack(self, ack: mesh_pb2.Ack) -> None:
        frame = self._sent[0] if self._sent else None
        if (
            frame is None
            or frame.transfer != ack.transfer
            or not frame.acknowledged_bytes < ack.received <= frame.written_bytes
        ):
            raise PeerError(f"an acknowledgement of transfer {ack.transfer}, which is not under way")
        frame.acknowledged_bytes = ack.received
        self._window.acknowledge(frame.start_position + ack.received, time.monotonic())
        self._room.set()
        if ack.received == frame.frame_bytes:
            self._acknowledged(self._sent.popleft())

    async def _write_frames(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            while self._waiting:
                frame = self._waiting.popleft()
                self._sent.append(frame)
                await self._write_frame(call, frame)
            if self._leaving:
                await call.write(mesh_pb2.ExchangeRequest(goodbye=mesh_pb2.Goodbye()).SerializeToString())
                await call.done_writing()
                return
            self._changed.clear()
            await self._changed.wait()

    async def _write_frame(self, call: grpc.aio.StreamStreamCall, frame: Outgoing) -> None:
        slicer, window = wire.Slicer(frame.views), self._window
        frame.start_position, frame.written_bytes, frame.acknowledged_bytes = window.position, 0, 0
        while frame.written_bytes < frame.frame_bytes:
            while not window.has_room:
                self._room.clear()
                await self._room.wait()
            offset = frame.written_bytes
            pieces = slicer.take(window.chunk_bytes)
            size = sum(len(piece) for piece in pieces)
            now_s = time.monotonic()
            message = wire.chunk_message(frame.transfer, offset, frame.frame_bytes, window.send(size, now_s), pieces)
            frame.first_byte_s = frame.first_byte_s or now_s
            frame.message_bytes += len(message) + wire.GRPC_PREFIX_BYTES
            frame.written_bytes += size
            await call.write(message)

    # -- what becomes of frames and of the peer --------------------------------------------------------------

    def _acknowledged(self, frame: Outgoing) -> None:
        self._forget(frame)
        times = (frame.start_s, frame.first_byte_s, time.monotonic())
        self._post(SendReceipt(frame.ticket, self.peer, frame.frame_bytes, frame.message_bytes, *times))

    def _forget(self, frame: Outgoing) -> None:
        self._queued_bytes -= frame.frame_bytes
        if not self._queued_bytes:
            self._settled.set()

    def _fail_all(self, reason: str) -> None:
        frames = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for frame in frames:
            self._forget(frame)
            self._post(SendFailed(frame.ticket, self.peer, reason))

    def _came_up(self) -> None:
        self._cancel_down_timer()
        self._told.clear()
        if self.status in (Status.NEW, Status.DOWN):
            self._post(PeerUp(self.peer))
        elif self.status is Status.LOST:
            self._post(Notice(self.peer, f"{self.peer} is back"))
        self.status = Status.UP

    def _lost(self, cause: str) -> None:
        """A stream ended or could not be opened. `cause` starts with 'at ADDRESS:'."""
        was = self.status
        if was is Status.UP:
            self.status = Status.LOST
            self._set_down_timer(self._limits.grace_s, f"lost {self.peer} {cause}")
        if was in (Status.DOWN, Status.CLOSED) or cause in self._told or len(self._told) >= _MAX_TOLD:
            return
        self._told.add(cause)
        verb = "lost" if was is Status.UP else "cannot reach"
        self._post(Notice(self.peer, f"{verb} {self.peer} {cause}; trying again"))

    def _go_down(self, reason: str, *, left: bool = False) -> None:
        self._cancel_down_timer()
        if self.status not in (Status.DOWN, Status.CLOSED):
            self.status = Status.DOWN
            self._fail_all(reason)
            self._post(PeerDown(self.peer, reason, left))

    def _set_down_timer(self, after_s: float, why: str = "") -> None:
        reason = f"{why or f'{self.peer} was never reached at {self.address}'}; out of reach for {after_s:g} s"
        self._cancel_down_timer()
        self._down_timer = asyncio.get_running_loop().call_later(after_s, self._go_down, reason)

    def _cancel_down_timer(self) -> None:
        if self._down_timer is not None:
            self._down_timer.cancel()
            self._down_timer = None


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
