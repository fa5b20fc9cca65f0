"""Times of all nodes on one clock: seconds since the first of them began.

A node's `t_s` counts from the start of its own process, and `started` tells the time of day. What
the starter of a run says of its boards (OF_THE_RUN) is by its own clock, which begins with the
first board; a process that was started again goes on by that clock.
"""

from __future__ import annotations

from edgegossip.telemetry.records import EventRecord, Record
from edgegossip.types import NodeId

# Events about a node that another process writes: who started the run.
AFTERWARDS = frozenset({"compared", "averaged"})  # a look at the models, when all boards' processes have ended
OF_THE_RUN = frozenset({"lost", "restarted", "silent", *AFTERWARDS})
BELIEVED_S = 86_400.0  # a time of day that is further from most others' is a wrong one


class Clocks:
    """Learns from events how far the nodes' clocks are apart. Nodes may come in any order; a node's
    own events come as it wrote them."""

    def __init__(self) -> None:
        self.unix_s: dict[NodeId, float] = {}  # node -> time of day of its first process's t_s = 0
        self.shift_s: dict[NodeId, float] = {}  # node -> how much later than the first one's that is
        self.restarted_s: dict[NodeId, float] = {}  # node -> t_s from which another process goes on

    def take(self, event: EventRecord) -> None:
        """Take in one event."""
        unix_s = event.fields.get("unix_s")
        if event.name == "restarted":
            self.restarted_s.setdefault(event.node, event.t_s)
        elif isinstance(unix_s, float | int) and event.node not in {*self.restarted_s, *self.unix_s}:
            self.unix_s[event.node] = float(unix_s) - event.t_s
            middle_s = sorted(self.unix_s.values())[len(self.unix_s) // 2]
            known = {node: s for node, s in self.unix_s.items() if abs(s - middle_s) < BELIEVED_S}
            first_s = min(known.values())
            self.shift_s = {node: s - first_s for node, s in known.items()}

    @property
    def began_unix_s(self) -> float:
        """The time of day at which this clock was 0; 0 where no node told any."""
        return min((self.unix_s[node] for node in self.shift_s), default=0.0)

    def at(self, record: Record) -> float:
        """Return when that was, on the clock of all."""
        if isinstance(record, EventRecord) and record.name in OF_THE_RUN:
            return record.t_s
        return self.of(record.node, record.t_s)

    def of(self, node: NodeId, t_s: float) -> float:
        """Return a node's own time on the clock of all; unchanged where it never told it."""
        again_s = self.restarted_s.get(node)
        return t_s if again_s is not None and t_s >= again_s else t_s + self.shift_s.get(node, 0.0)
