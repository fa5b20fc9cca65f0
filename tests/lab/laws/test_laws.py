"""Every law finds what contradicts it in a real run, and nothing in the run as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgegossip.telemetry.run_folder import read_run
from lab.laws.laws import law_names, verify
from tests.e2e.played import played

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")


class Planted:
    """A copy of a run folder, to be changed by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics, self.events = self._lines("metrics"), self._lines("events")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.jsonl").read_text().splitlines()]

    def document(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def write(self, name: str, document: Any) -> None:
        (self.folder / name).write_text(json.dumps(document))

    def save(self) -> None:
        for name, lines in (("metrics", self.metrics), ("events", self.events)):
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def round(self, node: str, step: int) -> dict[str, Any]:
        return next(r for r in self.metrics if r["node"] == node and r["step"] == step and "time/round_s" in r)

    def of(self, node: str) -> list[dict[str, Any]]:
        return [r for r in self.metrics if r["node"] == node]

    def event(self, node: str, name: str) -> dict[str, Any]:
        return next(e for e in self.events if e["node"] == node and e["event"] == name)


Edit = Callable[[Planted], None]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each mode."""
    pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")
    return {mode: played(mode, tmp_path_factory).folder for mode in ("gossip", "server")}


@pytest.mark.parametrize("mode", ["gossip", "server"])
def test_nothing_contradicts_in_a_run_as_it_is(runs: dict[str, Path], mode: str) -> None:
    assert verify(read_run(runs[mode])) == []


def put(node: str, step: int, /, **values: Any) -> Edit:
    """The round with these values; __ stands for /."""
    return lambda run: run.round(node, step).update({key.replace("__", "/"): v for key, v in values.items()})


def add(node: str, step: int, name: str, more: float) -> Edit:
    """The round with more of one value."""

    def edit(run: Planted) -> None:
        run.round(node, step)[name] += more

    return edit


def everywhere(name: str, factor: float, node: str) -> Edit:
    """All of a node's values times a factor."""

    def edit(run: Planted) -> None:
        for record in run.of(node):
            if name in record:
                record[name] = round(record[name] * factor)

    return edit


def say(node: str, name: str, at_s: float = 0.0, **fields: Any) -> Edit:
    """An event more, so long after the node's last one."""

    def edit(run: Planted) -> None:
        own = [e["t_s"] for e in run.events if e["node"] == node]
        run.events.append({"node": node, "t_s": max(own, default=0.0) + at_s, "event": name, "text": name, **fields})

    return edit


def begin(node: str, name: str, **fields: Any) -> Edit:
    """An event before all others."""
    return lambda run: run.events.insert(0, {"node": node, "t_s": 0.0, "event": name, "text": name, **fields})


def tell(node: str, name: str, **fields: Any) -> Edit:
    """An event with other fields."""
    return lambda run: run.event(node, name).update(fields)


def change(name: str, edit: Callable[[Any], None]) -> Edit:
    """A document that says something else."""

    def planted(run: Planted) -> None:
        document = run.document(name)
        edit(document)
        run.write(name, document)

    return planted


def drop(node: str, step: int) -> Edit:
    return lambda run: run.metrics.remove(run.round(node, step))


def again(node: str, step: int) -> Edit:
    """A round twice."""

    def edit(run: Planted) -> None:
        record = run.round(node, step)
        run.metrics.insert(run.metrics.index(record), dict(record))

    return edit


def one_link_more(run: Planted) -> None:
    """A neighbour that is none."""
    run.write("topology.json", {**run.document("topology.json"), "rounds": [{"edges": [["board-0", "board-1"]]}]})


def resumed_from_nowhere(run: Planted) -> None:
    """Another recipe with fewer rounds."""
    path = run.folder / "recipe.toml"
    path.write_text(path.read_text().replace("rounds = 6", "rounds = 4"))


PLANTS: list[tuple[str, str, str, Edit]] = [
    # what, law, mode, edit
    ("negative bytes", "nothing-is-negative", "gossip", put("board-1", 2, net__overhead_bytes=-1)),
    ("percent for a share", "shares-are-shares", "gossip", put("board-2", 5, eval__accuracy=91.3)),
    ("a part that grew", "parts-make-the-round", "gossip", add("board-0", 3, "time/wait_s", 0.01)),
    ("CPU seconds of nobody", "cpu-parts-make-the-cpu-time", "gossip", add("board-0", 3, "cpu/encode_s", 0.01)),
    ("more stages than computing", "stages-are-of-the-computing", "gossip", put("board-0", 3, time__backward_s=9.0)),
    ("a gap between spans", "spans-fill-the-round", "gossip", put("board-0", 0, **{"time/spans": "c100w200"})),
    ("waiting beside sending", "spans-fill-the-round", "gossip", put("board-0", 0, **{"time/spans": "c100W200"})),
    ("bits of another payload", "bits-are-those-of-the-bytes", "gossip", put("board-0", 3, codec__bits_per_value=7.7)),
    ("half of a message", "bits-are-those-of-the-bytes", "server", put("board-0", 3, net__payload_bytes=19_220)),
    ("a link without headers", "headers-come-on-top", "server", put("board-0", 3, net__link_bytes=10)),
    ("records of a stranger", "everybody-is-a-member", "gossip", put("board-0", 0, node="board-7")),
    ("more rounds than asked", "rounds-were-asked-for", "server", resumed_from_nowhere),
    ("a round twice", "rounds-come-once", "gossip", again("board-1", 3)),
    ("a hole", "rounds-have-no-holes", "gossip", drop("board-1", 3)),
    ("finished too early", "finished-means-all-rounds", "gossip", drop("board-1", 5)),
    ("a clock that goes back", "clocks-go-forward", "gossip", add("board-1", 3, "t_s", -0.5)),
    ("events before the run", "clocks-go-forward", "server", tell("coordinator", "joined", t_s=-1.0)),
    ("a round longer than its time", "rounds-fit-between-their-records", "gossip",
     put("board-1", 3, time__round_s=30.0)),
    ("training before the start", "boards-start-before-they-train", "gossip", tell("board-1", "started", t_s=60.0)),
    ("lost and finished", "ends-and-returns-alternate", "gossip", say("board-1", "lost")),
    ("back without having been away", "outages-end-once", "gossip", begin("board-1", "peer-up", peer="board-2")),
    ("two averages", "final-models-have-one-average", "gossip", tell("board-1", "compared", length=1.0)),
    ("bytes to nobody", "links-carry-what-was-sent", "gossip", add("board-1", 5, "net/overhead_bytes", 1000)),
    ("a link that is no edge", "links-are-edges", "gossip", one_link_more),
    ("fewer bytes than frames", "sockets-carry-the-frames", "gossip", everywhere("net/sent_bytes", 0.5, "board-0")),
    ("bytes that never came", "what-was-sent-was-received", "gossip",
     everywhere("net/received_bytes", 0.01, "board-0")),
    ("more received than sent", "what-was-sent-was-received", "gossip",
     everywhere("net/received_bytes", 9.0, "board-0")),
    ("up and down counted twice", "coordinator-and-boards-count-the-same", "server",
     everywhere("net/sent_bytes", 3.0, "coordinator")),
    ("a summary of other records", "summary-is-that-of-the-records", "server",
     change("summary.json", lambda found: found.update(train_loss=0.5))),
    ("another accuracy", "summary-is-that-of-the-records", "gossip",
     change("summary.json", lambda found: found["accuracy"].update(mean=0.99))),
]  # fmt: skip


@pytest.mark.parametrize(("law", "mode", "edit"), [plant[1:] for plant in PLANTS], ids=[plant[0] for plant in PLANTS])
def test_a_planted_contradiction_is_found(
    runs: dict[str, Path], tmp_path: Path, law: str, mode: str, edit: Edit
) -> None:
    shutil.copytree(runs[mode], folder := tmp_path / mode)
    planted = Planted(folder)
    edit(planted)
    planted.save()
    found = verify(read_run(folder))
    assert law in {one.law for one in found}, found
    assert all(one.text and not one.text.endswith(".") for one in found)


def test_every_law_has_a_contradiction_planted() -> None:
    assert {plant[1] for plant in PLANTS} == set(law_names())
