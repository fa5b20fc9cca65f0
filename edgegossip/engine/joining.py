"""Keeps what a board knows before it trains: which neighbours are there, who else is in the run,
and frames that are pending."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from edgegossip import frame as wire
from edgegossip.engine.events import Data, FrameReceived, MemberNews, NeighbourDown, NeighbourUp
from edgegossip.types import NodeId

PENDING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """Says how long a board waits, in seconds, and what it keeps meanwhile, in bytes."""

    grace_s: float  # a late board waits so long for neighbours that it has not reached yet
    announce_s: float = 5.0  # whoever waits says for whom, this often
    take_s: float = 1.0  # between two rounds: whoever sends faster than we take in must not keep us from training
    catch_up_s: float = 5.0  # a newcomer waits so long for a neighbour's model before it trains on its own
    return_s: float = 10.0  # a neighbour that was down and sends frames: our stream to it is on its way
    gone_s: float = 120.0  # a board that was started again and finds every neighbour dead: a split may heal
    pending_bytes: int = PENDING_BYTES  # frames that come before their time, altogether


class PeerStatus:
    """Knows which of the `wanted` neighbours are there, which were, and why they are not any more.
    `restarted`: this board was in the run before."""

    def __init__(self, wanted: frozenset[NodeId], restarted: bool, patience: Patience) -> None:
        self._wanted, self._restarted, self._patience = wanted, restarted, patience
        self.up, self.down = set[NodeId](), dict[NodeId, str]()  # why it is down
        self._seen = set[NodeId]()
        self._left = set[NodeId]()
        self.incompatible: dict[NodeId, str] = {}  # who trains something else than we do, and how it differs
        self._last_seen_s: dict[NodeId, float] = {}
        self.far_on = dict[NodeId, float]()  # who says so, and since when
        self._gone_s: float | None = None  # since when every neighbour is known to be down
        self._returning: dict[NodeId, tuple[float, str]] = {}  # until when to wait for it, and why it was down

    @property
    def all_left(self) -> bool:
        """Whether every neighbour has left on purpose, or is none of ours."""
        return self._wanted <= self._left | self.incompatible.keys()

    @property
    def all_incompatible(self) -> bool:
        """Whether every neighbour trains something else than we do."""
        return bool(self._wanted) and self._wanted <= self.incompatible.keys()

    @property
    def never_compatible(self) -> frozenset[NodeId]:
        """Those that train something else, and always did: not those that came again with other
        data."""
        return frozenset(self.incompatible.keys() - self._seen)

    def heard(self, peer: NodeId, now_s: float) -> None:
        """Take note that a frame of a peer came. What was known of it before, perhaps from a member
        that knew less than we do now, is out of date."""
        if peer in self.down and peer not in self.incompatible:
            self._returning[peer] = (now_s + self._patience.return_s, self.down.pop(peer))

    def note(self, event: NeighbourUp | NeighbourDown, now_s: float) -> None:
        """Take the transport's word on a neighbour."""
        peer = event.peer
        self._returning.pop(peer, None)
        if isinstance(event, NeighbourUp):
            self.up.add(peer)
            self.down.pop(peer, None)
            self.incompatible.pop(peer, None)
            self._seen.add(peer)
            self._left.discard(peer)
            return
        if event.disagrees:
            self.incompatible[peer] = event.reason
        if event.left:
            self._left.add(peer)
        self.up.discard(peer)
        self.down[peer] = event.reason
        self._last_seen_s[peer] = now_s
        if event.closed:
            self._seen.add(peer)  # we ended it ourselves, and nothing more will come

    def may_start(self, others_train: bool, now_s: float) -> bool:
        """Tell whether nobody is missing who is worth waiting for. `others_train`: frames came."""
        for peer, (until_s, reason) in list(self._returning.items()):
            if now_s >= until_s:
                self.down[peer] = reason
                del self._returning[peer]
        if self._is_late(now_s):
            return True
        # A neighbour that was there and went down can come back later. One that was never there is
        # waited for without end (a board is told to stop), unless others train already: then those
        # would wait for us.
        run_is_on = others_train or (
            self._restarted and (bool(self.up) or self.gone_for_s(now_s) >= self._patience.gone_s)
        )
        given_up = self.down.keys() if run_is_on else self.down.keys() & self._seen
        return self._wanted <= self.up | given_up | self.incompatible.keys()

    def _is_late(self, now_s: float) -> bool:
        """Tell whether the time to wait for the few that are missing is over, as others are far on.
        One of several may lie, or have no missing neighbour itself: it is believed much later."""
        there, missing = self._wanted & self.up, self._wanted - self.up - self.down.keys()
        far_on = self.far_on.keys() & there
        if not far_on or len(missing) > len(there):
            return False
        waits_s = self._patience.grace_s if len(far_on) >= min(2, len(there)) else self._patience.gone_s
        return now_s >= min(self.far_on.values()) + waits_s

    def gone_for_s(self, now_s: float) -> float:
        """Return how long every neighbour has been down, from the first call at which all were; 0
        while one is up, may return, or was never heard of."""
        if not self._wanted <= self.down.keys():
            self._gone_s = None
            return 0.0
        self._gone_s = now_s if self._gone_s is None else self._gone_s
        return now_s - self._gone_s

    def who_is_missing(self, training: frozenset[NodeId], now_s: float) -> tuple[str, list[NodeId]]:
        """Return one sentence for the log, and whom it is about. `training`: members that are no
        neighbours, and in the run."""
        fit = self._wanted - self.incompatible.keys()
        missing = sorted(fit - self.up)
        described = ", ".join(f"{p} ({self._describe(p, now_s)})" for p in missing)
        text = f"waiting {len(fit & self.up)}/{len(fit)}: missing {described}"
        if not self._restarted or not self._wanted <= self.down.keys():
            return text, missing
        left_s = max(0.0, self._patience.gone_s - self.gone_for_s(now_s))
        without = f"waits, for the run goes on ({', '.join(sorted(training))})," if training else "ends"
        goes_on = f"in {left_s:.0f} s this board goes on from its checkpoint, or {without} if it has none"
        return f"{text}; no neighbour is left: {goes_on}", missing

    def _describe(self, peer: NodeId, now_s: float) -> str:
        """Describe what is known of a missing peer; a reason may name it already."""
        reason = self.down.get(peer, "").removeprefix("lost ").removeprefix(f"{peer} ").removeprefix("was ")
        if peer not in self._seen:
            return f"down: {reason}" if reason else "never seen"
        seen = f"last seen {now_s - self._last_seen_s[peer]:.0f} s ago"
        return f"{seen}: {reason}" if reason else seen


def down_text(peer: NodeId, reason: str) -> str:
    """Return one sentence on a peer that is gone; a transport's reason may name it already."""
    return reason if reason.startswith((f"lost {peer}", f"{peer} ")) else f"lost {peer}: {reason}"


class RemoteMembers:
    """Knows whether the run goes on out of sight, at members that are no neighbours. `known`: those
    that had come before us, and whether they are here; without those that left."""

    def __init__(self, known: Mapping[NodeId, bool] | None = None) -> None:
        self._there = dict(known or {})  # here, or dead: whoever died may come back
        self._since_before = {peer for peer, here in self._there.items() if here}

    @property
    def nobody(self) -> bool:
        """Whether none of them is here, or may come back."""
        return not self._there

    @property
    def training(self) -> frozenset[NodeId]:
        """Those that were here before us, and are. One that came after us may be waiting as we do:
        two boards that take each other for the run would wait for ever."""
        return frozenset(peer for peer in self._since_before if self._there.get(peer))

    def note(self, news: MemberNews) -> None:
        """Take the members' word on one of them."""
        if news.left:
            self._there.pop(news.peer, None)
        else:
            self._there[news.peer] = news.here
        if news.restarted:
            self._since_before.discard(news.peer)


class PendingFrames:
    """Keeps frames that came before a board can do anything with them, the oldest first, with a
    bound on their bytes.

    A frame for which there is no room is as good as lost on its way: its sender sends what is
    lacking once training goes on. Each of so many `senders` has its own share of the room, so that
    one that sends without end takes no other's. A frame larger than the share is kept when it is
    its sender's first and the room is there; the very first is kept whatever its size."""

    def __init__(self, senders: int, max_bytes: int = PENDING_BYTES) -> None:
        self._max_bytes, self.share_bytes = max_bytes, max_bytes // max(1, senders)
        self.frames: deque[FrameReceived] = deque()
        self._used, self._all_used = Counter[NodeId](), 0  # bytes

    def __len__(self) -> int:
        return len(self.frames)

    def keep(self, frame: FrameReceived) -> bool:
        """Keep a frame; tell whether there was room for it."""
        size, mine = _room_for(frame.data), self._used[frame.sender]
        if (mine and mine + size > self.share_bytes) or (self._all_used and self._all_used + size > self._max_bytes):
            return False
        self._used[frame.sender] += size
        self._all_used += size
        self.frames.append(frame)
        return True

    def pop(self) -> FrameReceived | None:
        """Return the oldest frame that is left, and forget it; None without any."""
        if not self.frames:
            return None
        frame = self.frames.popleft()
        size = _room_for(frame.data)
        self._used[frame.sender] -= size
        self._all_used -= size
        return frame


def _room_for(data: Data) -> int:
    if isinstance(data, wire.Frame):
        size = wire.HEADER_BYTES + len(data.codec_params) + wire.AUX_BYTES * len(data.aux) + len(data.body)
    else:
        size = len(data)
    return max(size, wire.LEAST_FRAME_BYTES)
