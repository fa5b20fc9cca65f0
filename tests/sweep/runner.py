"""What the processes of test_workers run. They import this file, and so nothing heavy."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

from edgegossip.sweep import campaign
from edgegossip.types import ConfigError


def runner(case, progress):
    """Says which process ran the case, and does what it is called."""
    if case.name == "waits":  # for the next second, when rounds are told
        until_s = time.monotonic() + 1.1 * campaign.REPORT_S
        while time.monotonic() < until_s:
            time.sleep(0.02)
            progress(time.monotonic())
    if case.name == "refuses":
        raise ConfigError("no such thing")
    if "stays" in case.name:
        Path(f"{case.name}.new").write_text(str(os.getpid()))
        os.rename(f"{case.name}.new", case.name)
        time.sleep(600)
    if case.name == "dies":
        os._exit(3)
    return {"case": case.name, "process": os.getpid()}


def cases(*names):
    return [SimpleNamespace(name=name) for name in names]
