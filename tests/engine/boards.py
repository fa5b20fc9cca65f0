"""Boards as plain objects in virtual time, for tests of the engine: what one sends lies in `sent`
until a test delivers it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgegossip import codecs, frame, gossip
from edgegossip.codecs.base import Codec
from edgegossip.engine.events import (
    ClosePeer,
    Dropped,
    Effect,
    Event,
    Failed,
    Finished,
    FrameReceived,
    KeepState,
    Load,
    Loaded,
    Log,
    NeighbourUp,
    Poll,
    Polled,
    RoundEnded,
    StartTimer,
    Timer,
    TimerFired,
    Train,
    UpdateReady,
)
from edgegossip.engine.joining import Patience, RemoteMembers
from edgegossip.engine.node import NodeConfig, NodeEngine
from edgegossip.gossip import outer, topologies
from edgegossip.gossip.base import GossipAlgorithm, NodeView, Send, Topology
from edgegossip.gossip.outer import with_outer
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate

NAMES = ("a", "b", "c", "d")
RUN_ID = bytes(range(16))
LAYOUT = Layout.of([TensorSpec("w", (4,)), TensorSpec("b", (2,))])
ROUNDS = 100
OF_NOBODY = ("joined", "started", "finished", "left-behind", "ended-early", "notice", "no-test-set")
OF_SOME = ("waiting", "stragglers", "not-evaluated")


@functools.cache
def topology_of(name: str, n: int) -> Topology:
    """The same object for every board and each of its processes."""
    return topologies.get(name, n)


@dataclass
class Board:
    """One engine, its clock and what it asked for. Polls are answered at once; the test answers the
    rest."""

    name: str
    topology: str = "ring"
    algorithm: str = "dpsgd"
    params: dict[str, Any] = field(default_factory=dict)
    outer: dict[str, Any] = field(default_factory=lambda: {"optimizer": "none"})
    rounds: int = ROUNDS
    restarted: bool = False
    remote: RemoteMembers | None = None
    deadline_s: float = 30.0
    patience: Patience = field(default_factory=lambda: Patience(grace_s=3.0))
    members: tuple[str, ...] = NAMES
    codec: Codec[Any] = field(default_factory=lambda: codecs.get("fp32"))

    def __post_init__(self) -> None:
        built = topology_of(self.topology, len(self.members))
        index = self.members.index(self.name)
        config = NodeConfig.of(self.name, self.members, built, self.rounds, self.restarted)
        self.view = NodeView(
            self.name, self.members, built, LAYOUT, self.codec, RUN_ID, 1, self.deadline_s, boot=index + 1
        )
        self.engine = NodeEngine(self.whole_algorithm(), config, self.patience, self.remote)
        self.now_s, self.timers = 0.0, dict[Timer, float]()
        self.sent, self.log, self.effects = deque[Send](), list[tuple[str, str]](), list[Effect]()
        self.question: Effect | None = None
        self.ended, self.checkpoints = list[RoundEnded](), list[Any]()
        self.carry_out(self.engine.start(0.0))

    def whole_algorithm(self) -> GossipAlgorithm[Any]:
        return with_outer(gossip.get(self.algorithm, **self.params), outer.make(**self.outer))

    # -- what a shell does

    def carry_out(self, effects: list[Effect]) -> None:
        self.effects += effects
        polls = False
        for k, effect in enumerate(effects):
            match effect:
                case Send():
                    self.sent.append(effect)
                case StartTimer(timer, after_s):
                    self.timers.pop(timer, None)
                    if after_s is not None:
                        self.timers[timer] = self.now_s + after_s
                case Log(event, text, fields):
                    self.log.append((event, text))
                    check_subject(event, text, fields)
                case Load() | Train() | Finished() | Failed():
                    assert self.question is None or not isinstance(self.question, Load | Train), "a question is open"
                    assert k == len(effects) - 1, "a question is the last effect"
                    self.question = effect
                case Poll():
                    assert k == len(effects) - 1, "a question is the last effect"
                    polls = True
                case RoundEnded():
                    self.ended.append(effect)
                case KeepState(state):
                    self.checkpoints.append(state)
        if polls:
            self.give(Polled())

    def give(self, *happened: Event) -> Board:
        for event in happened:
            self.carry_out(self.engine.handle(event, self.now_s))
        return self

    def wait(self, seconds: float) -> Board:
        """Time passes; timers are due in their order."""
        until_s = self.now_s + seconds
        while self.timers:
            timer, at_s = min(self.timers.items(), key=lambda item: item[1])
            if at_s > until_s:
                break
            del self.timers[timer]
            self.now_s = max(self.now_s, at_s)
            self.give(TimerFired(timer))
        self.now_s = until_s
        return self

    def load(self, value: float = 0.0, state: Any = None) -> Board:
        """The answer to Load."""
        assert isinstance(self.question, Load)
        self.question = None
        x = None if state is not None else np.full(LAYOUT.size, value, np.float32)
        return self.give(Loaded(self.view, x, state))

    def update(self, delta: float = 0.0) -> Board:
        """The answer to Train."""
        assert isinstance(self.question, Train)
        self.question = None
        return self.give(UpdateReady(LocalUpdate(np.full(LAYOUT.size, delta, np.float32), 0.1, 1.0, 1, 1)))

    # -- what tests look at

    def begin(self, value: float = 0.0) -> Board:
        """All neighbours are there, and the model is loaded."""
        return self.give(*(NeighbourUp(peer) for peer in sorted(self.engine.config.neighbours))).load(value)

    def said(self, event: str) -> list[str]:
        return [text for name, text in self.log if name == event]

    def closed(self) -> list[ClosePeer]:
        return [e for e in self.effects if isinstance(e, ClosePeer)]

    def dropped(self) -> list[Dropped]:
        return [e for e in self.effects if isinstance(e, Dropped)]

    @property
    def value(self) -> float:
        """Of the model, all of whose values are equal in these tests."""
        assert len(set(self.engine.model.tolist())) == 1
        return float(self.engine.model[0])


def check_subject(event: str, text: str, fields: Mapping[str, str]) -> None:
    """A program finds in a line's fields whom it is about, where that is somebody."""
    if not (event in OF_NOBODY or text.startswith("refused a board") or "changes nothing" in text):
        names = fields["missing" if event in OF_SOME else "peer"]
        assert names.split(",")[0] in text


def model_frame(round: int, value: float = 0.0, sequence: int = 1, **changes: Any) -> bytes:
    """A message of D-PSGD as it comes off the wire."""
    body = np.full(LAYOUT.size, value, np.float32).tobytes()
    fields = {
        "kind": frame.Kind.MODEL,
        "codec_id": 1,
        "codec_params": b"",
        "layout_hash": LAYOUT.hash,
        "run_id": RUN_ID,
        "round": round,
        "sequence": sequence,
        "key": 0,
        "body": body,
    }
    return b"".join(frame.build(frame.Frame(**{**fields, **changes})))


def received(sender: str, round: int, value: float = 0.0, **changes: Any) -> FrameReceived:
    return FrameReceived(sender, model_frame(round, value, **changes))


def deliver(*boards: Board, limit: int = 10_000) -> None:
    """Everything that they send each other, until nothing is under way; what goes to others is
    lost."""
    by_name = {board.name: board for board in boards}
    for _ in range(limit):
        sender = next((board for board in boards if board.sent), None)
        if sender is None:
            return
        send = sender.sent.popleft()
        if send.to in by_name:
            by_name[send.to].give(FrameReceived(sender.name, b"".join(frame.build(send.frame))))
    raise AssertionError("they never stop sending")
