"""Plays one schedule with whole boards: faults, then quiet, in which everybody must find each other
again and come to the end of the run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import numpy as np

from edgegossip import gossip
from edgegossip.types import ConfigError
from lab.sim import naming, trace
from lab.sim import schedule as schedules
from lab.sim.checkers import REPLAY, RULES
from lab.sim.faults import BYZANTINE, CERTIFICATE, CRASHES, KINDS, OF_BOARDS, OTHER_VERSION, Fault, parse
from lab.sim.naming import Named
from lab.sim.run import START_S, FaultInjector, Outcome
from lab.sim.schedule import Options, Schedule, of, pick
from lab.sim.shell import versions
from lab.sim.shell.world import Board, ShellWorld

NODES = 2, 3, 3, 4, 4, 5
ROUNDS = 8, 24
SHELL_KINDS = {  # who lies does so about members; no other models, and time goes one way
    **{name: kind for name, kind in KINDS.items() if name not in (*BYZANTINE, "other-model", "clock-jump")},
    **OF_BOARDS,
}
OUTAGES = (*CRASHES, "one-way-cut", "split", OTHER_VERSION.name, CERTIFICATE.name)
LONG, OUTAGE_S = 0.3, (15.0, 35.0)  # share of them that last so long
SHELL_RULES = {
    "crash": "nothing is raised but what ends a run",
    "finite": RULES["finite"],
    "rounds": RULES["rounds"],
    "kept": "what was finished longer ago than the slack is on the disk, and there when the board comes again",
    "blame": "who is said to be silent or dead is, as is a disk; who says that it stood still did, and who did says so",
    "shut-out": "nobody is shut out for good",
    "noticed": "who is gone for long is known to be, by all members, and who is another process",
    "delivered": "what is sent comes, or is said to be lost",
    "rarer": "who does not answer is tried ever more rarely",
    "refused": "no honest board is refused",
    "progress": "a round ends soon after its deadline; a board that comes begins",
    "certificate": "whose certificate ends says so, is refused for no other reason, and comes back with a new one",
    "version": "who speaks another version is refused with both named, and not taken in; nobody else is said to",
    "end": "every board comes to the end of the run, and gives up only where nobody is left",
    REPLAY: RULES[REPLAY],
}
LATEST_S = 400.0  # after that, when all must have come to the end


def draw(seed: int, options: Options) -> Schedule:
    """Draw the schedule of a seed, as `schedule.draw` does: of fewer boards, for longer, so that
    faults outlast what boards wait for. Raises ConfigError."""
    if options.server is not None:
        raise ConfigError("--server is of server runs, and whole boards have no coordinator: leave --mode shell away")
    able = tuple(Named(name) for name in gossip.names() if not naming.algorithm_of(Named(name)).listens)
    for asked in options.algorithms or ():
        if asked.name not in {named.name for named in able}:
            names = ", ".join(named.name for named in able)
            raise ConfigError(f"--algorithm {asked}: whole boards play one of {names}")
    rounds = options.rounds or ROUNDS[0] + int(of(seed, "rounds").random() * (ROUNDS[1] - ROUNDS[0] + 1))
    options = replace(
        options,
        algorithms=options.algorithms or able,
        nodes=options.nodes or pick(seed, "nodes", NODES),
        rounds=rounds,
    )
    exact, rng = set(parse(options.faults, SHELL_KINDS).exact), of(seed, "longer")
    drawn = schedules.draw(seed, options, SHELL_KINDS)
    return replace(drawn, mode="shell", faults=tuple(f if f in exact else _longer(f, rng) for f in drawn.faults))


def _longer(fault: Fault, rng: Random) -> Fault:
    """Let what keeps boards from each other outlast now and then all that they wait for."""
    chance, more = rng.random(), rng.random()
    if fault.kind not in OUTAGES or chance >= LONG:
        return fault
    return replace(fault, end=round(fault.start + OUTAGE_S[0] + (OUTAGE_S[1] - OUTAGE_S[0]) * more, 2))


class ShellFaults(FaultInjector):
    """Lets happen to whole boards what happens to them alone, too."""

    def __init__(self, world: ShellWorld) -> None:
        self._shell = world
        super().__init__(world)  # type: ignore[arg-type]

    def _other_version(self, fault: Fault) -> None:
        self._shell.seen[fault.kind] += 1
        self._bring(fault.nodes[0], int(fault.strength))
        self._shell.clock.at(fault.end, self._bring, fault.nodes[0], versions.RIGHT)
        self._shell.clock.at(fault.end, self._unfit_come)

    def _bring(self, i: int, other: int) -> None:
        """A process with another version comes in place of this one, or the right one again."""
        self._shell.nodes[i].other = other
        self._go(i, "other-version: the process is gone")
        self._come(i)

    def _certificate_ends(self, fault: Fault) -> None:
        self._shell.clock.at(fault.end, self._shell.renew, fault.nodes[0])


def run_shell(schedule: Schedule, *, say: trace.Say | None = None) -> Outcome:
    """Run a schedule to its end or to the first violation."""
    world = ShellWorld(schedule, say)
    injector = ShellFaults(world)
    late, start = injector.late(), of(schedule.seed, "start")
    for board in world.nodes:
        when = START_S * start.random()
        if board.index not in late:
            world.clock.at(when, _first_boot, world, injector, board)
    world.clock.at(1.0, _watch, world)
    with np.errstate(all="ignore"), _nothing_collected():
        world.clock.run(1e6)
    for board in world.nodes:
        if board.up:
            board.kill()
    if world.fleet is not None:
        world.fleet.close()
    return Outcome(
        schedule,
        tuple(world.violations),
        world.trace.digest(),
        dict(world.seen),
        world.trace.events,
        sum(len(board.reports) for board in world.nodes),
        world.clock.now,
        None,
        looked=frozenset(world.looked),
    )


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Leave coroutines and connections that nobody holds to the end: the garbage collector comes by
    what this process did before, and would end them at another time in each run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _first_boot(world: ShellWorld, injector: FaultInjector, board: Board) -> None:
    if injector.may_come(board.index) and not board.process:
        world.boot(board.index, None)


def _watch(world: ShellWorld) -> None:
    world.look()
    up = [b.index for b in world.nodes if b.up and (b.begun or not world.waits())]
    if not up and world.clock.now > world.schedule.seconds:
        world.clock.stop()
    elif world.clock.now > world.settled_s + LATEST_S:
        world.violate("end", up[0], "has not come to the end of the run")
    else:
        world.clock.after(1.0, _watch, world)
