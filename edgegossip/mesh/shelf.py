"""The place of frames that have come from peers, or wait for them: in memory as far as there is
room, else in files.

A frame counts as long as anything refers to it, be it the inbox, the engine, the algorithm or a
queue; how many of them each keeps is its own affair. Honest boards are hardly ever so far apart
that a file is needed. Linux writes to a card what is half a minute old, or when memory is short: a
frame that is used before never gets there.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter, deque
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from edgegossip.frame import LEAST_FRAME_BYTES
from edgegossip.memory import Buffer, Spool
from edgegossip.types import NodeId

_SPARE_BYTES = 40 << 20  # of frames in memory, beside two of the run's size: where models are small, all of them
_SPARE_TO_SEND_BYTES = 8 << 20  # beside one
_SMALL_BYTES = 64 << 10  # a smaller frame is not worth a file,
_SMALL_ROOM_BYTES = 8 << 20  # and has some room of its own
_MOST_FILES = 384  # each takes a descriptor as long as it is mapped

Views: TypeAlias = tuple[memoryview, ...]  # the pieces of a frame


def most_bytes(frame_bytes: int) -> int:
    """Return what messages take in memory at most, whatever members send: three of the run's
    largest and 64 MiB, with small ones that wait for a peer (mesh/outbound.py)."""
    return 3 * frame_bytes + _SPARE_BYTES + 2 * _SMALL_ROOM_BYTES + _SPARE_TO_SEND_BYTES


class KeptFrame(NamedTuple):
    """Says where a frame is, and what it counts for there until it is gone."""

    whose: NodeId | int  # its sender's; or the buffer of one that is to be sent
    in_file: bool
    among: Counter[Any]
    counts: int  # bytes; of files one


class Shelf:
    """Decides where frames go, on one thread. One that comes counts from `take` until `drop`, or
    until nothing refers any more to what `whole` returned.

    Memory has room for two frames of the run's size and some more, of which each sender has its
    share, and its first frame what there is. The rest goes to files of `spool`. What the disk does
    not take is lost, as on a bad link, and so is what a sender has too many files for: an honest
    one has few. Without a folder all is memory."""

    def __init__(self, spool: Spool) -> None:
        self._spool, self._frame_bytes, self._senders = spool, 0, 1
        self._memory, self._small, self._files = Counter[NodeId](), Counter[NodeId](), Counter[NodeId]()
        self._lent, self._lent_bytes = Counter[int](), dict[int, int]()  # by buffer: uses; size
        self._gone = deque[KeptFrame]()  # from whatever thread

    def bound(self, frame_bytes: int, senders: int) -> None:
        """Take note of the size of the run's largest frame, and of how many send."""
        self._frame_bytes, self._senders = frame_bytes, max(1, senders)

    def take(self, sender: NodeId, size_bytes: int) -> KeptFrame | None:
        """Count a frame that begins to come; None: there is no place for it."""
        self._forget_gone()
        counts, mine = max(size_bytes, LEAST_FRAME_BYTES), self._memory[sender]
        room = 2 * self._frame_bytes + _SPARE_BYTES
        has_share = not mine or mine + counts <= room // self._senders
        if self._spool.folder is None or (has_share and self._memory.total() + counts <= room):
            kept, most = KeptFrame(sender, False, self._memory, counts), sys.maxsize
        elif counts < _SMALL_BYTES:
            kept, most = KeptFrame(sender, False, self._small, counts), _SMALL_ROOM_BYTES
        else:
            kept, most = KeptFrame(sender, True, self._files, 1), _MOST_FILES
        if kept.among[sender] + kept.counts > most // self._senders:
            return None
        kept.among[sender] += kept.counts
        return kept

    def drop(self, kept: KeptFrame) -> None:
        """Take note that it is gone."""
        kept.among[kept.whose] -= kept.counts
        if not kept.among[kept.whose]:
            del kept.among[kept.whose]

    def buffer(self, kept: KeptFrame, size_bytes: int) -> Buffer:
        """Return the place for it, empty. Raises OSError where the disk does not do."""
        return self._spool.file(size_bytes) if kept.in_file else self._spool.buffer(size_bytes)

    def whole(self, kept: KeptFrame, data: memoryview) -> memoryview:
        """Return the frame that has come, which counts until nothing refers to it any more."""
        array = np.frombuffer(data, np.uint8)
        weakref.finalize(array, self._gone.append, kept).atexit = False
        return array.data.toreadonly()

    def lend(self, views: Views) -> Views:
        """Return the pieces of a frame as they are to wait until they are sent: where the caller
        has them, as far as there is room for another one of the run's size, else in a file. One
        buffer counts once, to however many peers it goes. Raises OSError where the disk does not
        do."""
        self._forget_gone()
        body, key, size = views[-1], id(views[-1].obj), sum(map(len, views))
        if size < _SMALL_BYTES or not self._frame_bytes or self._spool.folder is None:
            return views
        held = self._lent_bytes = {k: n for k, n in self._lent_bytes.items() if self._lent[k]}
        if key not in held and sum(held.values()) + size > self._frame_bytes + _SPARE_TO_SEND_BYTES:
            buffer = self._spool.file(size)
            for view in views:
                buffer.put(view)
            return (buffer.whole(),)
        held[key] = size
        self._lent[key] += 1
        return (*views[:-1], self.whole(KeptFrame(key, False, self._lent, 1), body))

    def _forget_gone(self) -> None:
        while self._gone:
            self.drop(self._gone.popleft())
