"""Gossip over virtual nodes in one process: the algorithms' actions are carried out on a virtual clock.

A discrete-event loop. Nodes compute for a while, frames take a while, timers are due: all in virtual seconds, so the order
of events is a pure function of the recipe. Frames are built and parsed as on the wire. Nothing is lost; whoever wants that,
wants the simulator.

The clock: a local update takes COMPUTE_S. Under an asynchronous algorithm nodes are not in step: an update takes a uniform
share of it, between 1 - JITTER and 1 + JITTER, drawn from (seed, node, round). A frame takes LATENCY_S. Nodes greet each
other GREETING_S before they begin to train, as boards do while they wait for their peers. As on a board, frames that come
while a node computes wait until it has stepped, unless the algorithm is asynchronous.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgegossip import frame as wire
from edgegossip.codecs.keys import derive_key
from edgegossip.gossip.base import (
    Action,
    Adopted,
    GossipAlgorithm,
    Message,
    NodeView,
    RoundDone,
    Send,
    SetTimer,
    Suspect,
)
from edgegossip.study.measure import Recorder, Traffic
from edgegossip.training.base import Workload
from edgegossip.types import LocalError, LocalUpdate, NodeId, PeerError, Round, Vec

COMPUTE_S, JITTER, LATENCY_S, GREETING_S = 1.0, 0.5, 0.01, 1.0
PATIENCE = 100  # deadlines without a finished round after which the run counts as stalled
_BOOT, _DURATION = 1, 2  # what a key is for


@dataclass(slots=True)
class _Node:
    view: NodeView
    workload: Workload
    traffic: Traffic
    state: Any = None
    computing: LocalUpdate | None = None
    held: deque[tuple[NodeId, bytes]] = field(default_factory=deque)  # frames that came while it computed
    timer: int = 0  # number of the timer in force; one that was replaced has another
    loss: float = math.nan
    finished: bool = False


class VirtualFleet:
    """One run of one algorithm. `play` does it all; results are in `nodes`' traffic, `models` and the recorder."""

    def __init__(
        self,
        algorithm: GossipAlgorithm[Any],
        views: Sequence[NodeView],
        workloads: Sequence[Workload],
        rounds: Round,
        progress: Callable[[Round], None] = lambda round: None,
    ) -> None:
        """`views` are of one run, one a node, in the order of its members; their boots are replaced by ones that the
        seed gives."""
        self._algorithm, self._rounds, self._progress = algorithm, rounds, progress
        self._limits = wire.Limits.of(views[0].layout)
        self._nodes = [
            _Node(replace(v, boot=derive_key(v.seed, k, _BOOT) % 2**48), w, Traffic(v.layout.size))
            for k, (v, w) in enumerate(zip(views, workloads, strict=True))
        ]
        self._index = {v.node: k for k, v in enumerate(views)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = self._progressed_at = 0.0
        self._recorder: Recorder | None = None
        self.suspected = 0  # times a node went on without another

    @property
    def models(self) -> list[Vec]:
        return [self._algorithm.model(node.state) for node in self._nodes]

    @property
    def train_loss(self) -> float:
        """Mean over the nodes of their last round's training loss."""
        return sum(node.loss for node in self._nodes) / len(self._nodes)

    @property
    def traffic(self) -> Traffic:
        """What all nodes sent so far."""
        total = Traffic(self._nodes[0].view.layout.size)
        for node in self._nodes:
            total.payload_bytes += node.traffic.payload_bytes
            total.overhead_bytes += node.traffic.overhead_bytes
            total.vectors += node.traffic.vectors
        return total

    def play(self, x: Vec, recorder: Recorder) -> None:
        """All rounds from model x. Raises LocalError when training diverges or nobody gets any further, PeerError when a
        message cannot be used: nobody lies here, so its values have grown without bound."""
        self._recorder = recorder
        for node in self._nodes:
            self._advance(node, *self._algorithm.start(self._algorithm.init(x, node.view)))
            self._after(GREETING_S, lambda node=node: self._begin(node))  # type: ignore[misc]
        patience_s = PATIENCE * max(self._nodes[0].view.deadline_s, COMPUTE_S)
        while not all(node.finished for node in self._nodes):
            if not self._events or self._now - self._progressed_at > patience_s:
                raise LocalError(self._stalled())
            self._now, _, event = heapq.heappop(self._events)
            event()

    def _after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Events of one moment happen in the order in which they were planned."""
        heapq.heappush(self._events, (self._now + delay_s, next(self._order), event))

    def _begin(self, node: _Node) -> None:
        """Train at the model as it is now; the update is there some time later."""
        round = self._algorithm.round(node.state)
        if round >= self._rounds:
            node.finished = True
            self._release(node)
            return
        self._train(node)
        self._after(self._duration_s(node, round), lambda: self._computed(node))

    def _train(self, node: _Node) -> None:
        round = self._algorithm.round(node.state)
        node.computing = node.workload.local_update(self._algorithm.model(node.state), round)
        node.loss = node.computing.loss

    def _duration_s(self, node: _Node, round: Round) -> float:
        if not self._algorithm.asynchronous:
            return COMPUTE_S
        share = derive_key(node.view.seed, node.view.index, round, _DURATION) / 2**64
        return COMPUTE_S * (1 + JITTER * (2 * share - 1))

    def _computed(self, node: _Node) -> None:
        local, node.computing = node.computing, None
        assert local is not None
        self._advance(node, *self._algorithm.step(node.state, local))
        self._release(node)

    def _release(self, node: _Node) -> None:
        while node.held and node.computing is None:
            self._take(node, *node.held.popleft())

    def _arrived(self, node: _Node, sender: NodeId, data: bytes) -> None:
        if node.held or (node.computing is not None and not self._algorithm.asynchronous):
            node.held.append((sender, data))
        else:
            self._take(node, sender, data)

    def _take(self, node: _Node, sender: NodeId, data: bytes) -> None:
        try:
            frame = wire.parse(data, self._limits)
            wire.expect(frame, run_id=node.view.run_id, layout_hash=node.view.layout.hash)
            outcome = self._algorithm.receive(node.state, Message(sender, frame))
        except PeerError as error:
            raise PeerError(f"{node.view.node} refused a message from {sender}: {error}") from None
        self._advance(node, *outcome)

    def _advance(self, node: _Node, state: Any, actions: Sequence[Action]) -> None:
        node.state = state
        for action in actions:
            match action:
                case Send(to, frame):
                    self._send(node, to, frame)
                case SetTimer(after_s):
                    self._set_timer(node, after_s)
                case RoundDone(round):
                    self._done(node, round)
                case Suspect():
                    self.suspected += 1
                case Adopted() if node.computing is not None:  # an update of the model that it had is none of this one
                    self._train(node)

    def _send(self, node: _Node, to: NodeId, frame: wire.Frame) -> None:
        data = b"".join(wire.build(frame))
        node.traffic.count(len(data), len(frame.body))
        receiver, sender = self._nodes[self._index[to]], node.view.node
        self._after(LATENCY_S, lambda: self._arrived(receiver, sender, data))

    def _set_timer(self, node: _Node, after_s: float | None) -> None:
        node.timer += 1
        if after_s is not None:
            number = node.timer
            self._after(after_s, lambda: self._due(node, number))

    def _due(self, node: _Node, number: int) -> None:
        if number == node.timer:
            self._advance(node, *self._algorithm.tick(node.state, self._now))

    def _done(self, node: _Node, round: Round) -> None:
        assert self._recorder is not None
        self._progressed_at = self._now
        index = node.view.index
        if round < self._rounds:
            self._recorder.done(index, round, self._algorithm.model(node.state), node.loss)
        if index == len(self._nodes) - 1:
            self._progress(round + 1)
        self._begin(node)

    def _stalled(self) -> str:
        waits = [
            f"{node.view.node} waits in round {self._algorithm.round(node.state)} for "
            f"{', '.join(self._algorithm.waiting_for(node.state)) or 'nobody'}"
            for node in self._nodes
            if not node.finished
        ]
        return f"{self._algorithm.name} does not get any further: {'; '.join(waits)}"
