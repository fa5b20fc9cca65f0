"""Times of all nodes on one clock: seconds since the first of them began.

A node's `t_s` counts from the start of its own process, and `started` tells the time of day. A
board that comes back by itself goes on where it was, and tells the time of day again. What the
starter of a run says of its boards (OF_THE_RUN) is by its own clock, which begins about when the
first board does, or is the coordinator's; a process that it started again goes on by that clock,
and tells how far it is from the others'. When it resumes a run, all go on by that clock, which
leaves out for how long the run stood still.
"""

from __future__ import annotations

from edgegossip.telemetry.records import EventRecord, Record
from edgegossip.types import NodeId

COORDINATOR = "coordinator"  # the node name under which a coordinator writes; it is not a board
# Events about a node that another process writes: who started the run.
AFTERWARDS = frozenset({"compared", "averaged", "trained-alone"})  # a look at the models, when all have trained
OF_THE_RUN = frozenset({"lost", "restarted", "resumed", "silent", *AFTERWARDS})
BELIEVED_S = 86_400.0  # a time of day that is further from most others' is a wrong one
NEAR_S = 10.0  # a run's clock that seems further from its first board's: the time of day was set meanwhile


class Clocks:
    """Learns from events how far the nodes' clocks are apart. Nodes may come in any order; a node's
    own events come as it wrote them."""

    def __init__(self) -> None:
        self.began_unix_s = 0.0  # the time of day at which this clock was 0; 0: nobody told any
        self.shifts_s: dict[NodeId, list[tuple[float, float]]] = {}  # node -> what is added from which t_s on
        # node -> from which t_s on, the time of day of t_s = 0; None: the clock of the run
        self._zeros: dict[NodeId, list[tuple[float, float | None]]] = {}
        self._loads_s: dict[NodeId, float] = {}  # node -> when its present process began to write
        self._resumed = False  # all of them, by the clock of the run: times of day would count the stand-still

    def take(self, event: EventRecord) -> None:
        """Take in one event."""
        unix_s, zeros = event.fields.get("unix_s"), self._zeros.get(event.node, [])
        if event.name in ("loading", "listening"):
            self._loads_s.setdefault(event.node, event.t_s)
        elif event.name in ("restarted", "resumed"):
            self._settle(event.node, [*zeros, (event.t_s, None)])
            if event.name == "resumed":  # of its coordinator nobody says so
                self._resumed = True
                self._settle(COORDINATOR, [*self._zeros.get(COORDINATOR, ()), (event.t_s, None)])
        elif isinstance(unix_s, float | int):
            zero, since_s = float(unix_s) - event.t_s, self._loads_s.pop(event.node, event.t_s)
            if not zeros:
                self._settle(event.node, [(0.0, zero)])
            elif (last := zeros[-1][1]) is None:
                if not self._resumed and abs(zero - self.began_unix_s) < NEAR_S:
                    self._settle(event.node, [*zeros, (since_s, zero)])
            elif 0 < zero - last < BELIEVED_S:  # it was away so long
                self._settle(event.node, [*zeros, (since_s, zero)])

    def _settle(self, node: NodeId, zeros: list[tuple[float, float | None]]) -> None:
        self._zeros[node] = zeros
        first = {node: zeros[0][1] for node, zeros in self._zeros.items()}
        told = sorted(zero for zero in first.values() if zero is not None)
        known = {n: z for n, z in first.items() if z is not None and abs(z - told[len(told) // 2]) < BELIEVED_S}
        self.began_unix_s = began_s = min(known.values(), default=0.0)
        self.shifts_s = {
            n: [(since_s, 0.0 if zero is None else zero - began_s) for since_s, zero in self._zeros[n]] for n in known
        }

    def at(self, record: Record) -> float:
        """Return when that was, on the clock of all."""
        of_the_run = isinstance(record, EventRecord) and record.name in OF_THE_RUN
        return self.of(COORDINATOR if of_the_run else record.node, record.t_s)

    def of(self, node: NodeId, t_s: float) -> float:
        """Return a node's own time on the clock of all; unchanged where it never told it."""
        for since_s, shift_s in reversed(self.shifts_s.get(node, ())):
            if t_s >= since_s:
                return t_s + shift_s
        return t_s
