"""A simulator that breaks things: the very algorithm objects that boards run, and the engine of
server runs, on a virtual network, virtual disks and a virtual clock, under faults drawn from a
seed. The same seed gives the same run, bit for bit.

- `run(schedule, ...)` runs one; `schedule_of(seed, Options(...))` makes one, of gossip or of a
  server run by `mode`.
- `campaign(seeds, Options(...), ...)` runs many; `shrink` makes a failure small.
- `shell` plays whole boards, with their mesh, members and checkpoints.
- `faults` names the kinds; `RULES` and `SERVER_RULES` what must hold. lab/sim/README.md tells the
  rest."""

from __future__ import annotations

from lab.sim.campaign import Result, campaign, run, schedule_of, shrink
from lab.sim.checkers import RULES, Violation
from lab.sim.disk import Disk, Saved
from lab.sim.faults import KINDS, SERVER_KINDS, Fault
from lab.sim.naming import Named
from lab.sim.run import Outcome, run_schedule
from lab.sim.schedule import Options, Schedule, draw
from lab.sim.server import run_server
from lab.sim.server_checkers import SERVER_RULES
from lab.sim.server_schedule import ServerSchedule

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
