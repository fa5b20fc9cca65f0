"""Other programs: how they end, and what of it a user hears."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from edgegossip.fleet.image import tools
from edgegossip.types import HostError


def test_a_program_that_signals_its_process_group_does_not_interrupt_us():
    """As mmdebstrap does when it fails: what was wrong must be said, not that somebody had pressed
    Ctrl-C."""
    with pytest.raises(HostError, match="sh failed with 130: the disk is on fire"):
        tools.run(["sh", "-c", "trap 'exit 130' INT; echo the disk is on fire >&2; kill -INT 0; exit 3"], 20)


@pytest.mark.parametrize("with_log", [True, False])
def test_a_full_disk_is_called_so(tmp_path, with_log):
    log = tmp_path / "log" if with_log else None
    said = "echo tar: x: Cannot write: No space left on device >&2; echo and; echo many; echo more; echo lines; exit 25"
    with pytest.raises(HostError, match="sh was refused by the disk: no space left on device"):
        tools.run(["sh", "-c", said], 20, log=log)


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    class Late(subprocess.Popen):
        """Its time is over once it has started what it starts."""

        def communicate(self, input=None, timeout=None):
            assert self.stdout.readline() == "started\n"
            raise subprocess.TimeoutExpired(self.args, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", Late)
        with pytest.raises(HostError, match="did not end in 9 s"):
            tools.run(["sh", "-c", f"sleep 600 & echo $! >{tmp_path}/child; echo started; wait"], 9)
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 60
    while _runs(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(said.strip()) and not said.startswith("Z")


def test_text_goes_in_and_output_comes_back(tmp_path):
    assert tools.run(["cat"], 20, text="hello") == "hello"
    assert tools.run(["sh", "-c", "echo $HERE"], 20, env={"HERE": "there"}) == "there\n"
    assert tools.run(["sh", "-c", "echo out; echo err >&2"], 20, log=tmp_path / "log") == ""
    assert (tmp_path / "log").read_text() == "out\nerr\n"
    with pytest.raises(HostError, match=f"sh failed with 1: out / err / why .its log: {tmp_path}/log"):
        tools.run(["sh", "-c", "echo why; exit 1"], 20, log=tmp_path / "log")


def test_root_is_asked_for_with_a_path_that_sudo_finds(monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert tools.with_sudo("flash x") == f"sudo {os.path.dirname(sys.executable)}/edgegossip flash x"
