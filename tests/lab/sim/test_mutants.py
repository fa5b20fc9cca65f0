"""Every mutant of lab/sim/mutants is killed by the schedule that killed it once, which the
right code passes, or by a test where no schedule shows it.

When the engine has changed so that a mutant's schedule goes another way,
`python -m lab.sim.mutants --mutant NAME --record` finds another one."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from lab.sim import RULES, SERVER_RULES
from lab.sim.mutants.__main__ import KILLED, main
from lab.sim.mutants.catalogue import MUTANTS
from lab.sim.mutants.mutant import Edit, Moved, Mutant, find, locals_of, mutated, tree_of
from lab.sim.mutants.search import replay
from lab.sim.shell.run import SHELL_RULES

ROOT = Path(__file__).parents[3]
RECORDED = json.loads(KILLED.read_text())


def mode_of(name: str) -> str:
    """In which mode a mutant is played."""
    return str(MUTANTS[name].options.get("mode", "gossip"))


RULES_OF = {"gossip": RULES, "server": SERVER_RULES, "shell": SHELL_RULES}
ELSEWHERE = {"replay"} | {f"shell {rule}" for rule in ("crash", "rounds", "finite")}  # others see those mistakes first
EVERY = [(mode, rule) for mode, rules in RULES_OF.items() for rule in rules if not {rule, f"{mode} {rule}"} & ELSEWHERE]
# One for each rule; the others are slow.
FIRST = {(mode_of(name), row["rule"]): name for name, row in reversed(RECORDED.items())}


def plays() -> Iterator[Any]:
    """Each rule once; of whole boards', which take seconds, most are slow."""
    for mode, rule in EVERY:
        slow = mode == "shell" and rule not in ("end", "blame", "kept")
        yield pytest.param(mode, rule, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("mode", "rule"), [*plays()])
def test_every_rule_is_broken_by_some_mutant(mode: str, rule: str) -> None:
    killed(FIRST[mode, rule])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED.keys() - FIRST.values()))
def test_killed(name: str) -> None:
    killed(name)


UNDER = """
import sys, pytest
from lab.sim.mutants.catalogue import MUTANTS
with MUTANTS[sys.argv[1]].applied():
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", sys.argv[2]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "test"), [(m.name, test) for m in MUTANTS.values() for test in m.seen_by])
def test_what_no_schedule_shows_a_test_does(name: str, test: str) -> None:
    run = [sys.executable, "-c", UNDER, name, test]
    ended = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr


def killed(name: str) -> None:
    mutant, seed = MUTANTS[name], RECORDED[name]["seed"]
    again = f"python -m lab.sim.mutants --mutant {name} --record"
    found = replay(mutant, seed).violations
    assert found, f"the mutant survives seed {seed}; find another: {again}"
    assert found[0].rule == RECORDED[name]["rule"], f"another rule finds it; is it still the same mistake? {again}"
    right = replay(mutant, seed, mutate=False)
    assert not right.violations, f"{right.schedule.command()}: {right.violations[0]}"


def test_every_mutant_is_killed_or_explained() -> None:
    assert set(RECORDED) == {m.name for m in MUTANTS.values() if m.found}
    assert all(bool(m.unseen) == bool(m.seen_by) for m in MUTANTS.values())


def test_the_command_lists_them_and_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(rows) == list(MUTANTS)
    assert all(
        RECORDED[name]["rule"] in row and MUTANTS[name].what in row for name, row in rows.items() if name in RECORDED
    )
    with pytest.raises(SystemExit):
        main(["--mutant", "share-kep"])
    assert "there is no mutant 'share-kep'; did you mean share-kept? (--list has all)" in capsys.readouterr().err


def test_all_still_apply() -> None:
    for mutant in MUTANTS.values():
        with mutant.applied():
            pass


def test_few_name_locals_of_the_code() -> None:
    """The number may only shrink: `$` says what was there, whatever it is called."""

    def named(edit: Edit) -> set[str]:
        new = ast.parse(re.sub(r"\$\d*", "_", edit.new))
        return {n.id for n in ast.walk(new) if isinstance(n, ast.Name)} & locals_of(tree_of(find(edit.where))) - {
            "self"
        }

    assert sum(any(map(named, mutant.edits)) for mutant in MUTANTS.values()) == 39


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
