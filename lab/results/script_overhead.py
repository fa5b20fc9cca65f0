#!/usr/bin/env python3
"""Measure what the examples' rounds cost as scripts on a board, beside what they train.

    python -m lab.results.script_overhead DIR [CASE...]

DIR is the work folder of example_runs.py, whose data it takes. A round runs from the moment that
the board hands a model to the script to the moment that it has the update. The script's own part
begins when run.exchange (or the first run.rounds) returns, and ends when it calls run.exchange
again. What is left is the overhead: two hand-overs between threads, the copies into and out of the
model, the checks. That is one process, one thread, nothing mixed. Beside it: the median round of a
run on this machine (four boards, gossip in fp32), with what it encodes, sends and waits for.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import edgegossip
from edgegossip import recipe as recipes
from edgegossip.telemetry.run_folder import read_run
from edgegossip.training.script import Run, ScriptWorkload
from lab.results.example_runs import CASES, SCRIPTS, Case

ROUNDS, FIRST = 12, 2  # measured, after some that fill caches
RUN_ROUNDS = 20
CHOSEN = ("images", "segmentation", "forecast", "text", "gpt", "anomalies")


class Clock:
    """Notes when the script is at its own work, by wrapping `Run.exchange`."""

    def __init__(self) -> None:
        self.own_s: list[float] = []
        self._began_s = 0.0
        exchange, start = Run.exchange, Run.start

        def timed_exchange(run: Run, **given: Any) -> bool:
            self.own_s.append(time.perf_counter() - self._began_s)
            goes_on = exchange(run, **given)
            self._began_s = time.perf_counter()
            return goes_on

        def timed_start(run: Run) -> bool:
            goes_on = start(run)
            self._began_s = time.perf_counter()
            return goes_on

        Run.exchange = timed_exchange  # type: ignore[method-assign]
        Run.start = timed_start  # type: ignore[method-assign]


def measure(name: str, case: Case, data: Path, clock: Clock) -> str:
    args = [word.replace("{rounds}", str(case.rounds)) for word in case.script_args(data, "{board}", case.boards)]
    settings = [f"run.nodes={case.boards}", f"run.rounds={case.rounds}", f"run.script_args={args!r}".replace("'", '"')]
    script = str(SCRIPTS / case.example / "train.py")
    workload = ScriptWorkload(recipes.load(script, settings), 0, "board-0")
    x, whole_s = workload.initial(1), []
    clock.own_s.clear()
    for round in range(FIRST + ROUNDS):
        given, began_s = x.copy(), time.perf_counter()
        x = x + workload.local_update(given, round).delta
        whole_s.append(time.perf_counter() - began_s)
    workload.abandon()
    over_s = [whole - own for whole, own in zip(whole_s, clock.own_s, strict=True)][FIRST:]
    train_s, over = statistics.median(whole_s[FIRST:]), statistics.median(over_s)
    values = {
        "run.nodes": case.boards,
        "run.rounds": RUN_ROUNDS,
        "run.script_args": args,
        "evaluation.every": RUN_ROUNDS,
    }
    with tempfile.TemporaryDirectory() as runs:
        result = edgegossip.run(script, values | {"gossip.topology": "complete"}, runs=runs, quiet=True)
        rounds_s = [r.number("time/round_s") for r in read_run(result.folder).metrics()]
    round_s = statistics.median(seconds for seconds in rounds_s if seconds)
    shares = f"{over / train_s:.2%} | {1e3 * round_s:.1f} | {over / round_s:.2%}"
    return f"| {name} | {x.size:,} | {1e3 * train_s:.1f} | {1e3 * over:.2f} | {shares} |"


def main(folder: Path, chosen: Sequence[str]) -> None:
    clock = Clock()
    print("| example | values | training (ms) | overhead (ms) | share of it | round of a run (ms) | share of it |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in chosen or CHOSEN:
        print(measure(name, CASES[name], folder / "data" / f"{name}-1", clock), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
