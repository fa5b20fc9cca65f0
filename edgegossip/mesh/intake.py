"""Frames on their way in: chunks put together, one frame a sender at a time. Lives on the transport's loop.

What has come of a frame outlives its stream for a while, so that the sender's next stream can go on in the middle of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from edgegossip.mesh import wire
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.base import Received
from edgegossip.mesh.inbox import Inbox
from edgegossip.types import NodeId


class Ended(Exception):
    """Ends a stream without a word: we are leaving."""


class Refused(Exception):
    """Ends a stream with a reason for both logs."""

    def __init__(self, code: mesh_pb2.RefusalCode, reason: str, transfer: int = 0) -> None:
        super().__init__(reason)
        self.code, self.reason, self.transfer = code, reason, transfer


@dataclass(slots=True)
class Part:
    """A frame on its way in. `data` is exactly as long as was declared; None before the second chunk is needed."""

    transfer: int
    total: int
    stream: object  # the stream that brought the last chunk; None when that has ended
    received: int = 0
    data: memoryview | None = None


@dataclass(slots=True)
class Source:
    """What is known of one sender across its streams."""

    session: int = 0
    completed: int = 0  # highest transfer of the session that was handed on
    task: asyncio.Task[None] | None = None  # its present stream
    part: Part | None = None  # the transfer after `completed`


class Intake:
    """`max_frame_bytes` may change at any time; `keep_s` is how long a part outlives its stream."""

    def __init__(self, node: NodeId, inbox: Inbox, max_frame_bytes: int, keep_s: float) -> None:
        self._node, self._inbox, self._keep_s = node, inbox, keep_s
        self.max_frame_bytes = max_frame_bytes

    async def take(self, sender: NodeId, source: Source, chunk: wire.ChunkView, stream: object) -> int:
        """Take in one chunk; how much of its frame is here now. A complete frame is in the inbox. Raises Refused, and Ended when
        there is no room and no use to wait for it."""
        if self._take_whole(sender, source, chunk):
            return chunk.total
        part = source.part
        if part is not None and part.stream is not stream and chunk.offset == 0:
            self.drop(source)  # the sender starts this frame anew, or has given it up
            part = None
        if part is None:
            self._check_first(source, chunk)
            if not await self._inbox.reserve(chunk.total):
                raise Ended
            if chunk.total > self.max_frame_bytes:  # which was told while the frame waited
                self._inbox.release(chunk.total)
                self._check_first(source, chunk)
            part = source.part = Part(chunk.transfer, chunk.total, stream)
        part.stream = stream
        end = part.received + len(chunk.data)
        same = (chunk.transfer, chunk.total, chunk.offset) == (part.transfer, part.total, part.received)
        if not same or not chunk.data or end > part.total:
            raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, "a chunk does not continue the frame before it")
        data = chunk.data  # a frame in one chunk needs no copy
        if len(data) < part.total:
            if part.data is None:
                part.data = np.empty(part.total, np.uint8).data  # a bytearray would be zeroed first
            part.data[part.received : end] = data
            data = part.data
        part.received = end
        if end == part.total:
            source.part, source.completed = None, part.transfer
            self._inbox.post(Received(sender, data))
        return end

    def _take_whole(self, sender: NodeId, source: Source, chunk: wire.ChunkView) -> bool:
        """A frame in one chunk, when nothing is in its way: most of the small ones. Raises Refused."""
        if source.part is not None or chunk.offset or not 0 < len(chunk.data) == chunk.total:
            return False
        self._check_first(source, chunk)
        if not self._inbox.try_reserve(chunk.total):
            return False
        source.completed = chunk.transfer
        self._inbox.post(Received(sender, chunk.data))
        return True

    def leave(self, source: Source, stream: object, *, keep: bool) -> None:
        """A stream has ended: let go of the frame that it was bringing, or keep its part for a while."""
        part = source.part
        if part is None or part.stream is not stream:
            return
        part.stream = None
        if keep and part.received:
            asyncio.get_running_loop().call_later(self._keep_s, self._expire, source, part)
        else:
            self.drop(source)

    def drop(self, source: Source) -> None:
        if source.part is not None:
            self._inbox.release(source.part.total)
            source.part = None

    def _expire(self, source: Source, part: Part) -> None:
        if source.part is part and part.stream is None:
            self.drop(source)

    def _check_first(self, source: Source, chunk: wire.ChunkView) -> None:
        if chunk.total > self.max_frame_bytes:
            raise Refused(
                mesh_pb2.REFUSAL_CODE_OVERSIZE,
                f"a frame of {chunk.total} bytes, {self._node} takes at most {self.max_frame_bytes}",
                chunk.transfer,
            )
        if chunk.transfer <= source.completed:
            raise Refused(mesh_pb2.REFUSAL_CODE_MALFORMED, f"transfer {chunk.transfer} is here already")
