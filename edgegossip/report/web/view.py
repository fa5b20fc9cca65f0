"""One run as the page's document: what is known of it besides the numbers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.report.follow import Follower
from edgegossip.report.plots import run_title
from edgegossip.report.web.pack import pack
from edgegossip.report.web.tables import MOST_ROWS, Tables
from edgegossip.telemetry.records import EVALUATED, PARTS
from edgegossip.telemetry.run_folder import RunData, read_run
from edgegossip.telemetry.summary import COORDINATOR, Summary, asked_of, head_of, members_of, recipe_of
from edgegossip.types import DataError

_ENV = (
    "started",
    "board",
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
class Known:
    """What a page has already, of the run's `life`."""

    life: int = 0
    rows: Sequence[int] = ()  # of each node, in the document's order
    events: int = 0
    span: int = -1  # the last round whose spans it has


class RunView:
    """A run folder, of a run that ended or one that goes on. `read` takes in what is new; `whole`
    and `new` give it to a page.

    Boards that were started by hand have a folder each: `others` are those of the same run, and all
    are shown as one."""

    def __init__(self, folder: Path, *others: Path) -> None:
        self.data = read_run(folder)
        self.folder, self._others = self.data.path, others
        for other in others:
            _same_run(self.data, read_run(other))
        self.life = 0  # grows when the run is begun anew in its folder
        self._begin()

    def _begin(self) -> None:
        self._followers = [Follower(self.folder), *(Follower(read_run(other).path) for other in self._others)]
        self.tables, self._summary = Tables(), Summary(members_of(self.data), asked_of(self.data))

    def read(self) -> None:
        """Take in what is new. Raises OSError."""
        if any(follower.shrunk() for follower in self._followers):
            self.life += 1
            self._begin()
        for record in (record for follower in self._followers for record in follower.new()):
            self.tables.take(record)
            self._summary.take(record)

    def refresh(self) -> None:
        """Read again what is written beside the records, which a run does little by little. Raises
        DataError."""
        self.data = read_run(self.folder)

    def summary(self) -> dict[str, Any]:
        return self._summary.document(head_of(self.data))

    def links(self) -> list[tuple[str, str, int, float]]:
        """Sender, receiver, bytes, seconds in which something was under way."""
        links = self.tables.shown_links(head_of(self.data)["mode"], COORDINATOR)
        return [(sender, receiver, round(b), round(s, 4)) for (sender, receiver), (b, s) in links.items()]

    def document(self, known: Known = Known()) -> dict[str, Any]:
        """All but the columns; of events and spans what is not known yet."""
        summary, recipe = self.summary(), recipe_of(self.data)
        mode = summary["mode"]
        return {
            "name": self.data.name,
            "title": run_title(self.data, summary),
            "scheme": scheme_of(recipe, mode),
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
            "clocks": self.tables.clocks,
            "events": self.tables.shown_events(known.events),
            "events_from": known.events,
            "events_until": len(self.tables.events),
            "rows": self.rows(),
            "life": self.life,
        }

    def rows(self) -> list[int]:
        """Of each node, in the order of the document's nodes."""
        return [len(table) for table in self.tables.nodes.values()]

    def whole(self) -> tuple[bytes, bytes]:
        """All of it in two packs: the document with the columns of FIRST, and the other columns."""
        columns = {node: table.rows(0, MOST_ROWS) for node, table in self.tables.nodes.items()}
        first = {node: {name: c for name, c in named.items() if _soon(name)} for node, named in columns.items()}
        rest = {node: {name: c for name, c in named.items() if not _soon(name)} for node, named in columns.items()}
        return pack({**self.document(), "starts": {}}, first), pack({}, rest)

    def new(self, known: Known) -> bytes | None:
        """What a page does not know yet, in one pack; None when that is nothing."""
        if known.life != self.life or any(h > n for h, n in zip(known.rows, self.rows(), strict=False)):
            known = Known(self.life)
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
    """A name for each run that no other one has: its folder's, with as many of the folders above as
    tell them apart ("pi-1/runs/x" and "pi-2/runs/x"). The same folder again is "x (2)"."""
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
    """What a run does, without how many boards do it: runs of the same scheme are one line in a
    plot of speed-up."""
    how = recipe.get(mode or "", {})
    words = [how.get("algorithm" if mode == "gossip" else "strategy"), recipe.get("codec", {}).get("name")]
    return ", ".join(str(word) for word in words if word) or (mode or "run")


def _picked(document: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Any] | None:
    return None if document is None else {name: document[name] for name in names if document.get(name) is not None}


def _topology(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if document is None:
        return None
    rounds = document.get("rounds") or [{}]
    edges = sorted({tuple(edge) for one in rounds for edge in one.get("edges", ())})
    return {**_picked(document, ("name", "members", "period", "spectral_gap")), "edges": edges}  # type: ignore[dict-item]
