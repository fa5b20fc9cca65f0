"""kill -9 of a coordinator, of its boards, or of all, at random moments of real runs. Resumable:
what is in the file is done.

    python -m tests.e2e.server_kills --count 50 --out server_kills.jsonl

A trial is a coordinator and two boards on digits (TLS and keys, co3 up, 8-bit-elastiquant down,
momentum), and five kills at random moments of it; what was killed is started again with the same
command within a second. It holds when all three end by themselves in time, and the curve is that of
a run without kills:

- loss by loss the same, bit for bit, until the first round in which a board was killed;
- to the end, and the same final model, when only the coordinator was killed;
- otherwise within what a lost round may cost: final accuracy within 0.03, and the last losses
  close.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from edgegossip import codecs, training
from edgegossip import recipe as recipes
from edgegossip.modelfile import ModelFile
from edgegossip.node.storage import vector_of
from edgegossip.study.server import VirtualServer
from edgegossip.telemetry.run_folder import read_run
from tests.e2e.server_fleet import COORDINATOR, ServerFleet, server_fleet

BOARDS = ("board-0", "board-1")
ROUNDS = 60
SETTINGS = (
    "run.nodes=2",
    f"run.rounds={ROUNDS}",
    "codec.name=co3",
    "server.downlink=8-bit-elastiquant",
    f"evaluation.every={ROUNDS}",
    "training.local_steps=20",
    "training.momentum=0.9",
    "training.lr=0.02",
)
KILLS = 5  # a trial
DEADLINE_S = 1200.0  # of a trial; without kills it takes some 30 s on an idle machine
ACCURACY = 0.03
VICTIMS = (
    (COORDINATOR,),
    (COORDINATOR,),
    ("board-0",),
    ("board-1",),
    (COORDINATOR, "board-1"),
    ("board-0", "board-1"),
    (COORDINATOR, *BOARDS),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """What a run recorded."""

    losses: dict[tuple[str, int], float]  # by board and round
    accuracy: float
    model: bytes


@dataclass(slots=True)
class Trial:
    """One run with kills. Everything follows from the seed, as far as a real machine allows."""

    seed: int
    fleet: ServerFleet
    log: list[str] = field(default_factory=list)
    kills: list[dict[str, Any]] = field(default_factory=list)

    def play(self) -> None:
        random, began = Random(self.seed), time.monotonic()
        self.fleet.enrol()
        for name in self.fleet.names:
            self.fleet.start(name)
        self.fleet.until_round(1)
        kinds = random.choices(VICTIMS, k=KILLS) if random.random() < 0.7 else [(COORDINATOR,)] * KILLS
        for victims in kinds:
            if random.random() < 0.6:  # somewhere in the training; else soon, often while something starts again
                self.fleet.until_round(min(self.fleet.rounds() + random.randint(1, 14), ROUNDS - 2))
            time.sleep(random.uniform(0.0, 3.0))
            if self.over():
                self.log.append("the run was over")
                break
            round = self.fleet.rounds()
            self.kills.append({"victims": victims, "round": round})
            self.log.append(f"{time.monotonic() - began:.1f} s, round {round}: {' '.join(victims)}")
            for name in victims:
                self.fleet.kill(name)
            for name in random.sample(victims, len(victims)):
                time.sleep(random.uniform(0.0, 0.7))
                self.fleet.start(name)
        self.end(began + DEADLINE_S)

    def over(self) -> bool:
        """Whether the coordinator has said goodbye: a board that comes after that finds nobody."""
        return self.fleet.processes[COORDINATOR].poll() is not None or self.fleet.rounds() >= ROUNDS

    def end(self, until: float) -> None:
        for name, process in self.fleet.processes.items():
            try:
                self.fleet.check_exit(name, process.wait(max(1.0, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} has not ended") from None


class Losses:
    """What `VirtualServer` tells of each board and round."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], float] = {}

    def done(self, node: int, round: int, model: Any, loss: float) -> None:
        del model
        self.found[BOARDS[node], round] = loss


def curve(fleet: ServerFleet) -> Curve:
    """Of a run that is over, as its coordinator's folder has it; a round that was asked for twice
    counts once."""
    folder = fleet.run_folder(COORDINATOR)
    data = read_run(folder)
    assert data.summary is not None
    losses = {(r.node, r.step): float(r.number("train/loss") or 0.0) for r in data.metrics() if r.node in BOARDS}
    recipe = recipes.load("quickstart-server", SETTINGS)
    model = vector_of(ModelFile(folder / "checkpoint" / "model.npz"), training.initial_model(recipe)[0])
    return Curve(losses, data.summary["accuracy"]["mean"], model.tobytes())


def undisturbed() -> Curve:
    """The same run without an accident, computed in this process."""
    recipe = recipes.load("quickstart-server", SETTINGS)
    layout, x = training.initial_model(recipe)
    workloads, losses = training.build_workloads(recipe), Losses()
    up, down = codecs.get("co3"), codecs.get("8-bit-elastiquant")
    server = VirtualServer(layout, recipes.run_id(recipe), up, BOARDS, workloads, ROUNDS, downlink=down)
    server.play(x, losses)  # type: ignore[arg-type]
    return Curve(losses.found, workloads[0].evaluate(server.model).accuracy, server.model.tobytes())


def check(kills: list[dict[str, Any]], found: Curve, expected: Curve) -> None:
    """Raises AssertionError."""
    first = min((k["round"] for k in kills if k["victims"] != (COORDINATOR,)), default=ROUNDS)
    for round in range(min(first, ROUNDS)):
        for name in BOARDS:
            losses = found.losses.get((name, round)), expected.losses[name, round]
            assert losses[0] == losses[1], f"round {round}, {name}: loss {losses[0]}, not {losses[1]}"
    if first == ROUNDS:
        assert found.model == expected.model, "another model, though only the coordinator was killed"
    assert {round for _, round in found.losses} == set(range(ROUNDS)), "rounds are missing"
    assert abs(found.accuracy - expected.accuracy) <= ACCURACY, f"accuracy {found.accuracy}, not {expected.accuracy}"
    last = [np.mean([x for (_, r), x in c.losses.items() if r >= ROUNDS - 10]) for c in (found, expected)]
    assert last[0] < 1.25 * last[1] + 0.02, f"the last losses are {last[0]:.4f}, not {last[1]:.4f}"


def run(seed: int, expected: Curve) -> dict[str, object]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, server_fleet(Path(folder), BOARDS, SETTINGS, DEADLINE_S) as fleet:
        trial, failure, accuracy = Trial(seed, fleet), "", 0.0
        try:
            trial.play()
            found = curve(fleet)
            accuracy = found.accuracy
            check(trial.kills, found, expected)
        except Exception:
            failure = traceback.format_exc()[-1500:] + "\n" + fleet.logs()
        took = round(time.monotonic() - began, 1)
    kills = [{**k, "victims": list(k["victims"])} for k in trial.kills]
    row = {"seed": seed, "seconds": took, "kills": kills, "accuracy": accuracy, "undisturbed": expected.accuracy}
    return {**row, "log": trial.log, "failure": failure}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="kills")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--out", type=Path, default=Path("server_kills.jsonl"))
    options = parser.parse_args()
    text = options.out.read_text() if options.out.exists() else ""
    rows = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    expected = undisturbed()
    seed = options.first
    while sum(len(row["kills"]) for row in rows) < options.count:
        if seed not in {row["seed"] for row in rows}:
            rows.append(run(seed, expected))
            with options.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            words = "FAILED" if rows[-1]["failure"] else "held"
            print(f"{seed}: {len(rows[-1]['kills'])} kills, {words} in {rows[-1]['seconds']} s", flush=True)
        seed += 1
    failed = [row["seed"] for row in rows if row["failure"]]
    print(f"{len(rows)} trials, {sum(len(r['kills']) for r in rows)} kills, {len(failed)} trials failed {failed or ''}")


if __name__ == "__main__":
    main()
