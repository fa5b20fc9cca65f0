"""Whole boards in virtual time: they bear faults without blaming anybody falsely, and the same seed
gives the same run. What a mistake in mesh, membership, writer or node does to them is among the
mutants."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from lab.sim import Named, Options, run, schedule_of
from lab.sim.run import Outcome

ROOT = Path(__file__).parents[3]
PAUSE, SPLIT, CRASH = "pause@2.5-5:1,pause@8-14:0", "split@3-15:1", "crash@5-7:1"


@cache
def play(faults: str) -> Outcome:
    parts = {"algorithms": (Named("dpsgd"),), "topology": Named("ring"), "codec": Named("fp32")}
    return run(schedule_of(1, Options(**parts, nodes=3, rounds=4, deadline_s=2.0, mode="shell", faults=faults)))  # type: ignore[arg-type]


BEARABLE = (
    PAUSE,
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


def test_the_command_gives_the_same_run_in_another_process() -> None:
    """Bit for bit, and twice: neither the order of names in a set shows, which another seed of
    hashes gives, nor what a process did before."""
    here = play(SPLIT)
    code = "import gc, runpy; gc.set_threshold(50); runpy.run_module('lab.sim', run_name='__main__')"
    command = [sys.executable, "-c", code, *shlex.split(here.schedule.command())[3:], "--json"]
    fixed = {**os.environ, "PYTHONHASHSEED": "1"}
    said = subprocess.run(command, env=fixed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(said)["hash"] == here.digest
