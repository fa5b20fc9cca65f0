"""Fleets from Python: a recipe, and a function that lies in no file."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import edgegossip
from edgegossip.types import ConfigError, LocalError, RunError


def test_a_recipe_from_python(tmp_path: Path) -> None:
    settings = {"run.rounds": 3, "network.tls": "off", "gossip.topology": "complete"}
    result = edgegossip.run("quickstart-gossip", settings, nodes=2, runs=tmp_path)
    assert result.folder.parent == tmp_path and result.boards == ("board-0", "board-1")
    assert result.summary["rounds"] == 3 and result.summary["failed_nodes"] == []
    assert (result.folder / "summary.json").is_file()


def test_a_function_on_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refers to what is around it, as a cell of a notebook does, also to a module in a folder that only the notebook has
    added to sys.path; and it need not be a plain one."""
    import functools
    import importlib

    import torch

    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "own_models_of_a_notebook.py").write_text("from torch import nn\n\n\nclass Own(nn.Linear):\n    pass\n")
    monkeypatch.syspath_prepend(beside)
    own = importlib.import_module("own_models_of_a_notebook").Own
    widths = (4, 2)

    def train(rate: float, board: int) -> None:
        model = own(*widths)
        x = torch.full((8, 4), float(board + 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with edgegossip.join(model, state=[optimizer]) as run:
            assert (run.index, run.boards, run.name) == (board, 2, f"board-{board}")
            for _ in run.rounds():
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.exchange(loss=loss.item())

    settings = {"run.rounds": 4, "network.tls": "off", "gossip.topology": "complete"}
    result = edgegossip.local(functools.partial(train, 0.01), settings, nodes=2, runs=tmp_path)
    assert result.summary["failed_nodes"] == [] and result.summary["rounds"] == 4
    assert result.state_dict()["weight"].shape == (2, 4)


def test_a_quiet_run_that_fails_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Here the coordinator's script, when all is done. What it kept fits the model: second names, complex numbers."""
    import torch
    from torch import nn

    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        model.register_parameter("wave", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
        return model

    def train() -> None:
        with edgegossip.join(tied()) as run:
            run.evaluate(lambda: 1.0)
            for _ in run.rounds():
                run.exchange(loss=1.0)
        assert run.index >= 0, "no room"

    settings = {"run.mode": "server", "run.rounds": 2, "network.tls": "off", "evaluation.where": "coordinator"}
    with pytest.raises(RunError, match=r"its model is kept, but train\.py.* AssertionError: no room"):
        edgegossip.local(train, settings, nodes=2, runs=tmp_path)
    assert capfd.readouterr().out == ""
    (folder,) = tmp_path.iterdir()
    assert (folder / "summary.json").is_file()
    tied().load_state_dict(edgegossip.Result(folder).state_dict())


def test_a_run_that_fails_leaves_nothing_of_its_coordinators_script(tmp_path: Path) -> None:
    def train() -> None:
        from torch import nn

        with edgegossip.join(nn.Linear(2, 3)) as run:
            run.evaluate(lambda: {"NOT A NAME": 1.0})
            for _ in run.rounds():
                run.exchange(loss=1.0)

    arguments, there = list(sys.argv), set(threading.enumerate())
    settings = {"run.mode": "server", "run.rounds": 2, "network.tls": "off", "evaluation.where": "coordinator"}
    with pytest.raises(LocalError, match="the evaluation cannot be used"):
        edgegossip.local(train, settings, nodes=2, runs=tmp_path)
    assert "script" not in [thread.name for thread in set(threading.enumerate()) - there]
    assert sys.argv == arguments


def test_a_wrong_setting_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean run\.rounds"):
        edgegossip.run("quickstart-gossip", {"run.round": 3}, runs=tmp_path)
    assert not list(tmp_path.iterdir())
