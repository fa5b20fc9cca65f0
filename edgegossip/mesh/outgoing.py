"""What one outgoing edge is made of: the peer's status, and the frames that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    NEW = "never reached"
    UP = "up"
    LOST = "lost"  # within the grace time
    LEAVING = "leaving"  # it said goodbye; its last acknowledgements are on their way
    DOWN = "down"
    CLOSED = "closed"


@dataclass(slots=True)
class Outgoing:
    """A queued frame."""

    ticket: int
    views: tuple[memoryview, ...]
    frame_bytes: int
    start_s: float
    transfer: int = 0
    first_byte_s: float = 0.0
    message_bytes: int = 0  # resent chunks count again
    resume_bytes: int = 0  # of it are with the peer already when the present stream takes it up
    start_position: int = 0  # on the present stream, see Window
    written_bytes: int = 0  # on the present stream
    acknowledged_bytes: int = 0

    @property
    def is_written(self) -> bool:
        """All of it is on the present stream."""
        return self.written_bytes == self.frame_bytes


class FrameQueue:
    """Frames for one peer, in order, each from `add` until it is acknowledged or given up."""

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.settled = asyncio.Event()  # nothing is left
        self.settled.set()
        self._waiting: deque[Outgoing] = deque()  # not on the present stream yet
        self._sent: deque[Outgoing] = deque()  # on the present stream, not acknowledged
        self._transfers = 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def first_waiting(self) -> Outgoing:
        return self._waiting[0]

    @property
    def under_way(self) -> Outgoing | None:
        """The first frame on the present stream that is not acknowledged."""
        return self._sent[0] if self._sent else None

    def add(self, frame: Outgoing) -> None:
        self._transfers += 1
        frame.transfer = self._transfers
        self.queued_bytes += frame.frame_bytes
        self._waiting.append(frame)
        self.settled.clear()

    def start_next(self) -> Outgoing:
        """The first waiting frame; from now on it is on the present stream."""
        frame = self._waiting.popleft()
        self._sent.append(frame)
        return frame

    def acknowledge(self) -> Outgoing:
        """Take out the frame that is `under_way`."""
        return self._forget(self._sent.popleft())

    def restart(self, completed: int, partial: int = 0, partial_received: int = 0) -> list[Outgoing]:
        """A new stream: everything waits again, but for transfers up to `completed`, which are taken out. Of `partial` the peer
        has that many bytes."""
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        here: list[Outgoing] = []
        while self._waiting and self._waiting[0].transfer <= completed:
            here.append(self._forget(self._waiting.popleft()))
        for i, frame in enumerate(self._waiting):
            goes_on = i == 0 and frame.transfer == partial and partial_received < frame.frame_bytes
            frame.resume_bytes = partial_received if goes_on else 0
        return here

    def remove(self, transfer: int) -> list[Outgoing]:
        """Take out one transfer, wherever it is."""
        found: list[Outgoing] = []
        for frames in (self._sent, self._waiting):
            for frame in [f for f in frames if f.transfer == transfer]:
                frames.remove(frame)
                found.append(self._forget(frame))
        return found

    def clear(self) -> list[Outgoing]:
        """Take out all frames, in order."""
        frames = [self._forget(frame) for frame in (*self._sent, *self._waiting)]
        self._sent.clear()
        self._waiting.clear()
        return frames

    def _forget(self, frame: Outgoing) -> Outgoing:
        self.queued_bytes -= frame.frame_bytes
        if not self.queued_bytes:
            self.settled.set()
        return frame
