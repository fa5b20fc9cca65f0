"""One run as the page shows it: its records as columns of numbers, what went over each link, the
spans of some rounds, events; what is known of it besides; and all of it as few bytes that a browser
unpacks quickly.

Records may come in any order and at any time, so that a run that goes on is taken in bit by bit.

`pack` makes of a document and columns
    zlib( u32 size of the document | the document as JSON | columns )          little-endian
A column is float32, or float64 for "t_s" and "step", with its bytes in planes: first all lowest
bytes, then the next. Planes of slowly changing numbers are nearly constant, which is what zlib
takes out. What was measured keeps COARSE_BITS bits after the leading one (0.1 %), losses and
accuracies OTHER_BITS (0.002 %), because the rest is noise that no one can see and no one can
compress; numbers that are whole and exact in float32 stay exact.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.report.plots import run_title
from edgegossip.telemetry.clocks import OF_THE_RUN, Clocks
from edgegossip.telemetry.records import (
    EVALUATED,
    LINK_BYTES,
    LINK_PREFIX,
    LINK_SECONDS,
    PARTS,
    SPANS,
    EventRecord,
    MetricsRecord,
    Record,
)
from edgegossip.telemetry.run_folder import Follower, RunData, read_run
from edgegossip.telemetry.summary import COORDINATOR, Summary, head_of, members_of, plan_of, recipe_of
from edgegossip.types import DataError, NodeId

_ENV = (
    "started",
    "board",
    "power_mode",
    "cpu",
    "cores",
    "usable_threads",
    "memory_bytes",
    "isa",
    "python",
    "system",
    "machine",
    "packages",
)


# What the first screens of a page draw: unpacked before all the rest.
FIRST = (
    "step",
    "t_s",
    "rounds",
    "train/loss",
    "net/sent_bytes",
    "time/round_s",
    *(f"time/{part}_s" for part in PARTS),
)


@dataclass(frozen=True, slots=True)
class PageState:
    """Says what a page has already, of the run's `generation`."""

    generation: int = 0
    rows: Sequence[int] = ()  # of each node, in the document's order
    events: int = 0
    span: int = -1  # the last round whose spans it has


class RunView:
    """Shows a run folder, of a run that ended or one that goes on. `read` takes in what is new;
    `whole` and `new` give it to a page.

    Boards that were started by hand have a folder each: `others` are those of the same run, and all
    are shown as one."""

    def __init__(self, folder: Path, *others: Path) -> None:
        self.data = read_run(folder)
        self.folder, self._others = self.data.path, others
        for other in others:
            _same_run(self.data, read_run(other))
        self.generation = 0  # grows when the run is begun anew in its folder
        self._begin()

    def _begin(self) -> None:
        self._followers = [Follower(self.folder), *(Follower(read_run(other).path) for other in self._others)]
        self.tables, self._summary = Tables(), Summary(members_of(self.data), plan_of(self.data))

    def read(self) -> None:
        """Take in what is new. Raises OSError."""
        if any(follower.shrunk() for follower in self._followers):
            self.generation += 1
            self._begin()
        for record in (record for follower in self._followers for record in follower.new()):
            self.tables.take(record)
            self._summary.take(record)

    def refresh(self) -> None:
        """Read again what is written beside the records, which a run does little by little. Raises
        DataError."""
        self.data = read_run(self.folder)

    def summary(self) -> dict[str, Any]:
        """Return the document of summary.json for what has been read."""
        return self._summary.document(head_of(self.data))

    @property
    def scheme(self) -> str:
        """What the run does, see `scheme_of`."""
        return scheme_of(recipe_of(self.data), head_of(self.data)["mode"])

    def links(self) -> list[tuple[str, str, int, float]]:
        """Return sender, receiver, bytes, seconds in which something was under way."""
        links = self.tables.shown_links(head_of(self.data)["mode"], COORDINATOR)
        return [(sender, receiver, round(b), round(s, 4)) for (sender, receiver), (b, s) in links.items()]

    def document(self, known: PageState = PageState()) -> dict[str, Any]:
        """Return all but the columns; of events and spans what is not known yet."""
        summary = self.summary()
        return {
            "name": self.data.name,
            "title": run_title(self.data, summary),
            "scheme": self.scheme,
            "settings": flat(recipe_of(self.data)),
            "coordinator": COORDINATOR,
            "summary": summary,
            "env": _picked(self.data.env, _ENV),
            "recipe": self.data.recipe_toml or "",
            "partition": self.data.partition,
            "topology": _topology(self.data.topology),
            "nodes": list(self.tables.nodes),
            "names": sorted({"step", *(name for table in self.tables.nodes.values() for name in table.columns)}),
            "links": self.links(),
            "links_of": "links" if self.tables.links else "sockets",
            "spans": self.tables.shown_spans(known.span),
            "spans_until": self.tables.last_span,
            "clocks": self.tables.clocks.shifts_s,
            "events": self.tables.shown_events(known.events),
            "events_from": known.events,
            "events_until": len(self.tables.events),
            "rows": self.rows(),
            "generation": self.generation,
        }

    def rows(self) -> list[int]:
        """Return how many rows each node has, in the order of the document's nodes."""
        return [len(table) for table in self.tables.nodes.values()]

    def whole(self) -> tuple[bytes, bytes]:
        """Return all of it in two packs: the document with the columns of FIRST, and the other
        columns."""
        columns = {node: table.rows(0, MOST_ROWS) for node, table in self.tables.nodes.items()}
        first = {node: {name: c for name, c in named.items() if _soon(name)} for node, named in columns.items()}
        rest = {node: {name: c for name, c in named.items() if not _soon(name)} for node, named in columns.items()}
        return pack({**self.document(), "starts": {}}, first), pack({}, rest)

    def new(self, known: PageState) -> bytes | None:
        """Return what a page does not know yet, in one pack; None when that is nothing."""
        if known.generation != self.generation or any(h > n for h, n in zip(known.rows, self.rows(), strict=False)):
            known = PageState(self.generation)
        elif list(known.rows) == self.rows() and known.events == len(self.tables.events):
            return None
        starts = dict(zip(self.tables.nodes, known.rows, strict=False))
        columns = {node: table.rows(starts.get(node, 0), MOST_ROWS) for node, table in self.tables.nodes.items()}
        return pack({**self.document(known), "starts": starts}, columns)


def _soon(name: str) -> bool:
    return name in FIRST or name.startswith(EVALUATED)


def _same_run(one: RunData, other: RunData) -> None:
    """Raises DataError when both say which run they are of, and it is not the same."""
    ids = [data.run.get("run_id") if data.run else None for data in (one, other)]
    if None not in ids and ids[0] != ids[1]:
        raise DataError(f"{other.path} is of another run than {one.path}; leave --together out to compare runs")


def names_of(views: Sequence[RunView]) -> list[str]:
    """Return a name for each run that no other one has: its folder's, with as many of the folders
    above as tell them apart ("pi-1/runs/x" and "pi-2/runs/x"). The same folder again is "x (2)"."""
    paths = [Path(os.path.abspath(view.folder)).parts for view in views]
    names: list[str] = []
    for path in paths:
        alike = (_same_end(path, other) for other in paths if other != path)
        name = "/".join(path[-1 - max(alike, default=0) :])
        again = (f"{name} ({k})" for k in itertools.count(2))
        names.append(next(one for one in (name, *itertools.islice(again, len(names))) if one not in names))
    return names


def _same_end(one: Sequence[str], other: Sequence[str]) -> int:
    """How many of the last parts are the same."""
    return next((n for n, (a, b) in enumerate(zip(reversed(one), reversed(other), strict=False)) if a != b), 0)


def scheme_of(recipe: Mapping[str, Any], mode: str | None) -> str:
    """Return what a run does, without how many boards do it: runs of the same scheme are one line
    in a plot of speed-up."""
    how = recipe.get(mode or "", {})
    words = [how.get("algorithm" if mode == "gossip" else "strategy"), recipe.get("codec", {}).get("name")]
    return ", ".join(str(word) for word in words if word) or (mode or "run")


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return the keys of a recipe with their values as text: {"training.lr": "0.1"}."""
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{before}{key}.")
        else:
            found[before + key] = value if isinstance(value, str) else json.dumps(value, default=str)
    return found


def _picked(document: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Any] | None:
    return None if document is None else {name: document[name] for name in names if document.get(name) is not None}


def _topology(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if document is None:
        return None
    rounds = document.get("rounds") or [{}]
    edges = sorted({tuple(edge) for one in rounds for edge in one.get("edges", ())})
    return {**_picked(document, ("name", "members", "period", "spectral_gap")), "edges": edges}  # type: ignore[dict-item]


def read_runs(folders: Sequence[Path], *, together: bool = False) -> list[RunView]:
    """Return all that is known of these runs, read once; `together`: of the one run that they are
    folders of. Raises DataError."""
    views = [RunView(*folders)] if together else [RunView(folder) for folder in folders]
    for view in views:
        view.read()
    return views


MOST_ROWS = 20_000  # of one node in a page; more are drawn together
MOST_SPANS = 300  # rounds of which a page has the spans
MOST_EVENTS = 3_000  # in a page: the first half and the last half of more
COUNTED = ("net/", "sys/energy_j")  # sums over rounds; some rows have those of several, or none

Column = NDArray[np.float64]


@dataclass(slots=True)
class Table:
    """Holds one node's rounds in the order in which they were recorded; a missing number is nan."""

    step: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=dict)  # "t_s" and the names of records.METRICS, and more

    def __len__(self) -> int:
        return len(self.step)

    def add(self, record: MetricsRecord) -> list[str]:
        """Take in one record, and return the names in it that are of a link, and no column."""
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
        """Return the columns from row `start` on, "step" among them. With more than `most` rows,
        each is of several rounds, whose number is "rounds": their mean (of what was measured; the
        last one for evaluations). What is counted is the sum divided by "rounds": a count may be of
        the rows before it, too."""
        there = {"step": np.asarray(self.step[start:], np.float64)}
        there |= {name: np.asarray(column[start:], np.float64) for name, column in self.columns.items()}
        there = {name: column for name, column in there.items() if np.isfinite(column).any()}
        count = len(self.step) - start
        if most is None or count <= most:
            return there
        edges = np.unique(np.linspace(0, count, most + 1).astype(np.intp))[:-1]
        ends = np.append(edges[1:], count)
        rounds = (ends - edges).astype(np.float64)
        binned = {
            name: _last(c, edges)
            if name.startswith(EVALUATED)
            else _mean(c, edges, rounds if name.startswith(COUNTED) else None)
            for name, c in there.items()
        }
        for name in ("step", "t_s"):
            binned[name] = there[name][ends - 1]
        return binned | {"rounds": rounds}


def _mean(column: Column, edges: NDArray[np.intp], rounds: Column | None = None) -> Column:
    """The mean of what is known in each stretch, or its sum divided by `rounds`; nan where nothing
    is."""
    known = np.isfinite(column)
    count = np.add.reduceat(known.astype(np.float64), edges)
    total = np.add.reduceat(np.where(known, column, 0.0), edges)
    by = count if rounds is None else rounds
    mean: Column = np.divide(total, by, out=np.full(edges.size, np.nan), where=count > 0)
    return mean


def _last(column: Column, edges: NDArray[np.intp]) -> Column:
    """The last known value in each stretch; nan where none is."""
    at = np.maximum.reduceat(np.where(np.isfinite(column), np.arange(column.size), -1), edges)
    return np.where(at >= edges, column[at], np.nan)


class Tables:
    """Holds all that a page shows of one run's records."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, Table] = {}
        self.links: dict[tuple[NodeId, NodeId], list[float]] = {}  # sender, receiver -> bytes, seconds under way
        self.spans: dict[NodeId, dict[int, str]] = {}
        self.events: list[EventRecord] = []
        self.clocks = Clocks()

    def take(self, record: Record) -> None:
        """Take in one record."""
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
        self.clocks.take(record)

    def shown_links(self, mode: str | None, coordinator: NodeId) -> dict[tuple[NodeId, NodeId], list[float]]:
        """Return the bytes and seconds by link. Boards of a coordinator have one link each, whose
        bytes are those of their sockets; its seconds are their time in transmit, both ways
        together."""
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
        """Return the spans of at most MOST_SPANS rounds later than `after`, spread evenly."""
        steps = sorted({step for spans in self.spans.values() for step in spans if step > after})
        kept = set(steps[:: -(-len(steps) // MOST_SPANS) or 1])
        return {node: {s: text for s, text in spans.items() if s in kept} for node, spans in self.spans.items()}

    @property
    def last_span(self) -> int:
        """The last round of which there are spans; -1: there are none."""
        return max((step for spans in self.spans.values() for step in spans), default=-1)

    def shown_events(self, start: int = 0) -> list[dict[str, Any]]:
        """Return the events from number `start` on. `n` is its number: some in the middle of very
        many are left out."""
        half = MOST_EVENTS // 2
        numbers = range(start, len(self.events))
        shown = numbers if len(numbers) <= MOST_EVENTS else [*numbers[:half], *numbers[-half:]]
        return [{"n": n, **_event(self.events[n])} for n in shown]

    def in_order(self) -> list[tuple[float, EventRecord]]:
        """Return all events with their times on the clock of all, sorted by these."""
        return sorted(((self.clocks.at(event), event) for event in self.events), key=lambda timed: timed[0])


def _event(record: EventRecord) -> Mapping[str, Any]:
    own = {} if record.name in OF_THE_RUN else {"own": True}  # by the node's own clock
    return {"node": record.node, "t_s": round(record.t_s, 3), "event": record.name, "text": record.text, **own}


COARSE = ("time/", "cpu/", "sys/", "codec/", "net/")
COARSE_BITS, OTHER_BITS = 9, 15  # of the 23 that float32 has
TICKS_A_SECOND = 1e5  # of t_s: whole numbers take half the bytes
EXACT = ("step", "t_s")
_LEVEL = 5  # of zlib: beyond, it takes twice the time for one percent


def pack(document: Mapping[str, Any], columns: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> bytes:
    """Return a document and columns, `columns[node][name]` float64[rows], as bytes. The document
    gets a key "blocks" more: {node: {name: [offset, rows, bytes a number]}} with offsets from the
    end of the document."""
    blocks: dict[str, dict[str, list[int]]] = {}
    parts: list[bytes] = []
    offset = 0
    for node, named in columns.items():
        blocks[node] = {}
        for name, column in named.items():
            data = _planes(_rounded(name, column))
            blocks[node][name] = [offset, column.size, len(data) // max(column.size, 1)]
            parts.append(data)
            offset += len(data)
    head = json.dumps(
        {**document, "blocks": blocks}, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    ).encode()
    return zlib.compress(b"".join([struct.pack("<I", len(head)), head, *parts]), _LEVEL)


def _rounded(name: str, column: NDArray[np.float64]) -> NDArray[Any]:
    if name == "t_s":
        column = np.rint(column * TICKS_A_SECOND)
    if name in EXACT:
        return column.astype("<f8")
    with np.errstate(over="ignore"):
        single = column.astype("<f4")
    known = single[np.isfinite(single)]
    if (known == np.rint(known)).all():
        return single
    dropped = 23 - (COARSE_BITS if name.startswith(COARSE) else OTHER_BITS)
    bits = single.view("<u4")
    rounded = ((bits + np.uint32(1 << (dropped - 1))) >> np.uint32(dropped)) << np.uint32(dropped)
    return np.where(np.isfinite(single), rounded, bits).astype("<u4").view("<f4")


def _planes(column: NDArray[Any]) -> bytes:
    return column.view(np.uint8).reshape(-1, column.itemsize).T.tobytes()
