"""A simulator that breaks things: the very algorithm objects that boards run, and the engine of
server runs, on a virtual network, virtual disks and a virtual clock, under faults drawn from a
seed. The same seed gives the same run, bit for bit.

- `run(schedule, ...)` runs one; `schedule_of(seed, Options(...))` makes one, of gossip or of a
  server run by `mode`.
- `campaign(seeds, Options(...), ...)` runs many; `shrink` makes a failure small.
- `shell` plays whole boards, with their mesh, members and checkpoints.
- `faults` names the kinds; `RULES` and `SERVER_RULES` what must hold. docs/simulator.md tells the
  rest."""

from __future__ import annotations

from edgegossip.lab.sim.campaign import Result, campaign, run, schedule_of, shrink
from edgegossip.lab.sim.checkers import RULES, Violation
from edgegossip.lab.sim.disk import Disk, Saved
from edgegossip.lab.sim.faults import KINDS, SERVER_KINDS, Fault
from edgegossip.lab.sim.naming import Named
from edgegossip.lab.sim.run import Outcome, run_schedule
from edgegossip.lab.sim.schedule import Options, Schedule, draw
from edgegossip.lab.sim.server import run_server
from edgegossip.lab.sim.server_checkers import SERVER_RULES
from edgegossip.lab.sim.server_schedule import ServerSchedule

__all__ = [
    "KINDS",
    "RULES",
    "SERVER_KINDS",
    "SERVER_RULES",
    "Disk",
    "Fault",
    "Named",
    "Options",
    "Outcome",
    "Result",
    "Saved",
    "Schedule",
    "ServerSchedule",
    "Violation",
    "campaign",
    "draw",
    "run",
    "run_schedule",
    "run_server",
    "schedule_of",
    "shrink",
]
