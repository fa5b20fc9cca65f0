"""A network that delays, loses, repeats and reorders messages, and links that are cut, slow or go
up and down.

Without faults an edge keeps its order and loses nothing, as the mesh does. What the simulator does
beyond that (a single message of a stream is lost, or arrives twice) is harsher than gRPC: an
algorithm that survives it needs no such promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import numpy as np

from edgegossip.codecs.base import Body, Codec
from edgegossip.lab.sim.clock import Clock
from edgegossip.layout import Layout
from edgegossip.types import Vec

Deliver: TypeAlias = Callable[[int, Any], None]  # (receiver, message)

LATENCY_S = 0.01, 0.05  # of an edge
JITTER_S = 0.01
OVERTAKE_S = 1.5  # how late a message may be that others overtake, or that arrives again
REPLAY_S = 2.0, 8.0  # the same of one that is replayed
KEPT = 64  # bodies whose values `Decoded` remembers


class Network:
    """`seen` counts what each kind of fault did."""

    def __init__(self, clock: Clock, rng: Random, nodes: int, deliver: Deliver, seen: Counter[str]) -> None:
        self._clock, self._random, self._nodes, self._deliver, self._seen = clock, rng.random, nodes, deliver, seen
        low, high = LATENCY_S
        self._latency = [low + (high - low) * rng.random() for _ in range(nodes * nodes)]
        self._last = [0.0] * (nodes * nodes)  # when an edge's latest message arrives
        self._out_of_order: dict[int, float] = {}  # the same of those that are overtaken or come again
        self.delay, self.loss, self.duplication, self.reorder, self.replay = 0.0, 0.0, 0.0, 0.0, 0.0
        self._cuts: dict[int, list[str]] = {}  # by edge: the kinds of faults that cut it
        self._slow: dict[int, float] = {}
        self.through_s = 0.0  # when everything that queued at links while they were slow has come through

    def send(self, sender: int, receiver: int, data: Any) -> str:
        """What faults make of it, such as `lost (loss)`; empty where they leave it alone, but for
        its time."""
        edge, random = sender * self._nodes + receiver, self._random
        if self._cuts and edge in self._cuts:
            kind = self._cuts[edge][-1]
            self._seen[kind] += 1
            return f"cut ({kind})"
        if self.loss and random() < self.loss:
            self._seen["loss"] += 1
            return "lost (loss)"
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
        self._cuts.setdefault(sender * self._nodes + receiver, []).append(kind)

    def mend(self, sender: int, receiver: int, kind: str) -> None:
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
        """Both directions; 0: as fast as ever, after what has queued."""
        for edge in (a * self._nodes + b, b * self._nodes + a):
            if seconds:
                self._slow[edge] = seconds
            elif self._slow.pop(edge, None) is not None:
                self.through_s = max(self.through_s, self._last[edge])


class Decoded:
    """Wraps a codec, equals it, and remembers what it made of the last bodies.

    A node's message goes to several others, and in most schedules all of them get the very same
    object, which each would decode to the very same values. Exact, as values are copied and sums
    are rounded as the codec's own. In one of four schedules every receiver reads its own copy off
    the wire and decodes that (`Schedule.by_wire`); there this is not used."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec, self._params = codec, codec.wire_params()
        self.name, self.wire_id, self.init, self.encode = codec.name, codec.wire_id, codec.init, codec.encode
        self._known: dict[
            int, tuple[Body, Vec]
        ] = {}  # by identity of the body, which stays there as long as it is known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._codec == (other._codec if isinstance(other, Decoded) else other))

    def __hash__(self) -> int:
        return hash(self._codec)

    def wire_params(self) -> bytes:
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
