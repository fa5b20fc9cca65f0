"""Which release of the program a board runs. The release's own agent puts a new one beside the
present one and says so; from then on this decides, for a new release may not even start.

    /opt/edgegossip/current          symbolic link to releases/NAME: what runs
    /opt/edgegossip/wanted           the agent's word: {"name", "sequence"} of a release that is
                                     whole
    /opt/edgegossip/trial            there while a new release is tried: {"old", "new", "sequence",
                                     "boots", "boot", "since_s"}
    /opt/edgegossip/checked-in       the agent's word: name of the release from which it has checked
                                     in, with the board at work
    /opt/edgegossip/failed           {SEQUENCE: reason} of releases that were given up

A release that does not check in within TRIAL_S, or whose board is started BOOTS times meanwhile, is
given up: `current` goes back to the old one, which was not touched. Each step is one file replaced,
in an order in which the power may go at any moment: the old or the new release runs, whole, and the
next call goes on. It is called at boot, and every half minute. Standard library only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from disk import Disk

HOME = "/opt/edgegossip"
CURRENT, WANTED, TRIAL, CHECKED_IN, FAILED = (
    f"{HOME}/{n}" for n in ("current", "wanted", "trial", "checked-in", "failed")
)
TRIAL_S = 900.0  # from the switch, or the last boot: the first check-in of a slow board takes minutes
BOOTS = 3
SERVICE = "edgegossip-node.service"


def guard(disk: Disk, boot: str, uptime_s: float, say: Callable[[str], None]) -> bool:
    """Look once. Return whether another release runs from now on, so that services must be
    restarted. `boot`: another at each boot."""
    changed = False
    trial = document(disk, TRIAL)
    if not trial:
        changed = begin(disk, boot, uptime_s, say)
        trial = document(disk, TRIAL)
    if trial:
        changed = judge(disk, trial, boot, uptime_s, say) or changed
    return changed


def begin(disk: Disk, boot: str, uptime_s: float, say: Callable[[str], None]) -> bool:
    """Begin the trial of a release that is wanted, if there is one."""
    wanted, old = document(disk, WANTED), (disk.target(CURRENT) or "").removeprefix("releases/")
    new, sequence = str(wanted.get("name", "")), wanted.get("sequence", 0)
    if not new or not old or new == old or str(sequence) in document(disk, FAILED):
        disk.remove(WANTED)
        return False
    if "/" in new or not disk.exists(f"{HOME}/releases/{new}/release.json"):
        say(f"release {new} is wanted, but not whole")
        disk.remove(WANTED)
        return False
    disk.remove(CHECKED_IN)
    trial = {"old": old, "new": new, "sequence": sequence, "boots": 0, "boot": boot, "since_s": uptime_s}
    disk.replace(TRIAL, json.dumps(trial).encode())
    disk.point(CURRENT, f"releases/{new}")
    say(f"release {new} is tried; {old} stays until it has checked in")
    return True


def judge(disk: Disk, trial: dict[str, Any], boot: str, uptime_s: float, say: Callable[[str], None]) -> bool:
    """Go on with a trial: keep the new release, wait, or go back."""
    new, old = str(trial["new"]), str(trial["old"])
    if (disk.read(CHECKED_IN) or b"").decode(errors="replace").strip() == new:
        disk.remove(WANTED)
        disk.remove(TRIAL)
        say(f"release {new} has checked in: it stays")
        return False
    if boot != trial["boot"]:
        trial |= {"boots": int(trial["boots"]) + 1, "boot": boot, "since_s": uptime_s}
        disk.replace(TRIAL, json.dumps(trial).encode())
    tried_s, given_up = uptime_s - float(trial["since_s"]), document(disk, FAILED).get(str(trial["sequence"]))
    if not given_up and int(trial["boots"]) < BOOTS and tried_s < TRIAL_S:
        if disk.target(CURRENT) == f"releases/{new}":
            return False
        disk.point(CURRENT, f"releases/{new}")  # the power went between the two steps of `begin`
        return True
    late = f"it did not check in within {TRIAL_S / 60:.0f} min"
    why = given_up or (late if tried_s >= TRIAL_S else f"the board started {BOOTS} times")
    disk.replace(FAILED, json.dumps({**document(disk, FAILED), str(trial["sequence"]): why}).encode())
    disk.point(CURRENT, f"releases/{old}")
    disk.remove(WANTED)
    disk.remove(TRIAL)
    say(f"release {new} is given up, {old} runs again: {why}")
    return True


def document(disk: Disk, path: str) -> dict[str, Any]:
    try:
        found = json.loads(disk.read(path) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    with open("/proc/uptime") as file:
        uptime_s = float(file.read().split()[0])
    if guard(Disk(), boot, uptime_s, lambda text: print(text, flush=True)):
        import subprocess  # seldom

        subprocess.run(["systemctl", "try-restart", "--no-block", SERVICE], timeout=60, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
