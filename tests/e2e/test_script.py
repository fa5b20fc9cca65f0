"""A user's own training script on boards of this machine."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgegossip.telemetry.run_folder import RunData, read_run
from tests.e2e.command import run_json

# tests/training/test_script.py has what a script may do, test_forked.py some in processes,
# tests/fleet/launch what becomes of those that fail or are killed, tests/test_notebook.py a
# coordinator's own.
pytestmark = pytest.mark.slow
# Each board draws data of its own, from one law: y = x W. No two boards see the same example. As
# under hydra it goes to another folder, here one where nothing can be written.
SCRIPT = """
    import argparse
    import atexit
    import os
    from pathlib import Path

    import torch
    from torch import nn

    import edgegossip

    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    own = parser.parse_args()
    os.chdir("/proc")

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    draw = torch.Generator().manual_seed(own.seed)
    law = torch.randn(8, 1, generator=torch.Generator().manual_seed(7))
    x = torch.randn(256, 8, generator=draw)
    y = x @ law
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with edgegossip.join(model, state=[optimizer]) as run:
        @run.evaluate
        def test():
            return {"mae": (model(x) - y).abs().mean(), "loss": nn.functional.mse_loss(model(x), y)}

        for round in run.rounds():
            for _ in range(5):
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            run.exchange(loss=loss.item(), examples=len(x), metrics={"norm": float(model[0].weight.norm())})
    torch.save(model.state_dict(), Path(__file__).with_name(f"{run.name}.pt"))
    atexit.register(Path(__file__).with_name(f"{run.name}.ended").touch)
    atexit.register(print, "goodbye", end="")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def metrics(data: RunData, node: str, name: str) -> list[float]:
    found = (r.number(name) for r in data.metrics() if r.node == node)
    return [value for value in found if value is not None]


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("gossip", ("gossip.algorithm=choco-sgd", "codec.name=minmax8", "outer.optimizer=nesterov")),
        ("server", ("server.strategy=fedadam", "server.strategy_params.eta=0.01", "evaluation.where=coordinator")),
    ],
    ids=["choco", "fedadam"],
)
def test_a_script_trains_on_boards_of_this_machine(
    mode: str, more: tuple[str, ...], script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it forks ends with its board: nobody waits for it, and it does not stay."""
    fork = "import os, time\n        if round == 2 and os.fork() == 0:\n            time.sleep(600)\n        "
    script.write_text(script.read_text().replace("for _ in range(5):", fork + "for _ in range(5):"))
    monkeypatch.chdir(tmp_path)
    sets = [part for key in (f"run.mode={mode}", "run.rounds=20", *more) for part in ("--set", key)]
    runs = tmp_path / "runs"
    summary = run_json(
        "run", str(script), "--boards", "3", *sets, "--no-plots", "--", "--seed", "{index}", runs=Path("runs")
    )
    assert (summary["failed_nodes"], summary["rounds"], summary["nodes"]) == ([], 20, 3)
    data = read_run(next(runs.iterdir()))
    losses = metrics(data, "board-0", "train/loss")
    assert len(losses) == 20 and losses[-1] < 0.6 * losses[0]
    assert metrics(data, "board-1", "train/norm")
    assert not metrics(data, "board-1", "train/examples")  # how many a round saw is the script's affair
    evaluated = [r.node for r in data.metrics() if r.number("eval/mae") is not None]
    assert evaluated, "nobody evaluated"
    for row in summary["boards"]:
        assert row["accuracy"] == row["scores"].get("mae") and "accuracy" not in row["scores"]
        if row["role"] == "board":
            assert (tmp_path / f"{row['node']}.ended").exists()
    assert metrics(data, "board-2", "time/compute_s") and summary["sent_bytes"]["payload"] > 0


def check_that_a_script_holds(saved: Path, model: Any) -> None:
    """What it saved after its loop is the model that came of the run."""
    state = torch.load(saved, weights_only=True)
    assert state and all(np.array_equal(model[name], value.numpy()) for name, value in state.items())
