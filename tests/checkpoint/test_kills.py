"""kill -9 at the failpoints of the checkpoint code. `tests.checkpoint.kill_campaign` is the
program; it forks, so it has a process of its own, without the threads of a test run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run_campaign(kills: int, folder: Path, timeout_s: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.checkpoint.kill_campaign", "--kills", str(kills), "--folder", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_nothing_is_torn_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    outcome = run_campaign(16, tmp_path, 120)
    assert (outcome["torn"], outcome["lost"]) == (0, 0) and outcome["kills"] == 16


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_kills(tmp_path: Path) -> None:
    outcome = run_campaign(1000, tmp_path, 1800)
    assert (outcome["torn"], outcome["lost"]) == (0, 0) and outcome["kills"] == 1000
    operations = ("make_folder", "create", "write", "sync", "close", "rename", "sync_folder", "remove", "lock")
    assert {f"{when} {name}" for name in operations for when in ("before", "after")} <= outcome["points"].keys()
