"""When a board may install its security updates, and how many wait. unattended-upgrades installs
them, started by apt's own timers, whose services ask here (apt-daily*.service.d).

    /run/edgegossip-node/training              touched by the board's program while a run goes on
    /var/lib/apt/periodic/upgrade-stamp        apt's own: when it last upgraded
    /opt/edgegossip/upgrades                   {"pending", "at_s"}: our word, for the check-in

A run holds updates off, for WEEK_S at most: a board that trains without end is not left with holes
that everybody knows. Standard library only."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from disk import Disk

TRAINING = "/run/edgegossip-node/training"
UPGRADED = "/var/lib/apt/periodic/upgrade-stamp"
UPDATED = "/var/lib/apt/periodic/update-success-stamp"
FOUND = "/opt/edgegossip/upgrades"
STALE_S = 1800.0  # as WatchdogSec= of the board's service: a run that has said nothing for so long is none
WEEK_S = 7 * 86_400.0
COMMAND_S = 900.0
LABEL = "Debian-Security"
_INSTALLS = re.compile(rf"^Inst \S+ .*\b{LABEL}:", re.MULTILINE)


def held_off(disk: Disk, now_s: float) -> bool:
    """Return whether updates wait for the end of a run."""
    touched_s = disk.modified_s(TRAINING)
    if touched_s is None or abs(now_s - touched_s) > STALE_S:
        return False
    # A new card has never upgraded; its week begins with the first lists that it fetched.
    since_s = disk.modified_s(UPGRADED) or disk.modified_s(UPDATED)
    return since_s is None or now_s - since_s <= WEEK_S


def count(disk: Disk, run: Callable[[Sequence[str]], str], now_s: float) -> None:
    """Keep how many security updates wait, by apt's own word; none is known where this board's apt
    has no source of them, or cannot say."""
    pending = None
    with suppress(OSError, subprocess.SubprocessError):
        if LABEL in run(["apt-get", "indextargets", "--format", "$(LABEL)", "Created-By: Packages"]).split():
            pending = len(_INSTALLS.findall(run(["apt-get", "--simulate", "--quiet=2", "dist-upgrade"])))
    disk.replace(FOUND, json.dumps({"pending": pending, "at_s": round(now_s)}).encode())


def _run(command: Sequence[str]) -> str:
    environ = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, env=environ, check=True).stdout


def main(words: Sequence[str]) -> int:
    """With `may`, return 1 while a run holds updates off; with `count`, count those that wait."""
    if words == ["may"]:
        if held_off(Disk(), time.time()):
            print("a run goes on: security updates wait for its end, or a week", flush=True)
            return 1
        return 0
    count(Disk(), _run, time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
