"""One simulated board: the loop of node/driver.py with virtual time instead of a transport that blocks.

It trains, calls `step`, sends, then takes in events until the algorithm says RoundDone, and trains again. While it trains,
events wait (unless the algorithm is asynchronous). A timer that is due comes before waiting events. A frame that is refused
costs its sender the connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from edgegossip.sim import trace
from edgegossip.sim.disk import Disk, Saved
from edgegossip.types import LocalUpdate, PeerError

if TYPE_CHECKING:
    from edgegossip.sim.world import World

MOST_ROUNDS = 10**6  # frames of later rounds are refused, as the driver refuses those past the recipe's


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame off the wire, or one that nobody tampered with as it is. `lie`: the kind of fault that did; empty if none."""

    sender: int
    data: bytes | wire.Frame
    lie: str = ""
    mark: float = 0.0  # a checksum


@dataclass(frozen=True, slots=True)
class Notice:
    """The transport's word that a peer went down or came back."""

    peer: int
    up: bool


class Node:
    """States: not there (`up` is False), training, or taking in events. Everything happens in calls from the clock."""

    def __init__(self, world: World, index: int, view: NodeView, disk: Disk) -> None:
        self.world, self.index, self.view, self.disk = world, index, view, disk
        self.algorithm: GossipAlgorithm[Any] = world.algorithm
        self.asynchronous = self.algorithm.asynchronous
        self.state: Any = None
        self.up = self.training = self.paused = self.idle = False
        self.starting = False  # it listens already, and will boot
        self.process = 0  # counts boots
        self.refused: set[int] = set()
        self.offset_s = 0.0  # the node's own clock less the virtual one
        self.rounds_done = 0
        self._backlog: deque[Frame | Notice] = deque()
        self._done = self._adopted = self._computed_while_paused = False
        self._timer: float | None = None  # on the node's own clock
        self._timer_due = False
        self._wakes: list[float] = []  # on the virtual clock: when `_wake` is to be called, the soonest last
        self._local: LocalUpdate | None = None

    # -- processes -------------------------------------------------------------------------------------------

    def boot(self, saved: Saved | None, down: frozenset[int], boot: int) -> None:
        """A new process, from what the disk holds or from nothing."""
        members = self.view.members
        self.view = replace(self.view, down=frozenset(members[i] for i in down), boot=boot)
        self.up, self.training, self.paused, self.idle, self.starting = True, False, False, False, False
        self._timer, self._timer_due, self._done, self._computed_while_paused = None, False, False, False
        self.process += 1
        self.refused.clear()
        algorithm = self.algorithm
        if saved is None:
            state = algorithm.init(self.world.workload.starts[self.index], self.view)
        else:
            state = algorithm.resume(saved.state, self.view)
        self.state = state
        self.world.booted(self, saved)
        self._advance(algorithm.start(state))
        self._train()

    def kill(self) -> None:
        self.up = self.paused = self.starting = False
        self.process += 1
        self._backlog.clear()

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        if self._computed_while_paused:
            self._computed_while_paused = False
            self._step(self.process)
        if not self.starting:  # else it stood still before it began, and what came waits for that
            self._loop()

    def wake(self) -> None:
        """More rounds are wanted than it was known when this node went to rest."""
        if self.idle:
            self._train()

    def jump(self, seconds: float) -> None:
        """The node's own clock goes on from another time."""
        self.offset_s += seconds
        if self._timer is not None:
            self._wake_at(self._timer)

    # -- what comes in ---------------------------------------------------------------------------------------

    def take(self, event: Frame | Notice) -> None:
        """An event from the transport."""
        if self.paused or self.starting or (self.training and not self.asynchronous) or self._backlog:
            self._backlog.append(event)
            return
        if type(event) is Frame:
            self._receive(event)
        else:
            self._handle(event)
        if self._done or self._timer_due or self._backlog:
            self._loop()

    def _train(self) -> None:
        """Local training at the model as it is now, or rest when the schedule wants no more rounds."""
        self._done = False
        if self.world.enough(self):
            self.idle = True
            return
        self.training, self.idle, self._adopted = True, False, False
        self._local = self.world.update(self.index, self.algorithm.model(self.state))
        self.world.clock.after(self.world.compute_s[self.index], self._step, self.process)

    def _step(self, process: int) -> None:
        if process != self.process:
            return
        if self.paused:
            self._computed_while_paused = True
            return
        assert self._local is not None
        if self._adopted:  # an update of a model that was given up meanwhile is none
            self._train()
            return
        self.training = False
        outcome = self.algorithm.step(self.state, self._local)
        self.world.stepped(self, self._local)
        self._advance(outcome)
        self._loop()

    def _loop(self) -> None:
        """As the driver's `play`: between two rounds what waited is taken in; within one the timer comes first."""
        process = self.process
        while self.up and not self.paused and process == self.process:
            if self.training and not self.asynchronous:
                return
            if self._done and not self.training and not self._backlog:
                self._train()
            elif self._timer_due and not self._done:
                self._tick()
            elif self._backlog:
                self._handle(self._backlog.popleft())
            else:
                return

    def _handle(self, event: Frame | Notice) -> None:
        if isinstance(event, Frame):
            self._receive(event)
        elif not (event.up and event.peer in self.refused):
            name = self.view.members[event.peer]
            self._membership(self.view.down - {name} if event.up else self.view.down | {name})

    def _receive(self, event: Frame) -> None:
        """As the driver does: a bad frame costs its sender the connection and nobody else anything."""
        if event.sender in self.refused:
            return
        view, world = self.view, self.world
        try:
            frame = self.opened(event)
            wire.expect(frame, run_id=view.run_id, layout_hash=view.layout.hash)
            if frame.round >= MOST_ROUNDS and (frame.kind is not wire.Kind.STATE or frame.round > MOST_ROUNDS):
                raise PeerError(f"its round {frame.round} is not one of the run's {MOST_ROUNDS}")
            outcome = self.algorithm.receive(self.state, Message(view.members[event.sender], frame))
        except PeerError as error:
            self._refuse(event, str(error))
            return
        world.received(self, event, frame, outcome)
        self._advance(outcome)

    def opened(self, event: Frame) -> wire.Frame:
        """Raises DecodeError."""
        data = event.data
        return data if isinstance(data, wire.Frame) else wire.parse(data, self.world.limits)

    def _refuse(self, event: Frame, reason: str) -> None:
        self.refused.add(event.sender)
        self.world.refused(self, event, reason)
        self._membership(self.view.down | {self.view.members[event.sender]})

    def _membership(self, down: frozenset[str]) -> None:
        if down != self.view.down:
            self.view = self.view.with_down(down)
            self._advance(self.algorithm.membership(self.state, self.view))

    # -- timer -----------------------------------------------------------------------------------------------

    def _wake_at(self, own_s: float) -> None:
        """Looks at the timer then, or sooner: most are set anew long before they are due."""
        when = max(own_s - self.offset_s, self.world.clock.now)
        if not self._wakes or when < self._wakes[-1]:
            self._wakes.append(when)
            self.world.clock.at(when, self._wake)

    def _wake(self) -> None:
        self._wakes.pop()
        if self._timer is None:
            return
        if self._timer - self.offset_s > self.world.clock.now:
            self._wake_at(self._timer)
        elif not self._timer_due:
            self._timer_due = True
            self._loop()

    def _tick(self) -> None:
        self._timer, self._timer_due = None, False
        now_s = self.world.clock.now + self.offset_s
        self.world.trace.event(self.world.clock.now, self.index, trace.TICK)
        if self.world.trace.say is not None:
            self.world.trace.line(self.world.clock.now, self.index, "the timer is due")
        self._advance(self.algorithm.tick(self.state, now_s))

    # -- actions ---------------------------------------------------------------------------------------------

    def _advance(self, outcome: tuple[Any, list[Action]]) -> None:
        self.state, actions = outcome
        for action in actions:
            kind = type(action)
            if kind is Send:
                self.world.send(self, action)  # type: ignore[arg-type]
            elif kind is SetTimer:
                self._set_timer(action.after_s)  # type: ignore[union-attr]
            elif kind is RoundDone:
                self._done = True
                self.rounds_done += 1
                self.world.round_done(self, action)  # type: ignore[arg-type]
            elif kind is Checkpoint:
                self.world.checkpoint(self)
            elif kind is Suspect:
                self.world.suspected(self, action)  # type: ignore[arg-type]
            elif kind is Adopted:
                self._adopted = True
                self.world.adopted(self, action)  # type: ignore[arg-type]

    def _set_timer(self, after_s: float | None) -> None:
        self._timer_due = False
        if after_s is None:
            self._timer = None
        else:
            self._timer = self.world.clock.now + self.offset_s + after_s
            self._wake_at(self._timer)
