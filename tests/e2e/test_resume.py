"""Boards, or all of a run, are killed and go on from their checkpoints."""

from __future__ import annotations

import json
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from edgegossip.telemetry.run_folder import RunData, read_run
from tests.e2e.command import edgegossip, free_ports
from tests.e2e.test_restart import run_with_a_death, steps


def events_of(data: RunData, node: str, name: str) -> list[Any]:
    return [e for e in data.events() if (e.node, e.name) == (node, name)]


def started(runs: Path) -> int:
    """How often a board has begun to train in the run below `runs`."""
    return sum(e.name == "started" for found in runs.glob("*/events.jsonl") for e in read_run(found.parent).events())


def check_that_it_went_on(summary: dict[str, Any], data: RunData, rounds: int, at: int) -> None:
    assert (summary["failed_nodes"], summary["restarted_nodes"]) == ([], ["board-1"])
    started = events_of(data, "board-1", "started")
    died = [r.step for r in data.metrics() if r.node == "board-1" and r.t_s < started[1].t_s][-1]
    assert len(started) == 2 and "from its checkpoint of round" in started[1].text
    assert at <= died + 1 and started[1].fields["round"] >= died
    assert not events_of(data, "board-1", "checkpoint-failed")
    accuracy = {row["node"]: row["accuracy"] for row in summary["boards"]}
    assert accuracy["board-1"] > 0.8 and accuracy["board-1"] > summary["accuracy"]["mean"] - 0.05
    assert not list(data.path.glob("checkpoint/*/*.ckpt"))  # nobody will go on from them


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["ad-psgd", "quant-sgp", "parallel-sgd"])
def test_with_algorithms_of_three_kinds(name: str, tmp_path: Path) -> None:
    """Each of them is in tests/lab/sim/test_stored_disk.py."""
    settings = {"checkpoint.every": 1, "checkpoint.slack_s": 0, "training.local_steps": 20, "evaluation.every": 1000}
    summary, data = run_with_a_death(name, tmp_path, 120, 40, **settings)
    check_that_it_went_on(summary, data, 120, 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_board_that_was_started_by_hand_goes_on_by_hand(tmp_path: Path) -> None:
    """Two boards; one is killed twice, and given its command again."""
    ports = dict(zip("ab", free_ports(2), strict=True))
    sets = ("--set", "run.nodes=2", "--set", "gossip.topology=complete", "--set", "run.rounds=60")
    slow = ("--set", "training.local_steps=60", "--set", "network.grace_s=60", "--set", "checkpoint.slack_s=0")

    def start(name: str) -> Any:
        other = "b" if name == "a" else "a"
        where = ("--name", name, "--listen", f"127.0.0.1:{ports[name]}", "--peer", f"{other}=127.0.0.1:{ports[other]}")
        return edgegossip("node", "quickstart-gossip", *where, *sets, *slow, runs=tmp_path / name)

    with ExitStack() as stack:
        a, b = stack.enter_context(start("a")), stack.enter_context(start("b"))
        died = []
        for at_least in (15, 30):
            b.wait_until(lambda b=b, n=at_least: bool(steps(b)) and min(steps(b).values()) >= n)
            b.process.kill()
            b.process.wait()
            folder = b.folder()
            died.append(steps(b)["b"])
            b = stack.enter_context(start("b"))
        for board in (a, b):
            code, out, err = board.finish()
            assert code == 0, (out, err)
    data = read_run(folder)
    began = [e.fields["round"] for e in events_of(data, "b", "started")[1:]]
    assert all(d <= b <= d + 1 for d, b in zip(died, began, strict=True))
    rounds = [r.step for r in data.metrics()]
    assert rounds[-1] == 59 and set(rounds) == set(range(60)) and len(rounds) <= 62
    assert not events_of(data, "b", "adopted")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_boards_and_the_whole_run_are_killed_at_random_moments(tmp_path: Path) -> None:
    """Eight boards killed one after the other, then the run itself, five times: it ends with what
    it would have reached."""
    rng, rounds, killed = Random(7), 1500, 0
    sets = ("--set", f"run.rounds={rounds}", "--set", "training.local_steps=100", "--set", "network.restarts=1000")
    arguments: tuple[str, ...] = ("run", "quickstart-gossip", *sets)
    for _ in range(5):
        starts = started(tmp_path / "runs")
        with edgegossip(*arguments, "--no-plots", "--json", runs=tmp_path / "runs") as running:
            running.wait_until(lambda r=running, n=starts: started(r.runs) >= n + 4)  # type: ignore[misc]
            for _ in range(8):
                time.sleep(0.3 + 1.5 * rng.random())
                with suppress(LookupError, psutil.Error):
                    running.board(f"board-{rng.randrange(4)}").send_signal(signal.SIGKILL)
                    killed += 1
            assert running.process.poll() is None, "it ended before it was killed: more rounds"
            running.process.kill()
            running.process.wait()
            assert running.nobody_left()
            arguments = ("run", "--resume", str(running.folder()))
    with edgegossip(*arguments, "--no-plots", "--json", runs=tmp_path / "runs") as running:
        code, out, err = running.finish(600)
        assert code == 0, err
        data = read_run(running.folder())
    summary = json.loads(out)
    assert killed >= 30 and summary["failed_nodes"] == [] and summary["accuracy"]["min"] > 0.95
    began = [e.fields.get("round", 0) for e in data.events() if e.name == "started"]
    assert max(began) > 0 and not [e for e in data.events() if e.name in ("checkpoint-failed", "checkpoint-skipped")]
