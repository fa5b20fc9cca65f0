"""The gossip board: join the peers, train round after round, report, leave.

torch is imported only once every neighbour is there, so that a board that waits for others stays small.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgegossip.frame import Limits, parse_header
from edgegossip.gossip.base import GossipAlgorithm, NodeView
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received, Transport, TransportEvent
from edgegossip.node.driver import ANNOUNCE_S, Driver, down_text
from edgegossip.node.early import Early
from edgegossip.node.far import Far
from edgegossip.node.final import save_final
from edgegossip.node.meters import NodeMeters
from edgegossip.node.presence import Presence
from edgegossip.node.reporter import LEAVE_S, Records, Reporter
from edgegossip.node.spec import NodeSpec, frame_limit, make_algorithm, make_topology, make_view, neighbours_of
from edgegossip.profiling.records import Sink
from edgegossip.profiling.spans import RoundClock
from edgegossip.training import build_workload
from edgegossip.training.base import Workload
from edgegossip.types import DecodeError, Metrics, NodeId, Round, RunError

if TYPE_CHECKING:
    from edgegossip.node.keeper import Keeper, Restored

HURRY_S = 2.0  # how long the last checkpoint may take when the board is stopped


@dataclass(slots=True)
class Joined:
    """The transport as it is when training may start, and the neighbours that are gone before it began."""

    transport: Transport
    early: Early  # frames of neighbours that started before us: handed out once training begins
    down: frozenset[NodeId] = frozenset()
    far: Far = field(default_factory=Far)

    def replay(self) -> Transport:
        return _Replay(self.transport, self.early) if self.early else self.transport


class _Replay:
    """A transport that hands out some frames before what is new."""

    def __init__(self, transport: Transport, early: Early) -> None:
        self._transport, self._early = transport, early
        self.send, self.close_peer, self.close = transport.send, transport.close_peer, transport.close
        self.limit_frames, self.wake = transport.limit_frames, transport.wake

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        return self._early.pop() or self._transport.incoming(timeout_s)


def join(spec: NodeSpec, transport: Transport, sink: Sink, far: Far | None = None) -> Joined:
    """Wait until every neighbour has been reached, or is known to be gone; every 5 s say who is missing.

    A neighbour that was there and went down is not waited for: it can come back later. One that was never there is waited
    for without end (a board is told to stop), unless others train already: then those would wait for us. When they are far
    on in the run we come late, and whoever is not there within the grace time is not waited for either. A board that was
    started again does not wait for a neighbour that the members have named dead, unless it is left alone by that: then it
    goes on after GONE_S, for the run may be over. It is over when all neighbours have left and there is nobody `far` from us
    either, of whom `transport` keeps us informed."""
    topology = make_topology(spec.recipe, spec.members)
    wanted = neighbours_of(topology, spec)
    far = Far() if far is None else far
    joined, presence, late_s = (
        Joined(transport, Early(len(wanted)), far=far),
        Presence(wanted, spec.restarted),
        math.inf,
    )
    announce_at = time.monotonic() + ANNOUNCE_S
    while not presence.may_start(others_train=bool(joined.early), late=time.monotonic() >= late_s):
        if spec.restarted and presence.all_left and not presence.up and far.nobody:
            raise RunError(f"{spec.name} was started again when all its neighbours had left: the run is over")
        now_s = time.monotonic()
        until_s = min(announce_at, late_s) if now_s < late_s else announce_at
        event = transport.incoming(max(0.0, until_s - now_s))
        match event:
            case PeerUp() | PeerDown():
                presence.note(event)
            case Notice(_, text):
                sink.event(spec.name, "notice", text)
            case None if time.monotonic() >= announce_at:
                announce_at = time.monotonic() + ANNOUNCE_S
                sink.event(spec.name, "waiting", presence.who_is_missing(far.training))
            case Received(sender, data):
                presence.heard(sender)
                joined.early.keep(event)
                if _round_of(data) > len(spec.members) + topology.period:  # none that begins with us can be there yet
                    late_s = min(late_s, time.monotonic() + spec.recipe.network.grace_s)
    joined.down = wanted - presence.up
    for peer in sorted(joined.down):
        sink.event(spec.name, "peer-down", down_text(peer, presence.down.get(peer, "not reached yet")), peer=peer)
    sink.event(spec.name, "joined", f"{spec.name} reached {', '.join(sorted(presence.up)) or 'nobody'}")
    return joined


def _round_of(data: bytes | memoryview) -> Round:
    """Of a frame that is not checked yet; 0 for anything that is none."""
    try:
        return parse_header(data, Limits(2**63)).round
    except DecodeError:
        return 0


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """What this board trains, and where an earlier process of it was."""

    workload: Workload
    view: NodeView
    algorithm: GossipAlgorithm[Any]
    keeper: Keeper | None  # None: nothing is kept
    restored: Restored | None


def load(spec: NodeSpec, sink: Sink, checkpoints: Path | None) -> Loaded:
    """Workload and newest checkpoint; `checkpoints` is this board's folder of them. Imports torch. Raises DataError and
    ConfigError when one of them cannot be used."""
    workload = build_workload(spec.recipe, spec.index)
    view, algorithm = make_view(spec, workload.layout), make_algorithm(spec.recipe)
    if checkpoints is None or not spec.recipe.checkpoint.every:
        return Loaded(workload, view, algorithm, None, None)
    from edgegossip.node.keeper import Keeper

    keeper = Keeper(spec, view, workload, checkpoints, sink)
    return Loaded(workload, view, algorithm, keeper, keeper.load(algorithm))


def train(
    spec: NodeSpec,
    loaded: Loaded,
    joined: Joined,
    sink: Sink,
    meters: NodeMeters,
    save_to: Path | None = None,
    pace: Path | None = None,
) -> Metrics:
    """All rounds of the recipe that are left. Returns the last evaluation; saves the final model to `save_to`. `pace`: the
    socket of a conductor, see node/pace.py.

    Raises LocalError when training diverges, RunError for a board that was started again with nothing when there is nobody
    left to learn from and the run does not go on elsewhere."""
    workload, keeper = loaded.workload, loaded.keeper
    transport = joined.replay()
    transport.limit_frames(frame_limit(workload.layout))
    workload, transport, clock, over = _paced(pace, spec, workload, transport)
    records = Records(spec.name, sink)
    rounds = spec.recipe.run.rounds
    driver = Driver(loaded.algorithm, loaded.view, transport, workload, sink, clock, rounds, meanwhile=records.flush)
    _begin(spec, driver, loaded, joined.down, sink)
    reporter = Reporter(spec, driver, workload, records, clock, meters, keeper)
    meters.begin()
    driver.catch_up()
    clock.finish_round()  # what came before belongs to no round
    neighbours = neighbours_of(loaded.view.topology, spec)
    alone = spec.restarted and loaded.restored is None
    patience_s = HURRY_S
    try:
        while driver.goes_on():
            if alone and not driver.learnt and neighbours <= driver.down:
                _wait_for_one(spec, driver, neighbours, joined.far, sink)
                continue
            local, done = driver.play()
            over()
            reporter.report(local, done)
            kept = driver.take_restorable()
            if keeper is not None and kept is not None:
                with clock.span("wait"):  # for the disk, and for what is kept while it writes
                    keeper.offer(kept, loaded.algorithm.round(kept))
        metrics = reporter.last()
        patience_s = LEAVE_S
    finally:
        try:
            records.flush()
        finally:
            if keeper is not None:
                keeper.close(patience_s)
    if save_to is not None:
        save_final(save_to, workload.layout, driver.model, driver.round, keeper, spec.name, sink)
    text = f"{spec.name} finished: accuracy {metrics.accuracy:.4f}"
    sink.event(spec.name, "finished", text, accuracy=metrics.accuracy, loss=metrics.loss)
    return metrics


def _wait_for_one(spec: NodeSpec, driver: Driver, neighbours: frozenset[NodeId], far: Far, sink: Sink) -> None:
    """A board that has nothing and no neighbour waits while others train: its neighbours may come back to them. Raises RunError
    when none does."""
    if not far.training:
        raise RunError(f"{spec.name} was started again when no neighbour was left to take the model from")
    missing, others = ", ".join(sorted(neighbours)), ", ".join(sorted(far.training))
    text = f"waiting for {missing}, to take the model from one of them: the run goes on ({others})"
    sink.event(spec.name, "waiting", text, missing=missing)
    driver.wait_for_anybody(ANNOUNCE_S)


def _paced(
    pace: Path | None, spec: NodeSpec, workload: Workload, transport: Transport
) -> tuple[Workload, Transport, RoundClock, Callable[[], None]]:
    """As they are, or as a conductor wants them; and whom to tell that a round is over."""
    if pace is None:
        return workload, transport, RoundClock(), lambda: None
    from edgegossip.node.pace import Pace, PacedTransport, PacedWorkload

    line = Pace(pace, spec.name)
    return PacedWorkload(workload, line), PacedTransport(transport, line), line.rounds, line.over


def _begin(spec: NodeSpec, driver: Driver, loaded: Loaded, down: frozenset[NodeId], sink: Sink) -> None:
    """From the start, or from the checkpoint."""
    values = loaded.workload.layout.size
    if loaded.restored is None:
        driver.start(loaded.workload.initial(spec.recipe.run.seed), down)
        sink.event(spec.name, "started", f"{spec.name} trains {values} values", values=values, unix_s=time.time())
        return
    driver.resume(loaded.restored.state, down)
    text = f"{spec.name} trains {values} values, from its checkpoint of round {loaded.restored.round}"
    sink.event(spec.name, "started", text, values=values, round=loaded.restored.round, unix_s=time.time())
