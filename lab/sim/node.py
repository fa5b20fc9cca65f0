"""One simulated board: the shell around the engine that boards run (engine/node.py), with a virtual
clock, network and disk.

The engine's effects are carried out as a board's program does. While it does not listen, what comes
waits in the transport; a timer that is due comes before waiting events. `Poll` is answered when
nothing waits any more, `Load` and `Train` some time later. A process that stands still does nothing
of it until it goes on."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, NamedTuple, Protocol

from edgegossip import frame as wire
from edgegossip.engine import events
from edgegossip.engine.events import (
    Accepted,
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
from edgegossip.engine.node import NodeEngine, Stage
from edgegossip.gossip.base import NodeView, Send
from edgegossip.types import LocalUpdate, Vec, replace
from lab.sim.disk import Disk, Saved
from lab.sim.network import Clock

_STEPPED = (Stage.EXCHANGING, Stage.POLLING)  # after an update that was used


class Packet(NamedTuple):
    """Is a message on the network. `lie`: the kind of fault that tampered with it; empty if none
    did."""

    sender: int
    data: bytes | wire.Frame  # as bytes, or as it is where nobody tampered with it
    lie: str = ""
    mark: float = 0.0  # a checksum
    handed: list[tuple[int, float, int]] | None = None  # where it is to be acknowledged: process, when, bytes


class Tampered(bytes):
    """Is a frame that a liar sent. `lie`: the kind of fault."""

    lie = ""


class NodeEnvironment(Protocol):
    """Is what a node lives in: it asks for engines, updates and time, and what it does is looked
    at here. `World` is one."""

    clock: Clock

    def engine_of(self, node: Node, restarted: bool) -> NodeEngine:
        """Make the engine of a new process of this node."""

    def start_of(self, index: int) -> Vec:
        """Return the model with which a node begins, float32[n]."""

    def load_s(self, index: int) -> float:
        """Return the virtual seconds that loading its model takes a node."""

    def compute_s(self, index: int) -> float:
        """Return the virtual seconds that a local update takes a node."""

    def update(self, node: Node, model: Vec, correction: Vec | None) -> LocalUpdate:
        """Return the local update of a model, each step with a correction, both float32[n]."""

    def enough(self, node: Node) -> bool:
        """Tell whether the node has done all rounds that this part of the schedule wants."""

    def booted(self, node: Node, saved: Saved | None, state: Any) -> None:
        """Hear that a process has joined, and begins with this state."""

    def ticked(self, node: Node, timer: Timer) -> None:
        """Hear that a timer is due."""

    def stepped(self, node: Node, before: Any, local: LocalUpdate) -> None:
        """Hear that an update was used in the state `before`."""

    def send(self, node: Node, send: Send) -> None:
        """Carry a message."""

    def received(self, node: Node, accepted: Accepted, effects: list[Effect]) -> None:
        """Hear that a frame was taken in. `effects`: among which this one is."""

    def kept(self, node: Node) -> None:
        """Hear that a frame came too early, and is kept."""

    def dropped(self, node: Node, sender: str) -> None:
        """Hear that a frame was dropped for want of room."""

    def refused(self, node: Node, peer: str, reason: str) -> None:
        """Hear that a peer's message was refused, and why."""

    def ignored(self, node: Node, peer: str, reason: str) -> None:
        """Hear that a peer is left out for a while for a message, and why."""

    def round_done(self, node: Node, ended: RoundEnded) -> None:
        """Hear that a round has ended."""

    def checkpoint(self, node: Node, state: Any) -> None:
        """Write a checkpoint of this state."""

    def adopted(self, node: Node, action: events.ModelAdopted) -> None:
        """Hear that the node took over another's model."""

    def logged(self, node: Node, line: Log) -> None:
        """Hear a line of the node's event log."""

    def finished(self, node: Node) -> None:
        """Hear that a process has come to the end of the run."""

    def failed(self, node: Node, reason: str) -> None:
        """Hear that a process ends because there is no run for it."""


class Node:
    """Is a place for processes, one after the other. Everything happens in calls from the clock."""

    def __init__(self, world: NodeEnvironment, index: int, view: NodeView, disk: Disk) -> None:
        self.world, self.index, self.view, self.disk = world, index, view, disk
        self.engine: NodeEngine
        self.up = self.paused = False
        self.idle = False  # all rounds that are wanted are done, and it takes in what comes
        self.done = False  # it has finished the run
        self.process = 0  # counts boots
        self.offset_s = 0.0  # the node's own clock less the virtual one
        self.rounds_done = 0
        # Of the present process, for those who look on:
        self.handed, self.accepted, self.dropped = Counter[str](), Counter[str](), Counter[str]()  # frames, by sender
        self.refused: set[str] = set()
        self.left_out: set[str] = set()  # in this round
        self.given_up = False  # the model of the update in progress
        self.since_s = 0.0  # when it came to the stage that it is in
        self._saved: Saved | None = None
        self._transport: deque[Event] = deque()  # events that wait there
        self._answers: deque[Event] = deque()  # of questions, and timers, while the process stands still
        self._polls = False
        self._timers: dict[Timer, float] = {}  # on the node's own clock
        self._due = False  # one of them may be
        self._wakes: list[float] = []  # on the virtual clock: when `_wake` is to be called, the soonest last

    @property
    def trains(self) -> bool:
        """Tell whether it is in its rounds: it has joined, and has a model that is worth
        something."""
        return self.up and self.engine.view is not None and self.engine.stage is not Stage.ALONE

    @property
    def has_heard(self) -> bool:
        """Tell whether it has taken in all that its transport has to tell."""
        return not self._transport and not self.paused

    @property
    def shut_out(self) -> set[str]:
        """Return those to whom it should neither listen nor talk now."""
        return self.refused | self.left_out

    @property
    def state(self) -> Any:
        """Return the algorithm's state."""
        return self.engine.state

    # -- processes

    def boot(self, saved: Saved | None, boot: int) -> None:
        """Begin a new process, which will go on from what the disk holds, or from nothing."""
        self.view = replace(self.view, boot=boot)
        self._saved = saved
        self.up, self.paused, self.idle, self.done = True, False, False, False
        self._polls, self._due = False, False
        self._timers.clear()
        for counts in (self.handed, self.accepted, self.dropped):
            counts.clear()
        self.refused.clear()
        self.left_out.clear()
        self.process += 1
        self.since_s = self.world.clock.now
        self.engine = self.world.engine_of(self, self.process > 1)
        self._carry_out(self.engine.start(self.own_s))
        self._loop()

    def kill(self) -> None:
        """End the process; what waited for it is lost."""
        self.up = self.paused = False
        self.process += 1
        self._transport.clear()
        self._answers.clear()

    def pause(self) -> None:
        """Let the process stand still."""
        self.paused = True

    def unpause(self) -> None:
        """Let it go on as if nothing had happened."""
        self.paused = False
        self.since_s = self.world.clock.now
        self._loop()

    def wake(self) -> None:
        """Go on after a rest: more rounds are wanted than it was known when this node went to
        it."""
        if self.idle:
            self.idle = False
            self._loop()

    def jump(self, seconds: float) -> None:
        """Put the node's own clock forward, or back, by so many seconds."""
        self.offset_s += seconds
        self.since_s = max(self.since_s, self.world.clock.now - min(0.0, seconds))
        if self._timers:
            self._wake_at(min(self._timers.values()))

    # -- what comes in

    def take(self, event: Event) -> None:
        """Take an event from the transport."""
        self._transport.append(event)
        self._loop()

    def _answer(self, process: int, event: Event) -> None:
        if process == self.process and self.up:
            self._answers.append(event)
            self._loop()

    def _loop(self) -> None:
        """Everything that can be done now."""
        process, engine = self.process, self.engine
        while self.up and not self.paused and process == self.process:
            if self._answers:
                self._handle(self._answers.popleft())
            elif not engine.listens:
                return
            elif self._due and not (self._polls and not self.idle):
                self._fire()
            elif self._transport:
                self._handle(self._transport.popleft())
            elif self._polls:
                self.idle = self.world.enough(self)
                if self.idle:
                    return
                self._polls = False
                self._handle(Polled())
            else:
                return

    def _handle(self, event: Event) -> None:
        engine = self.engine
        before = engine.state
        if type(event) is FrameReceived:
            self.handed[event.sender] += 1
        stage = engine.stage
        effects = engine.handle(event, self.own_s)
        if type(event) is FrameReceived and engine.pending:
            self.world.kept(self)
        if engine.stage is not stage:
            self.since_s = self.world.clock.now
        if type(event) is UpdateReady and engine.stage in _STEPPED:
            self.world.stepped(self, before, event.local)
        self._carry_out(effects)

    # -- timers

    @property
    def own_s(self) -> float:
        """Return the time on the node's own clock."""
        return self.world.clock.now + self.offset_s

    def _set_timer(self, timer: Timer, after_s: float | None) -> None:
        if after_s is None:
            self._timers.pop(timer, None)
        else:
            self._timers[timer] = self.own_s + after_s
            self._wake_at(self._timers[timer])

    def _wake_at(self, own_s: float) -> None:
        """Looks at the timers then, or sooner: most are set anew long before they are due."""
        when = max(own_s - self.offset_s, self.world.clock.now)
        if not self._wakes or when < self._wakes[-1]:
            self._wakes.append(when)
            self.world.clock.at(when, self._wake)

    def _wake(self) -> None:
        self._wakes.pop()
        if not self._timers or not self.up:
            return
        first_s = min(self._timers.values())
        if first_s - self.offset_s > self.world.clock.now:
            self._wake_at(first_s)
        elif not self._due:
            self._due = True
            self._loop()

    def _fire(self) -> None:
        """The first timer that is due, if it is still set."""
        now_s = self.own_s
        due = [(at_s, timer.value, timer) for timer, at_s in self._timers.items() if at_s <= now_s + 1e-9]
        if not due:
            self._due = False
            if self._timers:
                self._wake_at(min(self._timers.values()))
            return
        timer = min(due)[2]
        del self._timers[timer]
        self.world.ticked(self, timer)
        self._handle(TimerFired(timer))

    # -- effects

    def _carry_out(self, effects: list[Effect]) -> None:
        world = self.world
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                world.send(self, effect)  # type: ignore[arg-type]
            elif kind is StartTimer:
                self._set_timer(effect.timer, effect.after_s)  # type: ignore[union-attr]
            elif kind is Accepted:
                self.accepted[effect.event.sender] += 1  # type: ignore[union-attr]
                world.received(self, effect, effects)  # type: ignore[arg-type]
            elif kind is events.KeepState:
                world.checkpoint(self, effect.state)  # type: ignore[union-attr]
            elif kind is RoundEnded:
                self.rounds_done += 1
                self.left_out.clear()
                world.round_done(self, effect)  # type: ignore[arg-type]
            elif kind is Poll:
                self._polls = True
            elif kind is Train:
                self.given_up = False
                local = world.update(self, effect.model, effect.correction)  # type: ignore[union-attr]
                world.clock.after(world.compute_s(self.index), self._answer, self.process, UpdateReady(local))
            elif kind is Log:
                world.logged(self, effect)  # type: ignore[arg-type]
            elif kind is events.ModelAdopted:
                self.given_up = True
                world.adopted(self, effect)  # type: ignore[arg-type]
            elif kind is Started:
                world.booted(self, self._saved, effect.state)  # type: ignore[union-attr]
            elif kind is Dropped:
                self.dropped[effect.sender] += 1  # type: ignore[union-attr]
                world.dropped(self, effect.sender)  # type: ignore[union-attr]
            elif kind is Ignored:
                self.dropped[effect.sender] += 1  # type: ignore[union-attr]
                if effect.reason:  # type: ignore[union-attr]
                    self.left_out.add(effect.sender)  # type: ignore[union-attr]
                    world.ignored(self, effect.sender, effect.reason)  # type: ignore[union-attr]
            elif kind is ClosePeer:
                self.refused.add(effect.peer)  # type: ignore[union-attr]
                world.refused(self, effect.peer, effect.reason)  # type: ignore[union-attr]
            elif kind is Load:
                self._load()
            elif kind is Finished:
                self.done = True
                world.finished(self)
            elif kind is Failed:
                world.failed(self, effect.reason)  # type: ignore[union-attr]

    def _load(self) -> None:
        """A board that comes again has loaded before it is there; one that comes for the first time
        loads now."""
        saved = self._saved
        loaded = (
            Loaded(self.view, self.world.start_of(self.index))
            if saved is None
            else Loaded(self.view, None, saved.state)
        )
        after_s = 0.0 if self.process > 1 else self.world.load_s(self.index)
        self.world.clock.after(after_s, self._answer, self.process, loaded)
