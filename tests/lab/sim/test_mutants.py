"""Every mutant of lab/sim/mutants is killed by the schedule that killed it once, which the
right code passes.

When the engine has changed so that a mutant's schedule goes another way,
`python -m lab.sim.mutants --mutant NAME --record` finds another one."""

import json
from types import FunctionType

import pytest

from lab.sim import RULES, SERVER_RULES
from lab.sim.mutants.__main__ import KILLED
from lab.sim.mutants.catalogue import MUTANTS
from lab.sim.mutants.mutant import Edit, Moved, Mutant, mutated
from lab.sim.mutants.search import replay, search

RECORDED = json.loads(KILLED.read_text())


# One for each rule; the others are slow.
FIRST = set({row["rule"]: name for name, row in reversed(RECORDED.items())}.values())


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FIRST else pytest.mark.slow) for n in RECORDED])
def test_killed(name: str) -> None:
    mutant, seed = MUTANTS[name], RECORDED[name]["seed"]
    again = f"python -m lab.sim.mutants --mutant {name} --record"
    found = replay(mutant, seed).violations
    assert found, f"the mutant survives seed {seed}; find another: {again}"
    assert found[0].rule == RECORDED[name]["rule"], f"another rule finds it; is it still the same mistake? {again}"
    right = replay(mutant, seed, mutate=False)
    assert not right.violations, f"{right.schedule.command()}: {right.violations[0]}"


def test_every_mutant_is_killed_or_explained() -> None:
    assert set(RECORDED) == {m.name for m in MUTANTS.values() if not m.equivalent}
    assert len(RECORDED) >= 25


def test_all_still_apply() -> None:
    for mutant in MUTANTS.values():
        with mutant.applied():
            pass


def test_says_so_when_the_code_has_moved() -> None:
    for at, count in (("stmt nothing_of_this_name", "0"), ("Call", "[1-9][0-9]*"), ("stmt Total 7", "[0-7]")):
        moved = Edit("edgegossip.gossip.push:Push.publish", at, "pass")
        with pytest.raises(Moved, match=f"is {count} times"), Mutant("moved", "", ("sgp",), (moved,)).applied():
            pass
    with (
        pytest.raises(Moved, match="there is no"),
        Mutant("gone", "", (), (Edit("edgegossip.gossip.push:Pull.x", "", ""),)).applied(),
    ):
        pass


def above(values: list[int]) -> int:
    total = 0
    for value in values:
        if value > 2:
            total += abs(value)
    return total


def above_by_other_names(numbers: list[int]) -> int:
    if not numbers:
        return 0
    found = 0
    for n in numbers:
        if n > 2:
            found += abs(n)
    return found


@pytest.mark.parametrize(
    ("at", "new", "wanted"), [("Compare", "$0 >= $1", 6), ("Call abs", "2 * $", 8), ("stmt abs", "pass", 0)]
)
@pytest.mark.parametrize("function", [above, above_by_other_names])
def test_a_place_is_found_whatever_locals_are_called(function: FunctionType, at: str, new: str, wanted: int) -> None:
    code = mutated(function, [Edit("", at, new)])
    assert FunctionType(code, globals())([1, 2, 4]) == wanted and function([1, 2, 4]) == 4


def test_the_right_code_is_back_afterwards() -> None:
    mutant = MUTANTS["share-kept"]
    assert replay(mutant, 0).violations
    assert not replay(mutant, 0, mutate=False).violations


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [m.name for m in MUTANTS.values() if not m.equivalent])
def test_found_from_the_start(name: str) -> None:
    assert search(MUTANTS[name], 300).seed is not None


def test_every_rule_is_broken_by_some_mutant() -> None:
    """But for three, which no recorded mutant breaks first."""
    rules = {**RULES, **SERVER_RULES}.keys() - {"hull", "replay", "finite"}
    assert rules <= {row["rule"] for row in RECORDED.values()}
