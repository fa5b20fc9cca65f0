"""Runs gossip over virtual nodes in one process: the engine that boards run, many times, on a
virtual clock.

A discrete-event loop. Nodes compute for a while, frames take a while, timers are due: all in
virtual seconds, so the order of events is a pure function of the recipe, whatever real seconds
they take: local updates may be computed at the same time. Frames are built and
parsed as on the wire. Nothing is lost; whoever wants that, wants the simulator.

The clock: a local update takes COMPUTE_S, and a frame LATENCY_S, or what `link` says. Under an
asynchronous algorithm nodes are not in step: an update takes a uniform share of it, between 1 -
JITTER and 1 + JITTER, drawn from (seed, node, round). A board that heats up (`heat.py`) takes
longer while its kernel holds its clock down, and is lost where that does not help. All nodes are
there from the beginning, and exchange Hellos HELLO_S before they begin to train, as boards do while
they wait for their peers. As on a board, frames that come while a node computes wait until it has
stepped, unless the algorithm is asynchronous."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from edgegossip import frame as wire
from edgegossip.codecs.keys import derive_key
from edgegossip.engine.events import (
    Arrived,
    ClosePeer,
    Effect,
    Event,
    Finished,
    FrameReceived,
    Ignored,
    Load,
    Loaded,
    Log,
    NeighbourDown,
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
from edgegossip.engine.joining import Patience
from edgegossip.engine.node import NodeConfig, NodeEngine
from edgegossip.gossip.base import GossipAlgorithm, NodeView, Send
from edgegossip.node.guard import Guard
from edgegossip.recipe import GuardSection
from edgegossip.studies.attack import Attack, AttackedBoards, Deaf
from edgegossip.studies.heat import HeatModel, HotBoard
from edgegossip.studies.lanes import Lanes
from edgegossip.studies.link import LinkModel
from edgegossip.studies.measure import FrameTraffic, ModelRecorder
from edgegossip.training.base import Workload
from edgegossip.types import LocalUpdate, NodeId, PeerError, Round, UsageError, Vec

COMPUTE_S, JITTER, LATENCY_S, HELLO_S = 1.0, 0.5, 0.01, 1.0
STALLED_AFTER = 100  # deadlines without a finished round
_BOOT, _DURATION = 1, 2  # what a key is for


@dataclass(slots=True)
class _Node:
    view: NodeView
    traffic: FrameTraffic
    engine: NodeEngine
    held: deque[Event] = field(default_factory=deque)  # what came while it did not listen
    joining: bool = True  # its first round has not begun
    timers: dict[Timer, int] = field(default_factory=dict)  # numbers of those in force; what was replaced has another
    update: Future[LocalUpdate] | None = None  # the last that it began
    sends_until_s: float = 0.0  # when all that it has sent is on its way
    heat: HotBoard | None = None  # None: it stays cool
    finished: bool = False
    gone: bool = False  # it became too hot

    @property
    def loss(self) -> float:
        """Of its last local update, which is waited for; of one that never began, as the run ended
        before, nothing is known."""
        return math.nan if self.update is None or self.update.cancelled() else self.update.result().loss


class VirtualFleet:
    """Simulates one run of one algorithm with `play`; results are in `sent`, `models` and the
    recorder."""

    def __init__(
        self,
        algorithm: GossipAlgorithm[Any],
        views: Sequence[NodeView],
        workloads: Sequence[Workload],
        rounds: Round,
        progress: Callable[[Round], None] = lambda round: None,
        attack: Attack | None = None,
        link: LinkModel | None = None,
        lanes: Lanes | None = None,
        heat: HeatModel | None = None,
        guard: GuardSection = GuardSection(),
    ) -> None:
        """`views` are of one run, one a node, in the order of its members; their boots are replaced
        by ones that the seed gives. `lanes`: those of the workloads. `guard` is that of the boards
        that heat up."""
        self._algorithm, self._rounds, self._progress, self._link = algorithm, rounds, progress, link
        self._compute_s = COMPUTE_S if link is None else link.compute_s
        self._boards = AttackedBoards(workloads, attack, lanes)
        views = [replace(v, topology=Deaf(v.topology)) if self._boards.lies(k) else v for k, v in enumerate(views)]
        self._nodes = [
            _Node(
                replace(v, boot=derive_key(v.seed, k, _BOOT) % 2**48),
                FrameTraffic(v.layout.size),
                self._engine_of(v),
            )
            for k, v in enumerate(views)
        ]
        self._index = {v.node: k for k, v in enumerate(views)}
        if heat is not None:
            for node in self._nodes[: heat.boards]:
                node.heat = HotBoard(heat, Guard(guard))
        self._timed = link is not None or heat is not None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count(1)
        self._now = self._progressed_at = 0.0
        self._recorder: ModelRecorder | None = None
        self._x: Vec | None = None  # that all start from
        self.suspected = 0  # times a node went on without another

    @property
    def models(self) -> list[Vec]:
        """Return the honest nodes' models, float32[n] each, in the order of the members; those of
        lost boards are left out."""
        return [self._nodes[k].engine.model for k in self.here]

    @property
    def here(self) -> list[int]:
        """Return the places among the members of the honest nodes that are not lost."""
        return [k for k, node in enumerate(self._honest) if not node.gone]

    @property
    def lost(self) -> list[NodeId]:
        """Return the boards that became too hot."""
        return [node.view.node for node in self._nodes if node.gone]

    @property
    def heat(self) -> dict[NodeId, HotBoard]:
        """Return the boards that heat up, by name."""
        return {node.view.node: node.heat for node in self._nodes if node.heat is not None}

    @property
    def now_s(self) -> float:
        """Return the virtual seconds that have passed; nan where neither links nor heat take
        any."""
        return self._now if self._timed else math.nan

    @property
    def train_loss(self) -> float:
        """Return the mean over the honest nodes, lost ones left out, of their last round's training
        loss."""
        losses = [self._nodes[k].loss for k in self.here]
        return sum(losses) / len(losses) if losses else math.nan

    @property
    def _honest(self) -> list[_Node]:
        return self._nodes[: self._boards.honest]

    @property
    def sent(self) -> FrameTraffic:
        """Return what all nodes sent so far."""
        total = FrameTraffic(self._nodes[0].view.layout.size)
        for node in self._nodes:
            total.payload_bytes += node.traffic.payload_bytes
            total.overhead_bytes += node.traffic.overhead_bytes
            total.vectors += node.traffic.vectors
        return total

    @property
    def received(self) -> FrameTraffic:
        """Return the same: nothing is lost."""
        return self.sent

    def figures(self) -> dict[str, Any]:
        """Return what a result says of a gossip run alone."""
        figures: dict[str, Any] = {"train_loss": self.train_loss, "suspected": self.suspected}
        if self.heat:
            heat = self.heat.items()
            figures["heated"] = {k: {"hottest_c": b.hottest_c, "throttled_s": b.throttled_s} for k, b in heat}
            figures["lost"] = self.lost
        return figures

    def play(self, x: Vec, recorder: ModelRecorder) -> None:
        """Play all rounds from model x, float32[n].

        Raises UsageError when training diverges, nobody gets any further or all are lost, PeerError
        when a message cannot be used: nobody lies here, so its values have grown without bound."""
        self._recorder, self._x = recorder, x
        for node in self._nodes:
            self._boot(node)
        patience_s = STALLED_AFTER * max(self._nodes[0].view.deadline_s, COMPUTE_S)
        while not all(node.finished or node.gone for node in self._honest):
            if not self._events or self._now - self._progressed_at > patience_s:
                raise UsageError(self._stalled())
            self._now, _, event = heapq.heappop(self._events)
            event()
        if all(node.gone for node in self._honest):
            raise UsageError("every board became too hot, and is lost")

    def _engine_of(self, view: NodeView) -> NodeEngine:
        config = NodeConfig.of(view.node, view.members, view.topology, self._rounds)
        return NodeEngine(self._algorithm, config, Patience(grace_s=COMPUTE_S))

    def _boot(self, node: _Node) -> None:
        """Begin: everybody is there."""
        self._carry_out(node, node.engine.start(self._now))
        for peer in sorted(node.engine.config.neighbours):
            self._take(node, NeighbourUp(peer))

    def _after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Events of one moment happen in the order in which they were planned."""
        heapq.heappush(self._events, (self._now + delay_s, next(self._order), event))

    def _duration_s(self, node: _Node, round: Round) -> float:
        if not self._algorithm.asynchronous:
            return self._compute_s
        share = derive_key(node.view.seed, node.view.index, round, _DURATION) / 2**64
        return self._compute_s * (1 + JITTER * (2 * share - 1))

    # -- what comes in

    def _take(self, node: _Node, event: Event) -> None:
        """Take an event from the network: at once where the engine listens, else once it does
        again."""
        if node.gone:
            return
        if node.held or not node.engine.listens:
            node.held.append(event)
        else:
            self._handle(node, event)

    def _answer(self, node: _Node, event: Event) -> None:
        """Answer a question of the engine; then what was held back comes."""
        if node.gone:
            return
        self._handle(node, event)
        while node.held and node.engine.listens:
            self._handle(node, node.held.popleft())

    def _handle(self, node: _Node, event: Event) -> None:
        self._carry_out(node, node.engine.handle(event, self._now))

    def _due(self, node: _Node, timer: Timer, number: int) -> None:
        if node.timers.get(timer) == number:
            del node.timers[timer]
            self._take(node, TimerFired(timer))

    # -- effects

    def _carry_out(self, node: _Node, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(node, effect)
                case StartTimer(timer, None):
                    node.timers.pop(timer, None)
                case StartTimer(timer, float() | int() as after_s):
                    number = node.timers[timer] = next(self._order)
                    self._after(after_s, lambda timer=timer, number=number: self._due(node, timer, number))  # type: ignore[misc]
                case Load():
                    self._after(0.0, lambda: self._answer(node, Loaded(node.view, self._x)))
                case Train():
                    self._train(node, effect)
                case Poll():
                    self._poll(node)
                case RoundEnded():
                    self._ended(node, effect)
                case Log("suspect"):
                    self.suspected += 1
                case Ignored(peer, reason) if reason and self._index[peer] < self._boards.honest:
                    raise PeerError(f"{node.view.node} refused a message from {peer}: {reason}")
                case ClosePeer(peer, reason):
                    if self._index[peer] >= self._boards.honest:  # it lies, and does not get through with it
                        self._take(node, NeighbourDown(peer, reason, closed=True))
                        continue
                    raise PeerError(f"{node.view.node} refused a message from {peer}: {reason}")
                case Finished():
                    node.finished = True

    def _train(self, node: _Node, asked: Train) -> None:
        board, after_s = node.view.index, self._duration_s(node, asked.round)
        if self._boards.lies(board):  # by what the others do meanwhile
            self._after(after_s, lambda: self._lie(node, asked.model, asked.round))
            return
        if node.heat is not None:
            node.heat.begin(self._now)
            ends_s, gone = node.heat.compute(after_s * self._boards.take_share(board, node.heat.guard.steps))
            after_s = ends_s - self._now
            if gone:
                self._after(after_s, lambda: self._lose(node))
                return
            after_s /= node.heat.guard.duty  # and rests
        update = node.update = self._boards.local_update(board, asked.model, asked.round, asked.correction)
        self._after(after_s, lambda: self._answer(node, UpdateReady(update.result())))

    def _lose(self, node: _Node) -> None:
        """It is gone, and those it talked with notice."""
        assert self._recorder is not None
        node.gone, self._progressed_at = True, self._now
        self._recorder.gone(node.view.index)
        for peer in sorted(node.engine.config.neighbours):
            self._take(self._nodes[self._index[peer]], NeighbourDown(node.view.node, "it became too hot"))

    def _lie(self, node: _Node, model: Vec, round: Round) -> None:
        self._answer(node, UpdateReady(self._boards.local_update(node.view.index, model, round).result()))

    def _poll(self, node: _Node) -> None:
        """What has come is taken in, and before the first round all Hellos."""
        if node.joining:
            node.joining = False
            self._after(HELLO_S, lambda: self._answer(node, Polled()))
            return
        while node.held:
            self._handle(node, node.held.popleft())
        self._handle(node, Polled())

    def _send(self, node: _Node, send: Send) -> None:
        data = b"".join(wire.build(send.frame))
        node.traffic.count(len(data), len(send.frame.body))
        receiver, event = self._nodes[self._index[send.to]], FrameReceived(node.view.node, data)
        after_s = LATENCY_S
        if self._link is not None:
            node.sends_until_s = self._link.through_s(max(self._now, node.sends_until_s), len(data))
            after_s = node.sends_until_s - self._now + self._link.latency_s
            if send.frame.body:
                arrived = Arrived(send.to, len(data), self._now, self._now + after_s + self._link.latency_s)
                self._after(after_s + self._link.latency_s, lambda: self._take(node, arrived))
        self._after(after_s, lambda: self._take(receiver, event))

    def _ended(self, node: _Node, ended: RoundEnded) -> None:
        assert self._recorder is not None
        self._progressed_at = self._now
        index, round = node.view.index, ended.done.round
        if index < self._boards.honest:
            self._recorder.done(index, round, self._algorithm.model(ended.state), node.loss)
        if index == self.here[-1]:
            self._progress(round + 1)

    def _stalled(self) -> str:
        waits = [
            f"{node.view.node} waits in round {node.engine.round} for "
            f"{', '.join(self._algorithm.waiting_for(node.engine.state)) or 'nobody'}"
            for node in self._nodes
            if not (node.finished or node.gone)
        ]
        return f"{self._algorithm.name} does not get any further: {'; '.join(waits)}"
