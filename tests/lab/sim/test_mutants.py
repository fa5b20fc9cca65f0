"""Every mutant of tests/lab/sim/mutants is killed by the schedule that killed it once, which the
right code passes.

When the engine has changed so that a mutant's schedule goes another way,
`python -m tests.lab.sim.mutants --mutant NAME --record` finds another one."""

import json

import pytest

from tests.lab.sim.mutants.__main__ import KILLED
from tests.lab.sim.mutants.catalogue import MUTANTS
from tests.lab.sim.mutants.mutant import Edit, Moved, Mutant
from tests.lab.sim.mutants.search import replay, search

RECORDED = json.loads(KILLED.read_text())


# One in four; the others are slow. A change that blinds a checker lets many survive.
FOURTH = [pytest.param(name, marks=pytest.mark.slow if k % 4 else ()) for k, name in enumerate(RECORDED)]


@pytest.mark.parametrize("name", FOURTH)
def test_killed(name: str) -> None:
    mutant, seed = MUTANTS[name], RECORDED[name]["seed"]
    again = f"python -m tests.lab.sim.mutants --mutant {name} --record"
    found = replay(mutant, seed).violations
    assert found, f"the mutant survives seed {seed}; find another: {again}"
    assert found[0].rule == RECORDED[name]["rule"], f"another rule finds it; is it still the same mistake? {again}"
    right = replay(mutant, seed, mutate=False)
    assert not right.violations, f"{right.schedule.command()}: {right.violations[0]}"


def test_every_mutant_is_killed_or_explained() -> None:
    assert set(RECORDED) == {m.name for m in MUTANTS.values() if not m.equivalent}
    assert len(RECORDED) >= 25


@pytest.mark.parametrize("name", MUTANTS)
def test_all_still_apply(name: str) -> None:
    with MUTANTS[name].applied():
        pass


def test_says_so_when_the_code_has_moved() -> None:
    for at, count in (("stmt nothing_of_this_name", "0"), ("Call", "[1-9][0-9]*"), ("stmt Total 7", "[0-3]")):
        moved = Edit("edgegossip.gossip.push:Push.publish", at, "pass")
        with pytest.raises(Moved, match=f"is {count} times"), Mutant("moved", "", ("sgp",), (moved,)).applied():
            pass
    with (
        pytest.raises(Moved, match="there is no"),
        Mutant("gone", "", (), (Edit("edgegossip.gossip.push:Pull.x", "", ""),)).applied(),
    ):
        pass


def test_the_right_code_is_back_afterwards() -> None:
    mutant = MUTANTS["share-kept"]
    assert replay(mutant, 0).violations
    assert not replay(mutant, 0, mutate=False).violations


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [m.name for m in MUTANTS.values() if not m.equivalent])
def test_found_from_the_start(name: str) -> None:
    assert search(MUTANTS[name], 300).seed is not None
