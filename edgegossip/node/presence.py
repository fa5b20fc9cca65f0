"""Whether a board may begin to train: who of its neighbours is there, and who is not worth waiting for."""

from __future__ import annotations

import time

from edgegossip.mesh.base import PeerDown, PeerUp
from edgegossip.types import NodeId

RETURN_S = 10.0  # a neighbour that was down and sends frames is waited for so long: our stream to it is on its way
GONE_S = 120.0  # a board that was started again waits so long when every neighbour was named dead: a split may heal


class Presence:
    """Which of the `wanted` neighbours are there, which were, and why they are not any more. `restarted`: this board was in
    the run before."""

    def __init__(self, wanted: frozenset[NodeId], restarted: bool) -> None:
        self._wanted, self._restarted, self._seen = wanted, restarted, set[NodeId]()
        self.up, self.down = set[NodeId](), dict[NodeId, str]()
        self._last_seen_s: dict[NodeId, float] = {}
        self._left = set[NodeId]()
        self._gone_s: float | None = None  # since when every neighbour is known to be down
        self._returning: dict[NodeId, tuple[float, str]] = {}  # until when to wait for it, and why it was down

    @property
    def all_left(self) -> bool:
        """Whether every neighbour has left on purpose."""
        return self._wanted <= self._left

    def heard(self, peer: NodeId) -> None:
        """A frame of it came. What was said of it before, perhaps by a member that knew less than we do now, is out of date."""
        if peer in self.down:
            self._returning.setdefault(peer, (time.monotonic() + RETURN_S, self.down.pop(peer)))

    def note(self, event: PeerUp | PeerDown) -> None:
        self._returning.pop(event.peer, None)
        match event:
            case PeerUp(peer):
                self.up.add(peer)
                self.down.pop(peer, None)
                self._seen.add(peer)
                self._left.discard(peer)
            case PeerDown(peer, reason, left, closed):
                if left:
                    self._left.add(peer)
                self.up.discard(peer)
                self.down[peer] = reason
                self._last_seen_s[peer] = time.monotonic()
                if closed:
                    self._seen.add(peer)  # we ended it ourselves, and nothing more will come

    def may_start(self, others_train: bool, late: bool) -> bool:
        """`others_train`: frames came; `late`: the others are far on, and the time to wait for one more is over."""
        for peer, (until_s, reason) in list(self._returning.items()):
            if time.monotonic() >= until_s:
                self.down[peer] = reason
                del self._returning[peer]
        if late and self.up:
            return True
        run_is_on = others_train or (self._restarted and (bool(self.up) or self._gone_for_s() >= GONE_S))
        given_up = self.down.keys() if run_is_on else self.down.keys() & self._seen
        return self._wanted <= self.up | given_up

    def _gone_for_s(self) -> float:
        """How long every neighbour has been down; 0 while one is up, may return, or was never heard of."""
        if not self._wanted <= self.down.keys():
            self._gone_s = None
            return 0.0
        now_s = time.monotonic()
        self._gone_s = now_s if self._gone_s is None else self._gone_s
        return now_s - self._gone_s

    def who_is_missing(self, training: frozenset[NodeId] = frozenset()) -> str:
        """`training`: members that are no neighbours, and in the run."""
        missing = ", ".join(f"{p} ({self._state(p)})" for p in sorted(self._wanted - self.up))
        text = f"waiting {len(self._wanted & self.up)}/{len(self._wanted)}: missing {missing}"
        if not self._restarted or not self._wanted <= self.down.keys():
            return text
        left_s = max(0.0, GONE_S - self._gone_for_s())
        without = f"waits, for the run goes on ({', '.join(sorted(training))})," if training else "ends"
        goes_on = f"in {left_s:.0f} s this board goes on from its checkpoint, or {without} if it has none"
        return f"{text}; no neighbour is left: {goes_on}"

    def _state(self, peer: NodeId) -> str:
        """In few words; a reason may name the peer already."""
        reason = self.down.get(peer, "").removeprefix("lost ").removeprefix(f"{peer} ").removeprefix("was ")
        if peer not in self._seen:
            return f"down: {reason}" if reason else "never seen"
        seen = f"last seen {time.monotonic() - self._last_seen_s[peer]:.0f} s ago"
        return f"{seen}: {reason}" if reason else seen
