"""Decides what a gossip board does, from when it listens to the end of the run. Pure.

Events and the time go in, effects come out (engine/events.py). It is driven by a board's program
(node/gossip_node.py), by the simulator (lab/sim/node.py) and by the study (studies/virtual.py).
One value outlives the process: the algorithm's state, which a Checkpoint effect hands out and
Loaded brings back. What else the engine knows, who is there and which frames are pending, is the
process's own, and a new process learns it anew, by joining.

    JOINING      no model yet: who is there?
        -> LOADING      nobody is missing who is worth waiting for
        -> FAILED       it was started again, and the run is over; or every neighbour, or the larger
                        part of the boards, trains something else
    LOADING      the shell loads the model and the newest checkpoint; events stay in the transport
        -> POLLING      Loaded
    POLLING      between two rounds: what has come is taken in, which may lead on to another round
        -> CATCHING_UP  Polled: a newcomer, and others are far ahead
        -> TRAINING     Polled: a round is left to play
        -> ALONE        Polled: it needs a model, and has nobody who could send one
        -> FAILED       Polled: that has been so for long, and nobody trains; or it does not train
                        what others do, as in JOINING
        -> FINISHED     Polled: all rounds are done, here or elsewhere
    CATCHING_UP  waits for a neighbour's model instead of training for nothing
        -> POLLING      the model is there, or time is over
    ALONE        waits for a neighbour instead of training alone
        -> POLLING      somebody is back; and now and then, to see whether others still train
    TRAINING     the shell computes the local update; an algorithm that listens takes frames in
        -> EXCHANGING   UpdateReady
        -> POLLING's    successors: UpdateReady, but the model was given up meanwhile
    EXCHANGING   the update is on its way: takes frames in
        -> POLLING      the algorithm says RoundDone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from edgegossip import frame as wire
from edgegossip.engine import events
from edgegossip.engine.events import (
    Accepted,
    Arrived,
    CaughtUp,
    ClosePeer,
    Dropped,
    Effect,
    Event,
    Failed,
    Finished,
    FrameReceived,
    Ignored,
    Load,
    Loaded,
    Log,
    MemberNews,
    NeighbourDown,
    NeighbourUp,
    Poll,
    Polled,
    RoundEnded,
    Started,
    StartTimer,
    Timer,
    TimerFired,
    Train,
    UpdateReady,
)
from edgegossip.engine.joining import Patience, PeerStatus, PendingFrames, RemoteMembers, down_text
from edgegossip.engine.quarantine import RoundQuarantine
from edgegossip.engine.rates import Rates, rates_for
from edgegossip.gossip import base
from edgegossip.gossip.base import GossipAlgorithm, Message, NodeView, RoundDone, Topology
from edgegossip.gossip.messages import OutOfProportion
from edgegossip.gossip.robust import LONG_TIMES, OUT_OF_LINE, far_beyond, guard_of
from edgegossip.types import DecodeError, LocalUpdate, NodeId, PeerError, Round, UsageError, Vec, replace

_HEADERS = wire.Limits(2**63)  # while the model's size is not known yet


class Stage(Enum):
    """Says where a board is; see the top of this file."""

    JOINING = "joining"
    LOADING = "loading"
    POLLING = "polling"
    CATCHING_UP = "catching up"
    ALONE = "alone"
    TRAINING = "training"
    EXCHANGING = "exchanging"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Places one board in one run.

    Example:
        config = NodeConfig.of("board-0", members, topologies.get("ring", len(members)), rounds=50)
    """

    node: NodeId
    members: tuple[NodeId, ...]  # in the same order on every board
    neighbours: frozenset[NodeId]  # whom it sends to or hears from in any round
    period: int  # of the topology
    rounds: Round  # of the run
    restarted: bool = False  # known to have been in the run before, in another process

    @classmethod
    def of(
        cls,
        node: NodeId,
        members: tuple[NodeId, ...],
        topology: Topology,
        rounds: Round,
        restarted: bool = False,
    ) -> NodeConfig:
        """Return the config of a board in a run over this topology."""
        neighbours = neighbours_of(node, members, topology)
        return cls(node, members, neighbours, topology.period, rounds, restarted)


def neighbours_of(node: NodeId, members: Sequence[NodeId], topology: Topology) -> frozenset[NodeId]:
    """Return everyone this node sends to or hears from in any round."""
    edges = [topology.neighbours(members.index(node), r) for r in range(topology.period)]
    return frozenset(members[k] for e in edges for k in (*e.in_, *e.out))


class NodeEngine:
    """Decides what one process of one board does. `remote`: the members that are no neighbours, as
    far as they are known.

    A shell calls `start` once, then `handle` with every event, and carries out the effects of each
    call in their order before the next one. It hands events in while `listens`, and those that
    answer a question (`Load`, `Train`, `Poll`) always. Time is in seconds, of a clock that never
    goes back.

    Example:
        effects = engine.start(now())
        while engine.stage not in (Stage.FINISHED, Stage.FAILED):
            for effect in effects:
                carry_out(effect)  # Send, Train, Checkpoint, ...
            effects = engine.handle(next_event(), now())
    """

    def __init__(
        self,
        algorithm: GossipAlgorithm[Any],
        config: NodeConfig,
        patience: Patience,
        remote: RemoteMembers | None = None,
    ) -> None:
        self.algorithm, self.config, self._patience = algorithm, config, patience
        self.rounds = config.rounds  # a simulator says only later how long a run is
        self.stage = Stage.JOINING
        self.state: Any = None  # the algorithm's
        self.view: NodeView | None = None
        self.pending = PendingFrames(len(config.neighbours), patience.pending_bytes)
        self._effects: list[Effect] = []
        self._asks_poll = False  # Poll is to be the last effect of this call
        self._now_s = 0.0
        # Joining.
        self._peers = PeerStatus(config.neighbours, config.restarted, patience)
        self._remote = RemoteMembers() if remote is None else remote
        # A round.
        self._limits = wire.Limits()
        self._refused: set[NodeId] = set()
        self._quarantine = RoundQuarantine(patience=1)  # of those whose values were too large
        self._local: LocalUpdate | None = None
        self._stepped: Round = 0
        self._since_s = 0.0  # when the exchange began
        self._trains_since_s = 0.0  # when the update was asked for
        self._rates: Rates | None = None  # where the codec leaves the rate to us
        self._jumps, self._jumped_s = JUMPS, 0.0  # how many may be told, and when that was so
        self._out_of_line: dict[NodeId, int] = {}  # rounds in which a direction was; each in line takes two off
        self._named: set[NodeId] = set()  # who was said to be
        self._adopted = False  # since the update in progress was begun: it is of a model that was given up
        # Catching up.
        self._catching_up = False
        self._seen_far_ahead = False  # a frame far ahead was taken in, which leads to its sender's model
        self._ahead = len(config.members) * config.period + 1  # rounds that nobody gets ahead who began with us
        self._needs_model = False  # was started again without a checkpoint, and nobody has sent a model yet
        self._first_round_begun = False
        self._before_round = False  # no round has begun since it came, or since it is not alone any more
        self._alone_since_s = 0.0  # when the last of its neighbours went

    @property
    def listens(self) -> bool:
        """Whether events are to be handed in that answer no question. Else they stay in the
        transport, which bounds them."""
        if self.stage is Stage.TRAINING:
            return self.algorithm.listens
        return self.stage is not Stage.LOADING

    @property
    def model(self) -> Vec:
        """The model to train and to evaluate, float32[n]. Not to be written to."""
        return self.algorithm.model(self.state)

    @property
    def round(self) -> Round:
        """The round in progress; a board that was left far behind may find itself some rounds
        further on."""
        return self.algorithm.round(self.state)

    @property
    def down(self) -> frozenset[NodeId]:
        """The neighbours that are known to be gone."""
        return frozenset() if self.view is None else self.view.down

    @property
    def most_are_heard(self) -> bool:
        """Whether at least half of those who send to this board in this round are heard."""
        if self.view is None:
            return False
        members, down = self.view.members, self.view.down
        senders = self.view.topology.neighbours(self.view.index, self.round).in_
        awaited = sum(members[j] not in down for j in senders)
        return 2 * len(self.algorithm.waiting_for(self.state)) <= awaited

    @property
    def waits_for_its_only_one(self) -> bool:
        """Whether a single neighbour is all that this board can hear in this round. In a fleet of
        two it is no single one: there are no others whom waiting for it would hold up."""
        return (
            self.view is not None
            and self.view.topology.n > 2
            and not self.most_are_heard
            and len(self.algorithm.waiting_for(self.state)) == 1
        )

    def start(self, now_s: float) -> list[Effect]:
        """Begin to look for the neighbours. Call once, before `handle`."""
        self._now_s, self._effects = now_s, []
        self._restart_announce_timer()
        self._start_if_possible()
        return self._effects

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event. Raises what the algorithm raises of its own board's faults: UsageError
        and ConfigError."""
        self._now_s = now_s
        effects: list[Effect] = []
        self._effects = effects
        match event:
            case FrameReceived() if self.view is None:
                self._hold_frame(event)
            case FrameReceived():
                self._receive(event)
            case Arrived():
                if self._rates is not None:
                    self._rates.arrived(*event)
            case UpdateReady(local):
                self._step(local)
            case Polled():
                self._polled()
            case TimerFired(timer):
                self._fired(timer)
            case Loaded():
                self._loaded(event)
            case MemberNews():
                self._remote.note(event)
                self._start_if_possible()
            case NeighbourUp() | NeighbourDown() if self.view is None:
                self._log_if_incompatible(event)
                self._peers.note(event, now_s)
                self._start_if_possible()
            case NeighbourUp() | NeighbourDown():
                self._peer_changed(event)
        if self._asks_poll:
            self._asks_poll = False
            effects.append(Poll(self._patience.take_s))
        return effects

    # -- joining

    def _start_if_possible(self) -> None:
        """Go on to LOADING once nobody is missing who is worth waiting for, or end when the run is
        over."""
        if self.stage is not Stage.JOINING:
            return
        peers, config = self._peers, self.config
        if self._fail_if_incompatible():
            return
        if not peers.may_start(others_train=bool(self.pending), now_s=self._now_s):
            # The run is over when all neighbours have left, and elsewhere there is nobody either.
            if config.restarted and peers.all_left and not peers.up and self._remote.nobody:
                self._fail(f"{config.node} was started again when all its neighbours had left: the run is over")
            return
        for peer in sorted(config.neighbours - peers.up - peers.incompatible.keys()):  # those are named already
            self._log("peer-down", down_text(peer, peers.down.get(peer, "not reached yet")), peer=peer)
        self._log("joined", f"{config.node} reached {', '.join(sorted(peers.up)) or 'nobody'}")
        self._set_timer(Timer.ANNOUNCE, None)
        if peers.far_on:
            self._set_timer(Timer.LATE, None)
        self.stage = Stage.LOADING
        self._effects.append(Load())

    def _fail_if_incompatible(self) -> bool:
        """Fail where the larger part of the boards trains something else, or, before this one has
        begun, every neighbour does; tell whether that is so. Of two parts of one size that of the
        run's first board goes on, so a fleet that is split trains one model all the same. Boards
        that did fit and came again with something else have no say in that."""
        peers, config = self._peers, self.config
        never_compatible = peers.never_compatible
        others = [member for member in config.members if member in never_compatible]
        more = 2 * len(others) - len(config.members)
        if not self._first_round_begun and peers.all_incompatible:
            reasons = "; ".join(peers.incompatible[peer] for peer in sorted(config.neighbours))
            self._fail(f"{config.node} fits none of its neighbours: {reasons}")
        elif more > 0 or (more == 0 and others[0] == config.members[0]):
            names = ", ".join(others)
            self._fail(f"{config.node} does not fit {names}, who go on: {peers.incompatible[others[0]]}")
        else:
            return False
        return True

    def _log_if_incompatible(self, event: NeighbourUp | NeighbourDown) -> bool:
        """Tell whether this peer trains something else than we do, and log what differs."""
        if isinstance(event, NeighbourUp) or not event.disagrees:
            return False
        self._log("disagrees", event.reason, peer=event.peer)
        return True

    def _hold_frame(self, event: FrameReceived) -> None:
        """Keep a frame of a neighbour that began before us. It is looked at when the model is
        there, which tells what it must be."""
        self._peers.heard(event.sender, self._now_s)
        self._keep(event)
        # Nobody who begins with us can be in such a round yet: the run is far on, and those who are
        # in it wait for us.
        if _round_of(event.data) > len(self.config.members) + self.config.period:
            if not self._peers.far_on:
                self._set_timer(Timer.LATE, self._patience.grace_s)
            self._peers.far_on.setdefault(event.sender, self._now_s)
        self._start_if_possible()

    def _loaded(self, event: Loaded) -> None:
        """Begin the algorithm, at a model or where a checkpoint was; then take in what came while
        we joined."""
        self._needs_model = self.config.restarted and event.state is None
        view = replace(event.view.with_down(self.config.neighbours - self._peers.up), bare=self._needs_model)
        self._alone_since_s = self._now_s - self._peers.gone_for_s(self._now_s)
        self.view, self._limits = view, wire.Limits.of(view.layout, self.algorithm.bodies)
        self._rates = rates_for(view.codec, view.layout, self.algorithm.says)
        if event.state is not None:
            self.state = self.algorithm.resume(event.state, view)
        elif event.x is not None:
            self.state = self.algorithm.init(event.x, view)
        else:
            raise UsageError("Loaded needs a model to start from, or the state of a checkpoint")
        self._effects.append(Started(self.state))
        came, self.pending = self.pending, PendingFrames(len(self.config.members) - 1, self._patience.pending_bytes)
        self._poll()
        self._begin_catch_up()
        self._advance(self.algorithm.start(self.state))
        while (frame := came.pop()) is not None:
            self._receive(frame)

    # -- catching up

    def _begin_catch_up(self) -> None:
        """Hold back frames of rounds far ahead for catch_up_s.

        Their sender's model, which the answer to our hello brings, should come first: with the
        frames alone we would go on in the sender's round with a model that has learnt nothing.
        Where there are no rounds in common nobody says hello: there such a frame is taken in, for
        it leads to the model."""
        self._catching_up = self._before_round = True
        self._set_timer(Timer.CATCH_UP, self._patience.catch_up_s)

    def _awaits_model(self) -> bool:
        """Tell whether an update of our own model would be for nothing: others are far ahead, or
        must be."""
        leads_to_model = self.algorithm.asynchronous and (self._seen_far_ahead or self._needs_model)
        return self._catching_up and (bool(self.pending) or leads_to_model)

    def _is_far_ahead(self, frame: wire.Frame) -> bool:
        return frame.round > self.round + self._ahead and frame.kind not in _WITHOUT_ROUND

    def _end_catch_up(self) -> None:
        """Take in what was held back, before anything that comes after it: the model came, or time
        is over."""
        if not self._catching_up:
            return
        self._catching_up = False
        self._set_timer(Timer.CATCH_UP, None)
        while (frame := self.pending.pop()) is not None:
            self._receive(frame)
        if self.stage is Stage.CATCHING_UP:
            self._poll()

    # -- rounds

    def _poll(self) -> None:
        """Ask for what has come, before every round: a board that has nobody to wait for ends its
        rounds at once, and would else never hear that somebody is back."""
        self.stage, self._asks_poll = Stage.POLLING, True

    def _polled(self) -> None:
        if self._peers.incompatible and self._fail_if_incompatible():
            return
        if self._before_round and self._awaits_model():
            self.stage = Stage.CATCHING_UP
            return
        self._before_round = False
        if not self._first_round_begun:
            self._first_round_begun = True
            self._effects.append(CaughtUp())
        if self.round > 0:  # the first rounds of the run are not ours to play, or are played
            self._end_catch_up()
        self._begin_round()

    def _begin_round(self) -> None:
        self._take_back()
        if self.round >= self.rounds:
            self.stage = Stage.FINISHED
            self._effects.append(Finished())
        elif self._needs_model and self.config.neighbours <= self.down:
            self._wait_alone()
        else:
            self.stage, self._adopted, self._trains_since_s = Stage.TRAINING, False, self._now_s
            self._effects.append(Train(self.model, self.round, self.algorithm.correction(self.state)))

    def _step(self, local: LocalUpdate) -> None:
        """Send the update, unless another's model was taken over meanwhile, for which it is
        none."""
        if self._adopted:
            self._begin_round()
            return
        if self.algorithm.asynchronous and self._awaits_model():  # it was asked for meanwhile
            self.stage = Stage.CATCHING_UP
            return
        if self._rates is not None:
            local = self._with_rates(local, self._rates)
        if self.round + 1 >= self.rounds:
            local = replace(local, last=True)
        self._local, self._stepped, self._since_s = local, self.round, self._now_s
        self.stage = Stage.EXCHANGING
        self._advance(self.algorithm.step(self.state, local))
        if self.stage is Stage.EXCHANGING:
            self._restart_announce_timer()

    def _with_rates(self, local: LocalUpdate, rates: Rates) -> LocalUpdate:
        """Let the update's messages take as many bytes as their links are good for."""
        allowed = rates.plan(sorted(self.config.neighbours - self.down), self._now_s - self._trains_since_s)
        for peer, text in rates.news():
            self._log("rate", f"{self.config.node} {text}", peer=peer)
        return replace(local, allowed=allowed)

    def _round_ended(self, done: RoundDone) -> None:
        assert self._local is not None
        if self._rates is not None and self._local.allowed:
            self._rates.told(min(self._local.allowed.values()), done.relative_error)
        self._set_timer(Timer.ANNOUNCE, None)
        rates = {} if self._rates is None else self._rates.figures()
        self._effects.append(RoundEnded(self._local, done, self.state, self.round >= self.rounds, rates))
        self._local = None
        self._look_at_directions(done)
        self._end_catch_up()
        self._poll()

    def _look_at_directions(self, done: RoundDone) -> None:
        """Say once of a neighbour whose direction is out of line with the others' again and again:
        nothing bounds it where directions travel."""
        long = far_beyond(done.directions, LONG_TIMES)
        for peer in sorted(done.directions.keys() - self._named - {self.config.node}):
            rounds = max(0, self._out_of_line.get(peer, 0) + (1 if peer in long else -2))
            self._out_of_line[peer] = rounds
            if rounds >= OUT_OF_LINE:
                self._named.add(peer)
                text = f"the direction of {peer} is {long[peer]:.2g} times as long as the median board's, as in most rounds: "
                text += f"its data are unlike the others', or it lies, and {self.algorithm.name} adds up what it says; "
                text += f"{guard_of(self.algorithm.traits)} bounds what it can do"
                self._log("outlier", text, peer=peer, times=long[peer])

    # -- alone

    def _wait_alone(self) -> None:
        """Wait, with nothing to train from and no neighbour, while others train, to whom the
        neighbours may come back.

        Where nobody is known to train, wait for a while only: a neighbour that is being started
        again, or a split."""
        others = ", ".join(sorted(self._remote.training))
        left_s = self._alone_since_s + self._patience.gone_s - self._now_s
        if not others and (self._peers.all_left or left_s <= 0.0):
            self._fail(f"{self.config.node} was started again when no neighbour was left to take the model from")
            return
        self.stage = Stage.ALONE
        missing = ", ".join(sorted(self.config.neighbours))
        until = f"the run goes on ({others})" if others else f"this board ends in {left_s:.0f} s if none comes back"
        self._log("waiting", f"waiting for {missing}, to take the model from one of them: {until}", missing=missing)
        self._set_timer(Timer.ANNOUNCE, self._patience.announce_s)

    def _not_alone(self) -> None:
        """Catch up: somebody is back, and may be far ahead."""
        self._set_timer(Timer.ANNOUNCE, None)
        self._begin_catch_up()
        self._poll()

    # -- timers

    def _fired(self, timer: Timer) -> None:
        if timer is Timer.DEADLINE:
            self._advance(self.algorithm.tick(self.state, self._now_s))
        elif timer is Timer.CATCH_UP:
            self._end_catch_up()
        elif timer is Timer.LATE:
            self._start_if_possible()
        else:
            self._announce()

    def _announce(self) -> None:
        """Say for whom this board waits: nobody waits in silence."""
        if self.stage is Stage.JOINING:
            text, absent = self._peers.who_is_missing(self._remote.training, self._now_s)
            self._log("waiting", text, missing=",".join(absent))
            self._restart_announce_timer()
            self._start_if_possible()
        elif self.stage is Stage.ALONE:
            self._poll()  # then it is seen whether the run still goes on
        elif self.stage is Stage.EXCHANGING:
            missing, waited_s = self.algorithm.waiting_for(self.state), self._now_s - self._since_s
            whom = ", ".join(missing) or "acknowledgements"
            text = f"round {self._stepped}: waiting for {whom} for {waited_s:.0f} s"
            self._log("waiting", text, missing=",".join(missing))
            self._restart_announce_timer()

    def _restart_announce_timer(self) -> None:
        self._set_timer(Timer.ANNOUNCE, self._patience.announce_s)

    def _set_timer(self, timer: Timer, after_s: float | None) -> None:
        self._effects.append(StartTimer(timer, after_s))

    # -- frames and neighbours

    def _receive(self, event: FrameReceived) -> None:
        """Take in a frame. A bad one costs its sender the connection and nobody else anything. What
        it sent before is dropped, too."""
        sender, data = event
        if sender in self._refused:
            return
        if self._quarantine.reason(sender, self.round):
            self._effects.append(Ignored(sender))
            return
        view, before = self.view, self.state
        assert view is not None
        try:
            frame = data if isinstance(data, wire.Frame) else wire.parse(data, self._limits)
            wire.expect(frame, run_id=view.run_id, layout_hash=view.layout.hash)
            # The answer to a board's hello, and its own, may come from one that has done the last
            # round already. Where nobody says hello, every message names a round that its sender
            # did: whoever took over the one after the last would be refused by all others.
            tells_next = frame.kind in _WITHOUT_ROUND and not self.algorithm.asynchronous
            if frame.round - tells_next >= self.rounds:
                raise PeerError(f"its round {frame.round} is not one of the run's {self.rounds}")
            if self._catching_up and self._is_far_ahead(frame):
                if not self.algorithm.asynchronous:
                    self._keep(event)
                    return
                self._seen_far_ahead = True
            outcome = self.algorithm.receive(before, Message(sender, frame))
        except OutOfProportion as error:
            self._leave_out(sender, str(error))
            return
        except PeerError as error:
            self._refuse(sender, str(error))
            return
        self._quarantine.used(sender)
        if len(frame.body):
            self._needs_model = False
        self._effects.append(Accepted(event, frame, before, outcome[0]))
        self._advance(outcome)
        if self.stage is Stage.CATCHING_UP and not self._awaits_model():
            self._poll()

    def _keep(self, event: FrameReceived) -> None:
        if not self.pending.keep(event):
            self._effects.append(Dropped(event.sender))

    def _leave_out(self, sender: NodeId, reason: str) -> None:
        """Go on for some rounds without a neighbour whose values are too large. A liar may have led
        it there, and it may come back."""
        self._log("refused", f"refused a message from {sender}: {reason}", peer=sender)
        self._quarantine.refused(sender, self.round, reason)
        self._effects.append(Ignored(sender, reason))
        self._set_down(self.down | {sender})

    def _take_back(self) -> None:
        """Take those in again whose time is over."""
        up = self._peers.up - self._refused
        self._set_down(self.down - {peer for peer in up if not self._quarantine.reason(peer, self.round)})

    def _refuse(self, sender: NodeId, reason: str) -> None:
        self._log("refused", f"refused a message from {sender}: {reason}", peer=sender)
        self._refused.add(sender)
        self._effects.append(ClosePeer(sender, reason))
        self._set_down(self.down | {sender})

    def _peer_changed(self, event: NeighbourUp | NeighbourDown) -> None:
        peer = event.peer
        self._peers.note(event, self._now_s)
        if isinstance(event, NeighbourDown):
            if not self._log_if_incompatible(event):
                self._log("peer-left" if event.left else "peer-down", down_text(peer, event.reason), peer=peer)
            self._set_down(self.down | {peer})
        elif peer not in self._refused and not self._quarantine.reason(peer, self.round):
            if peer in self.down:
                self._log("peer-up", f"{peer} is back", peer=peer)
            self._set_down(self.down - {peer})

    def _set_down(self, down: frozenset[NodeId]) -> None:
        assert self.view is not None
        before = self.view.down
        if down == before:
            return
        if self.config.neighbours <= down:
            self._alone_since_s = self._now_s
        self.view = self.view.with_down(down)
        self._advance(self.algorithm.membership(self.state, self.view))
        if self.stage is Stage.ALONE and not before <= down:
            self._not_alone()

    # -- the algorithm

    def _advance(self, outcome: tuple[Any, list[base.Action]]) -> None:
        """Turn an algorithm's actions into effects; the only place where that happens."""
        before = self.round
        self.state, actions = outcome
        done: RoundDone | None = None
        adopted = False
        for action in actions:
            match action:
                case base.Send():
                    self._effects.append(action)
                case base.SetTimer(after_s):
                    self._set_timer(Timer.DEADLINE, after_s)
                case base.Checkpoint():
                    self._effects.append(events.KeepState(self.algorithm.restorable(self.state)))
                case RoundDone():
                    done = action
                case base.Suspect(node, reason, cause, round, waited_s):
                    fields = {"cause": cause, "round": round, "waited_s": waited_s}
                    self._log("suspect", f"went on without {node}: {reason}", peer=node, **fields)
                case base.Adopted(node, round):
                    adopted = self._adopted = True
                    self._effects.append(events.ModelAdopted(node, round, self.state))
                    text = f"had been left behind: took over the model of {node} and goes on in round {round}"
                    if self._may_tell_jump():
                        self._log("adopted", text, peer=node)
        if self.round > before + 1 and not adopted and self._may_tell_jump():
            self._log("left-behind", f"had been left behind in round {before}: goes on in round {self.round}")
        if done is not None:
            self._round_ended(done)
        elif adopted:
            self._end_catch_up()

    def _may_tell_jump(self) -> bool:
        """Tell whether a line may say that rounds were left out: a neighbour that lies can lead a
        board on with every few messages."""
        regained = (self._now_s - self._jumped_s) / self._patience.announce_s
        self._jumps, self._jumped_s = min(JUMPS, self._jumps + regained), self._now_s
        told = self._jumps >= 1
        self._jumps -= told
        return told

    def _log(self, event: str, text: str, **fields: Any) -> None:
        self._effects.append(Log(event, text, fields or _NOTHING))

    def _fail(self, reason: str) -> None:
        self.stage = Stage.FAILED
        self._effects.append(Failed(reason))


JUMPS = 32.0  # lines about rounds that were left out at once; then one each `Patience.announce_s`
_WITHOUT_ROUND = (wire.Kind.STATE, wire.Kind.HELLO)  # kinds that tell a round rather than belong to one
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _round_of(data: events.Data) -> Round:
    """Return the round of a frame that is not checked yet; 0 for anything that is none."""
    if isinstance(data, wire.Frame):
        return data.round
    try:
        return wire.parse_header(data, _HEADERS).round
    except DecodeError:
        return 0
