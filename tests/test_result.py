"""`edgegossip.Result`: what a run left, from Python, by public names only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import edgegossip
from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.node.storage import about_model, save_model
from edgegossip.report.table import run_table
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.types import DataError, HostError, UsageError
from tests.training.fakes import recipe

MLP = {"name": "mlp", "params": {"hidden": [4]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two boards with records and models."""
    chosen = recipe(run={"nodes": 2, "rounds": 2, "name": "a <b>"}, model=MLP)
    made = RunFolder.create(tmp_path, chosen.run.name, recipes.to_toml(chosen), {})
    made.write_run(bytes(16), ("board-0", "board-1"))
    layout, x = training.initial_model(chosen)
    for k, name in enumerate(("board-0", "board-1")):
        for round in range(2):
            made.metrics(name, round, {"train/loss": 2.0 - round, "eval/accuracy": 0.5 + 0.1 * k})
        made.event(name, "finished", f"{name} finished", accuracy=0.5)
        path = made.checkpoint_dir / f"{name}.npz"
        save_model(path, layout.views(x + np.float32(2 * k)), about_model(name, 2, len(layout.tensors)))
    made.close()
    return made.path


def test_figures_and_tables(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    result = edgegossip.Result(str(folder))
    assert result.summary["accuracy"]["max"] == 0.6 and result.boards == ("board-0", "board-1")
    metrics = result.metrics()
    assert isinstance(metrics, pandas.DataFrame) and len(metrics) == 4
    assert list(metrics[metrics.node == "board-1"]["train/loss"]) == [2.0, 1.0]
    events = result.events()
    assert list(events.event) == ["finished"] * 2 and events.accuracy[0] == 0.5
    assert repr(result) == f"Result({str(folder)!r})"


def test_a_run_without_records_has_empty_tables(folder: Path) -> None:
    pytest.importorskip("pandas")
    for name in ("metrics.jsonl", "events.jsonl"):
        (folder / name).write_text("")
    result = edgegossip.Result(folder)
    assert list(result.metrics().columns) == ["node", "step", "t_s"] and result.events().empty


def test_without_pandas_one_sentence_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HostError, match="tables need pandas: pip install pandas"):
        edgegossip.Result(folder).metrics()


def test_models(folder: Path) -> None:
    result = edgegossip.Result(folder)
    first, second = result.state_dict("board-0"), result.state_dict("board-1")
    mean = result.state_dict()
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, (first[name] + second[name]) / 2)
    model = result.model("board-1")
    assert not model.training and model.state_dict().keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in model.state_dict().items())
    distances = result.distances()
    assert distances["board-0"] == pytest.approx(distances["board-1"], rel=1e-4) and distances["board-0"] > 0.5


def test_a_model_that_only_the_users_code_can_build_is_not_guessed(folder: Path) -> None:
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(
        text.replace('name = "mlp"', 'name = "cnn"').replace("hidden = [", "channels = [")
    )
    with pytest.raises(UsageError, match="do not fit the recipe's model"):
        edgegossip.Result(folder).model()


def test_the_page(folder: Path, tmp_path: Path) -> None:
    result = edgegossip.Result(folder)
    assert result.report() == folder / "report.html" and (folder / "report.html").stat().st_size > 10_000
    assert result.report(tmp_path / "page.html").is_file()


def test_its_text_is_the_table_of_the_run(folder: Path) -> None:
    result, shown = edgegossip.Result(folder), list[str]()
    result._repr_pretty_(SimpleNamespace(text=shown.append), False)  # as IPython does
    assert [str(result)] == shown == [run_table(result.summary)]


def test_a_folder_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run folder"):
        edgegossip.Result(tmp_path)


def test_help_is_a_way_in() -> None:
    """Also where neither torch nor anything else that is optional is installed."""
    ask = """
import pydoc, sys
for name in ("torch", "flwr", "pandas", "matplotlib", "IPython"):
    sys.modules[name] = None
import edgegossip
print(pydoc.plain(pydoc.render_doc(edgegossip)))
try:
    edgegossip.join
except edgegossip.HostError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "edgegossip.join needs the package torch, which is not installed" in done.stdout
    first = done.stdout[: done.stdout.index("PACKAGE CONTENTS")]
    for name in ("run", "resume", "local", "study", "plan", "encode", "decode", "join", "Result", "EdgegossipError"):
        assert name in edgegossip.__all__ and re.search(rf"edgegossip\.{name}\b", first), name


def test_a_name_that_the_package_has_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'result_of'"):
        edgegossip.result_of  # noqa: B018
