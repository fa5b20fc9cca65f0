"""What a run folder tells of each node, as far as laws of the whole run need it: its events, times
of its rounds, and sums of its bytes. Little is kept of a record, so that a run of days fits into
memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgegossip.telemetry.records import EVALUATED, LINK_BYTES, LINK_PREFIX, EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunData
from edgegossip.telemetry.summary import COORDINATOR, recipe_of
from edgegossip.types import NodeId

BYTES = ("net/payload_bytes", "net/overhead_bytes", "net/sent_bytes", "net/link_bytes", "net/received_bytes")


@dataclass(slots=True)
class Row:
    """Holds what is kept of each record of a round."""

    step: int
    t_s: float
    stretch: int
    round_s: float | None


@dataclass(slots=True)
class Node:
    """Holds what is known of one board, or of the coordinator."""

    name: NodeId
    events: list[EventRecord] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)  # of its stretches; none: it wrote elsewhere
    rows: list[Row] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)  # values that some round does not have
    last: dict[str, float] = field(default_factory=dict)  # of each eval/ value
    messages: float = 0.0  # that carried values

    @property
    def own(self) -> bool:
        """Whether its own process wrote here."""
        return bool(self.starts_s)

    def said(self, *names: str) -> list[EventRecord]:
        """Return its events of these names."""
        return [event for event in self.events if event.name in names]

    @property
    def whole(self) -> bool:
        """Whether all that it did is in its records: one process, from its start to its end."""
        return len(self.starts_s) == 1 and bool(self.said("finished")) and not self.said("lost", "restarted", "resumed")

    @property
    def values(self) -> int | None:
        """How many values of the model travel."""
        found = [event.fields.get("values") for event in self.said("started")]
        return next((n for n in found if isinstance(n, int) and n > 0), None)

    def stretch(self, t_s: float) -> int:
        """Return the number of the stretch that a time is in; -1 before the first."""
        return bisect_right(self.starts_s, t_s) - 1


@dataclass(slots=True)
class Run:
    """Holds a run folder as the laws look at it."""

    data: RunData
    recipe: Mapping[str, Any]
    members: Sequence[NodeId]
    nodes: dict[NodeId, Node]
    unreadable: int  # lines that hold no record

    @property
    def boards(self) -> list[Node]:
        """All nodes but the coordinator."""
        return [node for name, node in self.nodes.items() if name != COORDINATOR]

    @property
    def coordinator(self) -> Node | None:
        """The coordinator, where it wrote here."""
        node = self.nodes.get(COORDINATOR)
        return node if node is not None and node.own else None

    @property
    def together(self) -> bool:
        """Whether all boards wrote here."""
        return bool(self.members) and all(name in self.nodes and self.nodes[name].own for name in self.members)

    @property
    def torn(self) -> bool:
        """Whether records are known to be missing."""
        return any(node.said("records-lost") for node in self.nodes.values()) or self.unreadable > 0

    def get(self, section: str, key: str) -> Any:
        """Return a recipe's value; None when it is not known."""
        table = self.recipe.get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    @property
    def mode(self) -> str | None:
        """gossip or server; None when it is not known."""
        found = self.get("run", "mode")
        return found if isinstance(found, str) else None


def read(data: RunData, look: Callable[[Run, MetricsRecord], None]) -> Run:
    """Return the run; `look` sees each of its records once."""
    members = tuple(map(str, (data.run or {}).get("members", ())))
    run = Run(data, recipe_of(data), members, {}, data.unreadable_lines())
    for event in data.events():
        node = run.nodes.setdefault(event.node, Node(event.node))
        node.events.append(event)
        if event.name == "started":
            node.starts_s.append(event.t_s)
    for record in data.metrics():
        _keep(run.nodes.setdefault(record.node, Node(record.node)), record)
        look(run, record)
    return run


def _keep(node: Node, record: MetricsRecord) -> None:
    """Take of a record what laws of the whole run need."""
    for name in record.values:
        if name.startswith(EVALUATED) and (number := record.number(name)) is not None:
            node.last[name] = number
    if all(name.startswith(EVALUATED) for name in record.values):
        return  # an evaluation that came later than its round
    node.rows.append(Row(record.step, record.t_s, node.stretch(record.t_s), record.number("time/round_s")))
    for name in record.values:
        if name in BYTES or (name.startswith(LINK_PREFIX) and name.endswith(LINK_BYTES)):
            node.sums[name] = node.sums.get(name, 0.0) + (record.number(name) or 0.0)
    node.missing |= {name for name in BYTES if name not in record.values}
    bits, payload = record.number("codec/bits_per_value"), record.number("net/payload_bytes")
    if bits and payload and node.values:
        node.messages += 8 * payload / bits / node.values
