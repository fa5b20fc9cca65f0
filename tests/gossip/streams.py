"""Fleets whose algorithms keep streams, and what must hold of their replicas and of their mass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import Message, Send
from edgegossip.gossip.messages import control

N = 12
ZERO = np.zeros(N, np.float32)
STREAMS = [
    ("choco-sgd", "ring"),
    ("bagua-lp", "ring"),
    ("parallel-sgd", "complete"),
    ("sgp", "directed-ring"),
    ("sparse-push", "directed-ring"),
    ("quant-sgp", "directed-ring"),
    ("quant-sgp", "one-peer-exponential"),
]


def audits(fleet: Any) -> list[Any]:
    return [fleet.algorithm.audit(s) for s in fleet.states]


def assert_replicas_are_equal(fleet: Any) -> None:
    held = audits(fleet)
    for audit in held:
        for (j, phase), (mark, copy) in audit.replicas.items():
            told, public = held[j].public[phase]
            assert told == mark
            np.testing.assert_array_equal(copy, public)


def total(fleet: Any) -> tuple[np.ndarray, float]:
    """Mass and weight of the whole fleet, what is under way included."""
    held = audits(fleet)
    mass = np.sum([a.mass for a in held], axis=0)
    weight = sum(a.weight for a in held)
    for i, audit in enumerate(held):
        for (k, phase), (sent, w) in audit.sent.items():
            seen, v = held[k].seen.get((i, phase), (0.0, 0.0))
            mass, weight = mass + sent - seen, weight + w - v
    return mass, weight


def is_push(fleet: Any) -> bool:
    return fleet.algorithm.name in ("sgp", "sparse-push", "quant-sgp")


def play_rounds(fleet: Any, rounds: int = 6) -> None:
    """Rounds in which whoever waits in vain gets its deadline."""
    for _ in range(rounds):
        low = min(fleet.rounds)
        fleet.step_all([i for i, s in enumerate(fleet.states) if s.stepped is None and s.round <= low])
        fleet.deliver_all()
        for i, s in enumerate(fleet.states):
            if s.stepped is not None and s.round == min(fleet.rounds):
                fleet.tick(i)
        fleet.deliver_all()


def check(fleet: Any) -> None:
    assert_replicas_are_equal(fleet)
    if is_push(fleet):
        mass, weight = total(fleet)
        assert weight == pytest.approx(4.0, rel=1e-12)
        np.testing.assert_allclose(mass, fleet.start.astype(np.float64).sum(axis=0), rtol=0, atol=1e-9)


def take_mail(fleet: Any, to: int) -> list[tuple[int, Message]]:
    mine = [m for m in fleet.mail if m[0] == to]
    fleet.mail = [m for m in fleet.mail if m[0] != to]
    return mine


def asked(fleet: Any, at: int, peer: int, round: int) -> float:
    """The session that `at` opens when `peer` says that it knows of none."""
    hello = control(fleet.view(peer), Kind.HELLO, round, 1, {}, None)
    sends = [a for a in fleet.hand(at, Message(fleet.members[peer], hello)) if isinstance(a, Send)]
    return sends[0].frame.aux[Aux.SESSION]


def lies(fleet: Any, parts: int, **aux: float) -> list[Message]:
    """A full state from board-1 to board-0 in a session that was asked for."""
    numbers = {Aux.SESSION: asked(fleet, 0, 1, 2), Aux.PARTS: parts, Aux.PHASE: 0, Aux.INCARNATION: 7, Aux.EPOCH: 8}
    numbers |= {Aux[k]: v for k, v in aux.items()}
    vec = np.zeros(N, np.float32)
    frames = [control(fleet.view(1), Kind.STATE, 2, 2, {**numbers, Aux.PART: p}, vec) for p in range(parts)]
    return [Message("board-1", f) for f in frames]
