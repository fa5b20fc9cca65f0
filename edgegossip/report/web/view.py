"""One run as the page's document: what is known of it besides the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgegossip.profiling.run_folder import read_run
from edgegossip.profiling.summary import COORDINATOR, Summary, head_of, members_of, recipe_of
from edgegossip.report.follow import Follower
from edgegossip.report.plots import run_title
from edgegossip.report.web.pack import pack
from edgegossip.report.web.tables import MOST_ROWS, Tables

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


class RunView:
    """A run folder, of a run that ended or one that goes on. `read` takes in what is new; `packed` gives it to a page."""

    def __init__(self, folder: Path) -> None:
        self.data = read_run(folder)
        self.folder = self.data.path
        self.life = 0  # grows when the run is begun anew in its folder
        self._begin()

    def _begin(self) -> None:
        self._follower = Follower(self.folder)
        self.tables, self._summary = Tables(), Summary(members_of(self.data))

    def read(self) -> None:
        """Take in what is new. Raises OSError."""
        if self._follower.shrunk():
            self.life += 1
            self._begin()
        for record in self._follower.new():
            self.tables.take(record)
            self._summary.take(record)

    def refresh(self) -> None:
        """Read again what is written beside the records, which a run does little by little. Raises DataError."""
        self.data = read_run(self.folder)

    def summary(self) -> dict[str, Any]:
        return self._summary.document(head_of(self.data))

    def links(self) -> list[tuple[str, str, int, float]]:
        """Sender, receiver, bytes, seconds in which something was under way."""
        links = self.tables.shown_links(head_of(self.data)["mode"], COORDINATOR)
        return [(sender, receiver, round(b), round(s, 4)) for (sender, receiver), (b, s) in links.items()]

    def document(self) -> dict[str, Any]:
        """All but the columns."""
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
            "links": self.links(),
            "links_of": "links" if self.tables.links else "sockets",
            "spans": self.tables.shown_spans(),
            "clocks": self.tables.clocks,
            "events": self.tables.shown_events(),
        }

    def packed(self, have: Sequence[int] = (), most: int | None = MOST_ROWS) -> bytes:
        """The document with its columns; of the first nodes `have` rows are known already."""
        starts = {n: h for (n, t), h in zip(self.tables.nodes.items(), have, strict=False) if h <= len(t)}
        columns = {node: table.rows(starts.get(node, 0), most) for node, table in self.tables.nodes.items()}
        return pack({**self.document(), "starts": starts, "rows": self.rows(), "life": self.life}, columns)

    def rows(self) -> list[int]:
        """Of each node, in the order of the document's nodes: what `packed` may be told the next time."""
        return [len(table) for table in self.tables.nodes.values()]


def scheme_of(recipe: Mapping[str, Any], mode: str | None) -> str:
    """What a run does, without how many boards do it: runs of the same scheme are one line in a plot of speed-up."""
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
