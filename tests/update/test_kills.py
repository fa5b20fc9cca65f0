"""A board killed at random moments of its updates boots an old or a new release, whole.
`tests.update.kill_campaign` is the program; it forks, so it has a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: a kill loses nothing that was written, synced or not, and a
    disk that is busy takes up to a minute for the hundreds of syncs of an update."""
    if not MEMORY.is_dir():
        yield tmp_path / "board"
        return
    with TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made) / "board"


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_at_random_moments(folder: Path, kills: int) -> None:
    command = [sys.executable, "-m", "tests.update.kill_campaign", str(folder), "--kills", str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == kills and found["releases"] > 1, found
