"""What a receiver writes on one stream: Welcome, acknowledgements, perhaps a Refusal. Lives on the transport's loop.

An acknowledgement that the sender asked for goes out at once, for its window depends on it. The others, of whole frames, go out
at once too, but no more than one in ACK_INTERVAL_S: one speaks for all before it. In a quick exchange of small frames they are
otherwise as many messages as the frames. As in QUIC (RFC 9000, section 13.2.5) each says how long it was held, so that receipts
are exact.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import mesh_pb2

ACK_INTERVAL_S = 0.01
_FLUSH_S = 1.0  # to a connection that hangs


class Answers:
    """`start` and `stop` bound the life of the task that writes acknowledgements."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._transfer = self._received = 0  # what has not been said yet; transfer 0: nothing
        self._since_s = self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False

    def start(self) -> None:
        self._task = self._loop.create_task(self._write_acks())

    async def write(self, answer: mesh_pb2.ExchangeResponse) -> None:
        async with self._writing:
            await self._context.write(answer.SerializeToString())

    def acknowledge(self, transfer: int, received: int, *, at_once: bool) -> None:
        """`received` bytes of this frame, and all frames before it, are here."""
        self._transfer, self._received, self._since_s = transfer, received, self._loop.time()
        due_s = 0.0 if at_once else self._last_s + ACK_INTERVAL_S
        if due_s <= self._since_s:
            self._news.set()
        elif self._timer is None:
            self._timer = self._loop.call_at(due_s, self._news.set)

    async def stop(self) -> None:
        """Say what is left to say."""
        self._ending = True
        self._news.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_FLUSH_S)
            self._task.cancel()
        self._cancel_timer()

    async def _write_acks(self) -> None:
        with suppress(grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):  # the stream's reader tells why
            while not self._ending or self._transfer:
                await self._news.wait()
                self._news.clear()
                self._cancel_timer()
                if self._transfer:
                    self._last_s = self._loop.time()
                    held_us = round((self._last_s - self._since_s) * 1e6)
                    ack = mesh_pb2.Ack(transfer=self._transfer, received=self._received, held_us=held_us)
                    self._transfer = 0
                    await self.write(mesh_pb2.ExchangeResponse(ack=ack))
                if self._ending:
                    self._news.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
