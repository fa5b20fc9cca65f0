"""The gossip board: join the peers, train round after round, report, leave.

torch is imported only once every neighbour is there, so that a board that waits for others stays small.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from edgegossip import recipe as recipes
from edgegossip.gossip.base import RoundDone
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Transport, TransportEvent
from edgegossip.node.checkpoint import save_model
from edgegossip.node.driver import ANNOUNCE_S, Driver, down_text
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec, frame_limit, make_algorithm, make_topology, make_view, neighbours_of
from edgegossip.profiling.records import Sink, Value
from edgegossip.profiling.spans import RoundClock
from edgegossip.training import build_workload
from edgegossip.training.base import Workload
from edgegossip.types import LocalUpdate, Metrics, NodeId, Round

LEAVE_S = 10.0  # how long the last frames may take to be acknowledged


@dataclass(slots=True)
class Joined:
    """The transport as it is when training may start, and the neighbours that are gone before it began."""

    transport: Transport
    early: list[TransportEvent] = field(default_factory=list)  # frames of neighbours that started before us
    down: frozenset[NodeId] = frozenset()

    def replay(self) -> Transport:
        return _Replay(self.transport, self.early) if self.early else self.transport


class _Replay:
    """A transport that hands out some events again before the new ones."""

    def __init__(self, transport: Transport, events: list[TransportEvent]) -> None:
        self._transport, self._events = transport, list(events)
        self.send, self.close_peer, self.close = transport.send, transport.close_peer, transport.close
        self.limit_frames, self.wake = transport.limit_frames, transport.wake

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        return self._events.pop(0) if self._events else self._transport.incoming(timeout_s)


def join(spec: NodeSpec, transport: Transport, sink: Sink) -> Joined:
    """Wait until every neighbour has been reached, or is known to be gone; every 5 s say who is missing.

    A neighbour that was there and went down is not waited for: it can come back later. One that was never there is waited
    for without end (a board is told to stop), unless others train already: then those would wait for us."""
    wanted = neighbours_of(make_topology(spec.recipe, spec.members), spec)
    joined, presence = Joined(transport), _Presence(wanted)
    announce_at = time.monotonic() + ANNOUNCE_S
    while not presence.may_start(others_train=bool(joined.early)):
        event = transport.incoming(max(0.0, announce_at - time.monotonic()))
        match event:
            case PeerUp() | PeerDown():
                presence.note(event)
            case Notice(_, text):
                sink.event(spec.name, "notice", text)
            case None:
                announce_at = time.monotonic() + ANNOUNCE_S
                sink.event(spec.name, "waiting", presence.who_is_missing())
            case _:
                joined.early.append(event)
    joined.down = wanted - presence.up
    for peer in sorted(joined.down):
        sink.event(spec.name, "peer-down", down_text(peer, presence.down[peer]), peer=peer)
    sink.event(spec.name, "joined", f"{spec.name} reached {', '.join(sorted(presence.up)) or 'nobody'}")
    return joined


class _Presence:
    """Who is there, who was, and why not any more."""

    def __init__(self, wanted: frozenset[NodeId]) -> None:
        self._wanted, self._seen = wanted, set[NodeId]()
        self.up, self.down = set[NodeId](), dict[NodeId, str]()
        self._last_seen_s: dict[NodeId, float] = {}

    def note(self, event: PeerUp | PeerDown) -> None:
        match event:
            case PeerUp(peer):
                self.up.add(peer)
                self._seen.add(peer)
            case PeerDown(peer, reason, closed=closed):
                self.up.discard(peer)
                self.down[peer] = reason
                self._last_seen_s[peer] = time.monotonic()
                if closed:
                    self._seen.add(peer)  # we ended it ourselves, and nothing more will come

    def may_start(self, others_train: bool) -> bool:
        given_up = self.down.keys() if others_train else self.down.keys() & self._seen
        return self._wanted <= self.up | given_up

    def who_is_missing(self) -> str:
        missing = ", ".join(f"{p} ({self._state(p)})" for p in sorted(self._wanted - self.up))
        return f"waiting {len(self._wanted & self.up)}/{len(self._wanted)}: missing {missing}"

    def _state(self, peer: NodeId) -> str:
        if peer not in self._seen:
            return "never seen"
        return f"last seen {time.monotonic() - self._last_seen_s[peer]:.0f} s ago"


def train(spec: NodeSpec, joined: Joined, sink: Sink, meters: NodeMeters, save_to: Path | None = None) -> Metrics:
    """All rounds of the recipe. Returns the last evaluation; saves the final model to `save_to`.

    Raises DataError and ConfigError when the workload cannot be built, LocalError when training diverges."""
    workload = build_workload(spec.recipe, spec.index)
    view = make_view(spec, workload.layout)
    transport = joined.replay()
    transport.limit_frames(frame_limit(workload.layout))
    clock = RoundClock()
    driver = Driver(make_algorithm(spec.recipe), view, transport, workload, sink, clock, spec.recipe.run.rounds)
    driver.start(workload.initial(spec.recipe.run.seed), joined.down)
    sink.event(spec.name, "started", f"{spec.name} trains {workload.layout.size} values", values=workload.layout.size)
    reporter = _Reporter(spec, driver, workload, sink, clock, meters)
    clock.finish_round()  # what came before belongs to no round
    while driver.round < spec.recipe.run.rounds:
        local, done = driver.play()
        reporter.report(local, done)
    metrics = reporter.final
    if save_to is not None:
        save_model(save_to, workload.layout, driver.model)
    text = f"{spec.name} finished: accuracy {metrics.accuracy:.4f}"
    sink.event(spec.name, "finished", text, accuracy=metrics.accuracy, loss=metrics.loss)
    return metrics


class _Reporter:
    """One metrics record a round, with an evaluation when it is the round's turn."""

    def __init__(
        self,
        spec: NodeSpec,
        driver: Driver,
        workload: Workload,
        sink: Sink,
        clock: RoundClock,
        meters: NodeMeters,
    ) -> None:
        self._spec, self._driver, self._workload = spec, driver, workload
        self._sink, self._clock, self._meters = sink, clock, meters
        self._evaluate_after = recipes.evaluation_rounds(spec.recipe)
        self.final = Metrics(math.nan, math.nan, 0)  # of the last round, over the whole test set

    def report(self, local: LocalUpdate, done: RoundDone) -> None:
        values: dict[str, Value] = {
            "train/loss": local.loss,
            "train/lr": local.lr,
            "train/examples": local.examples,
            "codec/relative_error": done.relative_error,
            "gossip/consensus_distance": done.consensus_distance,
            **self._evaluate(done.round),
        }
        if self._driver.round >= self._spec.recipe.run.rounds:
            self._driver.drain(LEAVE_S)
        values |= self._driver.traffic.take()
        values |= self._meters()
        values |= self._clock.finish_round().metrics()
        self._sink.metrics(self._spec.name, done.round, values)

    def _evaluate(self, round: Round) -> dict[str, Value]:
        last = self._driver.round >= self._spec.recipe.run.rounds
        if not last and round not in self._evaluate_after:
            return {}
        limit = None if last else self._spec.recipe.evaluation.examples or None
        model = self._driver.model
        self.final = self._driver.aside("other", lambda: self._workload.evaluate(model, limit))
        return {"eval/loss": self.final.loss, "eval/accuracy": self.final.accuracy}
