"""One stream to a peer: writes the frames of a queue and reads what the peer answers. Lives on the transport's loop.

A stream ends in one of three ways: it breaks or the peer ends it; we leave, and say goodbye behind the last frame; or the peer
left, and we write nothing more. In the last two our half is closed and the peer's answers are read until it closes its half:
what it acknowledged before it left still counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from edgegossip.mesh import wire
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.eager import Begun
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.outgoing import FrameQueue, Outgoing
from edgegossip.mesh.silence import Silence
from edgegossip.mesh.text import printable
from edgegossip.mesh.window import Window
from edgegossip.types import PeerError

_MAX_HELD_S = 1.0  # a peer cannot make its acknowledgements older than that


class Stream:
    """`acknowledged` takes every frame that the peer has and when it said so (monotonic seconds), `refused` one
    that it will never take and why."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall,
        queue: FrameQueue,
        limits: MeshLimits,
        acknowledged: Callable[[Outgoing, float], None],
        refused: Callable[[Outgoing, str], None],
        silence: Silence,
    ) -> None:
        self._silence = silence
        self._call, self._queue, self._limits = call, queue, limits
        self._frame_acknowledged, self._frame_refused = acknowledged, refused
        self._window = Window(limits.chunk_bytes)
        self._wake = asyncio.Event()  # something for the writer
        self._ending = self._goodbye = False
        self._idle = False  # the writer waits for a frame
        self._begun: Begun | None = None  # a write that the writer finds begun

    def wake(self) -> None:
        """The queue has a new frame. One that fits into a chunk begins to go out here and now, if nothing is before it."""
        queue, window = self._queue, self._window
        if self._idle and not self._ending and queue.has_waiting and (self._begun is None or self._begun.has_succeeded):
            frame = queue.first_waiting
            if frame.frame_bytes <= window.chunk_bytes and window.has_room and not frame.resume_bytes:
                self._place(queue.start_next())
                self._begun = Begun(self._call.write(self._message(frame, frame.views, frame.frame_bytes)))
                return
        self._wake.set()

    def end(self, *, goodbye: bool) -> None:
        """Write no more frames, not even the rest of one; with `goodbye` tell the peer that we leave. `pump` then returns when
        the peer has ended its half."""
        if not self._ending:
            self._ending, self._goodbye = True, goodbye
            self._wake.set()

    async def open(self, hello: bytes) -> mesh_pb2.Welcome:
        """Raises PeerError when the peer refuses."""
        with suppress(asyncio.InvalidStateError):  # ended already; reading tells why
            await self._call.write(hello)
        return (await self._read()).welcome

    async def pump(self) -> None:
        """Write frames and read acknowledgements. Returns when the stream ended after `end`, else raises PeerError with why."""
        loop = asyncio.get_running_loop()
        reader, writer = loop.create_task(self._read_acks()), loop.create_task(self._write_frames())
        watcher = loop.create_task(self._silence.watch())
        tasks = (watcher, reader, writer)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The reader knows why the stream ended; the writer only notices that it did.
            unbounded = self._goodbye and not _failed(writer)  # who leaves bounds that time
            if not watcher.done():
                limit_s = None if unbounded else self._limits.hello_s
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

    # -- answers ---------------------------------------------------------------------------------------------

    async def _read(self) -> mesh_pb2.ExchangeResponse:
        """The next Welcome or Ack. Raises PeerError when the stream ends or the peer refuses."""
        data = await self._call.read()  # not Patient: our own streams end seldom, and small frames feel it
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
            for frame in self._queue.remove(refusal.transfer):
                self._frame_refused(frame, reason)
        raise PeerError(reason)

    async def _read_acks(self) -> None:
        while True:
            response = await self._read()
            if response.WhichOneof("kind") != "ack":
                raise PeerError("a second Welcome on one stream")
            self._take_ack(response.ack)

    def _take_ack(self, ack: mesh_pb2.Ack) -> None:
        """All frames before the acknowledged one are in the peer's process too."""
        now_s = time.monotonic()
        there_s = now_s - min(ack.held_us / 1e6, _MAX_HELD_S)
        while (frame := self._queue.under_way) is not None and frame.transfer < ack.transfer and frame.is_written:
            self._frame_acknowledged(self._queue.acknowledge(), there_s)
        if (
            frame is None
            or frame.transfer != ack.transfer
            or not frame.acknowledged_bytes < ack.received <= frame.written_bytes
        ):
            raise PeerError(f"an acknowledgement of transfer {ack.transfer}, which is not under way")
        frame.acknowledged_bytes = ack.received
        self._window.acknowledge(frame.start_position + ack.received, now_s)
        self._silence.heard(now_s, more=not self._window.is_empty)
        if not self._idle:
            self._wake.set()
        if ack.received == frame.frame_bytes:
            self._frame_acknowledged(self._queue.acknowledge(), there_s)

    # -- frames ----------------------------------------------------------------------------------------------

    async def _write_frames(self) -> None:
        while True:
            self._idle = True
            going_on = await self._until(lambda: self._queue.has_waiting)
            self._idle = False
            if self._begun is not None:
                begun, self._begun = self._begun, None
                await begun
            if going_on:
                await self._write_frame(self._queue.start_next())
            else:
                break
        if self._goodbye:
            await self._call.write(mesh_pb2.ExchangeRequest(goodbye=mesh_pb2.Goodbye()).SerializeToString())
        await self._call.done_writing()

    async def _write_frame(self, frame: Outgoing) -> None:
        slicer = self._begin(frame)
        while not frame.is_written and await self._until(lambda: self._window.has_room):
            await self._call.write(self._next_chunk(frame, slicer))

    def _begin(self, frame: Outgoing) -> wire.Slicer:
        """Take up a frame where the peer has it."""
        slicer = wire.Slicer(frame.views)
        slicer.take(frame.resume_bytes)
        self._place(frame)
        return slicer

    def _place(self, frame: Outgoing) -> None:
        """Where the frame begins on this stream."""
        frame.start_position = self._window.position - frame.resume_bytes
        frame.written_bytes = frame.acknowledged_bytes = frame.resume_bytes

    def _next_chunk(self, frame: Outgoing, slicer: wire.Slicer) -> bytes:
        """The message that goes out next, accounted for."""
        pieces = slicer.take(self._window.chunk_bytes)
        return self._message(frame, pieces, sum(map(len, pieces)))

    def _message(self, frame: Outgoing, pieces: Sequence[memoryview], size: int) -> bytes:
        offset, now_s = frame.written_bytes, time.monotonic()
        message = wire.chunk_message(frame.transfer, offset, frame.frame_bytes, self._window.send(size, now_s), pieces)
        self._silence.sent(now_s)
        frame.first_byte_s = frame.first_byte_s or now_s
        frame.message_bytes += len(message) + wire.GRPC_PREFIX_BYTES
        frame.written_bytes += size
        return message

    async def _until(self, ready: Callable[[], bool]) -> bool:
        """Wait until the writer may go on; False when it is to end."""
        while not self._ending and not ready():
            self._wake.clear()
            await self._wake.wait()
        return not self._ending


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
