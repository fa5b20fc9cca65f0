"""Admission under random schedules in virtual time: the right code keeps what is promised, and each
small mistake is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.sim.mutants.mutant import find, mutated
from tests.security.mutants import schedules
from tests.security.mutants.catalogue import MUTANTS, Mutant

SEEDS = range(12)
SCHEDULES = {m.schedule for m in MUTANTS}


@pytest.mark.parametrize("schedule", sorted(SCHEDULES, key=lambda s: s.__name__), ids=lambda s: s.__name__)
def test_the_right_code_keeps_what_is_promised(schedule: Callable[[int], None]) -> None:
    for seed in SEEDS:
        schedule(seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_mutant_is_killed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    function = find(mutant.edit.where)
    monkeypatch.setattr(function, "__code__", mutated(function, [mutant.edit]))
    with pytest.raises((schedules.Violation, KeyError)):
        _ = [mutant.schedule(seed) for seed in SEEDS]
