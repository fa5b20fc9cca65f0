"""Drives one gossip algorithm over one transport: the loop that turns actions into I/O and I/O into inputs.

One round: train [compute], `step` [encode], send, then take in events until the algorithm says RoundDone. Blocked time
is [transmit] while a frame of ours is not acknowledged yet, [wait] after that; parsing and `receive` are [decode]. What is
done between them belongs to what it follows from, so that nothing of this loop is [other].

An asynchronous algorithm takes in messages while the update is computed, too: the computing moves to a thread of its own
and this loop goes on. All of that time is [compute]. What the messages take meanwhile costs the round no wall time of
their own, and as far as both share a core the computing takes longer by it; no clock tells the two apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from edgegossip import frame as wire
from edgegossip.gossip.base import (
    Action,
    Adopted,
    Checkpoint,
    GossipAlgorithm,
    Message,
    NodeView,
    RoundDone,
    Send,
    SetTimer,
    Suspect,
)
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received, SendFailed, SendReceipt, Transport, TransportEvent
from edgegossip.node.early import Early
from edgegossip.node.traffic import Traffic
from edgegossip.profiling.records import Sink
from edgegossip.profiling.spans import RoundClock
from edgegossip.training.base import Workload
from edgegossip.types import LocalUpdate, NodeId, PeerError, Round, Vec

T = TypeVar("T")

ANNOUNCE_S = 5.0  # whoever waits says for whom, this often
TAKE_S = 1.0  # between two rounds: whoever sends faster than we take in must not keep us from training
CATCH_UP_S = 5.0  # a late board waits so long for a neighbour's model before it trains on its own
_AFTER = (wire.Kind.STATE, wire.Kind.HELLO)  # may tell the round after the last one


class Driver:
    """One node's run of one algorithm. Not thread-safe; everything happens in `play`, `aside` and `drain`."""

    def __init__(
        self,
        algorithm: GossipAlgorithm[Any],
        view: NodeView,
        transport: Transport,
        workload: Workload,
        sink: Sink,
        clock: RoundClock,
        rounds: Round,
        now: Callable[[], float] = time.monotonic,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`meanwhile` is called in each round when all is sent and others' messages are awaited."""
        self._algorithm, self._view, self._transport = algorithm, view, transport
        self._workload, self._sink, self._clock, self._now = workload, sink, clock, now
        self._meanwhile = meanwhile
        self._limits, self._rounds = wire.Limits.of(view.layout), rounds
        self._refused: set[NodeId] = set()
        self._state: Any = None
        self._restorable: Any = None
        self._traffic = Traffic(view.layout.size)
        self._timer: float | None = None
        self._done: RoundDone | None = None
        self._adopted = False  # since the update in progress was begun
        self._worker = ThreadPoolExecutor(1, "compute") if algorithm.asynchronous else None
        self._aside = False  # the worker computes, and spans are not ours to open
        self._learnt = False  # somebody's values have come
        self._early = Early(len(view.members) - 1)  # frames far ahead, while a neighbour's model may come
        self._newcomer_until: float | None = None  # until when those are held back; None: they are not
        self._ahead = len(view.members) * view.topology.period + 1  # rounds that nobody gets ahead who began with us

    @property
    def model(self) -> Vec:
        return self._algorithm.model(self._state)

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def start(self, x: Vec, down: frozenset[NodeId] = frozenset()) -> None:
        """Begin at model x, with members already known to be down."""
        self._view = self._view.with_down(down)
        self._newcomer_until = self._now() + CATCH_UP_S
        self._advance(*self._algorithm.start(self._algorithm.init(x, self._view)))

    def resume(self, state: Any, down: frozenset[NodeId] = frozenset()) -> None:
        """Begin where an earlier process of this node was, with a state that its `take_restorable` gave."""
        self._view = self._view.with_down(down)
        self._newcomer_until = self._now() + CATCH_UP_S
        self._advance(*self._algorithm.start(self._algorithm.resume(state, self._view)))

    def take_restorable(self) -> Any:
        """The last state that the algorithm said may be kept; None when there is none since the last call."""
        state, self._restorable = self._restorable, None
        return state

    @property
    def round(self) -> Round:
        """The round in progress; a board that was left far behind may find itself some rounds further on."""
        return self._algorithm.round(self._state)

    @property
    def down(self) -> frozenset[NodeId]:
        """Members that are known to be gone."""
        return self._view.down

    @property
    def learnt(self) -> bool:
        """Whether values of any other node have come."""
        return self._learnt

    def catch_up(self) -> None:
        """Before the first round: when others turn out to be far ahead, waits for a neighbour's model for CATCH_UP_S at
        most. An update of the own one would be for nothing."""
        self._take_waiting()
        while self._early:
            self._go_on(self._newcomer_until)

    def wait_for_anybody(self, patience_s: float) -> None:
        """Instead of a round: takes in what comes until somebody is back, for so long at most. Then this node is a newcomer
        again."""
        until, down = self._now() + patience_s, self._view.down
        while down <= self._view.down and self._now() < until:
            self._go_on(until)
        if not down <= self._view.down:
            self._newcomer_until = self._now() + CATCH_UP_S
            self.catch_up()

    def goes_on(self) -> bool:
        """Takes in what has come, which may bring this node to another round; whether there is a round left to play. A node
        that has nobody to wait for ends its rounds at once, and would else never hear that somebody is back."""
        if self.round > 0:
            self._settle()
        self._take_waiting()
        return self.round < self._rounds

    def play(self) -> tuple[LocalUpdate, RoundDone]:
        """One round, from training to the mixed model."""
        self._done = None
        local = self._train()
        with self._span("encode"):
            round = self.round
            self._state, actions = self._algorithm.step(self._state, local)
            self._perform(actions)
        return local, self._done or self._exchange(round)

    def _exchange(self, round: Round) -> RoundDone:
        """Take in events until the round is done."""
        with self._span("wait"):
            began = self._now()
            announce_at = began + ANNOUNCE_S
            with self._span("transmit" if self._traffic.in_flight else "wait"):
                self._meanwhile()
            while self._done is None:
                now = self._now()
                if now >= announce_at:
                    self._announce(round, now - began)
                    announce_at = now + ANNOUNCE_S
                self._go_on(announce_at)
        return self._done

    def aside(self, part: str, work: Callable[[], T]) -> T:
        """What `work` gives; the time is `part`'s. An asynchronous algorithm is served meanwhile."""
        with self._clock.span(part):
            if self._worker is None:
                return work()
            future = self._worker.submit(work)
            future.add_done_callback(lambda _: self._transport.wake())
            self._aside = True
            try:
                while not future.done():
                    self._go_on(None)
            finally:
                self._aside = False
            return future.result()

    def _train(self) -> LocalUpdate:
        """The local update at the present model; anew when another's model was taken over meanwhile, for which it is none."""
        while True:
            self._adopted = False
            with self._clock.span("compute"):  # some algorithms compute their model when it is asked for
                local = self.aside("compute", partial(self._workload.local_update, self.model, self.round))
            if not self._adopted:
                return local

    def _go_on(self, until: float | None) -> None:
        """A tick that is due, or one event; blocks until then at most, None: until the transport wakes us."""
        now = self._now()
        if self._newcomer_until is not None and now >= self._newcomer_until:
            self._settle()
            return
        if self._timer is not None and now >= self._timer:
            self._timer = None
            self._advance(*self._algorithm.tick(self._state, now))
            return
        bounds = [t for t in (until, self._timer, self._newcomer_until) if t is not None]
        self._take(min(bounds) if bounds else None)

    def _span(self, part: str) -> AbstractContextManager[object]:
        return nullcontext() if self._aside else self._clock.span(part)

    def drain(self, patience_s: float) -> None:
        """Take in events until every frame of ours is acknowledged, or patience runs out."""
        until = self._now() + patience_s
        while self._traffic.in_flight and self._now() < until:
            self._take(until)

    def _take(self, until: float | None) -> None:
        """Block for one event until then at most, and handle it."""
        with self._span("transmit" if self._traffic.in_flight else "wait"):
            event = self._transport.incoming(None if until is None else max(0.0, until - self._now()))
            if event is not None:
                self._handle(event)

    def _take_waiting(self) -> None:
        """What is there already, as far as it can be taken in soon."""
        until = self._now() + TAKE_S
        with self._span("decode"):
            while (event := self._transport.incoming(0.0)) is not None:
                self._handle(event)
                if self._now() >= until:
                    return

    def _handle(self, event: TransportEvent) -> None:
        match event:
            case Received(sender, data):
                self._receive(sender, data)
            case SendReceipt():
                self._traffic.acknowledged(event)
            case SendFailed(ticket):
                self._traffic.failed(ticket)
            case PeerDown(peer, reason, left):
                self._sink.event(
                    self._view.node, "peer-left" if left else "peer-down", down_text(peer, reason), peer=peer
                )
                self._membership(self._view.down | {peer})
            case PeerUp(peer) if peer not in self._refused:  # it may have been on its way when we refused that peer
                if peer in self._view.down:
                    self._sink.event(self._view.node, "peer-up", f"{peer} is back", peer=peer)
                self._membership(self._view.down - {peer})
            case Notice(_, text):
                self._sink.event(self._view.node, "notice", text)

    def _receive(self, sender: NodeId, data: bytes | memoryview) -> None:
        """A bad frame costs its sender the connection and nobody else anything. What it sent before is dropped too."""
        if sender in self._refused:
            return
        with self._span("decode"):
            try:
                frame = wire.parse(data, self._limits)
                wire.expect(frame, run_id=self._view.run_id, layout_hash=self._view.layout.hash)
                if frame.round - (frame.kind in _AFTER) >= self._rounds:
                    raise PeerError(f"its round {frame.round} is not one of the run's {self._rounds}")
                self._learnt = self._learnt or len(frame.body) > 0
                if self._newcomer_until is not None and self._is_early(frame):
                    self._early.keep(Received(sender, data))
                    return
                outcome = self._algorithm.receive(self._state, Message(sender, frame))
            except PeerError as error:
                self._refuse(sender, str(error))
                return
            self._advance(*outcome)

    def _is_early(self, frame: wire.Frame) -> bool:
        """Whether a newcomer should rather have the sender's model first, which the answer to its greeting brings: with this
        message it would go on in the sender's round with a model that has learnt nothing."""
        return frame.round > self.round + self._ahead and frame.kind not in _AFTER

    def _settle(self) -> None:
        """No newcomer any more: what was held back is taken in."""
        if self._newcomer_until is not None:
            self._newcomer_until = None
            while (frame := self._early.pop()) is not None:
                self._receive(frame.sender, frame.data)

    def _refuse(self, sender: NodeId, reason: str) -> None:
        self._sink.event(self._view.node, "refused", f"refused a message from {sender}: {reason}", peer=sender)
        self._refused.add(sender)
        self._transport.close_peer(sender, reason)
        self._membership(self._view.down | {sender})

    def _membership(self, down: frozenset[NodeId]) -> None:
        if down != self._view.down:
            self._view = self._view.with_down(down)
            self._advance(*self._algorithm.membership(self._state, self._view))

    def _advance(self, state: Any, actions: Sequence[Action]) -> None:
        self._state = state
        self._perform(actions)

    def _perform(self, actions: Sequence[Action]) -> None:
        adopted, summed = False, wire.PayloadSum()
        for action in actions:
            match action:
                case Send(to, frame):
                    with self._span("transmit"):
                        ticket = self._transport.send(to, wire.build(frame, summed))
                    self._traffic.sent(ticket, len(frame.body))
                case SetTimer(after_s):
                    self._timer = None if after_s is None else self._now() + after_s
                case Suspect(node, reason):
                    self._sink.event(self._view.node, "suspect", f"went on without {node}: {reason}", peer=node)
                case Adopted(node, round):
                    self._adopted = adopted = True
                    text = f"had been left behind: took over the model of {node} and goes on in round {round}"
                    self._sink.event(self._view.node, "adopted", text, peer=node)
                case RoundDone():
                    self._done = action
                case Checkpoint():
                    self._restorable = self._state
        if adopted:
            self._settle()

    def _announce(self, round: Round, waited_s: float) -> None:
        missing = self._algorithm.waiting_for(self._state)
        text = f"round {round}: waiting for {', '.join(missing) or 'acknowledgements'} for {waited_s:.0f} s"
        self._sink.event(self._view.node, "waiting", text, missing=",".join(missing))


def down_text(peer: NodeId, reason: str) -> str:
    """One sentence on a peer that is gone; a transport's reason may name it already."""
    return reason if reason.startswith((f"lost {peer}", f"{peer} ")) else f"lost {peer}: {reason}"
