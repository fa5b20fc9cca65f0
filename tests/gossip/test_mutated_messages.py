"""Whatever a neighbour sends, nothing but PeerError leaves an algorithm: a board's engine catches
no other. Nor does an algorithm keep more than the messages themselves, which lie where its shell
has put them.

Messages of an honest history come again, changed in up to three places, at a board that has just
begun anew. Values are those that were seen somewhere, or stand at a bound; parts of full states are
of the session that the board waits for. Now and then the board steps or ticks, so that what it kept
is looked at, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from edgegossip import gossip
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.base import Message, NodeView
from edgegossip.gossip.scheme import RoundContext
from edgegossip.layout import Layout
from edgegossip.types import PeerError

N = 12
BOUNDS = (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 2.0**32, 2.0**48 - 1, 2.0**53, 1e308)
SEEDS, MANY_SEEDS, MESSAGES = 1, 24, 200
BESIDE = 2  # models that a board may keep beside messages, and an honest history has not brought about
PLAIN = {bool, int, float, str, type(None)}
ROUNDS = (0, 1, 19, 20, 21, 22, 40, 2**32 - 1)
CASES = [(name, "complete") for name in gossip.names()] + [
    (name, "one-peer-exponential") for name in ("dpsgd", "sgp", "quant-sgp")
]


class Liar:
    """Board 1, that has every message of a run, and says any of them to board 0 in another form."""

    parts = 1

    def __init__(self, fleet: Any, seed: int) -> None:
        self.fleet, self.random = fleet, Random(seed)
        self.honest_bytes = 0  # the most that a board of the history kept beside messages
        self.frames: dict[Kind, list[Frame]] = {}
        self.values: dict[int, set[float]] = {tag: set(BOUNDS) for tag in Aux}

    def hear(self) -> None:
        """Take what is under way."""
        for _, message in self.fleet.mail:
            frame = message.frame
            self.frames.setdefault(frame.kind, []).append(frame)
            for tag, value in frame.aux.items():
                self.values[tag].add(value)

    def flush(self) -> None:
        """Let all mail arrive, and whoever waits in vain go on."""
        for _ in range(3):
            while self.fleet.mail:
                self.hear()
                self.fleet.deliver()
            for i, s in enumerate(self.fleet.states):
                if s.stepped:
                    self.fleet.tick(i)

    def step(self, node: int) -> None:
        if not self.fleet.states[node].stepped:
            self.fleet.step(node, np.full(N, 0.01))
            self.honest_bytes = max(self.honest_bytes, kept_by(self.fleet.states[node])[0])

    def lies(self) -> list[Frame]:
        """One message, or parts of a full state, which need not go together."""
        random = self.random
        frame = random.choice(self.frames[random.choice(sorted(self.frames))])
        for _ in range(random.randrange(4)):
            frame = self._changed(frame)
        return [self._part(frame) for _ in range(12)] if frame.kind == Kind.STATE else [frame]

    def _changed(self, frame: Frame) -> Frame:
        random = self.random
        match random.randrange(7):
            case 0:
                return replace(frame, round=random.choice(ROUNDS))
            case 1:
                return replace(frame, sequence=random.choice((1, 2, frame.sequence + 1, 2**53, 2**64 - 1)))
            case 2:
                return replace(frame, kind=random.choice(list(Kind)))
            case 3:
                body = random.choice((b"", b"abc", bytes(frame.body)[:-1], np.full(N, 3e38, "<f4").tobytes()))
                return replace(frame, body=body)
            case 4 if frame.aux:
                gone = random.choice(sorted(frame.aux))
                return replace(frame, aux={t: v for t, v in frame.aux.items() if t != gone})
            case _:
                tag = random.choice(list(Aux))
                return replace(frame, aux={**frame.aux, tag: random.choice(sorted(self.values[tag]))})

    def _part(self, frame: Frame) -> Frame:
        """One part, with or without a model, of a full state that board 0 has asked for."""
        random, edges = self.random, getattr(self.fleet.states[0], "in_", {})
        asked = [edge.opening for (j, _), edge in sorted(edges.items()) if j == 1 and edge.opening]
        aux = {t: v for t, v in frame.aux.items() if t != Aux.MODEL}
        if asked:
            aux[Aux.SESSION] = random.choice(asked)
        parts = getattr(self.fleet.algorithm, "scheme", self).parts
        if random.random() < 0.5:
            aux[Aux.MODEL], parts = 1.0, parts + 1
        return replace(frame, aux={**aux, Aux.PARTS: parts, Aux.PART: random.randrange(max(1, parts))})


@cache
def parts_of(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass in which a state may keep something."""
    kept = is_dataclass(kind) and not issubclass(kind, NodeView | RoundContext | Layout)
    return tuple(f.name for f in fields(kind)) if kept else ()


def kept_by(state: Any) -> tuple[int, list[Frame]]:
    """The bytes of all arrays that a state holds, and the messages."""
    arrays, frames, stack = dict[int, int](), list[Frame](), [state]
    while stack:
        thing = stack.pop()
        if type(thing) in PLAIN:
            continue
        if isinstance(thing, np.ndarray):
            arrays[id(thing)] = thing.nbytes
        elif isinstance(thing, Frame):
            frames.append(thing)
        elif isinstance(thing, tuple | list):
            stack.extend(thing)
        elif isinstance(thing, Mapping):
            stack.extend(thing.values())
        else:
            stack.extend(getattr(thing, name) for name in parts_of(type(thing)))
    return sum(arrays.values()), frames


def played(make_fleet: Any, name: str, topology: str, seed: int) -> tuple[Any, Liar]:
    """A fleet in round 22, but for board 0, which is in round 20."""
    fleet = make_fleet(topology, nodes=3, algorithm=name, alike=name == "parallel-sgd")
    liar = Liar(fleet, seed)
    for i in range(3):
        fleet.states[i], actions = fleet.algorithm.start(fleet.states[i])
        fleet.carry_out(i, actions)
    for k in range(22):
        liar.flush()
        for i in range(3) if k < 20 else (1, 2):
            liar.step(i)
    liar.flush()
    return fleet, liar


def begin_anew(fleet: Any, liar: Liar, kept: Any) -> None:
    """Board 0 starts again and says hello to the others, whose answers only the liar gets."""
    fleet.restart(0, kept)
    for _ in range(3):
        liar.hear()
        sent, fleet.mail = fleet.mail, []
        for to, message in sent:
            if to:
                fleet.hand(to, message)


@pytest.mark.parametrize(("name", "topology"), CASES)
def test_nothing_but_a_peer_error_leaves_an_algorithm(make_fleet: Any, name: str, topology: str) -> None:
    hear_lies(make_fleet, name, topology, range(SEEDS))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "topology"), CASES)
def test_nothing_but_a_peer_error_leaves_an_algorithm_at_length(make_fleet: Any, name: str, topology: str) -> None:
    hear_lies(make_fleet, name, topology, range(MANY_SEEDS))


def hear_lies(make_fleet: Any, name: str, topology: str, seeds: range) -> None:
    refused = taken = 0
    for seed in seeds:
        fleet, liar = played(make_fleet, name, topology, seed)
        kept, most_bytes, came = fleet.states[0], liar.honest_bytes + BESIDE * 4 * N, dict[int, Frame]()
        for k in range(MESSAGES):
            if k % 20 == 0:
                begin_anew(fleet, liar, kept if k % 40 else None)
            for frame in liar.lies():
                try:
                    fleet.hand(0, Message("board-1", frame))
                    taken += 1
                except PeerError:
                    refused += 1
                came[id(frame)] = frame
                assert kept_by(fleet.states[0])[0] <= most_bytes
            stored = kept_by(fleet.algorithm.restorable(fleet.states[0]))[1]
            assert not any(id(frame) in came for frame in stored)
            liar.hear()
            fleet.mail.clear()
            if liar.random.random() < 0.1:
                liar.step(0) if not fleet.states[0].stepped else fleet.tick(0)
            assert np.isfinite(fleet.algorithm.model(fleet.states[0])).all()
    assert refused > 30 and taken > 30
