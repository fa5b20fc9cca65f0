"""One outgoing edge: a queue of frames for one peer, and the streams that carry them. Lives on the transport's loop.

A frame stays in the queue until it is acknowledged. After a lost stream the next one starts with the first frame that the
peer does not have yet, which its Welcome tells; so a frame arrives at most once in the life of both processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress

from edgegossip.mesh import address as addresses
from edgegossip.mesh import causes
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, SendFailed, SendReceipt, TransportEvent
from edgegossip.mesh.channels import Channels
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.outgoing import FrameQueue, Outgoing, Status
from edgegossip.mesh.silence import Deadline, Silence, is_alive
from edgegossip.mesh.stream import Stream
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
        channels: Channels,
        post: Callable[[TransportEvent], None],
    ) -> None:
        self.peer = peer
        self.address = address
        self.status = Status.NEW
        self._hello = hello
        self._limits, self._channels = limits, channels
        self._post = post
        self._queue = FrameQueue()
        self._stream: Stream | None = None  # the present one, once it is welcome
        self._channel: grpc.aio.Channel | None = None
        self._dropped = ""  # why we ended the present connection
        self._peer_session: int | None = None
        self._left_session: int | None = None  # said goodbye: not to be taken for a peer that came back
        self._leaving = False
        self._told: set[str] = set()
        self._deadline = Deadline(
            limits.stall_s, limits.keepalive_s + limits.keepalive_timeout_s
        )  # of an acknowledgement
        self._down_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # -- what the transport calls ----------------------------------------------------------------------------

    def start(self) -> None:
        self._set_down_timer(self._limits.first_contact_s)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"edge to {self.peer}")

    def enqueue(self, frame: Outgoing) -> None:
        if self.status in (Status.LEAVING, Status.DOWN, Status.CLOSED):
            self._failed(frame, f"{self.peer} is {self.status.value}")
            return
        queued_bytes, max_bytes = self._queue.queued_bytes, self._limits.max_queue_bytes
        if queued_bytes and queued_bytes + frame.frame_bytes > max_bytes:
            self._failed(frame, f"{queued_bytes} bytes wait for {self.peer} already, the limit is {max_bytes}")
            return
        self._queue.add(frame)
        if self._stream is not None:
            self._stream.wake()

    def peer_left(self, session: int) -> None:
        """The peer said goodbye on its own stream to us. It takes no more frames, but what it acknowledged before may come in
        after its goodbye, which took another connection."""
        self._left_session = session
        if self.status is Status.UP and self._stream is not None:
            self.status = Status.LEAVING
            self._start_timer(self._limits.linger_s, self._left)
            self._stream.end(goodbye=False)
        elif self.status is not Status.LEAVING:
            self._left()

    async def shut(self, reason: str) -> None:
        """Give up the peer for good and at once."""
        if self.status is not Status.CLOSED:
            self._cancel_down_timer()
            self._fail_all(reason)
            self._post(PeerDown(self.peer, reason, closed=True))
        self.status = Status.CLOSED
        await self._stop_task()

    async def drop(self, reason: str) -> None:
        """End the present connection. The peer is tried again, and may show a better certificate then."""
        if self._channel is not None:
            self._dropped = reason
            await self._channel.close()

    async def knock(self) -> None:
        """Let the peer know our revocation list, if it can be reached."""
        if self.status is Status.UP:
            with suppress(PeerError, TimeoutError):
                async with asyncio.timeout(self._limits.hello_s):
                    await self._channels.check(self.peer, await addresses.resolve(self.address, 0))

    async def leave(self) -> bool:
        """Flush, say goodbye, end. The caller bounds the time; whatever is left then fails in `finish`. True when the peer
        was told, or leaves as well."""
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

    # -- streams, one after the other ------------------------------------------------------------------------

    async def _run(self) -> None:
        attempt = 0
        while not self._leaving:
            began_s = time.monotonic()
            try:
                await self._try_stream(attempt)
            except PeerError as error:
                self._lost(str(error))
            except Exception as error:  # of gRPC's own; whatever it is, the peer is tried again
                self._lost(f"at {self.address}: {type(error).__name__}: {error}")
            if self.status is Status.LEAVING:
                self._left()
            attempt = 0 if time.monotonic() - began_s > self._limits.hello_s else attempt + 1
            if not self._leaving:
                ceiling_s = min(self._limits.backoff_max_s, self._limits.backoff_min_s * 2 ** min(attempt - 1, 16))
                await asyncio.sleep(random.uniform(ceiling_s / 2, ceiling_s))

    async def _try_stream(self, attempt: int) -> None:
        """One stream from opening to its end. Raises PeerError with the cause, naming the address that was tried."""
        where: addresses.Address = self.address
        self._dropped = ""
        try:
            async with asyncio.timeout(self._limits.hello_s):
                where = await addresses.resolve(self.address, attempt)
                await self._channels.check(self.peer, where)
            async with self._channels.open(self.peer, where) as channel:
                self._channel = channel
                call = channel.stream_stream(METHOD)()
                try:
                    async with asyncio.timeout(self._limits.hello_s):
                        stream = await self._open(channel, call)
                    await stream.pump()
                finally:
                    self._stream = self._channel = None
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            if self._dropped:
                raise PeerError(f"at {self._place(where)}: {self._dropped}") from error
            raise PeerError(f"at {self._place(where)}: {causes.of_rpc(error)}") from error
        except TimeoutError as error:
            raise PeerError(f"at {self._place(where)}: it does not answer") from error
        except PeerError as error:
            raise PeerError(f"at {self._place(where)}: {error}") from error

    def _place(self, where: addresses.Address) -> str:
        return str(where) if where == self.address else f"{self.address} ({where.host})"

    async def _open(self, channel: grpc.aio.Channel, call: grpc.aio.StreamStreamCall) -> Stream:
        silence = Silence(self._deadline, self._limits.hung_s, lambda limit_s: is_alive(channel, limit_s), self._slow)
        stream = Stream(call, self._queue, self._limits, self._acknowledged, self._failed, silence)
        welcome = await stream.open(self._hello)
        if welcome.session == self._left_session:
            raise PeerError("it is leaving")
        if self._peer_session not in (None, welcome.session) and self.status in (Status.UP, Status.LOST):
            self._go_down(f"{self.peer} was restarted")
        self._peer_session = welcome.session
        for frame in self._queue.restart(welcome.completed, welcome.partial, welcome.partial_received):
            self._acknowledged(frame, time.monotonic())
        self._stream = stream
        self._came_up()
        return stream

    # -- what becomes of frames and of the peer --------------------------------------------------------------

    def _acknowledged(self, frame: Outgoing, there_s: float) -> None:
        times = (frame.start_s, frame.first_byte_s, max(there_s, frame.first_byte_s))
        self._post(SendReceipt(frame.ticket, self.peer, frame.frame_bytes, frame.message_bytes, *times))

    def _failed(self, frame: Outgoing, reason: str) -> None:
        self._post(SendFailed(frame.ticket, self.peer, reason))

    def _fail_all(self, reason: str) -> None:
        for frame in self._queue.clear():
            self._failed(frame, reason)

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
        if was in (Status.LEAVING, Status.DOWN, Status.CLOSED) or cause in self._told or len(self._told) >= _MAX_TOLD:
            return
        self._told.add(cause)
        if was is Status.LOST and causes.nobody_there(cause):
            return  # that it is away was said when it was lost
        verb = "lost" if was is Status.UP else "cannot reach"
        self._post(Notice(self.peer, f"{verb} {self.peer} {cause}; trying again"))

    def _slow(self, silent_s: float, usual_s: float, alive: bool) -> None:
        state = "is alive, but takes no frames" if alive else "does not answer"
        if state not in self._told:
            self._told.add(state)
            usual = f"{silent_s:.1f} s, where {usual_s:.2g} s is usual"
            self._post(Notice(self.peer, f"{self.peer} {state} for {usual}; what is for it waits"))

    def _go_down(self, reason: str, *, left: bool = False) -> None:
        self._cancel_down_timer()
        if self.status not in (Status.DOWN, Status.CLOSED):
            self.status = Status.DOWN
            self._fail_all(reason)
            self._post(PeerDown(self.peer, reason, left))

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
