"""Makes a failing schedule small: fewer faults, shorter ones, fewer nodes, fewer rounds, plainer
parts, as long as it breaks the same promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from edgegossip.lab.sim import naming
from edgegossip.lab.sim.faults import Fault
from edgegossip.lab.sim.naming import Named
from edgegossip.lab.sim.schedule import Schedule, fits
from edgegossip.lab.sim.server_schedule import ServerSchedule, smaller
from edgegossip.types import EdgegossipError

AnySchedule = TypeVar("AnySchedule", Schedule, ServerSchedule)
Fails = Callable[[AnySchedule], str | None]  # the rule that a schedule breaks

MOST_TRIES = 300


def shrink(schedule: AnySchedule, fails: Fails[AnySchedule], most_tries: int = MOST_TRIES) -> AnySchedule:
    """The smallest schedule found that breaks the same rule; `schedule` itself where it breaks
    none."""
    rule, tries = fails(schedule), 0
    again = rule is not None
    while again:
        again = False
        for other in smaller(schedule) if isinstance(schedule, ServerSchedule) else _smaller(schedule):
            if tries >= most_tries:
                return schedule
            tries += 1
            if fails(other) == rule:
                schedule, again = other, True
                break
    return schedule


def _smaller(s: Schedule) -> Iterator[Schedule]:
    """What to try instead, the largest steps first."""
    n = len(s.faults)
    if n > 1:
        yield replace(s, faults=s.faults[: n // 2])
        yield replace(s, faults=s.faults[n // 2 :])
    for k in range(n):
        yield replace(s, faults=s.faults[:k] + s.faults[k + 1 :])
    for nodes in (2, 3, s.nodes // 2, s.nodes - 1):
        if 2 <= nodes < s.nodes and (fewer := _with_nodes(s, nodes)) is not None:
            yield fewer
    for rounds in (2, s.rounds // 2, s.rounds - 1):
        if 2 <= rounds < s.rounds:
            yield replace(s, rounds=rounds)
    if "+" in s.algorithm.name:
        yield replace(s, algorithm=replace(s.algorithm, name=s.algorithm.name.partition("+")[0]))
    for k in range(len(s.algorithm.params)):
        params = s.algorithm.params[:k] + s.algorithm.params[k + 1 :]
        yield replace(s, algorithm=replace(s.algorithm, params=params))
    if s.codec != Named("fp32"):
        yield replace(s, codec=Named("fp32"))
    if s.workload != "consensus":
        yield replace(s, workload="consensus")
    for k, fault in enumerate(s.faults):
        for shorter in _shorter(fault):
            yield replace(s, faults=(*s.faults[:k], shorter, *s.faults[k + 1 :]))


def _with_nodes(s: Schedule, nodes: int) -> Schedule | None:
    """On fewer nodes; faults of nodes that are gone happen to the others."""
    try:
        naming.topology_of(s.topology, nodes)
    except EdgegossipError:
        return None
    if not fits(s.algorithm, s.topology, s.codec, nodes, s.values):
        return None
    faults = []
    for f in s.faults:
        moved = tuple(dict.fromkeys(i % nodes for i in f.nodes))
        if len(moved) == len(f.nodes) or (f.kind == "split" and len(moved) < nodes):
            faults.append(replace(f, nodes=moved))
    return replace(s, nodes=nodes, faults=tuple(faults))


def _shorter(fault: Fault) -> Iterator[Fault]:
    length = fault.end - fault.start
    if length > 0.5:
        yield replace(fault, end=round(fault.start + length / 2, 2))
