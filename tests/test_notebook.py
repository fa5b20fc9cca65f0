"""Fleets from Python: a recipe, and a function that lies in no file."""

from __future__ import annotations

import functools
import importlib
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import edgegossip
from edgegossip.fleet.launch import gossip
from edgegossip.fleet.launch.fork_server import MODULES, OF_SCRIPTS, ForkServer
from edgegossip.training.loader import Sampler
from edgegossip.types import ConfigError, RunError
from tests.e2e.command import Kept


@pytest.mark.slow  # what failed is told as in tests/fleet/launch
def test_a_quiet_run_that_fails_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Here the coordinator's script, when all is done. What it kept fits the model: second names,
    complex numbers."""
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
        edgegossip.local(train, settings, nodes=2, runs=tmp_path, quiet=True)
    assert capfd.readouterr().out == ""
    (folder,) = tmp_path.iterdir()
    assert (folder / "summary.json").is_file()
    tied().load_state_dict(edgegossip.Result(folder).state_dict())


@pytest.mark.parametrize(
    ("settings", "keys", "words"),
    [
        ({"run.round": 3}, {}, r"unknown recipe key run\.round; did you mean run\.rounds"),
        ({}, {"round": 3}, "round = 3: no such setting; did you mean rounds"),
        ({}, {"lr": 0.1}, "lr = 0.1: no such setting; did you mean training__lr or outer__lr"),
        ({"topology": "torus"}, {}, "did you mean gossip__topology"),
        ({}, {"codec": "topk"}, "did you mean codec__name"),
        ({}, {"codec__nam": "topk"}, r"unknown recipe key codec\.nam; did you mean codec\.name"),
        ({}, {"codec__name": "topq"}, "did you mean topk"),
        ({}, {"rounds": 0}, r"run\.rounds = 0: out of range \(from 1 to 10000000\); the nearest is 1"),
        ({}, {"nodes": "four"}, r'run\.nodes = "four": must be a whole number'),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(
    tmp_path: Path, settings: dict[str, Any], keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        edgegossip.run("quickstart-gossip", settings, runs=tmp_path, **keys)
    assert not list(tmp_path.iterdir())


JOB = """
    import numpy as np
    from torch import nn

    def data(folder, board="board-0"):
        x = np.random.default_rng(int(board[-1])).normal(size=(60, 8)).astype(np.float32)
        classes = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
        return (x, classes), (x, classes)

    def net(shape, outputs, norm):
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))
"""


@pytest.fixture
def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What both runs in gossip fork their boards from, and the folder that the notebook has added
    to sys.path before."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with ForkServer((*MODULES["gossip"], *OF_SCRIPTS), 1, tmp_path / "forks" / "log") as server:
        monkeypatch.setattr(gossip, "start_fork_server", lambda run: Kept(server))
        yield


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("mode", "algorithm", "codec", "board"),
    [
        ("gossip", "choco-sgd", "8-bit-qsgd", "board-1"),
        pytest.param("server", "dpsgd", "minmax8", "", marks=pytest.mark.slow),
    ],
)
def test_a_recipe_and_a_function_of_the_same_job_end_with_the_same_model(
    tmp_path: Path, mode: str, algorithm: str, codec: str, board: str
) -> None:
    """Bit for bit, on one thread; be settings keywords, sections or keys, of which the last one
    counts. The function refers to what is around it, as a cell of a notebook does, also to a module
    in a folder that only the notebook has added to sys.path; and it need not be a plain one."""
    (tmp_path / "same_job.py").write_text(textwrap.dedent(JOB))
    data = {"data.name": "same_job:data", "data.partition": "local", "data.classes": 3, "model.name": "same_job:net"}
    keys = {"local_steps": 3, "batch_size": 16, "lr": 0.1, "schedule": "constant", "weight_decay": 0.0}
    recipe = {**data, **{f"training.{key}": value for key, value in keys.items()}}
    one = edgegossip.run(
        "quickstart-gossip",
        {
            "run.mode": mode,
            "gossip": {"topology": "complete"},
            "run.rounds": 50,
            "codec.params": {"ratio": 0.5},
            **recipe,
        },
        rounds=6,
        nodes=2,
        network__tls="off",
        codec={"name": codec, "params": {}},
        gossip__algorithm=algorithm,
        runs=tmp_path / "runs",
    )
    assert one.folder.parent == tmp_path / "runs" and one.boards[-2:] == ("board-0", "board-1")
    told = tomllib.loads((one.folder / "recipe.toml").read_text())
    assert (told["run"]["rounds"], told["run"]["nodes"], told["gossip"]["topology"]) == (6, 2, "complete")
    assert (told["codec"], told["gossip"]["algorithm"]) == ({"name": codec, "params": {}}, algorithm)

    job, steps = importlib.import_module("same_job"), 3

    def train(rate: float, index: int) -> None:
        (x, y), _ = job.data("", f"board-{index}")
        x, y = torch.tensor(x), torch.tensor(y)
        torch.manual_seed(1)
        model = job.net((8,), 3, "")
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, nesterov=True)
        batches = Sampler(len(x), 16, seed=1, node=index)
        run = edgegossip.join(model, state=[optimizer])
        assert run.index < 0 or (run.index, run.boards, run.name) == (index, 2, f"board-{index}")
        for round in run.rounds():
            for step in range(steps):
                chosen = batches.batch(steps * round + step)
                loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            run.exchange(loss=loss.item(), examples=len(x), steps=steps)

    settings = {"run.mode": mode, "run.rounds": 6, "network.tls": "off", "gossip.topology": "complete"}
    settings |= {"gossip.algorithm": algorithm, "codec.name": codec}
    two = edgegossip.local(functools.partial(train, 0.1), settings, nodes=2, runs=tmp_path / "runs")
    for result in (one, two):
        assert result.summary["failed_nodes"] == [] and result.summary["rounds"] == 6
    a, b = (r.state_dict(board=board) if board else r.state_dict() for r in (one, two))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
