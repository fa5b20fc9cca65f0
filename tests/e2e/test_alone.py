"""`run --alone`: what each board learns by itself, together, and with the average of the models."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import edgegossip
from edgegossip.telemetry.run_folder import read_run
from edgegossip.types import ConfigError
from tests.e2e.command import edgegossip as command
from tests.laws.laws import verify

ROUNDS, STEPS, LR = 12, 2, 0.1
SCRIPT = """
    import argparse
    from pathlib import Path

    import torch

    import edgegossip

    parser = argparse.ArgumentParser()
    parser.add_argument("board")
    parser.add_argument("index", type=int)
    own = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(4, 1, bias=False), "head": torch.nn.Linear(1, 1)})
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(own.index))
    y = x[:, :1] if own.index == 2 else x.sum(1, keepdim=True)  # the law of one board is another one
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    error = lambda: (model["head"](model["body"](x)) - y).square().mean()
    with edgegossip.join(model, state=[optimizer], keep=["head.*"]) as run:
        run.evaluate(lambda: {"rmse": error().sqrt().item(), "examples": len(x)})
        for round in run.rounds():
            for _ in range(2):
                optimizer.zero_grad()
                loss = error()
                loss.backward()
                optimizer.step()
            run.exchange(loss=loss.item(), examples=len(x))
    Path(own.board).write_text(f"alone {run.alone}")
"""


def data_of(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(index))
    return x, x[:, :1] if index == 2 else x.sum(1, keepdim=True)


def model_of(values: dict[str, torch.Tensor] | None = None) -> torch.nn.ModuleDict:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(4, 1, bias=False), "head": torch.nn.Linear(1, 1)})
    if values is not None:
        model.load_state_dict(values)
    return model


def rmse(model: torch.nn.ModuleDict, index: int) -> float:
    x, y = data_of(index)
    return (model["head"](model["body"](x)) - y).square().mean().sqrt().item()


def by_itself(index: int) -> float:
    (x, y), model = data_of(index), model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(ROUNDS * STEPS):
        optimizer.zero_grad()
        (model["head"](model["body"](x)) - y).square().mean().backward()
        optimizer.step()
    return rmse(model, index)


@pytest.mark.parametrize("mode", ["gossip", pytest.param("server", marks=pytest.mark.slow)])
def test_each_board_has_its_score_alone_together_and_with_the_average(mode: str, tmp_path: Path) -> None:
    """On its own test set and with its own layers. What a script wrote to a file of its own is of
    the run together."""
    script, runs = tmp_path / "train.py", tmp_path / "runs"
    script.write_text(textwrap.dedent(SCRIPT))
    sets = [part for key in (f"run.mode={mode}", f"run.rounds={ROUNDS}") for part in ("--set", key)]
    arguments = ("run", str(script), "--boards", "3", "--alone", "--no-plots", *sets, "--", "{board}", "{index}")
    with command(*arguments, runs=runs, cwd=tmp_path) as running:
        code, out, err = running.finish()
        assert code in (0, 8), (out, err)
        assert running.nobody_left()
    assert [(tmp_path / f"board-{k}").read_text() for k in range(3)] == ["alone False"] * 3
    folder = next(path for path in runs.iterdir() if not path.name.endswith("-alone"))
    result = edgegossip.Result(folder)
    assert (result.summary["score"], result.summary["better"]) == ("rmse", "lower")
    rows = result.beside().set_index("board")
    for k in range(3):
        name = f"board-{k}"
        assert rows.alone[name] == pytest.approx(by_itself(k), rel=1e-3)
        assert rows.together[name] == pytest.approx(rmse(model_of(result.state_dict(name)), k), rel=1e-4)
        if mode == "gossip":
            average = {**result.state_dict(name), **result.state_dict()}  # which has no head
            assert rows.average[name] == pytest.approx(rmse(model_of(average), k), rel=1e-4)
    assert mode == "gossip" or np.isnan(rows.average).all()  # the coordinator's is the boards' mean already
    assert "board-2" in out and "alone" in out and "together" in out
    assert result.score == pytest.approx(rows.together.mean(), rel=1e-5)
    worse = [f["text"] for f in result.summary["verdict"] if f["kind"] == "worse"]
    assert len(worse) == 1 and f"at board-2, {rows.alone['board-2']:.4f} by itself" in worse[0]
    assert [verify(read_run(path)) for path in runs.iterdir()] == [[], []]
    alone = edgegossip.Result(next(path for path in runs.iterdir() if path.name.endswith("-alone")))
    assert alone.summary["sent_bytes"]["payload"] == 0 and alone.summary["verdict"] == []
    assert not any(event.name in ("peer-up", "peer-down") for event in read_run(alone.folder).events())


@pytest.mark.slow  # one sentence, after a whole run
def test_where_no_board_tests_its_model_there_is_nothing_to_compare(tmp_path: Path) -> None:
    """Which is found before the run together begins."""

    def train() -> None:
        with edgegossip.join(torch.nn.Linear(2, 1)) as run:
            for _ in run.rounds():
                run.exchange(loss=1.0)

    with pytest.raises(ConfigError, match="no board has tested its model"):
        edgegossip.local(train, {"network.tls": "off"}, nodes=2, rounds=2, runs=tmp_path, quiet=True, alone=True)
    assert [path.name.rpartition("-")[2] for path in tmp_path.iterdir()] == ["alone"]
