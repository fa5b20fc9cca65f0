"""What one outgoing edge is made of: the peer's status and a queued frame."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    NEW = "never reached"
    UP = "up"
    LOST = "lost"  # within the grace time
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
    start_position: int = 0  # on the present stream, see Window
    written_bytes: int = 0  # on the present stream
    acknowledged_bytes: int = 0
