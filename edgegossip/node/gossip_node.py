"""The gossip board: the shell around its engine (engine/node.py) that has a clock, a transport, a
disk and a model.

torch is imported only once every neighbour is there, so that a board that waits for others stays
small.

Every second of a round belongs to one of six parts. The local update is [compute], but for the
seconds in which its guard has the board rest, which are [wait]; the algorithm's `step` is [encode];
blocked time is [transmit] while a frame of ours is not acknowledged yet, [wait] after that; parsing
and `receive` are [decode]. What is done between them belongs to what it follows from, so that
nothing of this loop is [other]; evaluations are.

While an algorithm that does not listen computes nobody takes frames: they stay in the transport,
which bounds them and slows their senders down. One that does (asynchronous, or with overlapping
exchanges) takes in messages meanwhile: the computing moves to a thread of its own and this loop
goes on. All of that time is [compute]. What the messages
take meanwhile costs the round no wall time of their own, and as far as both share a core the
computing takes longer by it; no clock tells the two apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgegossip import frame as wire
from edgegossip import recipe as recipes
from edgegossip.engine import events
from edgegossip.engine.events import (
    Arrived,
    CaughtUp,
    ClosePeer,
    Effect,
    Event,
    Failed,
    Finished,
    FrameReceived,
    KeepState,
    Load,
    Loaded,
    Log,
    MemberNews,
    Poll,
    Polled,
    RoundEnded,
    StartTimer,
    Timer,
    TimerFired,
    Train,
    UpdateReady,
)
from edgegossip.engine.extensions import FEW, MOST, Extensions
from edgegossip.engine.joining import Patience, RemoteMembers
from edgegossip.engine.node import NodeConfig, NodeEngine, Stage
from edgegossip.gossip.base import GossipAlgorithm, NodeView, Send
from edgegossip.gossip.robust import LONG_TIMES, far_beyond
from edgegossip.memory import Spool, trim_heap
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received, SendFailed, SendReceipt, Transport, Verdict
from edgegossip.mesh.base import TransportEvent as MeshEvent
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec, frame_limit, make_algorithm, make_topology, make_view
from edgegossip.telemetry.records import (
    FAR_PREFIX,
    LINK_BYTES,
    LINK_PREFIX,
    LINK_SECONDS,
    LONG_PREFIX,
    Sink,
    Value,
    score_text,
)
from edgegossip.telemetry.spans import RoundClock
from edgegossip.training import build_workload
from edgegossip.training.base import Workload, stage_metrics
from edgegossip.types import COMPUTE_THREAD_PREFIX, EdgegossipError, Metrics, NodeId, Round, RunError

if TYPE_CHECKING:
    from edgegossip.node.storage import BestModels, Checkpointer, Restored

T = TypeVar("T")

LEAVE_S = 10.0  # how long the last frames may take to be acknowledged, and the last checkpoint to be written
HURRY_S = 2.0  # how long the last checkpoint may take when the board is stopped
_LOOKS = 4  # at how it gets on, in one deadline
TAKE_S = 1.0  # for frames that wait when the deadline is due
HAIR_S = 0.1  # a clock that wakes us later has let us stand still
LATE_S = 2.0  # to wake up: a processor that is merely busy takes less
LINKS_EVERY_S = 1.0  # links are reported in rounds so far apart: with many neighbours they are half of a record


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Holds what a board trains, and where an earlier process of it was."""

    workload: Workload
    view: NodeView
    checkpointer: Checkpointer | None = None  # None: nothing is kept
    restored: Restored | None = None


def load(spec: NodeSpec, sink: Sink, checkpoints: Path | None, spool: Spool = Spool()) -> Model:
    """Load the workload and the newest checkpoint; `checkpoints` is this board's folder of them,
    `spool` is where large messages are made. Imports torch. Raises DataError and ConfigError when
    one of them cannot be used."""
    workload = build_workload(spec.recipe, spec.index, spec.name, sink)
    view = replace(make_view(spec, workload.layout), room=spool.room)
    if checkpoints is None or not spec.recipe.checkpoint.every:
        return Model(workload, view)
    from edgegossip.node.storage import Checkpointer

    checkpointer = Checkpointer(spec, view, workload, checkpoints, sink)
    return Model(workload, view, checkpointer, checkpointer.load(make_algorithm(spec.recipe)))


class GossipNode:
    """Plays one board's part in a run, in one process. Not thread-safe; everything happens in
    `run`, on the caller's thread.

    `load` is called once every neighbour is there who is waited for. `remote`: the members that are
    no neighbours, as far as they are known. `round_over` is called when a round has ended, before
    it is reported. `settle` gives back the memory of frames in files that were read."""

    def __init__(
        self,
        spec: NodeSpec,
        transport: Transport,
        sink: Sink,
        meters: NodeMeters,
        load: Callable[[], Model],
        *,
        remote: RemoteMembers | None = None,
        clock: RoundClock | None = None,
        round_over: Callable[[], None] = lambda: None,
        settle: Callable[[], None] = lambda: None,
        patience: Patience | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        recipe, topology = spec.recipe, make_topology(spec.recipe, spec.members)
        config = NodeConfig.of(spec.name, spec.members, topology, recipe.run.rounds, spec.restarted)
        self._algorithm: GossipAlgorithm[Any] = make_algorithm(recipe)
        self.engine = NodeEngine(self._algorithm, config, patience or Patience(recipe.network.grace_s), remote)
        self._spec, self._transport, self._sink, self._meters = spec, transport, sink, meters
        self._load_model, self._round_over, self._read_clock = load, round_over, now
        self._settle = settle
        self._slept_s = 0.0  # by the clock while we stood still, which is no time of ours
        self._clock = RoundClock() if clock is None else clock
        self._timers: dict[Timer, float] = {}
        # Of the round's deadline: see `_still_arriving`.
        self._extensions = Extensions()
        self._deadline_s, self._began_s, self._came_bytes, self._arrival_seen = 0.0, 0.0, 0, False
        self._due_s: float | None = None  # when it was found due
        self._excused = False  # it was put off because we were late
        self._request: Load | Train | Poll | Finished | Failed | None = None
        self._worker = ThreadPoolExecutor(1, COMPUTE_THREAD_PREFIX) if self._algorithm.listens else None
        self._in_worker = False  # the worker computes, and spans are not ours to open
        self._ended: RoundEnded | None = None  # not put down yet
        self._restorable: Any = None  # the last state that may be kept, if it is not yet
        self.traffic = NodeTraffic()
        self._evaluate_after = recipes.evaluation_rounds(recipe)
        self._final: Metrics | None = None  # of the last round, over the whole test set
        self._evaluated_last = False  # that has been made, or there is no test set
        self._best: BestModels | None = None  # None: they are not kept
        self._workload: Workload  # once it is loaded
        self._checkpointer: Checkpointer | None = None

    def run(
        self, save_to: Path | None = None, await_average: Callable[[], Path | None] | None = None
    ) -> Metrics | None:
        """Join, play all rounds that are left, report. Returns the last evaluation, None without a
        test set; saves the final model to `save_to`. `await_average` then waits for the average of
        all boards' models, which is tested here, too, where one could be made.

        Raises UsageError when training diverges; RunError for a board that was started again when
        the run is over, or with nothing when there is nobody left to learn from and the run does
        not go on elsewhere."""
        patience_s = HURRY_S
        if save_to is not None and self._spec.recipe.checkpoint.best:
            from edgegossip.modelfile import BEST
            from edgegossip.node.storage import BestModels

            folder = save_to.parent.parent / BEST
            self._best = BestModels(folder, self._spec.name, self._spec.recipe, self._sink)
        trim_heap()  # of what starting left: it may wait for its peers for long
        try:
            self._carry_out(self.engine.start(self._now()))
            while not isinstance(self._request, Finished):
                request, self._request = self._request, None
                if request is None:
                    self._step()
                else:
                    self._fulfil(request)
            metrics = self._last_evaluation()
            patience_s = LEAVE_S
        finally:
            if self._worker is not None:
                self._worker.shutdown(wait=False)  # it may compute for long; see also cli/main.py
            if self._checkpointer is not None:
                self._checkpointer.close(patience_s)
        name = self._spec.name
        if save_to is not None:
            from edgegossip.node.storage import about_model, save_final  # with its formats

            arrays = self._workload.state(self.engine.model)
            about = about_model(name, self.engine.round, len(self._workload.layout.tensors))
            save_final(save_to, arrays, about, self._checkpointer, self._sink)
        if await_average is not None and (path := await_average()) is not None:
            self._test_average(path)
        self._workload.over(self.engine.model)
        self._finished(metrics)
        return metrics

    def _test_average(self, path: Path) -> None:
        from edgegossip.modelfile import ModelFile
        from edgegossip.node.storage import vector_of

        name = self._spec.name
        try:
            found = self._workload.evaluate(vector_of(ModelFile(path), self._workload.layout))
        except EdgegossipError as error:  # its own model is trained, and safe
            self._sink.event(name, "notice", f"{name} could not test the average of the boards' models: {error}")
            return
        if found is not None:
            score, value = found.headline or ("test loss", found.loss)
            text = f"the average of the boards' models, tested by {name}: {score} {score_text(score, value)}"
            self._sink.event(name, "averaged", text, **found.records())

    def _finished(self, metrics: Metrics | None) -> None:
        name = self._spec.name
        if metrics is None:
            self._sink.event(name, "finished", f"{name} finished; it has no test set")
            return
        score, value = metrics.headline or ("test loss", metrics.loss)
        if math.isnan(value):
            self._sink.event(name, "finished", f"{name} finished; its evaluation gave no number")
            return
        known: dict[str, Value] = {} if math.isnan(metrics.loss) else {"loss": metrics.loss}
        if metrics.accuracy is not None:
            known["accuracy"] = metrics.accuracy
        self._sink.event(name, "finished", f"{name} finished: {score} {score_text(score, value)}", **known)

    # -- what the engine waits for

    def _fulfil(self, request: Load | Train | Poll | Finished | Failed) -> None:
        match request:
            case Load():
                self._load()
            case Train(model, round, correction):
                given = (model, round) if correction is None else (model, round, correction)
                with self._clock.span("compute"):
                    local = self._run_beside(partial(self._workload.local_update, *given))
                    self._clock.charge("wait", local.rested_s)
                with self._clock.span("encode"):
                    self._handle(UpdateReady(local))
                if self.engine.stage is Stage.EXCHANGING:
                    with self._clock.span("wait"):
                        while self._request is None:
                            self._step()
            case Poll(at_most_s):
                self._end_round()
                self._take_pending(at_most_s)
                with self._clock.span("compute"):  # some algorithms compute their model when it is asked for
                    self._handle(Polled())
            case Failed(reason):
                raise RunError(reason)

    def _load(self) -> None:
        """Load the model and the newest checkpoint; then the engine begins."""
        loaded, recipe = self._load_model(), self._spec.recipe
        workload, view, restored = loaded.workload, loaded.view, loaded.restored
        self._workload, self._checkpointer = workload, loaded.checkpointer
        self._transport.limit_frames(frame_limit(view.layout, self.engine.algorithm.bodies))
        values = self.traffic.values = view.layout.size
        name, text = self._spec.name, f"{self._spec.name} trains {values} values"
        if restored is None:
            self._handle(Loaded(view, workload.initial(recipe.run.seed)))
            self._sink.event(name, "started", text, values=values, unix_s=time.time())
        else:
            self._handle(Loaded(view, None, restored.state))
            text = f"{text}, from its checkpoint of round {restored.round}"
            self._sink.event(name, "started", text, values=values, round=restored.round, unix_s=time.time())
        self._meters.begin()

    def _take_pending(self, at_most_s: float) -> None:
        """Take in what is there already, as far as it can be taken in soon."""
        until_s = self._now() + at_most_s
        with self._span("decode"):
            while (event := self._transport.incoming(0.0)) is not None:
                self._dispatch(event)
                if self._now() >= until_s:
                    return

    # -- what comes in

    def _step(self) -> None:
        """Handle a timer that is due, or one event. Blocks until there is one, or the transport
        wakes us."""
        if not self._timers:
            self._wait(None)
            return
        timer, at_s = min(self._timers.items(), key=lambda item: item[1])
        if self._now() >= at_s:
            if timer is Timer.DEADLINE:
                if self._took_waiting():
                    return
                if self._still_arriving():
                    self._timers[timer], self._due_s = self._now() + self._deadline_s / _LOOKS, None
                    return
            del self._timers[timer]
            self._handle(TimerFired(timer))
        else:
            self._wait(at_s)

    def _took_waiting(self) -> bool:
        """Take in one frame that waits for us: what came before the deadline goes before it, for
        so long that a neighbour which never ends cannot put it off."""
        now_s = self._now()
        self._due_s = now_s if self._due_s is None else self._due_s
        if now_s - self._due_s > TAKE_S or (event := self._transport.incoming(0.0)) is None:
            return False
        self._dispatch(event)
        return True

    def _still_arriving(self) -> bool:
        """Return whether a frame is on its way in, and comes fast enough to be here within MOST
        deadlines: a slow link is no reason to go on without who is behind it. Whoever it comes
        from, these are the most that a round waits, and FEW, and not again and again, for one of
        several; for one that is alone FEW on the average."""
        few = self.engine.most_are_heard
        if self._now() >= self._began_s + (FEW if few else MOST) * self._deadline_s:
            return False
        came, to_come = self._transport.arriving()
        since, self._came_bytes = came - self._came_bytes, came
        least = (since + to_come) / (MOST * _LOOKS) if self._arrival_seen else 0.0  # it may just have begun
        self._arrival_seen = True
        if to_come == 0 or since <= least:
            return False
        if not few and self.engine.waits_for_its_only_one:
            return self._extensions.afford(1 / _LOOKS)
        return self._extensions.allow(few)

    def _wait(self, until_s: float | None) -> None:
        """Block for one event until then at most, and handle it."""
        with self._span("transmit" if self.traffic.in_flight else "wait"):
            event = self._transport.incoming(None if until_s is None else max(0.0, until_s - self._now()))
            if until_s is not None and (late_s := self._now() - until_s) > HAIR_S:
                self._stood_still(late_s)
            if event is not None:
                self._dispatch(event)

    def _now(self) -> float:
        return self._read_clock() - self._slept_s

    def _stood_still(self, late_s: float) -> None:
        """Say so, and give the transport time to read what came meanwhile, as long as we were late
        and a deadline at most: nobody is to blame for what a board did not read. A processor that
        was merely busy is an excuse once a round, without a word, or it would be one for ever."""
        if late_s <= LATE_S and self._excused:
            return
        self._excused = True
        self._slept_s += late_s
        until_s, self._due_s = self._now() + min(late_s, self._deadline_s), None
        self._timers = {timer: max(at_s, until_s) for timer, at_s in self._timers.items()}
        if late_s <= LATE_S:
            return
        name = self._spec.name
        text = f"{name} stood still for {late_s:.1f} s: it was stopped, or its processor had no time for it"
        self._sink.event(name, "starved", text, seconds=late_s)

    def _dispatch(self, event: MeshEvent) -> None:
        match event:
            case Received(sender, data):
                with self._span("decode"):
                    self._handle(FrameReceived(sender, data))
            case SendReceipt(_, peer, _, size_bytes, start_s, _, end_s):
                if self.traffic.acknowledged(event):
                    self._handle(Arrived(peer, size_bytes, start_s, end_s))
            case SendFailed(frame_id):
                self.traffic.failed(frame_id)
            case PeerUp(peer):
                self._handle(events.NeighbourUp(peer))
            case PeerDown(peer, reason, left, closed, disagrees):
                self._handle(events.NeighbourDown(peer, reason, left, closed, disagrees))
            case Verdict(peer, here, _, left, restarted):
                self._handle(MemberNews(peer, here, left, restarted))
            case Notice(peer, text, refusal):
                known = {"peer": peer} if peer else {}
                if refusal is not None:
                    self._sink.event(self._spec.name, "refused", text, **known, **refusal.fields)
                else:
                    self._sink.event(self._spec.name, "notice", text, **known)

    def _run_beside(self, work: Callable[[], T]) -> T:
        """Return what `work` gives. An algorithm that listens is served meanwhile."""
        if self._worker is None:
            return work()
        future = self._worker.submit(work)
        future.add_done_callback(lambda _: self._transport.wake())
        self._in_worker = True
        try:
            while not future.done():
                self._clock.beside(bool(self.traffic.in_flight))
                self._step()
        finally:
            self._in_worker = False
            self._clock.beside(False)
        return future.result()

    def _span(self, part: str) -> AbstractContextManager[object]:
        return nullcontext() if self._in_worker else self._clock.span(part)

    # -- effects

    def _handle(self, event: Event) -> None:
        self._carry_out(self.engine.handle(event, self._now()))
        self._settle()

    def _carry_out(self, effects: list[Effect]) -> None:
        name, summed = self._spec.name, wire.PayloadSum()
        for effect in effects:
            match effect:
                case Send(to, frame):
                    with self._span("transmit"):
                        frame_id = self._transport.send(to, wire.build(frame, summed))
                    self.traffic.sent(frame_id, len(frame.body))
                case StartTimer(timer, None):
                    self._timers.pop(timer, None)
                case StartTimer(timer, float() | int() as after_s):
                    self._timers[timer] = self._now() + after_s
                    if timer is Timer.DEADLINE:
                        self._due_s, self._excused = None, False
                        self._extensions.begin()
                        self._deadline_s, self._arrival_seen = after_s, False
                        self._began_s = self._now()
                        self._came_bytes = self._transport.arriving()[0]
                case Load() | Train() | Poll() | Finished() | Failed():
                    self._request = effect
                case KeepState(state):
                    self._restorable = state
                case RoundEnded():
                    self._ended = effect
                case ClosePeer(peer, reason):
                    self._transport.close_peer(peer, reason)
                case Log(event, text, fields):
                    self._sink.event(name, event, text, **fields)
                case CaughtUp():
                    self._clock.finish_round()

    # -- reports

    def _end_round(self) -> None:
        """Report the round that has ended: a metrics record, with an evaluation when it is the
        round's turn; then its state, if the algorithm said that it may be kept. A board that is
        killed goes on after the newest state, so no record may be missing before it."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        self._round_over()
        self._report(ended)
        kept, self._restorable = self._restorable, None
        if self._checkpointer is not None and kept is not None:
            with self._clock.span("wait"):  # for the disk, and for what is kept while it writes
                self._checkpointer.offer(kept, self._algorithm.round(kept))

    def _report(self, ended: RoundEnded) -> None:
        local, done, last = ended.local, ended.done, ended.last
        values: dict[str, Value] = {
            "train/loss": local.loss,
            "train/lr": local.lr,
            **({"train/examples": local.examples} if local.examples else {}),
            **{f"train/{name}": value for name, value in local.metrics.items()},
            "codec/relative_error": done.relative_error,
            "gossip/consensus_distance": done.consensus_distance,
            "gossip/heard": done.heard,
            **ended.rates,
            **{f"{FAR_PREFIX}{peer}": times for peer, times in far_beyond(done.distances).items()},
            **{f"{LONG_PREFIX}{peer}": times for peer, times in far_beyond(done.directions, LONG_TIMES).items()},
        }
        if last or done.round in self._evaluate_after:
            values |= self._evaluate(ended.state, last, done.round + 1)
        if self._checkpointer is not None:
            with self._clock.span("wait"):  # for the disk
                self._checkpointer.ready()
        if last:
            self._drain(LEAVE_S)
        values |= self.traffic.take(None if last else self._read_clock())
        with self._clock.span("wait"):  # no part of a round's work
            values |= stage_metrics(local.stages_s) | self._meters(due=last)
            # Its record has the time at which it ends, also on a busy machine.
            self._sink.metrics(self._spec.name, done.round, values | self._clock.finish_round().metrics(done.round))

    def _drain(self, patience_s: float) -> None:
        """Take in events until every frame of ours is acknowledged, or patience runs out."""
        until_s = self._now() + patience_s
        while self.traffic.in_flight and self._now() < until_s:
            self._wait(until_s)

    def _last_evaluation(self) -> Metrics | None:
        """Evaluate now, for a board that came so late that it took over the final model: it has
        only this to report."""
        if not self._evaluated_last:
            round: Round = self.engine.round - 1
            values = self._evaluate(self.engine.state, True, self.engine.round)
            values |= self.traffic.take() | self._meters()
            self._sink.metrics(self._spec.name, round, values | self._clock.finish_round().metrics())
        return self._final

    def _evaluate(self, state: Any, last: bool, round: Round) -> dict[str, Value]:
        """`round`: after how many the model is as it is."""
        limit, model = None if last else self._spec.recipe.evaluation.examples or None, self._algorithm.model(state)
        with self._clock.span("other"):
            metrics = self._run_beside(lambda: self._workload.evaluate(model, limit))
        if last:
            self._final, self._evaluated_last = metrics, True
        if self._best is not None and metrics is not None:
            with self._clock.span("wait"):  # for the disk
                travels = len(self._workload.layout.tensors)
                self._best.offer(metrics, round, lambda: self._workload.state(model), travels)
        return {} if metrics is None else dict(metrics.records())


@dataclass(slots=True)
class NeighbourTraffic:
    """Counts what went to one neighbour."""

    message_bytes: int = 0
    seconds: float = 0.0  # in which something was under way
    until_s: float = 0.0  # when the last of it had arrived

    def take(self, receipt: SendReceipt) -> None:
        """Count a frame that has arrived."""
        self.message_bytes += receipt.message_bytes
        self.seconds += max(0.0, receipt.acknowledged_s - max(receipt.start_s, self.until_s))
        self.until_s = max(self.until_s, receipt.acknowledged_s)


@dataclass(slots=True)
class NodeTraffic:
    """Counts the bytes of one node's sends: what the codec made, and what it took to carry it; what
    went to each neighbour, and for how long it was under way. Counted when acknowledged. `take`
    hands out what came since the last call."""

    values: int = 0  # n of the model
    payload_bytes: int = 0
    overhead_bytes: int = 0
    frames: int = 0  # that carried values
    in_flight: dict[int, int] = field(default_factory=dict)  # frame_id -> payload bytes
    links: dict[NodeId, NeighbourTraffic] = field(default_factory=dict)
    links_told_s: float = 0.0  # when they were reported last

    def sent(self, frame_id: int, payload_bytes: int) -> None:
        """Take note of a frame that is on its way."""
        self.in_flight[frame_id] = payload_bytes

    def acknowledged(self, receipt: SendReceipt) -> bool:
        """Count a frame that has arrived; tell whether it carried values."""
        payload = self.in_flight.pop(receipt.frame_id, None)
        if payload is not None:
            link = self.links.get(receipt.to)
            if link is None:
                link = self.links[receipt.to] = NeighbourTraffic()
            link.take(receipt)
            self.payload_bytes += payload
            self.overhead_bytes += receipt.message_bytes - payload
            self.frames += payload > 0  # a HELLO has no values
        return bool(payload)

    def failed(self, frame_id: int) -> None:
        """Take note of a frame that is given up: it is not counted."""
        self.in_flight.pop(frame_id, None)

    def take(self, now_s: float | None = None) -> dict[str, float]:
        """Return metrics since the last call, reset to zero. Links are among them when
        LINKS_EVERY_S have passed since the last time at `now_s` (`time.monotonic`), or without
        it."""
        metrics: dict[str, float] = {
            "net/payload_bytes": self.payload_bytes,
            "net/overhead_bytes": self.overhead_bytes,
        }
        if self.frames:
            metrics["codec/bits_per_value"] = 8 * self.payload_bytes / (self.frames * self.values)
        self.payload_bytes = self.overhead_bytes = self.frames = 0
        if now_s is None or now_s - self.links_told_s >= LINKS_EVERY_S:
            self.links_told_s = self.links_told_s if now_s is None else now_s
            metrics |= self._take_links()
        return metrics

    def _take_links(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for peer, link in self.links.items():
            if link.message_bytes:
                metrics[f"{LINK_PREFIX}{peer}{LINK_BYTES}"] = link.message_bytes
                metrics[f"{LINK_PREFIX}{peer}{LINK_SECONDS}"] = link.seconds
                link.message_bytes, link.seconds = 0, 0.0
        return metrics
