"""Runs one schedule of a server run, and breaks in it what the schedule says."""

from __future__ import annotations

import numpy as np

from edgegossip.engine.server_events import Stop
from edgegossip.types import EdgegossipError
from lab.sim.faults import EVERY_KIND, Fault
from lab.sim.run import Outcome
from lab.sim.schedule import of
from lab.sim.server_schedule import ServerSchedule
from lab.sim.server_world import COORDINATOR, FAULT, Board, World
from lab.sim.trace import Say

START_S = 0.5  # boards start within
MOST_S = 20_000.0  # no run takes longer
RAISED = EdgegossipError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError


def run_server(schedule: ServerSchedule, *, say: Say | None = None) -> Outcome:
    """Run a schedule to its end or to the first violation. `say` gets the trace, line by line."""
    world = World(schedule, say)
    late = {f.nodes[0] for f in schedule.faults if f.kind == "late-join"}
    start = of(schedule.seed, "start")
    injector = FaultInjector(world)
    for fault in schedule.faults:
        world.clock.at(fault.start, injector.begin, fault)
    for board in world.boards:
        when = START_S * start.random()
        if board.index not in late:
            world.clock.at(when, world.start, board)
    world.clock.at(0.0, world.coordinator.boot)
    with np.errstate(all="ignore"):
        try:
            world.clock.run(MOST_S)
        except RAISED as error:
            world.violate("crash", None, f"{type(error).__name__}: {error}")
    if not world.violations and not world.finished:
        world.violate("progress", None, "the run does not end")
    return Outcome(
        schedule,
        tuple(world.violations),
        world.trace.digest(),
        dict(world.seen),
        world.trace.events,
        world.ledger.used_updates,
        world.clock.now,
        None,
        world.ledger.final,
        looked=frozenset(world.ledger.looked),
    )


class FaultInjector:
    """Lets faults happen in a world, and end."""

    def __init__(self, world: World) -> None:
        self._world, self._random = world, of(world.schedule.seed, "faults begin").random

    def begin(self, fault: Fault) -> None:
        """Let a fault happen."""
        world = self._world
        world.note(None, FAULT, fault.end, f"fault: {fault} ({EVERY_KIND[fault.kind].help})")
        board = world.boards[fault.nodes[0] if fault.nodes else 0]
        kind, at = fault.kind, world.clock.at
        if kind in ("delay", "loss", "duplication", "reorder", "replay"):
            for network in (world.up, world.down) if kind in ("delay", "loss") else (world.up,):
                setattr(network, kind, fault.strength)
                at(fault.end, setattr, network, kind, 0.0)
        elif kind == "split":
            self._split(fault, 1)
            at(fault.end, self._split, fault, -1)
        elif kind in ("crash", "empty-disk", "late-join", "leave"):
            world.seen[kind] += 1
            if kind == "empty-disk":
                board.disk = None
            self._go(board, f"{kind}: the process is gone")
            if kind != "leave":
                at(max(fault.end, fault.start + 0.6), self._come, board)
        elif kind == "fleet-away":
            world.seen[kind] += 1
            for each in world.boards:
                self._go(each, "the fleet has no power")
                at(max(fault.end, fault.start + 0.6) + self._random(), self._come, each)
        elif kind == "pause":
            self._pause(board, fault)
        elif kind in ("slow", "hang", "error"):
            world.seen[kind] += kind == "slow"
            setattr(board, kind, fault.strength)
            at(fault.end, setattr, board, kind, 1.0 if kind == "slow" else 0.0)
        elif kind == "coordinator-pause":
            if world.coordinator.alive and not world.coordinator.paused:
                world.seen[kind] += 1
                world.coordinator.pause()
                at(fault.end, self._unpause_coordinator, world.coordinator.process)
        elif kind == "stop":
            if world.coordinator.alive and not world.finished:
                world.seen[kind] += 1
                world.coordinator.feed(Stop())
        elif kind.startswith("coordinator-"):
            if world.coordinator.alive and not world.finished:
                world.coordinator.fuse = (int(fault.strength), fault)
        elif kind in ("other-layout", "other-labels"):
            self._bring(board, kind)
            at(fault.end, self._bring, board, "")
        else:
            self._lie(board, fault)

    def _split(self, fault: Fault, more: int) -> None:
        for i in fault.nodes:
            self._world.cut[i] += more
            for network, edge in ((self._world.down, (COORDINATOR, i + 1)), (self._world.up, (i + 1, COORDINATOR))):
                (network.cut if more > 0 else network.mend)(*edge, "split")
            self._world.changed(self._world.boards[i])
        self._world.seen["split"] += more > 0

    def _go(self, board: Board, why: str) -> None:
        board.away += 1
        self._world.kill(board, why)

    def _come(self, board: Board) -> None:
        board.away -= 1
        self._world.start(board)

    def _pause(self, board: Board, fault: Fault) -> None:
        if board.up and not board.paused:
            self._world.seen["pause"] += 1
            board.paused = True
            self._world.changed(board)
            self._world.clock.at(fault.end, self._unpause, board, board.process)

    def _unpause(self, board: Board, process: int) -> None:
        if board.process != process or not board.up or not board.paused:
            return
        board.paused = False
        self._world.changed(board)
        if board.held is not None:
            held, board.held = board.held, None
            held()
        board.go_on()

    def _unpause_coordinator(self, process: int) -> None:
        if self._world.coordinator.alive and self._world.coordinator.process == process:
            self._world.coordinator.unpause()

    def _bring(self, board: Board, data: str) -> None:
        """Another process of the board comes with these data."""
        board.data = data
        if data:
            self._world.seen[data] += 1
        if not board.away:
            self._world.kill(board, f"joins anew with {data or 'the right data'}")
            self._world.clock.after(0.6, self._world.start, board)

    def _lie(self, board: Board, fault: Fault) -> None:
        lie = (fault.kind, fault.strength)
        board.lies.append(lie)
        board.liar = True
        self._world.clock.at(fault.end, board.lies.remove, lie)
        if fault.kind == "byzantine-name":
            others = [name for name in self._world.plan.boards if name != board.name]
            board.alias = others[0] if self._world.plan.certified else "board-99"
            self._world.ledger.lied = True
            self._world.seen[fault.kind] += 1
            self._world.clock.at(fault.end, setattr, board, "alias", board.name)
            if not board.away:
                self._world.kill(board, "joins anew by another name")
                self._world.clock.after(0.6, self._world.start, board)
