"""A simulator that breaks things: the very algorithm objects that boards run, on a virtual network, virtual disks and a
virtual clock, under faults drawn from a seed. The same seed gives the same run, bit for bit.

- `run_schedule(schedule, ...)` runs one; `schedule.draw(seed, Options(...))` makes one.
- `campaign(seeds, Options(...), ...)` runs many; `shrink` makes a failure small.
- `faults` names the kinds; `checkers.RULES` what must hold. docs/simulator.md tells the rest."""

from __future__ import annotations

from edgegossip.sim.campaign import Result, campaign
from edgegossip.sim.checkers import RULES, Violation
from edgegossip.sim.disk import Disk, Saved
from edgegossip.sim.faults import KINDS, Fault
from edgegossip.sim.naming import Named
from edgegossip.sim.run import Outcome, run_schedule
from edgegossip.sim.schedule import Options, Schedule, draw
from edgegossip.sim.shrink import shrink

__all__ = [
    "KINDS",
    "RULES",
    "Disk",
    "Fault",
    "Named",
    "Options",
    "Outcome",
    "Result",
    "Saved",
    "Schedule",
    "Violation",
    "campaign",
    "draw",
    "run_schedule",
    "shrink",
]
