"""Boards from the fork server: processes of ours in every way that matters, whatever becomes of
it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgegossip.fleet.launch import fork_server as module
from edgegossip.fleet.launch.fork_server import ForkServer
from edgegossip.types import HostError
from edgegossip.version import VERSION

BOARD = ["node", "quickstart-gossip", "--managed", "--name", "board-0", "--boards", "board-0,board-1"]
LIGHT = ["edgegossip.node.main"]  # no torch: a board that waits has none either
OWNER = """
import sys, time
from pathlib import Path
from edgegossip.fleet.launch.fork_server import ForkServer
fork_server = ForkServer(["edgegossip.node.main"], 1, Path(sys.argv[1]))
board = fork_server.spawn(sys.argv[2:], Path(sys.argv[1]))
print(board.pid, fork_server._server[0].pid, flush=True)
time.sleep(300)
"""


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(LIGHT, 3, tmp_path_factory.mktemp("fork-server") / "fork-server.log") as fork_server:
        yield fork_server


def test_a_command_runs_with_pipes_and_a_log_and_ends_with_its_status(fork_server: ForkServer, tmp_path: Path) -> None:
    good = fork_server.spawn(["--version"], tmp_path / "good.log")
    assert good.stdout.read().decode().split()[-1] == VERSION and good.wait(20) == 0
    bad = fork_server.spawn(["node", "no-such-recipe", "--name", "a"], tmp_path / "bad.log")
    assert bad.wait(20) == bad.poll() == 2 and "no-such-recipe" in (tmp_path / "bad.log").read_text()


def is_our_own_child(board: Any) -> None:
    """A board that listens, in a session of its own and under its own name."""
    while b"listening" not in board.stdout.readline():
        pass
    process = psutil.Process(board.pid)
    assert process.ppid() == os.getpid() and os.getsid(board.pid) == board.pid
    assert process.environ()["OMP_NUM_THREADS"] == "3"
    assert "--name board-0" in " ".join(process.cmdline()) and process.name() == "edgegossip"


def test_a_board_is_our_child_in_a_session_of_its_own_under_its_own_name(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    board = fork_server.spawn(BOARD, tmp_path / "board.log")
    is_our_own_child(board)
    with pytest.raises(subprocess.TimeoutExpired):
        board.wait(0.05)
    assert board.poll() is None
    board.stdin.close()  # who started it is gone
    assert board.wait(20) != 0
    board.kill()  # of somebody who is gone: nothing happens


def test_signals_reach_it_and_show_in_its_status(fork_server: ForkServer, tmp_path: Path) -> None:
    for signum in (signal.SIGKILL, signal.SIGTERM):
        board = fork_server.spawn(BOARD, tmp_path / "board.log")
        board.stdout.readline()
        board.send_signal(signum)
        assert board.wait(20) == (-9 if signum == signal.SIGKILL else 130)


def test_a_board_holds_none_of_its_siblings_pipes(fork_server: ForkServer, tmp_path: Path) -> None:
    first, second = (fork_server.spawn(BOARD, tmp_path / f"{k}.log") for k in range(2))
    first.stdout.readline(), second.stdout.readline()
    first.kill()
    while first.stdout.read(1 << 16):
        pass  # comes to an end, although the second lives
    assert second.poll() is None
    second.kill()
    assert second.wait(20) == -9


def test_a_board_outlives_the_fork_server_but_neither_outlives_us(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log"), *BOARD], stdout=subprocess.PIPE, text=True
    )
    board, fork_server = (psutil.Process(int(pid)) for pid in owner.stdout.readline().split())
    fork_server.kill()
    time.sleep(0.5)
    assert board.is_running() and board.status() != psutil.STATUS_ZOMBIE
    owner.kill()
    owner.wait()
    psutil.wait_procs([board, fork_server], timeout=30)
    assert not board.is_running() or board.status() == psutil.STATUS_ZOMBIE


def test_the_fork_server_ends_with_its_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log"), *BOARD], stdout=subprocess.PIPE, text=True
    )
    fork_server = psutil.Process(int(owner.stdout.readline().split()[1]))
    owner.kill()
    owner.wait()
    gone, _ = psutil.wait_procs([fork_server], timeout=30)
    assert gone or fork_server.status() == psutil.STATUS_ZOMBIE


def test_one_that_cannot_load_says_where_to_look(tmp_path: Path) -> None:
    with ForkServer(["no.such.module"], 1, tmp_path / "log") as broken, pytest.raises(HostError, match="see "):
        broken.spawn(BOARD, tmp_path / "board.log")
    assert "No module named 'no'" in (tmp_path / "log").read_text()


def test_a_board_outlives_a_fork_server_that_ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its session is its own before it is told of: the server's whole group ends with it."""
    monkeypatch.syspath_prepend(tmp_path)
    slow = "import os, time\n\nat_once = os.setsid\nos.setsid = lambda: (time.sleep(0.3), at_once())\n"
    (tmp_path / "a_slow_session.py").write_text(slow)
    with ForkServer(["a_slow_session"], 1, tmp_path / "fork-server.log") as alone:
        board = alone.spawn(["--version"], tmp_path / "board.log")
    assert board.stdout.read().decode().split()[-1] == VERSION and board.wait(20) == 0


def test_what_a_board_forked_ends_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    forks = "import os, time\n\nalone = os.setsid\nos.setsid = lambda: (alone(), os.fork() or time.sleep(600))\n"
    (tmp_path / "a_forking_board.py").write_text(forks)
    with ForkServer(["a_forking_board"], 1, tmp_path / "fork-server.log") as server:
        board = server.spawn(["--version"], tmp_path / "board.log")
        assert board.wait(20) == 0
    assert board.stdout.read().decode().split()[-1] == VERSION  # to its end: nobody holds the pipe


def test_where_a_process_cannot_adopt_others_each_board_loads_for_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As under QEMU's user-mode emulation."""

    class Emulated:
        @staticmethod
        def prctl(*_: int) -> int:
            return -1

    monkeypatch.setattr(module.ctypes, "CDLL", lambda *_, **__: Emulated)
    with ForkServer(LIGHT, 3, tmp_path / "fork-server.log") as alone:
        board = alone.spawn(BOARD, tmp_path / "board.log")
        other = alone.spawn(["--version"], tmp_path / "other.log")
    is_our_own_child(board)
    assert other.stdout.read().decode().split()[-1] == VERSION and other.wait(20) == 0
    assert board.poll() is None
    board.kill()
    assert board.wait(20) == -9
    with pytest.raises(HostError, match=r"could not load.*see "):
        ForkServer(["no.such.module"], 1, tmp_path / "log").spawn(BOARD, tmp_path / "board.log")
