"""`edgegossip.study` and `edgegossip.plan`: by public names only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import edgegossip
from edgegossip.cli.main import cli
from edgegossip.types import ConfigError, DataError, HostError

SMALL = {
    "data.train_examples": 400,
    "data.test_examples": 100,
    "model.params": {"hidden": [8]},
    "training.batch_size": 8,
    "rounds": 3,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> edgegossip.StudyResult:
    folder = tmp_path_factory.mktemp("study") / "mine"
    sweep = {"codec.name": ["fp32", "minmax8"]}
    return edgegossip.study("quickstart-gossip", sweep, SMALL, seeds=[1, 2], out=folder, quiet=True)


def test_a_study_gives_its_table(made: edgegossip.StudyResult) -> None:
    pandas = pytest.importorskip("pandas")
    table = made.table()
    assert isinstance(table, pandas.DataFrame) and list(table["codec.name"]) == ["fp32", "minmax8"]
    assert list(table["seeds"]) == ["1 2", "1 2"] and list(table["failed"]) == [0, 0]
    assert table.bits_per_value[0] == 32 and 8 <= table.bits_per_value[1] < 10
    assert [row["accuracy"] for row in made.summary["rows"]] == list(table["accuracy"])
    assert edgegossip.StudyResult(made.folder).summary == made.summary
    assert "minmax8" in str(made) and repr(made) == f"StudyResult({str(made.folder)!r})"
    assert made.plots and all(path.suffix == ".png" and path.is_file() for path in made.plots)


def test_cases_need_not_be_a_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgegossip.studies.summary.write_plots", lambda *_: [])
    cases = [
        {"name": "plain"},
        {"codec": {"name": "topk", "params": {"ratio": 0.1}}, "gossip.algorithm": "choco-sgd", "seeds": [3]},
    ]
    result = edgegossip.study(
        "quickstart-gossip", {"nodes": [2]}, {**SMALL, "rounds": 1}, cases=cases, out=tmp_path, quiet=True
    )
    rows = result.summary["rows"]
    assert [(row["case"], row["seeds"]) for row in rows] == [
        ("plain, nodes=2", [1]),
        ("topk, ratio=0.1, choco-sgd, nodes=2", [3]),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sweep": {"codec.name": "fp32"}}, r"sweep of codec\.name is 'fp32': give a list of values"),
        ({"sweep": {"codec.name": []}}, "give a list of values"),
        ({"sweep": {"seed": [1, 2]}}, r"give seeds=\[1, 2, 3\]"),
        ({"sweep": {"codec.name": ["fp32", "topq"]}}, "did you mean topk"),
        ({"sweep": {"lr": [0.1]}}, "did you mean training__lr"),
        ({"seeds": [-1]}, r"seeds = \[-1\]: must be whole numbers from 0"),
        ({"cases": [{"codec.nam": "fp32"}]}, r"did you mean codec\.name"),
        ({"cases": ["fp32"]}, "a case is a mapping of recipe keys, and one is 'fp32'"),
        ({"cases": "fashion-gosip"}, "did you mean fashion-gossip"),
        ({"jobs": 0}, "jobs = 0 at least 1"),
        ({"target": 68.0}, r"target = 68\.0 must be from 0 to 1"),
    ],
)
def test_a_wrong_study_is_refused_before_anything_runs(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        edgegossip.study("quickstart-gossip", out=tmp_path / "out", quiet=True, **given)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"it has no table\.json"):
        edgegossip.StudyResult(tmp_path)
    (tmp_path / "table.json").write_text("[]")
    with pytest.raises(DataError, match="is of no study"):
        edgegossip.StudyResult(tmp_path)
    (tmp_path / "table.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        edgegossip.StudyResult(tmp_path)


def test_a_plan_is_that_of_the_command_line() -> None:
    plan = edgegossip.plan("cifar10-gossip", "pi4-wifi", {"codec.name": "fp16"}, boards=4, model__name="cnn")
    words = ["plan", "cifar10-gossip", "--profile", "pi4-wifi", "--set", "codec.name=fp16", "--set", "model.name=cnn"]
    done = CliRunner().invoke(cli, [*words, "--boards", "4"], standalone_mode=False)
    assert str(plan) == done.stdout.rstrip("\n")
    assert plan.summary["boards"] == 4 and plan.summary["codec"] == "fp16" and plan.summary["modelled"]


def test_a_plans_codecs_are_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    plan = edgegossip.plan("quickstart-gossip", "pi4-wifi")
    table = plan.codecs()
    assert list(table.columns) == ["codec", "downlink", "bits_per_value", "seconds"]
    assert list(table["seconds"]) == sorted(table["seconds"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HostError, match="tables need pandas: pip install pandas"):
        plan.codecs()


def test_a_wrong_plan_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no fleet named pi4-wify; did you mean pi4-wifi"):
        edgegossip.plan("quickstart-gossip", "pi4-wify")
    with pytest.raises(ConfigError, match="did you mean quickstart-gossip"):
        edgegossip.plan("quickstart-gosip", "pi4-wifi")
