"""Momentum around D-PSGD against dense references, and what ends a momentum: catching up and
adopting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Adopted, Audit, Checkpoint, Message, NodeView, RoundDone, Says, Send
from edgegossip.gossip.momentum import KINDS, with_momentum
from edgegossip.gossip.traits import Traits
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, LocalUpdate, UsageError

LAYOUT = Layout.of([TensorSpec("w", (3, 2)), TensorSpec("mean", (2,), trainable=False), TensorSpec("b", (3,))])
N, TRAINED = LAYOUT.size, LAYOUT.trainable_size
ALL = KINDS[1:]


def view(node: int, topology: Any, **changes: Any) -> NodeView:
    members = tuple(f"board-{i}" for i in range(topology.n))
    fields = {
        "node": members[node],
        "members": members,
        "topology": topology,
        "layout": LAYOUT,
        "codec": codecs.get("fp32"),
        "run_id": b"r" * 16,
        "seed": 0,
        "deadline_s": 5.0,
    }
    return NodeView(**{**fields, **changes})


def update(delta: np.ndarray, lr: float = 0.1) -> LocalUpdate:
    return LocalUpdate(delta.astype(np.float32), lr, loss=1.0, examples=1, steps=1)


class Nodes:
    """Every node of a topology, round by round; messages of a round arrive in a random order."""

    def __init__(self, algorithm: Any, topology: Any, start: np.ndarray) -> None:
        self.algorithm = algorithm
        self.states = [algorithm.init(x, view(i, topology)) for i, x in enumerate(start)]
        self.members = view(0, topology).members
        for i, s in enumerate(self.states):
            self.states[i], hellos = algorithm.start(s)
            for a in hellos:
                to = self.members.index(a.to)
                self.states[to], answers = algorithm.receive(self.states[to], Message(self.members[i], a.frame))
                assert not answers

    def models(self) -> np.ndarray:
        return np.stack([self.algorithm.model(s) for s in self.states]).astype(np.float64)

    def momenta(self) -> np.ndarray:
        return np.stack([s.momentum for s in self.states]).astype(np.float64)

    def round(self, updates: Sequence[LocalUpdate], rng: np.random.Generator) -> None:
        mail = []
        for i in rng.permutation(len(self.states)):
            self.states[i], actions = self.algorithm.step(self.states[i], updates[i])
            mail += [(a.to, Message(self.members[i], a.frame)) for a in actions if isinstance(a, Send)]
        for k in rng.permutation(len(mail)):
            to, message = mail[k]
            i = self.members.index(to)
            self.states[i], _ = self.algorithm.receive(self.states[i], message)


@dataclass
class Scripted:
    """An inner algorithm whose every call gives what the test put into `next`: (rounds forward,
    model, actions)."""

    next: tuple[int, float, list[Any]] = (0, 0.0, [])
    name = "scripted"
    traits = Traits(orders=())
    says = Says.MODELS
    asynchronous = True

    def _go(self, s: Any, *_: Any) -> Any:
        forward, value, actions = self.next
        return (s[0] + forward, np.full(N, value, np.float32)), actions

    step = receive = tick = membership = start = _go

    def init(self, x: np.ndarray, view: NodeView) -> Any:
        return 0, x

    def resume(self, s: Any, view: NodeView) -> Any:
        return s

    def model(self, s: Any) -> np.ndarray:
        return s[1]

    def weight(self, s: Any) -> float:
        return 1.0

    def exchanged(self, s: Any) -> slice:
        return slice(0, N)

    def round(self, s: Any) -> int:
        return s[0]

    def waiting_for(self, s: Any) -> tuple[str, ...]:
        return ("board-7",)

    def audit(self, s: Any) -> Audit:
        return Audit(weight=float(s[0]))


def done(round: int) -> RoundDone:
    return RoundDone(round, 0.0, 0.0)


ONE = np.ones(N, np.float32)
GRAPH = topologies.get("ring", 2)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "receive": lambda a, s: a.receive(s, None),
    "tick": lambda a, s: a.tick(s, 1.0),
    "membership": lambda a, s: a.membership(s, None),
    "start": lambda a, s: a.start(s),
}


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("call", "forward", "actions"),
    [
        ("receive", 2, [Checkpoint(), done(1)]),  # caught up: rounds were skipped
        ("tick", 3, [Checkpoint()]),  # caught up before its own step
        ("membership", 0, [Adopted("board-1", 0)]),
        ("start", 1, [Adopted("board-1", 1), done(0)]),
    ],
)
def test_a_round_that_was_not_gone_through_ends_the_momentum(
    kind: str, call: str, forward: int, actions: list[Any]
) -> None:
    inner = Scripted((1, 1.0, [done(0)]))
    algorithm: Any = with_momentum(inner, kind)
    s, _ = algorithm.step(algorithm.init(ONE * 2, view(0, GRAPH)), update(-ONE))
    assert (s.momentum != 0).all()
    inner.next = (0, 1.0, [])
    s, _ = algorithm.step(s, update(-ONE))
    inner.next = (forward, 9.0, actions)
    s, seen = CALLS[call](algorithm, s)
    assert seen == actions and not s.momentum.any() and s.lr == 0.0 and s.local is None
    np.testing.assert_array_equal(s.before, 9 * ONE)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("call", CALLS)
def test_the_momentum_changes_when_the_round_is_done_wherever_that_is_said(kind: str, call: str) -> None:
    inner = Scripted((0, 2.0, []))
    algorithm: Any = with_momentum(inner, kind)
    s, _ = algorithm.step(algorithm.init(ONE * 2, view(0, GRAPH)), update(-0.5 * ONE, lr=0.25))
    assert not s.momentum.any()
    again, _ = algorithm.step(s, update(-0.5 * ONE, lr=0.25))  # of a round that is done over after a restart
    assert not again.momentum.any()
    inner.next = (1, 1.0, [done(0)])
    s, _ = CALLS[call](algorithm, s)
    expected = (1 - 0.9) * (2 - 1) / 0.25 if "global" in kind else 0.5 / 0.25
    np.testing.assert_allclose(s.momentum, expected * ONE[:TRAINED], rtol=1e-6)
    np.testing.assert_array_equal(s.before, ONE)


@pytest.mark.parametrize(("restarts", "before"), [(False, 1), (True, 3)])
def test_a_model_that_others_change_between_rounds_counts(restarts: bool, before: int) -> None:
    """But not what came before a restart: that round is over."""
    inner = Scripted((0, 3.0, []))
    algorithm: Any = with_momentum(inner, "quasi-global", 0.5)
    s, _ = algorithm.receive(algorithm.init(ONE, view(0, GRAPH)), None)
    s = algorithm.resume(s, view(0, GRAPH, boot=7)) if restarts else s
    np.testing.assert_array_equal(algorithm.model(s), 3 * ONE)
    inner.next = (1, 2.0, [done(0)])
    s, _ = algorithm.step(s, update(-ONE, lr=1.0))
    np.testing.assert_array_equal(s.momentum, 0.5 * (before - 2) * ONE[:TRAINED])


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("lr", [0.0, 1e-44])
def test_a_vanishing_learning_rate_leaves_the_momentum_as_it_is(kind: str, lr: float) -> None:
    inner = Scripted((1, 1.0, [done(0)]))
    algorithm: Any = with_momentum(inner, kind)
    s, _ = algorithm.step(algorithm.init(ONE * 2, view(0, GRAPH)), update(-ONE))
    inner.next = (1, 5.0, [done(1)])
    after, _ = algorithm.step(s, update(-ONE * 1e-3, lr))
    np.testing.assert_array_equal(after.momentum, s.momentum)


def test_the_rest_is_the_inner_algorithms_own() -> None:
    inner = Scripted()
    algorithm: Any = with_momentum(inner, "nesterov")
    s = algorithm.init(ONE, view(0, GRAPH))
    assert (algorithm.name, algorithm.asynchronous) == ("scripted+nesterov", True)
    assert algorithm.waiting_for(s) == ("board-7",) and algorithm.audit(s).weight == 0.0 and algorithm.round(s) == 0
    assert with_momentum(inner, "none") is inner


def test_a_round_that_a_board_stopped_in_is_not_in_the_momentum() -> None:
    algorithm: Any = with_momentum(gossip.get("dpsgd"), "quasi-global")
    s, _ = algorithm.step(algorithm.init(ONE, view(0, GRAPH)), update(-ONE))
    s = algorithm.resume(s, view(0, GRAPH, boot=7, down=frozenset({"board-1"})))
    s, _ = algorithm.step(s, update(0 * ONE))
    assert algorithm.round(s) == 2 and not s.momentum.any()


@pytest.mark.parametrize("kind", ALL)
def test_a_bad_update_is_refused_by_name_and_changes_nothing(kind: str) -> None:
    algorithm: Any = with_momentum(gossip.get("dpsgd"), kind)
    s = algorithm.init(ONE, view(0, GRAPH))
    with pytest.raises(UsageError, match="float32"):
        algorithm.step(s, update(np.ones(3)))
    with pytest.raises(UsageError, match="w"):
        algorithm.step(s, update(np.where(np.arange(N) == 1, np.nan, 1.0)))
    with pytest.raises(UsageError):
        algorithm.step(replace(s, momentum=np.full(TRAINED, 3e38, np.float32)), update(-ONE, lr=1e9))


@pytest.mark.parametrize(
    ("kind", "factor", "words"),
    [
        ("quasi-globl", 0.9, "unknown momentum 'quasi-globl'; did you mean quasi-global"),
        ("heavy-ball", 1.0, "from 0 to 0.9999"),
        ("heavy-ball", True, "must be a number"),
    ],
)
def test_a_wrong_kind_or_factor_is_refused(kind: str, factor: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        with_momentum(gossip.get("dpsgd"), kind, factor)
