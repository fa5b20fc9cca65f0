"""Cases on several processes. Nothing heavy is imported here: each of them imports this file."""

import os
import time
from types import SimpleNamespace

import pytest

from edgegossip.sweep import campaign
from edgegossip.types import ConfigError, UsageError


def runner(case, progress):
    """Says which process ran the case, and does what it is called."""
    if case.name == "waits":  # for the next second, when rounds are told
        until_s = time.monotonic() + 1.1 * campaign.REPORT_S
        while time.monotonic() < until_s:
            time.sleep(0.02)
            progress(time.monotonic())
    if case.name == "refuses":
        raise ConfigError("no such thing")
    if case.name == "breaks":
        raise ZeroDivisionError("by nothing")
    if case.name == "dies":
        os._exit(3)
    return {"case": case.name, "process": os.getpid()}


def cases(*names):
    return [SimpleNamespace(name=name) for name in names]


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
        ("breaks", RuntimeError, "ZeroDivisionError: by nothing"),
        ("dies", UsageError, "the process that ran dies ended with exit code 3"),
    ],
)
def test_what_goes_wrong_in_one_is_raised_here(name, error, words):
    with pytest.raises(error, match=words):
        list(campaign.run_cases(cases(name, "b"), 2, runner, lambda case, round: None))
