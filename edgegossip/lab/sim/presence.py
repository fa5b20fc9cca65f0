"""Who thinks that whom is there: what the transport tells a node of its peers, some time after it
became true.

As the mesh does: a new process hears of whom it reaches, and after a while of whom it does not; a
peer out of reach for longer than a grace time is down; a restart is always noticed, as down and up
again; a peer that we refused is closed for both ends until the process that refused it is gone; who
leaves on purpose says so; two that do not train the same hear that from each other as soon as they
meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TypeAlias

from edgegossip.lab.sim.clock import Clock

Tell: TypeAlias = Callable[[int, int, bool, str], None]  # (node, peer, is up, why it is not)
Reach: TypeAlias = Callable[[int, int], bool]  # whether two nodes can talk, as far as processes and links go
Fit: TypeAlias = Callable[[int, int], bool]  # whether they train the same

GRACE_S = 0.3, 2.0  # until an absence is noticed
RETURN_S = 0.02, 0.3  # until a return is
FIRST_S = 1.0, 2.0  # until a new process gives up whom it has not reached yet
DOWN = 0
UNFIT = "do not fit together"  # the reason by which a node hears that of a peer
NOTICE_S = GRACE_S[1] + RETURN_S[1]  # all is known after that


class Presence:
    """`peers`: whom each node has streams with."""

    def __init__(
        self, clock: Clock, rng: Random, peers: list[tuple[int, ...]], reach: Reach, fit: Fit, tell: Tell
    ) -> None:
        self._clock, self._random, self.peers, self._reach, self._tell = clock, rng.random, peers, reach, tell
        self._fit = fit
        self._unfit: list[dict[int, int]] = [{} for _ in peers]  # by node: the process of a peer that it heard it of
        self._closed: set[tuple[int, int]] = set()  # (who refuses, whom)
        self._boots = [0] * len(peers)  # of each node: counts its processes
        self._told: list[dict[int, int]] = [{} for _ in peers]  # by node: which process of a peer is up, or DOWN
        self._met: list[set[int]] = [set() for _ in peers]
        self.lost: set[int] = set()  # nodes that were there and died before the others began, as they all know
        self.pending = 0  # looks to come: while there are any, somebody may not know yet what has changed
        self.prompt = False  # whether an absence is noticed as soon as a return is

    def connected(self, a: int, b: int) -> bool:
        """Whether the two can talk, and do not refuse each other."""
        return self._meet(a, b) and self._fit(a, b)

    def unfit(self, node: int, peer: int) -> bool:
        """Whether the node was told that this process of the peer trains something else."""
        return self._unfit[node].get(peer) == self._boots[peer]

    def fits_nobody(self, node: int, *, as_told: bool = False) -> bool:
        """Whether it was told so of all its peers. `as_told`: of whatever process of them."""
        return bool(self.peers[node]) and len(self._all_unfit(node, as_told)) == len(self.peers[node])

    def outvoted(self, node: int, *, as_told: bool = False) -> bool:
        """Whether it was told so of more than half of all nodes, or of half, the first among them;
        not counting those that did fit before."""
        unfit = [peer for peer in self._all_unfit(node, as_told) if not self.met(node, peer)]
        return 2 * len(unfit) > len(self.peers) or (2 * len(unfit) == len(self.peers) and 0 in unfit)

    def _all_unfit(self, node: int, as_told: bool) -> list[int]:
        if as_told:
            return [peer for peer in self.peers[node] if peer in self._unfit[node]]
        return [peer for peer in self.peers[node] if self.unfit(node, peer)]

    def _meet(self, a: int, b: int) -> bool:
        return self._reach(a, b) and (a, b) not in self._closed and (b, a) not in self._closed

    def knows_down(self, node: int, peer: int) -> bool:
        """Whether the node was told so, and nothing else since."""
        return self._told[node].get(peer) == DOWN

    def met(self, node: int, peer: int) -> bool:
        """Whether the node's present process has ever been told that the peer is there."""
        return peer in self._met[node]

    def changed(self, pairs: Iterable[tuple[int, int]]) -> None:
        """The link between these, or a process at one end, may have come or gone: each end looks
        some time later."""
        for a, b in pairs:
            if b in self.peers[a]:
                self._look_later(a, b)
                self._look_later(b, a)

    def node_changed(self, node: int) -> None:
        """Tell the same of all links of a node."""
        self.changed((node, peer) for peer in self.peers[node])

    def booted(self, node: int) -> None:
        """A new process: it refuses nobody and knows of nobody yet, and its peers hear of it even
        if they never missed the one before."""
        self._closed = {(a, b) for a, b in self._closed if a != node}
        self._told[node], self._unfit[node] = {}, {}
        self._met[node].clear()
        self._boots[node] += 1
        self.lost.discard(node)
        for peer in self.peers[node]:
            self.pending += 3
            self._clock.after(self._between(RETURN_S), self._look, node, peer)
            self._clock.after(self._between(RETURN_S), self._look, peer, node)
            self._clock.after(self._between(FIRST_S), self._give_up, node, peer, self._boots[node])
            if peer in self.lost:
                self._met[node].add(peer)
                self._tell(node, peer, True, "")
                self._told[node][peer] = DOWN
                self._tell(node, peer, False, "its process is gone")

    def close(self, node: int, peer: int) -> None:
        """`node` refuses `peer` from now on, and knows it."""
        self._closed.add((node, peer))
        self._told[node][peer] = DOWN
        self._look_later(peer, node)

    def _look_later(self, node: int, peer: int) -> None:
        self.pending += 1
        soon = self.prompt or self.connected(node, peer)
        self._clock.after(self._between(RETURN_S if soon else GRACE_S), self._look, node, peer)

    def _between(self, bounds: tuple[float, float]) -> float:
        return bounds[0] + (bounds[1] - bounds[0]) * self._random()

    def _look(self, node: int, peer: int) -> None:
        self.pending -= 1
        up, told, boot = self.connected(node, peer), self._told[node].get(peer), self._boots[peer]
        if told not in (None, DOWN, boot) or (not up and told == boot):
            self._told[node][peer] = DOWN
            self._tell(node, peer, False, "out of reach" if told == boot else "it was restarted")
        if up and self._told[node].get(peer) != boot:
            self._told[node][peer] = boot
            self._met[node].add(peer)
            self._unfit[node].pop(peer, None)
            self._tell(node, peer, True, "")
        if not up and self._meet(node, peer) and not self.unfit(node, peer):
            self._told[node][peer], self._unfit[node][peer] = DOWN, boot
            self._tell(node, peer, False, UNFIT)

    def _give_up(self, node: int, peer: int, boot: int) -> None:
        self.pending -= 1
        if boot == self._boots[node] and peer not in self._told[node]:
            self._told[node][peer] = DOWN
            self._tell(node, peer, False, "never reached")
