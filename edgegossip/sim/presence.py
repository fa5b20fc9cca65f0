"""Who thinks that whom is there: what the transport tells a node of its peers, some time after it became true.

As the mesh does: a peer out of reach for longer than a grace time is down; a restart is always noticed, as down and up
again; a peer that we refused is closed for both ends until the process that refused it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TypeAlias

from edgegossip.sim.clock import Clock

Tell: TypeAlias = Callable[[int, int, bool], None]  # (node, peer, is up)
Reach: TypeAlias = Callable[[int, int], bool]  # whether two nodes can talk, as far as processes and links go

GRACE_S = 0.3, 2.0  # until an absence is noticed
RETURN_S = 0.02, 0.3  # until a return is
NOTICE_S = GRACE_S[1] + RETURN_S[1]  # all is known after that


class Presence:
    def __init__(self, clock: Clock, rng: Random, peers: list[tuple[int, ...]], reach: Reach, tell: Tell) -> None:
        self._clock, self._random, self.peers, self._reach, self._tell = clock, rng.random, peers, reach, tell
        self._closed: set[tuple[int, int]] = set()  # (who refuses, whom)
        self._down: list[set[int]] = [set() for _ in peers]  # by node: whom it was told to be down
        self.pending = 0  # looks to come: while there are any, somebody may not know yet what has changed
        self.prompt = False  # whether an absence is noticed as soon as a return is

    def connected(self, a: int, b: int) -> bool:
        return self._reach(a, b) and (a, b) not in self._closed and (b, a) not in self._closed

    def changed(self, pairs: Iterable[tuple[int, int]]) -> None:
        """The link between these, or a process at one end, may have come or gone: each end looks some time later."""
        for a, b in pairs:
            if b in self.peers[a]:
                self._look_later(a, b)
                self._look_later(b, a)

    def node_changed(self, node: int) -> None:
        self.changed((node, peer) for peer in self.peers[node])

    def known_down(self, node: int) -> frozenset[int]:
        """Whom a node finds down that starts with the others."""
        self._down[node] = {p for p in self.peers[node] if not self.connected(node, p)}
        return frozenset(self._down[node])

    def booted(self, node: int) -> frozenset[int]:
        """A new process: it refuses nobody yet, and its peers hear of it even if they never missed it. Whom it finds
        down."""
        self._closed = {(a, b) for a, b in self._closed if a != node}
        for peer in self.peers[node]:
            self.pending += 1
            self._clock.after(self._between(RETURN_S), self._reconnect, peer, node)
        return self.known_down(node)

    def close(self, node: int, peer: int) -> None:
        """`node` refuses `peer` from now on, and knows it."""
        self._closed.add((node, peer))
        self._down[node].add(peer)
        self._look_later(peer, node)

    def _look_later(self, node: int, peer: int) -> None:
        self.pending += 1
        soon = self.prompt or self.connected(node, peer)
        self._clock.after(self._between(RETURN_S if soon else GRACE_S), self._look, node, peer)

    def _between(self, bounds: tuple[float, float]) -> float:
        return bounds[0] + (bounds[1] - bounds[0]) * self._random()

    def _look(self, node: int, peer: int) -> None:
        self.pending -= 1
        up, known_down = self.connected(node, peer), peer in self._down[node]
        if up and known_down:
            self._down[node].discard(peer)
            self._tell(node, peer, True)
        elif not up and not known_down:
            self._down[node].add(peer)
            self._tell(node, peer, False)

    def _reconnect(self, node: int, peer: int) -> None:
        if peer not in self._down[node]:
            self._down[node].add(peer)
            self._tell(node, peer, False)
        self._look(node, peer)
