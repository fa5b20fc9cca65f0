"""Cases on several processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgegossip.sweep import campaign
from edgegossip.types import ConfigError, HostError
from tests.sweep.runner import cases, runner


def test_each_case_is_run_once_by_one_of_them():
    told = []
    asked = cases("waits", "b", "c", "d")
    found = {case.name: r for case, r in campaign.run_cases(asked, 2, runner, lambda case, at: told.append(case.name))}
    assert found.keys() == {"waits", "b", "c", "d"} and all(r["case"] == name for name, r in found.items())
    assert {r["process"] for r in found.values()}.isdisjoint({os.getpid()}) and set(told) == {"waits"}


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("refuses", ConfigError, "no such thing"),
        ("dies", HostError, "a process that ran cases ended by itself"),
    ],
)
def test_what_goes_wrong_in_one_is_raised_here(name, error, words):
    with pytest.raises(error, match=words):
        list(campaign.run_cases(cases(name, "b"), 2, runner, lambda case, round: None))


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_no_process_outlives_who_started_it(how, tmp_path):
    names = [str(tmp_path / f"stays-{k}") for k in "ab"]
    code = f"""
from tests.sweep.runner import cases, runner
from edgegossip.sweep.campaign import run_cases
if __name__ == "__main__":
    next(run_cases(cases({names[0]!r}, {names[1]!r}, "b"), 2, runner, lambda case, round: None))
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    until_s = time.monotonic() + 60
    while not all(map(os.path.exists, names)):
        assert time.monotonic() < until_s and parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL if how == "killed" else signal.SIGINT)
    parent.wait(60)
    pids = [int(Path(name).read_text()) for name in names]
    while any(Path(f"/proc/{pid}").exists() and "Z (" not in Path(f"/proc/{pid}/status").read_text() for pid in pids):
        assert time.monotonic() < until_s
        time.sleep(0.05)
