"""Every law finds what contradicts it in a real run, and nothing in the run as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import summarise
from tests.e2e.played import played
from tests.laws.laws import law_names, verify

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


def test_the_summary_of_an_earlier_version_had_no_accuracy_of_a_regression(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "r", "", {})
    folder.metrics("a", 0, {"train/loss": 1.0, "eval/loss": 0.5, "eval/mae": 0.25})
    folder.event("a", "finished", "a")
    folder.close()
    made = summarise(read_run(folder.path))
    assert made["accuracy"]["mean"] == 0.25

    def broken(summary: dict[str, Any]) -> list[str]:
        (folder.path / "summary.json").write_text(json.dumps(summary))
        return [one.text for one in verify(read_run(folder.path)) if "summary.json" in one.text]

    nothing = dict.fromkeys(("mean", "min", "max"))
    earlier = {key: value for key, value in made.items() if key not in ("better", "alone", "average")}
    earlier |= {"accuracy": nothing, "boards": [{**made["boards"][0], "accuracy": None}]}
    assert broken(earlier) == [] and broken(made) == []
    assert broken({**made, "accuracy": nothing}) and broken({**earlier, "loss": 0.75})


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


def energy(run: Planted) -> None:
    """A sensor of power, and energy that is a hundred times that."""
    for record in run.of("board-0"):
        record |= {"sys/power_w": 4.0, "sys/energy_j": 400.0, "time/round_s": 1.0}


def one_link_more(run: Planted) -> None:
    """A neighbour that is none."""
    run.write("topology.json", {**run.document("topology.json"), "rounds": [{"edges": [["board-0", "board-1"]]}]})


def torn(run: Planted) -> None:
    run.save()
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"node": "board-0", "st')


def summed_up(run: Planted) -> None:
    summary = run.document("summary.json")
    summary["sent_bytes"]["payload"] += 1
    run.write("summary.json", summary)


def resumed_from_nowhere(run: Planted) -> None:
    """Another recipe with fewer rounds."""
    path = run.folder / "recipe.toml"
    path.write_text(path.read_text().replace("rounds = 6", "rounds = 4"))


PLANTS: list[tuple[str, str, str, Edit]] = [
    # what, law, mode, edit
    ("text for a number", "numbers-are-numbers", "gossip", put("board-0", 1, train__loss="0.5")),
    ("true for a number", "numbers-are-numbers", "server", put("board-0", 1, time__wait_s=True)),
    ("negative bytes", "nothing-is-negative", "gossip", put("board-1", 2, net__overhead_bytes=-1)),
    ("negative seconds", "nothing-is-negative", "server", put("board-1", 2, time__forward_s=-0.1)),
    ("percent for a share", "shares-are-shares", "gossip", put("board-2", 5, eval__accuracy=91.3)),
    ("load above all cores", "shares-are-shares", "server", put("board-2", 5, sys__machine_percent=104.0)),
    ("a part that grew", "parts-make-the-round", "gossip", add("board-0", 3, "time/wait_s", 0.01)),
    ("a part left out of the sum", "parts-make-the-round", "server", put("coordinator", 3, time__decode_s=0.2)),
    ("CPU seconds of nobody", "cpu-parts-make-the-cpu-time", "gossip", add("board-0", 3, "cpu/encode_s", 0.01)),
    ("more stages than computing", "stages-are-of-the-computing", "gossip", put("board-0", 3, time__backward_s=9.0)),
    ("a gap between spans", "spans-fill-the-round", "gossip", put("board-0", 0, **{"time/spans": "c100w200"})),
    ("waiting beside sending", "spans-fill-the-round", "gossip", put("board-0", 0, **{"time/spans": "c100W200"})),
    ("a span of no part", "spans-fill-the-round", "server", put("board-0", 0, **{"time/spans": "c100x200"})),
    ("more CPU than cores", "cpu-time-fits-the-cores", "gossip", put("board-0", 3, time__cpu_s=99.0)),
    ("bits of another payload", "bits-are-those-of-the-bytes", "gossip", put("board-0", 3, codec__bits_per_value=7.7)),
    ("half of a message", "bits-are-those-of-the-bytes", "server", put("board-0", 3, net__payload_bytes=19_220)),
    ("a link without headers", "headers-come-on-top", "server", put("board-0", 3, net__link_bytes=10)),
    ("a peak that is lower", "peak-is-the-highest", "gossip", put("board-0", 3, sys__peak_rss_bytes=1_000_000)),
    ("records of a stranger", "everybody-is-a-member", "gossip", put("board-0", 0, node="board-7")),
    ("a peer of another run", "everybody-is-a-member", "gossip", say("board-0", "peer-down", peer="board-9")),
    ("a board too many", "boards-are-those-asked-for", "gossip",
     change("run.json", lambda run: run["members"].append("board-3"))),
    ("a partition of others", "boards-are-those-asked-for", "server",
     change("partition.json", lambda found: found["nodes"].__setitem__(0, "board-9"))),
    ("models of two sizes", "models-are-of-one-size", "server", tell("board-1", "started", values=4805)),
    ("holdings that differ", "holdings-are-in-the-partition", "server", say("board-1", "holds", examples=3)),
    ("weights of 1.5", "mixing-weights-are-averages", "gossip",
     change("topology.json", lambda found: found["rounds"][0]["weights"][0].__setitem__(0, 0.9))),
    ("a weight without an edge", "mixing-weights-are-averages", "gossip",
     change("topology.json", lambda found: found["rounds"][0]["edges"].pop())),
    ("more rounds than asked", "rounds-were-asked-for", "server", resumed_from_nowhere),
    ("a round twice", "rounds-come-once", "gossip", again("board-1", 3)),
    ("a round of the coordinator twice", "rounds-come-once", "server", again("coordinator", 3)),
    ("a hole", "rounds-have-no-holes", "gossip", drop("board-1", 3)),
    ("a hole at the coordinator", "rounds-have-no-holes", "server", drop("coordinator", 3)),
    ("finished too early", "finished-means-all-rounds", "gossip", drop("board-1", 5)),
    ("a clock that goes back", "clocks-go-forward", "gossip", add("board-1", 3, "t_s", -0.5)),
    ("events before the run", "clocks-go-forward", "server", tell("coordinator", "joined", t_s=-1.0)),
    ("a round longer than its time", "rounds-fit-between-their-records", "gossip",
     put("board-1", 3, time__round_s=30.0)),
    ("training before the start", "boards-start-before-they-train", "gossip", tell("board-1", "started", t_s=60.0)),
    ("training after the end", "boards-start-before-they-train", "server", put("board-1", 5, t_s=60.0)),
    ("a start in another year", "runs-start-after-their-folder", "gossip", tell("board-1", "started", unix_s=0.0)),
    ("lost and finished", "ends-and-returns-alternate", "gossip", say("board-1", "lost")),
    ("started after the end", "ends-and-returns-alternate", "server", say("board-1", "started", values=9610)),
    ("back without having been away", "outages-end-once", "gossip", begin("board-1", "peer-up", peer="board-2")),
    ("readmitted from nowhere", "outages-end-once", "server", say("coordinator", "readmitted", peer="board-2")),
    ("an accuracy that nobody measured", "finished-says-what-was-measured", "gossip",
     tell("board-1", "finished", accuracy=0.99)),
    ("two averages", "final-models-have-one-average", "gossip", tell("board-1", "compared", length=1.0)),
    ("bytes to nobody", "links-carry-what-was-sent", "gossip", add("board-1", 5, "net/overhead_bytes", 1000)),
    ("bytes to a neighbour twice", "links-carry-what-was-sent", "gossip",
     add("board-1", 5, "link/board-2_bytes", 1)),
    ("a link that is no edge", "links-are-edges", "gossip", one_link_more),
    ("fewer bytes than frames", "sockets-carry-the-frames", "gossip", everywhere("net/sent_bytes", 0.5, "board-0")),
    ("bytes that never came", "what-was-sent-was-received", "gossip",
     everywhere("net/received_bytes", 0.01, "board-0")),
    ("more received than sent", "what-was-sent-was-received", "gossip",
     everywhere("net/received_bytes", 9.0, "board-0")),
    ("up and down counted twice", "coordinator-and-boards-count-the-same", "server",
     everywhere("net/sent_bytes", 3.0, "coordinator")),
    ("joules of no power", "energy-is-power-by-time", "gossip", energy),
    ("a torn line", "lines-are-records", "gossip", torn),
    ("a summary of other records", "summary-is-that-of-the-records", "server",
     change("summary.json", lambda found: found.update(train_loss=0.5))),
    ("another accuracy", "summary-is-that-of-the-records", "gossip",
     change("summary.json", lambda found: found["accuracy"].update(mean=0.99))),
    ("a total that is none", "summary-adds-up", "gossip", summed_up),
    ("a board lost and forgotten", "summary-adds-up", "server",
     change("summary.json", lambda found: found["boards"][1].update(state="lost"))),
]  # fmt: skip


@pytest.mark.parametrize(("law", "mode", "edit"), [plant[1:] for plant in PLANTS], ids=[plant[0] for plant in PLANTS])
def test_a_planted_contradiction_is_found(
    runs: dict[str, Path], tmp_path: Path, law: str, mode: str, edit: Edit
) -> None:
    shutil.copytree(runs[mode], folder := tmp_path / mode)
    planted = Planted(folder)
    edit(planted)
    if edit is not torn:
        planted.save()
    found = verify(read_run(folder))
    assert law in {one.law for one in found}, found
    assert all(one.text and not one.text.endswith(".") for one in found)


def test_every_law_has_a_contradiction_planted() -> None:
    assert {plant[1] for plant in PLANTS} == set(law_names())


def test_of_one_mistake_everywhere_a_few_places_are_named(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["gossip"], folder := tmp_path / "run")
    planted = Planted(folder)
    for record in planted.metrics:
        record["net/payload_bytes"] = -1
    planted.save()
    texts = [one.text for one in verify(read_run(folder)) if one.law == "nothing-is-negative"]
    assert len(texts) == 5 and texts[-1] == "and so on, 14 times more"
