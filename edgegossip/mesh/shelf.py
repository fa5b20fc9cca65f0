"""The place of frames that have come from peers, or wait for them: in memory as far as there is
room, else in files.

A neighbour that is ahead sends what is kept until its round comes, and a hostile one sends as much
as is kept. So a frame counts as long as anything refers to it, be it the inbox, the engine, the
algorithm or a checkpoint that is being written; who keeps how many is their own affair. Honest
boards are hardly ever so far apart that a file is needed. What waits for a peer that takes nothing
goes there, too. Linux writes to a card what is half a
minute old, or when memory is short: a frame that is used before never gets there.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np

from edgegossip.frame import LEAST_FRAME_BYTES
from edgegossip.memory import Buffer, Spool
from edgegossip.types import NodeId

_SPARE_BYTES = 40 << 20  # of frames in memory, beside two of the run's size: where models are small, all of them
_SPARE_TO_SEND_BYTES = 8 << 20  # beside one of the run's size
_SMALL_BYTES = 64 << 10  # a smaller frame is not worth a file,
_SMALL_ROOM_BYTES = 8 << 20  # and has some room of its own
_MOST_FILES = 384  # each takes a descriptor as long as it is mapped

Views: TypeAlias = tuple[memoryview, ...]


def most_bytes(frame_bytes: int) -> int:
    """Return what messages that came, or are to be sent, take in memory at most, whatever members
    send: three of the run's largest, and 64 MiB. Small ones to one peer that takes none are among
    it."""
    return 3 * frame_bytes + _SPARE_BYTES + 2 * _SMALL_ROOM_BYTES + _SPARE_TO_SEND_BYTES


class Place(Enum):
    """Says where a frame is."""

    MEMORY = "memory"
    SMALL = "memory for small ones"
    FILE = "file"


class Kept(NamedTuple):
    """Says where a frame goes, and what it counts for there until it is gone."""

    sender: NodeId
    size_bytes: int
    place: Place
    counts: int  # bytes; of files one


class Shelf:
    """Decides where the frames of peers go, on one thread. A frame counts from `take` until `drop`,
    or until nothing refers any more to what `whole` returned.

    Memory has room for two frames of the run's size and some more, of which each sender has its
    share, and its first frame what there is. The rest goes to files of `spool`. What the disk does
    not take is lost, as on a bad link, and so is what a sender has too many files for: an honest
    one has few. Without a folder all is memory."""

    def __init__(self, spool: Spool) -> None:
        self._spool, self._frame_bytes, self._senders = spool, 0, 1
        self._held = {place: Counter[NodeId]() for place in Place}
        self._gone = deque[Kept]()  # from whatever thread

    def bound(self, frame_bytes: int, senders: int) -> None:
        """Take note of the size of the run's largest frame, and of how many send."""
        self._frame_bytes, self._senders = frame_bytes, max(1, senders)

    def take(self, sender: NodeId, size_bytes: int) -> Kept | None:
        """Count a frame that begins to come; None: there is no place for it."""
        while self._gone:
            self.drop(self._gone.popleft())
        counts = max(size_bytes, LEAST_FRAME_BYTES)
        place = self._place_for(sender, counts)
        if place is None:
            return None
        kept = Kept(sender, size_bytes, place, 1 if place is Place.FILE else counts)
        self._held[place][sender] += kept.counts
        return kept

    def drop(self, kept: Kept) -> None:
        """Take note that it is gone."""
        self._held[kept.place][kept.sender] -= kept.counts

    def buffer(self, kept: Kept) -> Buffer:
        """Return the place for it, empty."""
        make = self._spool.file if kept.place is Place.FILE else self._spool.buffer
        return make(kept.size_bytes)

    def whole(self, kept: Kept, data: memoryview) -> memoryview:
        """Return the frame that has come, which counts until nothing refers to it any more."""
        if kept.place is Place.FILE:
            self._spool.watch(data)
        array = np.frombuffer(data, np.uint8)
        weakref.finalize(array, self._gone.append, kept).atexit = False
        return array.data.toreadonly()

    def _place_for(self, sender: NodeId, counts: int) -> Place | None:
        mine, all_ = self._held[Place.MEMORY][sender], self._held[Place.MEMORY].total()
        room = 2 * self._frame_bytes + _SPARE_BYTES
        has_share = not mine or mine + counts <= room // self._senders
        if self._spool.folder is None or (has_share and all_ + counts <= room):
            return Place.MEMORY
        if counts < _SMALL_BYTES:
            mine = self._held[Place.SMALL][sender]
            return Place.SMALL if mine + counts <= _SMALL_ROOM_BYTES // self._senders else None
        return Place.FILE if self._held[Place.FILE][sender] < _MOST_FILES // self._senders else None


class Lent:
    """Decides where frames wait that are to be sent, on one thread: where the caller has them, as
    far as there is room, else in files of `spool`. One buffer counts once, to however many it
    goes."""

    def __init__(self, spool: Spool) -> None:
        self._spool, self._room_bytes = spool, 0
        self._sizes, self._uses = dict[int, int](), Counter[int]()  # by buffer

    def bound(self, frame_bytes: int) -> None:
        """Take note of the size of the run's largest frame."""
        self._room_bytes = frame_bytes + _SPARE_TO_SEND_BYTES

    def take(self, views: Views) -> Views | None:
        """Return the pieces of a frame as they are to wait until `drop`; None: it has no place."""
        key, size = id(views[-1].obj), sum(map(len, views))
        is_small = size < _SMALL_BYTES or not self._room_bytes or self._spool.folder is None
        if is_small or key in self._sizes or sum(self._sizes.values()) + size <= self._room_bytes:
            self._sizes[key] = 0 if is_small else size
            self._uses[key] += 1
            return views
        buffer = self._spool.file(size)
        for view in views:
            buffer.put(view)
        if buffer.lost:
            return None
        whole = buffer.whole()
        self._spool.watch(whole)
        return (whole,)

    def drop(self, views: Views) -> None:
        """Take note that a frame waits no more."""
        key = id(views[-1].obj)
        if key in self._uses:
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key], self._sizes[key]
