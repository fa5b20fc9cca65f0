"""Many schedules, one seed after the other, over all algorithms, topologies and codecs, in
several processes if asked; and a failing one made small.

To make it small is to try fewer faults, shorter ones, fewer nodes, fewer rounds and plainer
parts, as long as it breaks the same promise."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from edgegossip.types import EdgegossipError
from lab.sim import naming, server_schedule
from lab.sim.checkers import REPLAY, Violation
from lab.sim.faults import Fault
from lab.sim.naming import Named
from lab.sim.run import Outcome, run_schedule
from lab.sim.schedule import Options, Schedule, draw, fits
from lab.sim.server import run_server
from lab.sim.server_schedule import ServerSchedule
from lab.sim.trace import Say

CHUNK = 16  # seeds that a process gets at a time
REPLAY_EVERY = 50  # schedules, of which one is run again and must give the same hash; the first one always is
COLLECT_EVERY = 200_000  # new objects
AnySchedule: TypeAlias = Schedule | ServerSchedule
Fails: TypeAlias = Callable[[AnySchedule], str | None]  # the rule that a schedule breaks
MOST_TRIES = 300


@dataclass(slots=True)
class Result:
    """Says what a campaign found. `failures` holds at most `KEEP` of them, those of the smallest
    seeds."""

    schedules: int = 0
    violations: int = 0  # schedules that broke a promise
    replays: int = 0  # schedules that were run twice
    events: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0  # of all processes together, second runs included
    faults: Counter[str] = field(default_factory=Counter)  # schedules in which a kind did something
    looked: Counter[str] = field(default_factory=Counter)  # schedules in which a rule had something to look at
    looked_server: Counter[str] = field(default_factory=Counter)  # the same of server runs and their rules
    server: int = 0  # schedules that were server runs
    algorithms: Counter[str] = field(default_factory=Counter)  # schedules that ran it, with its momentum
    topologies: Counter[str] = field(default_factory=Counter)
    codecs: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)  # (seed, rule, text)

    KEEP = 1000

    def add(self, other: Result) -> None:
        """Add what another part of the same campaign found."""
        for part in fields(self):
            if part.name not in ("seconds", "failures"):
                setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))
        self.failures = sorted([*self.failures, *other.failures])[: self.KEEP]

    def to_json(self) -> dict[str, Any]:
        """Return the document of `python -m lab.sim --campaign N --json`."""
        return {
            "schedules": self.schedules,
            "violations": self.violations,
            "faults": dict(sorted(self.faults.items())),
            "schedules_per_s": round(self.schedules / self.seconds, 2) if self.seconds else None,
            "schedules_per_cpu_s": round(self.schedules / self.cpu_s, 2) if self.cpu_s else None,
            "first_failure_seed": self.failures[0][0] if self.failures else None,
            "replays": self.replays,
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "looked": dict(sorted(self.looked.items())),
            "looked_server": dict(sorted(self.looked_server.items())),
            "server": self.server,
            "algorithms": dict(sorted(self.algorithms.items())),
            "topologies": dict(sorted(self.topologies.items())),
            "codecs": dict(sorted(self.codecs.items())),
            "rules": dict(sorted(self.rules.items())),
            "failures": [{"seed": s, "rule": r, "text": t} for s, r, t in self.failures[:20]],
        }


def schedule_of(seed: int, options: Options) -> Schedule | ServerSchedule:
    """Draw the schedule of a seed, gossip or a server run. Raises ConfigError."""
    if options.mode == "shell":
        from lab.sim import shell  # here: with gRPC

        return shell.draw(seed, options)
    server = server_schedule.is_server(seed, options)
    return server_schedule.draw(seed, options) if server else draw(seed, options)


def run(schedule: Schedule | ServerSchedule, *, say: Say | None = None) -> Outcome:
    """Run a schedule to its end or to the first violation."""
    if isinstance(schedule, ServerSchedule):
        return run_server(schedule, say=say)
    if schedule.mode == "shell":
        from lab.sim import shell

        return shell.run_shell(schedule, say=say)
    return run_schedule(schedule, say=say)


def campaign(
    seeds: Iterable[int],
    options: Options | None = None,
    *,
    jobs: int = 1,
    progress: Callable[[Result], None] | None = None,
) -> Result:
    """Run the schedules of these seeds. `progress` is told now and then. Raises ConfigError as
    `draw` does."""
    options, started, result = options or Options(), time.perf_counter(), Result()
    for part in _parts(list(seeds), options, jobs):
        result.add(part)
        result.seconds = time.perf_counter() - started
        if progress is not None:
            progress(result)
    return result


def replayed(outcome: Outcome) -> Violation | None:
    """Run a schedule that broke nothing once more, and return a violation unless it goes the
    same way, bit for bit."""
    again = run(outcome.schedule)
    if again.digest == outcome.digest:
        return None
    text = f"run again, the same schedule went another way: its hash is {again.digest}, not {outcome.digest}"
    return Violation(REPLAY, None, outcome.virtual_s, text)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parts(seeds: list[int], options: Options, jobs: int) -> Iterator[Result]:
    chunks = [seeds[k : k + CHUNK] for k in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield _run(chunk, options, seeds[0])
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting = []
        for chunk in chunks:
            waiting.append(pool.submit(_run, chunk, options, seeds[0]))
            if len(waiting) > 4 * jobs:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A schedule makes many short-lived records and few cycles: to look for those as often as
    Python does takes 5 % longer. What a caller has frozen stays so."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    gc.set_threshold(COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()


@_rare_collections()
def _run(seeds: Sequence[int], options: Options, first: int) -> Result:
    result, started = Result(), time.process_time()
    for seed in seeds:
        schedule = schedule_of(seed, options)
        outcome = run(schedule)
        result.schedules += 1
        result.events += outcome.events
        if isinstance(schedule, ServerSchedule):
            result.server += 1
            result.looked_server.update(outcome.looked)
        else:
            result.looked.update(outcome.looked)
            result.algorithms[schedule.algorithm.name] += 1
            result.topologies[schedule.topology.name] += 1
        result.codecs[str(schedule.codec)] += 1
        result.faults.update(outcome.seen.keys())
        rule, text = _fault(outcome)
        if not rule and (seed == first or seed % REPLAY_EVERY == 0):
            result.replays += 1
            (result.looked_server if isinstance(schedule, ServerSchedule) else result.looked)[REPLAY] += 1
            if other := replayed(outcome):
                rule, text = other.rule, str(other)
        if rule:
            result.violations += 1
            result.rules[rule] += 1
            result.failures.append((seed, rule, text))
    result.cpu_s = time.process_time() - started
    return result


def _fault(outcome: Outcome) -> tuple[str, str]:
    """Rule and text of the first violation; empty without."""
    first = outcome.violations[0] if outcome.violations else None
    return (first.rule, str(first)) if first else ("", "")


def shrink(schedule: AnySchedule, fails: Fails, most_tries: int = MOST_TRIES) -> AnySchedule:
    """Return the smallest schedule found that breaks the same rule; `schedule` itself where it
    breaks none. `fails` gives the rule that a schedule breaks."""
    rule, tries = fails(schedule), 0
    again = rule is not None
    while again:
        again = False
        for other in _smaller(schedule):
            if tries >= most_tries:
                return schedule
            tries += 1
            if fails(other) == rule:
                schedule, again = other, True
                break
    return schedule


def _smaller(s: AnySchedule) -> Iterator[AnySchedule]:
    """What to try instead, the largest steps first."""
    half = len(s.faults) // 2
    fewer = [s.faults[:half], s.faults[half:]] if half else []
    for faults in (*fewer, *(s.faults[:k] + s.faults[k + 1 :] for k in range(len(s.faults)))):
        yield replace(s, faults=faults)
    for nodes in (2, 3, s.nodes // 2, s.nodes - 1):
        if 2 <= nodes < s.nodes and (isinstance(s, ServerSchedule) or _bears(s, nodes)):
            yield replace(s, nodes=nodes, faults=tuple(_moved(s.faults, nodes)))
    for rounds in (2, s.rounds // 2, s.rounds - 1):
        if 2 <= rounds < s.rounds:
            yield replace(s, rounds=rounds)
    yield from server_schedule.plainer(s) if isinstance(s, ServerSchedule) else _plainer(s)
    if s.codec != Named("fp32"):
        yield replace(s, codec=Named("fp32"))
    for k, fault in enumerate(s.faults):
        if fault.end - fault.start > 0.5:
            shorter = replace(fault, end=round((fault.start + fault.end) / 2, 2))
            yield replace(s, faults=(*s.faults[:k], shorter, *s.faults[k + 1 :]))


def _plainer(s: Schedule) -> Iterator[Schedule]:
    if "+" in s.algorithm.name:
        own = tuple((k, v) for k, v in s.algorithm.params if k != "momentum_factor" and not k.startswith("outer_"))
        yield replace(s, algorithm=Named(s.algorithm.name.partition("+")[0], own))
    for k in range(len(s.algorithm.params)):
        params = s.algorithm.params[:k] + s.algorithm.params[k + 1 :]
        yield replace(s, algorithm=replace(s.algorithm, params=params))
    if s.workload != "consensus":
        yield replace(s, workload="consensus")


def _bears(s: Schedule, nodes: int) -> bool:
    """Tell whether topology and algorithm can do with so many nodes."""
    try:
        naming.topology_of(s.topology, nodes)
    except EdgegossipError:
        return False
    return fits(s.algorithm, s.topology, s.codec, nodes, s.values)


def _moved(faults: Iterable[Fault], nodes: int) -> Iterator[Fault]:
    """Let faults of nodes that are gone happen to the others."""
    for f in faults:
        moved = tuple(dict.fromkeys(i % nodes for i in f.nodes))
        if len(moved) == len(f.nodes) or (f.kind == "split" and len(moved) < nodes):
            yield replace(f, nodes=moved)
