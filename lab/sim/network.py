"""What stands in for time and the mesh: a virtual clock, a network that loses and reorders
messages, and a failure detector that tells nodes who is there.

`Clock` is a heap of what is to happen and when; nothing in a simulation reads any other clock.

`Network` delays, loses, repeats and reorders messages; links are cut, are slow, or go up and
down. Without faults an edge keeps its order and loses nothing, as the mesh does. What the
simulator does beyond that (a single message of a stream is lost, or arrives twice) is harsher
than gRPC: an algorithm that survives it needs no such promise.

`FailureDetector` tells nodes of their peers as the mesh does, some time after it became true: a
new process hears of whom it reaches, and after a while of whom it does not; a peer out of reach
for longer than a grace time is down; a restart is always noticed, as down and up again; a peer
that we refused is closed for both ends until the process that refused it is gone; who leaves on
purpose says so; two that do not train the same hear that from each other as soon as they meet."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeAlias

import numpy as np

from edgegossip.codecs.base import Body, Codec
from edgegossip.layout import Layout
from edgegossip.types import Vec

Event: TypeAlias = tuple[float, int, Callable[..., None], tuple[Any, ...]]
Deliver: TypeAlias = Callable[[int, Any], None]  # (receiver, message)
LATENCY_S = 0.01, 0.05  # of an edge
JITTER_S = 0.01
OVERTAKE_S = 1.5  # how late a message may be that others overtake, or that arrives again
REPLAY_S = 2.0, 8.0  # the same of one that is replayed
KEPT = 64  # bodies whose values `Decoded` remembers
Tell: TypeAlias = Callable[[int, int, bool, str], None]  # (node, peer, is up, why it is not)
Reach: TypeAlias = Callable[[int, int], bool]  # whether two nodes can talk, as far as processes and links go
Fit: TypeAlias = Callable[[int, int], bool]  # whether they train the same
GRACE_S = 0.3, 2.0  # until an absence is noticed
RETURN_S = 0.02, 1.5  # until a return is
FIRST_S = 1.0, 2.0  # until a new process gives up whom it has not reached yet
DOWN = 0
UNFIT = "do not fit together"  # the reason by which a node hears that of a peer
NOTICE_S = GRACE_S[1] + RETURN_S[1]  # all is known after that


class Clock:
    """Lets events happen in the order of their times; those of one instant in the order in which
    they were put in, so that a seed gives the same run again."""

    __slots__ = ("_count", "_heap", "_stopped", "now")

    def __init__(self) -> None:
        self.now = 0.0  # virtual seconds
        self._heap: list[Event] = []
        self._count = 0
        self._stopped = False

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Call what(*args) at `when`, or now if that has passed; never once the clock has
        stopped."""
        if self._stopped:
            return
        self._count += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._count, what, args))

    def after(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        """Call what(*args) so many virtual seconds from now."""
        self.at(self.now + delay_s, what, *args)

    def run(self, until: float) -> bool:
        """Let everything happen up to `until`, or until `stop` is called; tell whether nothing
        is left to happen."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, what, args = pop(heap)
            what(*args)
        return not heap

    def stop(self) -> None:
        """Forget everything that was to happen, and what is still asked for."""
        self._stopped = True
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)


class Lost(str):
    """Says why a message never arrives."""


class Network:
    """Carries messages between nodes by index; `seen` counts what each kind of fault did."""

    def __init__(self, clock: Clock, rng: Random, nodes: int, deliver: Deliver, seen: Counter[str]) -> None:
        self._clock, self._random, self._nodes, self._deliver, self._seen = clock, rng.random, nodes, deliver, seen
        low, high = LATENCY_S
        self._latency = [low + (high - low) * rng.random() for _ in range(nodes * nodes)]
        self._last = [0.0] * (nodes * nodes)  # when an edge's latest message arrives
        self._out_of_order: dict[int, float] = {}  # the same of those that are overtaken or come again
        self.delay, self.loss, self.duplication, self.reorder, self.replay = 0.0, 0.0, 0.0, 0.0, 0.0
        self.deaf: Counter[int] = Counter()  # by receiver: faults that keep everything from it
        self._cuts: dict[int, list[str]] = {}  # by edge: the kinds of faults that cut it
        self._slow: dict[int, float] = {}
        self.through_s = 0.0  # when everything that queued at links while they were slow has come through

    def send(self, sender: int, receiver: int, data: Any) -> str:
        """Send a message, and say what faults make of it, such as `lost (loss)`; nothing where
        they leave it alone, but for its time."""
        edge, random = sender * self._nodes + receiver, self._random
        if self._cuts and edge in self._cuts:
            kind = self._cuts[edge][-1]
            self._seen[kind] += 1
            return Lost(f"cut ({kind})")
        if self.deaf and receiver in self.deaf:
            self._seen["deaf"] += 1
            return Lost("lost (deaf)")
        if self.loss and random() < self.loss:
            self._seen["loss"] += 1
            return Lost("lost (loss)")
        now, fate = self._clock.now, ""
        when = now + self._latency[edge] + JITTER_S * random()
        if self.delay:
            when += self.delay * random()
            self._seen["delay"] += 1
        if self._slow and edge in self._slow:
            when = max(when, self._last[edge]) + self._slow[edge]
            self._seen["slow-link"] += 1
        if self.reorder and random() < self.reorder:
            when += OVERTAKE_S * random()
            self._late(edge, when)
            self._seen["reorder"] += 1
            fate = "others overtake it (reorder)"
        else:
            when = self._last[edge] = max(when, self._last[edge])
        self._clock.at(when, self._deliver, receiver, data)
        if self.duplication and random() < self.duplication:
            self._seen["duplication"] += 1
            self._clock.at(self._late(edge, when + OVERTAKE_S * random()), self._deliver, receiver, data)
            fate = f"{fate}, twice (duplication)" if fate else "twice (duplication)"
        if self.replay and random() < self.replay:
            self._seen["replay"] += 1
            again = REPLAY_S[0] + (REPLAY_S[1] - REPLAY_S[0]) * random()
            self._clock.at(self._late(edge, when + again), self._deliver, receiver, data)
            fate = f"{fate}, again later (replay)" if fate else "again later (replay)"
        return fate

    def _late(self, edge: int, when: float) -> float:
        self._out_of_order[edge] = max(when, self._out_of_order.get(edge, 0.0))
        return when

    def arrives_s(self, sender: int) -> list[float]:
        """Return, by receiver, when the last message that this node has sent so far arrives."""
        edges = range(sender * self._nodes, (sender + 1) * self._nodes)
        return [max(self._last[edge], self._out_of_order.get(edge, 0.0)) for edge in edges]

    def cut(self, sender: int, receiver: int, kind: str) -> None:
        """Let nothing through from sender to receiver until `mend` is called for the same kind
        of fault."""
        self._cuts.setdefault(sender * self._nodes + receiver, []).append(kind)

    def mend(self, sender: int, receiver: int, kind: str) -> None:
        """Take a cut of this kind away; the edge is open again once no kind of fault cuts it."""
        edge = sender * self._nodes + receiver
        kinds = self._cuts.get(edge, [])
        if kind in kinds:
            kinds.remove(kind)
        if not kinds:
            self._cuts.pop(edge, None)

    def is_cut(self, a: int, b: int) -> bool:
        """Tell whether a link is cut in either direction: acknowledgements do not come back either,
        so both ends notice."""
        n, cuts = self._nodes, self._cuts
        return bool(cuts) and (a * n + b in cuts or b * n + a in cuts)

    def slow(self, a: int, b: int, seconds: float) -> None:
        """Let each message take so many seconds, in both directions; with 0 the link is as fast
        as ever, after what has queued."""
        for edge in (a * self._nodes + b, b * self._nodes + a):
            if seconds:
                self._slow[edge] = seconds
            elif self._slow.pop(edge, None) is not None:
                self.through_s = max(self.through_s, self._last[edge])


class Decoded:
    """Wraps a codec, equals it, and remembers what it made of the last bodies.

    A node's message goes to several others, and in most schedules all of them get the very same
    object, which each would decode to the very same values. Exact, as values are copied and sums
    are rounded as the codec's own. In one of four schedules every receiver reads its own copy
    off the wire and decodes that (`Schedule.by_wire`); there this is not used."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec, self._params = codec, codec.wire_params()
        self.name, self.wire_id, self.init, self.encode = codec.name, codec.wire_id, codec.init, codec.encode
        # By identity of the body, which stays there as long as it is known.
        self._known: dict[int, tuple[Body, Vec]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._codec == (other._codec if isinstance(other, Decoded) else other))

    def __hash__(self) -> int:
        return hash(self._codec)

    def wire_params(self) -> bytes:
        """Return the codec's parameters as they travel."""
        return self._params

    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        """Decode as the codec does. `out` must be one that it would take."""
        known = self._known.get(id(body))
        values = self._decoded(body, layout) if known is None else known[1]
        if out is None:
            return values.copy()
        if weight is None:
            out[:] = values
        else:
            out += values if weight == 1.0 else np.float32(weight) * values
        return out

    def _decoded(self, body: Body, layout: Layout) -> Vec:
        values = self._codec.decode(body, layout)
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[id(body)] = body, values
        return values


class FailureDetector:
    """Tells nodes which peers are up; `peers` are those whom each node has streams with."""

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
        """Tell whether the two can talk, and do not refuse each other."""
        return self._meet(a, b) and self._fit(a, b)

    def unfit(self, node: int, peer: int) -> bool:
        """Tell whether the node heard that this process of the peer trains something else."""
        return self._unfit[node].get(peer) == self._boots[peer]

    def fits_nobody(self, node: int, *, as_told: bool = False) -> bool:
        """Tell whether the node heard that of all its peers; `as_told`: of whatever process of
        them."""
        return bool(self.peers[node]) and len(self._all_unfit(node, as_told)) == len(self.peers[node])

    def outvoted(self, node: int, *, as_told: bool = False) -> bool:
        """Tell whether the node heard that of more than half of all nodes, or of half, the first
        among them; those that did fit before do not count."""
        unfit = [peer for peer in self._all_unfit(node, as_told) if not self.met(node, peer)]
        return 2 * len(unfit) > len(self.peers) or (2 * len(unfit) == len(self.peers) and 0 in unfit)

    def _all_unfit(self, node: int, as_told: bool) -> list[int]:
        if as_told:
            return [peer for peer in self.peers[node] if peer in self._unfit[node]]
        return [peer for peer in self.peers[node] if self.unfit(node, peer)]

    def _meet(self, a: int, b: int) -> bool:
        return self._reach(a, b) and (a, b) not in self._closed and (b, a) not in self._closed

    def knows_down(self, node: int, peer: int) -> bool:
        """Tell whether the node heard that the peer is down, and nothing else since."""
        return self._told[node].get(peer) == DOWN

    def met(self, node: int, peer: int) -> bool:
        """Tell whether the node's present process has ever heard that the peer is there."""
        return peer in self._met[node]

    def changed(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Let both ends of these links look some time later: the link, or a process at one end,
        may have come or gone."""
        for a, b in pairs:
            if b in self.peers[a]:
                self._look_later(a, b)
                self._look_later(b, a)

    def node_changed(self, node: int) -> None:
        """Tell the same of all links of a node."""
        self.changed((node, peer) for peer in self.peers[node])

    def booted(self, node: int) -> None:
        """Begin a new process: it refuses nobody and knows of nobody yet, and its peers hear of
        it even if they never missed the one before."""
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
        """Let `node` refuse `peer` from now on, and know it."""
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
