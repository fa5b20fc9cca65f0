"""Records as a page needs them: numbers in columns a node, what went over each link, the spans of
some rounds, events. They may come in any order and at any time, so that a run that goes on is taken
in bit by bit."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.telemetry.lines import EventRecord, MetricsRecord, Record
from edgegossip.telemetry.records import EVALUATED, LINK_BYTES, LINK_PREFIX, LINK_SECONDS, SPANS
from edgegossip.types import NodeId

MOST_ROWS = 20_000  # of one node in a page; more are drawn together
MOST_SPANS = 300  # rounds of which a page has the spans
MOST_EVENTS = 3_000  # in a page: the first half and the last half of more

Column = NDArray[np.float64]


@dataclass(slots=True)
class Table:
    """One node's rounds in the order in which they were recorded; a missing number is nan."""

    step: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=dict)  # "t_s" and the names of records.METRICS, and more

    def __len__(self) -> int:
        return len(self.step)

    def add(self, record: MetricsRecord) -> list[str]:
        """Names of what is of a link, and no column."""
        rows, columns, links = len(self.step), self.columns, []
        self.step.append(record.step)
        self._put("t_s", rows, record.t_s)
        for name, value in record.values.items():
            if isinstance(value, (float, int)):
                column = columns.get(name)  # nearly always there: a long run asks millions of times
                if column is not None:
                    column.append(value)
                elif name.startswith(LINK_PREFIX):
                    links.append(name)
                else:
                    self._put(name, rows, value)
        for column in columns.values():
            if len(column) == rows:
                column.append(math.nan)
        return links

    def _put(self, name: str, rows: int, value: float) -> None:
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = array("d", [math.nan]) * rows
        column.append(value)

    def rows(self, start: int = 0, most: int | None = None) -> dict[str, Column]:
        """Columns from row `start` on, "step" among them. With more than `most` rows, each is of
        several rounds: their mean (of what was measured; the last one for evaluations), with their
        number as "rounds"."""
        there = {"step": np.asarray(self.step[start:], np.float64)}
        there |= {name: np.asarray(column[start:], np.float64) for name, column in self.columns.items()}
        there = {name: column for name, column in there.items() if np.isfinite(column).any()}
        count = len(self.step) - start
        if most is None or count <= most:
            return there
        edges = np.unique(np.linspace(0, count, most + 1).astype(np.intp))[:-1]
        binned = {name: _last(c, edges) if name.startswith(EVALUATED) else _mean(c, edges) for name, c in there.items()}
        ends = np.append(edges[1:], count)
        for name in ("step", "t_s"):
            binned[name] = there[name][ends - 1]
        return binned | {"rounds": (ends - edges).astype(np.float64)}


def _mean(column: Column, edges: NDArray[np.intp]) -> Column:
    known = np.isfinite(column)
    count = np.add.reduceat(known.astype(np.float64), edges)
    total = np.add.reduceat(np.where(known, column, 0.0), edges)
    return np.divide(total, count, out=np.full(edges.size, np.nan), where=count > 0)


def _last(column: Column, edges: NDArray[np.intp]) -> Column:
    """The last known value in each stretch; nan where none is."""
    at = np.maximum.reduceat(np.where(np.isfinite(column), np.arange(column.size), -1), edges)
    return np.where(at >= edges, column[at], np.nan)


class Tables:
    """All that a page shows of one run's records."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, Table] = {}
        self.links: dict[tuple[NodeId, NodeId], list[float]] = {}  # sender, receiver -> bytes, seconds under way
        self.spans: dict[NodeId, dict[int, str]] = {}
        self.events: list[EventRecord] = []
        self.clocks: dict[NodeId, float] = {}  # node -> Unix time of its t_s = 0, by its own clock

    def take(self, record: Record) -> None:
        if isinstance(record, EventRecord):
            self._event(record)
            return
        table = self.nodes.get(record.node)
        if table is None:
            table = self.nodes[record.node] = Table()
        links = table.add(record)
        spans = record.values.get(SPANS)
        if isinstance(spans, str):
            self.spans.setdefault(record.node, {})[record.step] = spans
        for name in links:
            self._link(record, name)

    def _link(self, record: MetricsRecord, name: str) -> None:
        for place, ending in enumerate((LINK_BYTES, LINK_SECONDS)):
            if name.endswith(ending):
                peer = name[len(LINK_PREFIX) : -len(ending)]
                self.links.setdefault((record.node, peer), [0.0, 0.0])[place] += record.number(name) or 0.0

    def _event(self, record: EventRecord) -> None:
        self.events.append(record)
        unix_s = record.fields.get("unix_s")
        if isinstance(unix_s, (int, float)):
            self.clocks[record.node] = float(unix_s) - record.t_s

    def zeros(self) -> dict[NodeId, float]:
        """When each node's t_s was 0, on one clock for all: the time of day where every node told
        it, else so that all first rounds began at the same time."""
        if all(node in self.clocks for node in self.nodes):
            return dict(self.clocks)
        return {node: _first_s(table) - table.columns["t_s"][0] for node, table in self.nodes.items()}

    def shown_links(self, mode: str | None, coordinator: NodeId) -> dict[tuple[NodeId, NodeId], list[float]]:
        """Bytes and seconds by link. Boards of a coordinator have one link each, whose bytes are
        those of their sockets; its seconds are their time in transmit, both ways together."""
        if self.links or mode != "server":
            return self.links
        links = {}
        for node, table in self.nodes.items():
            if node != coordinator:
                sums = {name: float(np.nansum(column)) for name, column in table.columns.items()}
                if "net/sent_bytes" in sums:
                    links[(node, coordinator)] = [sums["net/sent_bytes"], sums.get("time/transmit_s", 0.0)]
                if "net/received_bytes" in sums:
                    links[(coordinator, node)] = [sums["net/received_bytes"], sums.get("time/transmit_s", 0.0)]
        return links

    def shown_spans(self, after: int = -1) -> dict[NodeId, dict[int, str]]:
        """Spans of at most MOST_SPANS rounds later than `after`, spread evenly."""
        steps = sorted({step for spans in self.spans.values() for step in spans if step > after})
        kept = set(steps[:: -(-len(steps) // MOST_SPANS) or 1])
        return {node: {s: text for s, text in spans.items() if s in kept} for node, spans in self.spans.items()}

    @property
    def last_span(self) -> int:
        """The last round of which there are spans; -1: there are none."""
        return max((step for spans in self.spans.values() for step in spans), default=-1)

    def shown_events(self, start: int = 0) -> list[dict[str, Any]]:
        """From event number `start` on. `n` is its number: some in the middle of very many are left
        out."""
        half = MOST_EVENTS // 2
        numbers = range(start, len(self.events))
        shown = numbers if len(numbers) <= MOST_EVENTS else [*numbers[:half], *numbers[-half:]]
        return [{"n": n, **_event(self.events[n])} for n in shown]


def _first_s(table: Table) -> float:
    """Seconds of a node's first round; 0 when not known."""
    lasted = table.columns.get("time/round_s", (0.0,))[0]
    return lasted if math.isfinite(lasted) else 0.0


def _event(record: EventRecord) -> Mapping[str, Any]:
    return {"node": record.node, "t_s": round(record.t_s, 3), "event": record.name, "text": record.text}
