"""Schedules that broke a promise once, made small: testdata/mended.sim, one command line each. What
was wrong stands above it (the engine, or the checker); every one of them must hold now."""

import shlex
from pathlib import Path

import pytest

from lab.sim import ServerSchedule, command, run, schedule_of
from lab.sim.__main__ import sim
from lab.sim.schedule import Schedule

LINES = [
    line
    for line in (Path(__file__).parent / "testdata" / "mended.sim").read_text().splitlines()
    if line and not line.startswith("#")
]


def schedule_in(line: str) -> Schedule | ServerSchedule:
    """What `python -m lab.sim` would run."""
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "lab.sim"]
    asked = command.Sim(**sim.make_context("sim", words[3:]).params)
    return schedule_of(asked.seed, command.options_of(asked))


@pytest.mark.parametrize("line", LINES)
def test_holds_now(line: str) -> None:
    schedule = schedule_in(line)
    assert schedule.command() == line
    assert not run(schedule).violations
