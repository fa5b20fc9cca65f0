"""Looks for the schedule that kills a mutant."""

from __future__ import annotations

from dataclasses import dataclass

from lab.sim import Outcome, run, schedule_of
from lab.sim.mutants.mutant import Mutant


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a mutant: after how many schedules which rule was seen broken, by which
    algorithm, at which seed. `seed` None: it survived."""

    mutant: str
    schedules: int
    seed: int | None = None
    algorithm: str = ""
    rule: str = ""
    text: str = ""


def search(mutant: Mutant, most: int) -> Found:
    """Tries the seeds 0, 1, ... until a checker sees something that it does not see in the right
    code."""
    for seed in range(most):
        outcome = replay(mutant, seed)
        if outcome.violations and not replay(mutant, seed, mutate=False).violations:
            first, algorithm = outcome.violations[0], str(outcome.schedule.algorithm)
            return Found(mutant.name, seed + 1, seed, algorithm, first.rule, first.text)
    return Found(mutant.name, most)


def replay(mutant: Mutant, seed: int, *, mutate: bool = True) -> Outcome:
    """One schedule, of the mutant or of the right code."""
    schedule = schedule_of(seed, mutant.schedules())
    if not mutate:
        return run(schedule)
    with mutant.applied():
        return run(schedule)
