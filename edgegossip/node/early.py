"""Frames that come before a board can do anything with them, with a bound on their bytes.

A frame for which there is no room is as good as lost on its way: its sender sends what is lacking once training goes on. Each
sender has its own share of the room, so that one that sends without end takes no other's.
"""

from __future__ import annotations

from collections import Counter, deque

from edgegossip.mesh.base import Received
from edgegossip.mesh.limits import LEAST_FRAME_BYTES, MeshLimits
from edgegossip.types import NodeId

EARLY_BYTES = 64 << 20  # altogether


def mesh_limits(grace_s: float) -> MeshLimits:
    """Of a board. While it loads its model nobody takes frames, and how large those of the run are is not known yet."""
    return MeshLimits(grace_s=grace_s, max_unmeasured_bytes=EARLY_BYTES)


class Early:
    """The oldest frames of each of so many `senders`, in the order in which they came. A frame larger than the share is kept
    when it is its sender's first and the room is there; the very first is kept whatever its size."""

    def __init__(self, senders: int, max_bytes: int | None = None) -> None:
        max_bytes = EARLY_BYTES if max_bytes is None else max_bytes
        self._max_bytes, self._share_bytes = max_bytes, max_bytes // max(1, senders)
        self._frames: deque[Received] = deque()
        self._used, self._all_used = Counter[NodeId](), 0  # bytes

    def __len__(self) -> int:
        return len(self._frames)

    def keep(self, frame: Received) -> bool:
        """Whether there was room for it."""
        size, mine = max(len(frame.data), LEAST_FRAME_BYTES), self._used[frame.sender]
        if (mine and mine + size > self._share_bytes) or (self._all_used and self._all_used + size > self._max_bytes):
            return False
        self._used[frame.sender] += size
        self._all_used += size
        self._frames.append(frame)
        return True

    def pop(self) -> Received | None:
        """The oldest frame that is left."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        size = max(len(frame.data), LEAST_FRAME_BYTES)
        self._used[frame.sender] -= size
        self._all_used -= size
        return frame
