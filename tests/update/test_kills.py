"""A board killed at random moments of its updates boots an old or a new release, whole.
`tests.update.kill_campaign` is the program; it forks, so it has a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    command = [sys.executable, "-m", "tests.update.kill_campaign", str(tmp_path / "board"), "--kills", str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == kills and found["releases"] > 1, found
