"""Whole boards in virtual time: they bear faults without blaming anybody falsely, and the same seed
gives the same run. What a mistake in mesh, membership, writer or node does to them is among the
mutants."""

from __future__ import annotations

import gc
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.sim import Named, Options, run, schedule_of
from lab.sim.__main__ import sim
from lab.sim.run import Outcome

ROOT = Path(__file__).parents[3]
PAUSE, SPLIT, CRASH = "pause@2.65-9:0", "split@3-15:1", "crash@5-7:1"


def play(faults: str) -> Outcome:
    parts = {"algorithms": (Named("dpsgd"),), "topology": Named("ring"), "codec": Named("fp32")}
    return run(schedule_of(1, Options(**parts, nodes=3, rounds=4, deadline_s=2.0, mode="shell", faults=faults)))  # type: ignore[arg-type]


BEARABLE = (
    "pause@2.5-5:1,pause@8-14:0",
    SPLIT,
    f"full-disk@3-5:1,failing-disk@8-9:0,{CRASH}",
    "other-version=2@3-12:0",
    f"certificate-ends@3-14:1,{CRASH}",
)


@pytest.mark.parametrize("faults", BEARABLE)
def test_boards_bear_it_blame_nobody_falsely_and_come_to_the_end(faults: str) -> None:
    outcome = play(faults)
    assert not outcome.violations
    assert outcome.rounds > 100
    kinds = {entry.partition("@")[0].partition("=")[0] for entry in faults.split(",")}
    assert kinds <= outcome.seen.keys()
    assert {"progress", "delivered", "end"} <= outcome.looked


def test_a_drawn_schedule_is_replayed_to_the_bit_by_its_command() -> None:
    drawn = schedule_of(2, Options(mode="shell", nodes=3, rounds=4))
    words = [*shlex.split(drawn.command())[3:], "--json"]
    result = CliRunner().invoke(sim, words, standalone_mode=False, catch_exceptions=False)
    assert json.loads(result.output)["hash"] == run(drawn).digest


def test_what_the_process_did_before_does_not_show() -> None:
    schedule = schedule_of(2, Options(mode="shell", faults="pause@3-9:0", nodes=3, rounds=4))
    often, digests = gc.get_threshold(), set()
    for threshold in (100, 1_000_000):  # the garbage collector comes in between, and does not
        gc.set_threshold(threshold)
        digests.add(run(schedule).digest)
    gc.set_threshold(*often)
    assert len(digests) == 1


def test_the_order_of_names_in_a_set_does_not_show() -> None:
    """Of this process's seed, which is drawn, and of a fixed one."""
    code = f"from tests.lab.sim.test_shell import play; print(play({PAUSE!r}).digest)"
    fixed = {**os.environ, "PYTHONHASHSEED": "1"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=fixed, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == play(PAUSE).digest
