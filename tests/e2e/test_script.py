"""A user's own training script in real processes: on one machine, on boards, through a coordinator;
killed, and wrong."""

from __future__ import annotations

import json
import re
import signal
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgegossip.telemetry.run_folder import RunData, read_run
from edgegossip.telemetry.summary import summarise
from tests.e2e.command import Running, edgegossip, run_json, unwrapped
from tests.e2e.test_restart import free_ports, steps

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
        (
            "gossip",
            ("gossip.algorithm=choco-sgd", "codec.name=minmax8", "outer.optimizer=nesterov", "outer.momentum=0.4"),
        ),
        ("gossip", ("gossip.algorithm=ad-psgd", "gossip.topology=complete")),
        ("server", ("codec.name=minmax8", "outer.optimizer=nesterov")),
        ("server", ("server.strategy=fedadam", "server.strategy_params.eta=0.01", "evaluation.where=coordinator")),
    ],
    ids=["choco", "ad-psgd", "fedavg", "fedadam"],
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
        "run", str(script), "--nodes", "3", *sets, "--no-plots", "--", "--seed", "{index}", runs=Path("runs")
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


def test_a_board_that_is_killed_goes_on_with_its_optimiser(script: Path, tmp_path: Path) -> None:
    # Slow rounds: the run must not be over before the board is back.
    script.write_text(
        script.read_text().replace("for _ in range(5):", "__import__('time').sleep(0.2)\n        for _ in range(5):")
    )
    runs = tmp_path / "runs"
    sets = ("--set", "run.rounds=60", "--set", "network.restarts=1", "--set", "checkpoint.slack_s=0")
    with edgegossip("run", str(script), "--nodes", "3", *sets, "--no-plots", "--json", runs=runs) as running:
        running.wait_until(lambda: len(steps(running)) == 3 and min(steps(running).values()) >= 10)
        running.board("board-1").send_signal(signal.SIGKILL)
        code, out, err = running.finish()
    assert code == 0, (out, err)
    summary, data = json.loads(out), read_run(next(runs.iterdir()))
    assert (summary["failed_nodes"], summary["restarted_nodes"]) == ([], ["board-1"])
    assert (
        "from its checkpoint of round"
        in [e.text for e in data.events() if (e.node, e.name) == ("board-1", "started")][1]
    )


def board(script: Path, name: str, folder: Path, *more: str) -> Any:
    """One board by hand, in a folder of its own, where its script lies too."""
    folder.mkdir()
    own = folder / script.name
    own.write_text(script.read_text())
    return edgegossip("node", script.name, "--name", name, *more, "--", "--seed", "3", runs=Path("runs"), cwd=folder)


def finished(boards: list[Running]) -> list[tuple[int, str, str]]:
    ended = [running.finish() for running in boards]
    assert [code for code, _, _ in ended] == [0] * len(ended), ended
    return ended


def check_that_a_script_holds(saved: Path, model: Any) -> None:
    """What it saved after its loop is the model that came of the run."""
    state = torch.load(saved, weights_only=True)
    assert state and all(np.array_equal(model[name], value.numpy()) for name, value in state.items())


def test_boards_train_through_a_coordinator(script: Path, tmp_path: Path) -> None:
    [port] = free_ports(1)
    with ExitStack() as stack:
        where = ("--for", str(script), "--boards", "pi-1,pi-2", "--port", str(port))
        sets = ("--set", "run.nodes=2", "--set", "run.rounds=5", "--set", "evaluation.where=coordinator", "--no-plots")
        running = [stack.enter_context(edgegossip("coordinator", *where, *sets, runs=Path("runs"), cwd=tmp_path))]
        for name in ("pi-1", "pi-2"):
            own = board(script, name, tmp_path / name, "--coordinator", f"127.0.0.1:{port}")
            running.append(stack.enter_context(own))
        finished(running)
    kept = np.load(next((tmp_path / "runs").glob("*/checkpoint/model.npz")))
    for folder in (tmp_path / "pi-1", tmp_path / "pi-2", tmp_path):
        name = "coordinator" if folder == tmp_path else folder.name
        check_that_a_script_holds(folder / f"{name}.pt", kept)


@pytest.mark.parametrize("mode", ["gossip", "server"])
def test_a_run_whose_boards_fail_before_their_first_round_ends_with_the_one_cause(
    mode: str, script: Path, tmp_path: Path
) -> None:
    """Nobody trains without them, and the exit code says that nothing came of it."""
    text = script.read_text().replace(
        "x = torch.randn(",
        "run_name = __import__('sys').argv[2]\nrun_name == '0' or open(f'none-{run_name}')\nx = torch.randn(",
    )
    # The coordinator reads no data: its script ends at the join.
    script.write_text(text.replace("run_name == '0'", "run_name in ('0', '-1')"))
    sets = ("--set", "run.rounds=400", "--set", f"run.mode={mode}", "--no-plots")
    with edgegossip(
        "run", str(script), "--boards", "3", *sets, "--", "--seed", "{index}", runs=tmp_path / "runs"
    ) as running:
        code, out, err = running.finish()
        assert running.nobody_left()
        folder = running.folder()
    assert code == 6, (out, err)
    last = err.strip().splitlines()[-1]
    assert re.match(
        r"edgegossip: 2 of 3 boards ended before their first round: board-1 and board-2, such as at board-1: "
        r"train\.py, line \d+: FileNotFoundError: .*'none-1'$",
        last,
    ), err
    data = read_run(folder)
    assert "board-0" not in out and len(metrics(data, "board-0", "train/loss")) < 400  # no table, and no end
    assert [f["kind"] for f in summarise(data)["verdict"]] == ["lost"]


def test_a_script_that_raises_is_named_and_the_others_go_on(script: Path, tmp_path: Path) -> None:
    text = script.read_text().replace(
        "    for _ in range(5):", "    for _ in range(5 // (run.name != 'board-1' or round < 3)):"
    )
    script.write_text(text)
    runs = tmp_path / "runs"
    sets = ("--set", "run.rounds=12", "--set", "gossip.deadline_s=5", "--no-plots")
    with edgegossip("run", str(script), "--nodes", "3", *sets, runs=runs) as running:
        code, out, err = running.finish()
    assert code == 7, (out, err)
    assert re.search(r"lost board-1: train\.py, line 2\d: ZeroDivisionError", err), err
    assert re.search(
        r"^lost: board-1 after \d+ rounds?, at .* wall: train\.py, line 2\d: ZeroDivisionError", unwrapped(out), re.M
    ), out
    log = next(runs.glob("*/logs/board-1.log")).read_text()
    assert "Traceback" in log and "train.py" in log
