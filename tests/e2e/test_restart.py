"""A board without checkpoints is killed and started again in the middle of a run: it takes over a
neighbour's model and ends with the others."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from edgegossip.telemetry.run_folder import RunData, read_run
from tests.e2e.command import Running, edgegossip

# A topology on which the rest is connected without any one board, and a codec that suits:
# (topology, boards, codec).
FITS = {
    "dpsgd": ("ring", 4, "minmax8"),
    "deep-squeeze": ("ring", 4, "4-bit-elastiquant"),
    "choco-sgd": ("ring", 8, "topk"),
    "sgp": ("exponential", 6, "minmax8"),
    "sparse-push": ("exponential", 5, "4-bit-elastiquant"),
    "quant-sgp": ("exponential", 5, "topk"),
    "parallel-sgd": ("complete", 4, "4-bit-elastiquant"),
    "ad-psgd": ("complete", 4, "8-bit-elastiquant"),
}


def run_with_a_death(name: str, folder: Path, rounds: int, at: int, **settings: Any) -> tuple[dict[str, Any], RunData]:
    """Kills board-1 when every board has done `at` rounds. Returns the summary and the records of a
    run that must succeed."""
    topology, nodes, codec = FITS.get(name, ("ring", 4, "minmax8"))
    pairs = {"gossip.algorithm": name, "gossip.topology": topology, "codec.name": codec, "run.nodes": nodes}
    pairs |= {"run.rounds": rounds, "network.restarts": 1, "checkpoint.every": 0, **settings}
    nodes = pairs["run.nodes"]
    sets = [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]
    with edgegossip("run", "quickstart-gossip", *sets, "--no-plots", "--json", runs=folder) as running:
        running.wait_until(lambda: len(steps(running)) == nodes and min(steps(running).values()) + 1 >= at)
        running.board("board-1").send_signal(signal.SIGKILL)
        code, out, err = running.finish()
        assert running.nobody_left()
        assert code == 0, (out, err)
        return json.loads(out), read_run(running.folder())


def steps(running: Running) -> dict[str, int]:
    """The last round of each board."""
    found = list(running.runs.glob("*/metrics.jsonl"))
    return {r.node: r.step for r in read_run(found[0].parent).metrics()} if found else {}


def check_that_it_caught_up(summary: dict[str, Any], data: RunData, rounds: int) -> None:
    assert (summary["failed_nodes"], summary["restarted_nodes"]) == ([], ["board-1"])
    assert {row["rounds"] for row in summary["boards"]} == {rounds}
    events = [e for e in data.events() if e.node == "board-1"]
    names = [e.name for e in events]
    assert names.count("restarted") == names.count("adopted") == names.count("finished") == 1
    own = [r for r in data.metrics() if r.node == "board-1"]
    restarted_s = next(e.t_s for e in events if e.name == "restarted")
    processes = [[r.step for r in own if (r.t_s > restarted_s) is again] for again in (False, True)]
    assert all(steps == sorted(set(steps)) for steps in processes)
    # It goes on, never back: to a round that all had done, and with rounds in common to no earlier
    # one than its own.
    assert processes[1][0] > processes[0][-1] and own[-1].step == rounds - 1
    assert [r.t_s for r in own] == sorted(r.t_s for r in own)
    accuracy = {row["node"]: row["accuracy"] for row in summary["boards"]}
    assert accuracy["board-1"] > 0.8 and accuracy["board-1"] > summary["accuracy"]["mean"] - 0.05


STREAMING = {"outer.optimizer": "nesterov", "outer.momentum": 0.3, "outer.fragments": 2, "outer.overlap": "true"}


@pytest.mark.slow
def test_a_board_that_is_killed_while_an_exchange_is_under_way_catches_up(tmp_path: Path) -> None:
    settings = {"network.grace_s": 60, "evaluation.every": 20, "run.nodes": 3, "training.local_steps": 40}
    summary, data = run_with_a_death("dpsgd", tmp_path, 45, 12, **settings, **STREAMING)
    check_that_it_caught_up(summary, data, 45)
    assert any("C" in str(r.values.get("time/spans")) for r in data.metrics())
