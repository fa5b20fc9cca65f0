"""The fleet that is made for one run, and what is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.identities import identities

SCRIPT = """
import os, signal
from edgegossip import recipe as recipes
from edgegossip.fleet.launch.identities import identities
with identities(recipes.load("quickstart-gossip"), ["board-0"]) as found:
    print(found["board-0"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_keys_of_a_run_that_was_killed_are_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    (left,) = tmp_path.glob("edgegossip-fleet-*")
    assert Path(done.stdout.strip()).is_relative_to(left), done.stderr
    foreign = tmp_path / "edgegossip-fleet-link"
    foreign.symlink_to(tmp_path / "elsewhere")
    recipe = recipes.load("quickstart-gossip")
    with identities(recipe, ["board-0"]) as found:
        assert left.exists()  # so young that it may not be claimed yet
        mine = found["board-0"]
        for folder in tmp_path.glob("edgegossip-fleet-*"):
            os.utime(folder, (1.0, 1.0), follow_symlinks=False)
        with identities(recipe, ["board-0"]):
            assert not left.exists() and mine.exists() and foreign.is_symlink()
    assert [*tmp_path.iterdir()] == [foreign]
