"""A scalability run as a whole, with a place for its cells that computes nothing: resumed, with a
cell that fails, tables and plots.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from edgegossip import recipe as recipes
from edgegossip.report.style import Figures
from edgegossip.scale import campaign, devices, summary
from edgegossip.scale.campaign import ScaleOptions
from edgegossip.scale.cells import Backend, Cell
from edgegossip.types import EXIT_DEGRADED, ConfigError, EdgegossipError, HostError, RunError


class Paper(Backend):
    """T = compute / boards + link * (boards - 1); fails where it is told to."""

    LINK: ClassVar = {"sgd": 8.0, "co3": 0.5}

    def __init__(self, fails: tuple[str, int] | None = None, error: EdgegossipError | None = None) -> None:
        self.over: bool | None = None
        self.fails, self.ran = fails, []  # type: ignore[var-annotated]
        self.error = error or RunError("lost board-1: the cat")

    def check(self, cell: Cell) -> None:
        pass

    def run(self, cell: Cell) -> dict[str, Any]:
        self.ran.append(cell.name)
        if self.fails == (cell.scheme.name, cell.devices):
            raise self.error
        link = self.LINK[cell.scheme.name]
        row = {"cp_s": 100.0 / cell.devices, "en_s": 0.1, "tx_s": link * (cell.devices - 1), "de_s": 0.1, "wait_s": 0.2}
        row |= {"t_s": sum(row.values()), "accuracy": 0.5, "bits_per_value": 32.0}
        more = {"round_bytes": {"payload": 1e6, "overhead": 10.0, "link": 1.1e6}}
        names = [f"board-{k}" for k in range(cell.devices)]
        marks = [
            {"node": n, "start": 0, "computed": 5, "ready": 6, "go": 7, "done": 9 + k} for k, n in enumerate(names)
        ]
        return {"row": {**row, **more}, "curve": [[1.0, 10.0, 2.0], [2.0, 20.0, 1.0]], "marks": marks}

    def close(self, over: bool) -> None:
        self.over = over


def _asked(out: Path, **more: Any) -> ScaleOptions:
    given: dict[str, Any] = {
        "recipe": "table3", "settings": (), "devices": "2,4,7", "schemes": "sgd,co3", "on": "model", "rate": "20mbit",
        "link": "shared", "rounds": 0, "out": out, "figures": Figures(plots=False),
    }  # fmt: skip
    return ScaleOptions(**(given | more))


def _run(
    monkeypatch: pytest.MonkeyPatch, place: Paper, asked: ScaleOptions
) -> tuple[dict[str, Any], int, list[str], list[str]]:
    monkeypatch.setattr(campaign, "_backend", lambda *_: place)
    said: list[str] = []
    warned: list[str] = []
    document, code = campaign.run(asked, said.append, warned.append)
    return document, code, said, warned


def test_a_failed_cell_is_named_and_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = Paper(fails=("sgd", 4))
    document, code, _, warned = _run(monkeypatch, first, _asked(tmp_path))
    assert code != 0 and len(first.ran) == 6
    assert document["failed"] == [{"scheme": "sgd", "devices": 4, "reason": "lost board-1: the cat"}]
    assert "sgd on 4 failed: lost board-1: the cat" in warned
    rows = {(row["scheme"], row["devices"]): row for row in document["rows"]}
    assert rows["sgd", 4]["t_s"] is None and rows["sgd", 7]["sp_s"] == pytest.approx(100 / 7 + 48 - 50 - 8)
    assert "failed" in (tmp_path / "table.txt").read_text()

    second = Paper()
    document, code, said, _ = _run(monkeypatch, second, _asked(tmp_path))
    assert code == 0 and second.ran == ["sgd on 4"] and document["failed"] == []
    assert said[0].startswith("6 cells") and "5 done, 1 to go" in said[0]
    assert set(summary.KEYS) <= set(document["rows"][0])
    assert json.loads((tmp_path / "table.json").read_text())["rows"] == document["rows"]


def test_a_cell_that_this_machine_fails_costs_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = HostError("ip took more than 20 s")
    document, code, *_ = _run(monkeypatch, Paper(("sgd", 4), slow), _asked(tmp_path))
    assert code == EXIT_DEGRADED and len(document["rows"]) == 6
    assert document["failed"] == [{"scheme": "sgd", "devices": 4, "reason": str(slow)}]


def test_where_nothing_can_run_the_first_cell_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = Paper(("sgd", 2), HostError("there are no namespaces here"))
    with pytest.raises(HostError, match="no namespaces"):
        _run(monkeypatch, place, _asked(tmp_path))
    assert len(place.ran) == 1


def test_each_result_names_what_made_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Cells of a folder may be run from one commit today and from another tomorrow."""
    lines = tmp_path / "scale.jsonl"
    (source,) = _run(monkeypatch, Paper(), _asked(tmp_path))[0]["sources"]
    assert {"machine", "isa", "commit", "dirty"} == set(source) and source["isa"]
    first, *others = lines.read_text().splitlines()
    assert json.loads(first)["source"] == source
    older = json.loads(first) | {"source": source | {"commit": "0123456789ab"}}
    lines.write_text("\n".join([json.dumps(older), *others]) + "\n")
    document, *_ = _run(monkeypatch, Paper(), _asked(tmp_path))
    assert [older["source"], source] == document["sources"]


def test_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    document, *_ = _run(monkeypatch, Paper(), _asked(tmp_path))
    sgd, co3 = document["verdicts"]
    assert sgd.startswith(
        "sgd stops scaling at 4 boards and is 1.27 times slower at 7; link-bound (77 % of T) at 7 boards"
    )
    assert "co3 would give 3.54 times the speed, " in sgd and sgd.endswith(" times without Cp")
    assert co3.startswith(
        "co3 gets faster all the way to 7 boards (2.88 times 2); compute-bound (81 % of T) at 7 boards"
    )


def test_plots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    _run(monkeypatch, Paper(fails=("co3", 7)), _asked(tmp_path, figures=Figures()))
    made = sorted(path.name for path in tmp_path.glob("*.png"))
    assert made == ["loss.png", "round.png", "speedup.png", "time.png"]
    assert all(path.stat().st_size > 5000 for path in tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"device": "raspberry-pi-3", "link": "each", "rate": "1gbit"}, "the interface of a raspberry-pi-3 does"),
        ({"fleet": "pi4-wifi", "link": "each", "rate": ""}, "say --link and --rate"),
    ],
)
def test_a_link_that_no_such_board_has_is_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        campaign.plan(_asked(tmp_path, **more))


def test_a_profile_that_was_calibrated_anew_is_another_cell(tmp_path: Path) -> None:
    def keys() -> list[str]:
        return [cell.key for cell in campaign.plan(_asked(tmp_path, on="model", device=str(mine)))[1]]

    mine = tmp_path / "mine.toml"
    mine.write_text((Path(devices.__file__).parents[2] / "devices" / "raspberry-pi-4.toml").read_text())
    before = keys()
    assert keys() == before
    mine.write_text(mine.read_text().replace("cores = 4", "cores = 3"))
    assert not set(keys()) & set(before)


def test_boards_are_raspberries_unless_something_else_is_said(tmp_path: Path) -> None:
    def how(**more: Any) -> dict[str, Any]:
        return dict(campaign.plan(_asked(tmp_path, **more))[1][0].how)

    assert how()["device"] == "raspberry-pi-4" and how() == how(device="raspberry-pi-4")
    assert how(device="raspberry-pi-5")["profiles"] != how()["profiles"]


def test_batches_that_are_timed_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their operations are counted for `training.batch_size` examples."""
    pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
    from edgegossip.scale import calibrate
    from edgegossip.training.data import DataSet

    class _Started(Exception):
        pass

    def look(recipe: Any, number: int, data: DataSet, share: Any) -> None:
        raise _Started(len(data.train), len(share))

    monkeypatch.setattr(calibrate, "TorchWorkload", look)
    for batch, examples in ((32, 256), (1024, 1024)):
        recipe = recipes.load("quickstart-gossip", (f"training.batch_size={batch}",))
        with pytest.raises(_Started) as seen:
            calibrate.update_seconds(recipe, lambda: 0.0)
        assert seen.value.args == (examples, examples)


def test_other_boards_are_other_cells(tmp_path: Path) -> None:
    keys = [
        {cell.key for cell in campaign.plan(_asked(tmp_path, on="boards", rate="", boards=boards))[1]}
        for boards in ("a,b,c", "d,e,f")
    ]
    assert not keys[0] & keys[1]


def test_a_board_more_is_no_other_cell_for_the_first_ones(tmp_path: Path) -> None:
    few, more = (
        campaign.plan(_asked(tmp_path, on="boards", rate="", devices="2", boards=boards))[1][0].key
        for boards in ("a,b", "a,b,c")
    )
    assert few == more


def test_boards_of_another_fleet_are_other_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from edgegossip.fleet.store import Fleet

    def keys(folder: Path | None) -> list[str]:
        asked = _asked(tmp_path, on="boards", rate="", devices="2", security=(folder, False))
        return [cell.key for cell in campaign.plan(asked)[1]]

    fleets = [Fleet.create(tmp_path / name / "fleet", "same", 20).folder for name in ("one", "other")]
    for folder in fleets:
        Fleet.open(folder).add_all(("a", "b"), "board", 20)
    one, other = map(keys, fleets)
    assert not set(one) & set(other) and one == keys(fleets[0])
    monkeypatch.chdir(tmp_path / "one")
    assert keys(None) == one
    Fleet.open(fleets[0]).revoke("a").add("c", "board", 20)
    assert not set(keys(None)) & set(one)


def test_boards_are_told_that_it_is_over_only_when_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done, stopped = Paper(), Paper(("sgd", 4))
    _run(monkeypatch, done, _asked(tmp_path / "done"))
    stopped.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        _run(monkeypatch, stopped, _asked(tmp_path / "stopped"))
    assert (done.over, stopped.over) == (True, False)


WRONG = (
    {"on": "moon"},
    {"rate": "fast"},
    {"devices": "1"},
    {"schemes": "sgdd"},
    {"schemes": ","},
    {"device": "raspberry-pi-44"},
    {"on": "model", "fleet": "paper-18", "device": "raspberry-pi-4"},
    {"on": "boards", "rate": "", "device": "raspberry-pi-4"},
    {"on": "boards", "rate": "", "fleet": "paper-18"},  # of the model only
    {"boards": "a,b"},
    {"listen": "127.0.0.1:7800"},
    {"security": (None, True)},
    {"on": "model", "security": (Path("fleet"), False)},
    {"on": "boards"},  # whose links have the rate that they have
)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_run_is_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        campaign.plan(_asked(tmp_path, **wrong))
