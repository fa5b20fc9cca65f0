"""Runs and boards that are called alike, or what no file and no metric can be called, lose nothing
in an export."""

import csv
import json

import pytest

from edgegossip.report.exports.columns import columns_of, write_csv
from edgegossip.report.exports.tensorboard import write_tensorboard
from edgegossip.report.web.view import names_of, read_runs

ALIKE = ["pi-1/runs/x", "pi-2/runs/x", "pi-2/runs/y"]


def write(folder, *records, text="a begins"):
    """A run folder with these records."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text("")
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": 0, "t_s": 1.0, **r}) + "\n" for r in records))
    (folder / "events.jsonl").write_text(json.dumps({"node": "a", "t_s": 1.0, "event": "notice", "text": text}) + "\n")
    return folder


@pytest.fixture
def alike(tmp_path):
    """Two runs of one name and one of another."""
    return read_runs([write(tmp_path / p, {"node": "a", "train/loss": float(k)}) for k, p in enumerate(ALIKE)])


def test_runs_of_one_name_are_told_apart_by_where_they_are(alike, tmp_path, monkeypatch):
    assert names_of(alike) == ["pi-1/runs/x", "pi-2/runs/x", "y"]
    assert names_of([alike[2], alike[2], alike[2]]) == ["y", "y (2)", "y (3)"]
    monkeypatch.chdir(tmp_path / "pi-1/runs/x")
    assert names_of(read_runs([tmp_path / "pi-1/runs/x/."])) == ["x"]


def test_runs_of_one_name_have_event_files_of_their_own(alike, tmp_path):
    folders = write_tensorboard(alike, tmp_path / "out")
    assert len(set(folders)) == 3 == len(list((tmp_path / "out").rglob("events.*")))


def test_runs_of_one_name_are_told_apart_in_every_table(alike, tmp_path):
    assert columns_of(alike)["metrics"]["run"] == columns_of(alike)["events"]["run"] == names_of(alike)


@pytest.mark.parametrize("node", ["ABSOLUTE", "../../../up", "..", ".", "a/b", "a\\b", "nul\0", "\ud800", "%2E"])
def test_a_node_is_a_folder_in_the_run_whatever_it_is_called(tmp_path, node):
    node = node.replace("ABSOLUTE", str(tmp_path / "victim"))
    views = read_runs([write(tmp_path / "x", {"node": node, "train/loss": 1.0})])
    before = set(tmp_path.rglob("*"))
    (folder,) = write_tensorboard(views, tmp_path / "deep/er/out")
    assert folder.resolve().parent == tmp_path / "deep/er/out/x" and len(list(folder.glob("events.*"))) == 1
    made = set(tmp_path.rglob("*")) - before
    assert all(path == tmp_path / "deep" or tmp_path / "deep" in path.parents for path in made)


def test_boards_that_are_called_nearly_alike_have_folders_of_their_own(tmp_path):
    nodes = ["a/b", "a%2Fb", "a_b", "..", "%2E%2E", "pi-1", "pi ö"]
    views = read_runs([write(tmp_path / "x", *({"node": node, "train/loss": 1.0} for node in nodes))])
    folders = write_tensorboard(views, tmp_path / "out")
    assert len({path.name for path in folders}) == len(nodes) and {"pi-1", "pi ö"} < {path.name for path in folders}


@pytest.mark.parametrize("first", "=+-@\t\r")
def test_no_text_in_a_csv_file_is_a_formula(tmp_path, first):
    said = f"{first}HYPERLINK(1)"
    folder = write(tmp_path / "x", {"node": said, "train/loss": -2.0, said: 1.0}, text=said)
    paths = {path.name: path for path in write_csv(read_runs([folder]), tmp_path / "out")}
    (event,) = csv.DictReader(paths["events.csv"].open(newline=""))
    (row,) = csv.DictReader(paths["metrics.csv"].open(newline=""))
    assert event["text"] == row["node"] == f"'{said}" and f"'{said}" in row and said not in row
    assert row["train/loss"] == "-2"
