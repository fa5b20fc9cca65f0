"""Which process of this machine is a board of a run, and which merely looks like one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgegossip.fleet.launch.processes import kill, running_run
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.types import ConfigError, DataError

RUN_ID = os.urandom(16)
OTHER_ID = os.urandom(16)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    made = RunFolder.create(tmp_path / "runs", "mine", '[run]\nmode = "gossip"\n', {})
    made.write_run(RUN_ID, ["board-0", "board-1", "board-2"])
    yield made
    made.close()


@pytest.fixture
def board() -> Iterator[object]:
    """Starts a process that has a board's command line, and leads a session or not."""
    with ExitStack() as stack:

        def start(name: str, run_id: bytes = RUN_ID, leads: bool = True) -> subprocess.Popen[bytes]:
            words = ["node", "a folder/recipe.toml", "--managed", "--name", name, "--run-id", run_id.hex()]
            idle = "print(flush=True); import time; time.sleep(600)"
            process = subprocess.Popen(
                [sys.executable, "-c", idle, *words], start_new_session=leads, stdout=subprocess.PIPE
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline()
            return process

        yield start


def test_a_board_of_this_run_is_killed_and_nobody_else(folder: RunFolder, board) -> None:
    mine, other, beside = board("board-1"), board("board-1", OTHER_ID), board("board-2")
    forked = board("board-1", leads=False)
    assert kill(folder.path, "board-1") == mine.pid and mine.wait(10) == -9
    assert other.poll() is None and beside.poll() is None and forked.poll() is None
    folder.event("board-1", "lost", "lost board-1: killed")
    with pytest.raises(ConfigError, match=r"^board-1 of .*-mine was lost \(running: board-2\)$"):
        kill(folder.path, "board-1")
    with pytest.raises(ConfigError, match=r"board-0 of .* has no process that `run` started \(running: board-2\)$"):
        kill(folder.path, "board-0")
    with pytest.raises(ConfigError, match=r"^board-3 is not in .*-mine; did you mean board-0"):
        kill(folder.path, "board-3")
    with pytest.raises(ConfigError, match="^coordinator is not in .*-mine"):
        kill(folder.path, "coordinator")


def test_a_board_that_was_started_by_hand_is_no_coordinator(tmp_path: Path) -> None:
    """Its folder says that it is of a server run, and is written here."""
    own = RunFolder.create(tmp_path, "own", '[run]\nmode = "server"\n', {})
    own.write_run(RUN_ID, ["pi-1", "pi-2"])
    for name in ("coordinator", "pi-1"):
        with pytest.raises(
            ConfigError, match=rf"^{name} of .*-own has no process that `run` started \(running: none\)$"
        ):
            kill(own.path, name)
    own.close()


def test_a_run_is_the_newest_that_goes_on_or_what_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    with pytest.raises(DataError, match=f"no run goes on in {runs}"):
        running_run(None, runs)
    older, newer, over = (RunFolder.create(runs, name, "", {}) for name in ("a", "b", "c"))
    over.close()  # its process has ended, however
    assert running_run(None, runs) == newer.path
    newer.close()
    assert running_run(None, runs) == older.path
    older.close()
    assert running_run(over.path.name, runs) == running_run(str(over.path), tmp_path) == over.path
    with pytest.raises(DataError, match="there is no folder nothing"):
        kill(running_run("nothing", runs), "board-0")
