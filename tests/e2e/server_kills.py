"""kill -9 of a coordinator, of its boards, or of all, at random moments of real runs. Resumable: what is in the file is done.

    python -m tests.e2e.server_kills --count 50 --out server_kills.jsonl

A trial is a coordinator and two boards on digits (TLS and keys, co3 up, 8-bit-elastiquant down, momentum), and five kills at
random moments of it; what was killed is started again with the same command within a second. It holds when all three end by
themselves in time, and the curve is that of a run without kills:

- loss by loss the same, bit for bit, until the first round in which a board was killed;
- to the end, and the same final model, when only the coordinator was killed;
- otherwise within what a lost round may cost: final accuracy within 0.03, and the last losses close.
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
DEADLINE_S = 900.0  # of a trial; without kills it takes some 30 s
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

    losses: dict[int, float]  # by round
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
            time.sleep(random.uniform(0.0, 5.0))
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
                code = process.wait(max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} has not ended") from None
            assert code in (0, 7), f"{name} ended with {code}"


def curve(fleet: ServerFleet) -> Curve:
    folder = fleet.run_folder(COORDINATOR)
    summary = json.loads((folder / "summary.json").read_text())
    with np.load(folder / "checkpoint" / "model.npz") as model:
        data = b"".join(model[name].tobytes() for name in sorted(model.files))
    losses = {record["step"]: record["train/loss"] for record in fleet.records() if "train/loss" in record}
    return Curve(losses, summary["accuracy"]["mean"], data)


def undisturbed() -> Curve:
    with tempfile.TemporaryDirectory() as folder, server_fleet(Path(folder), BOARDS, SETTINGS, DEADLINE_S) as fleet:
        for name in fleet.names:
            fleet.start(name)
        fleet.finish()
        return curve(fleet)


def check(kills: list[dict[str, Any]], found: Curve, expected: Curve) -> None:
    """Raises AssertionError."""
    first = min((k["round"] for k in kills if k["victims"] != (COORDINATOR,)), default=ROUNDS)
    assert sorted(found.losses) == list(range(ROUNDS)), f"rounds are missing: {sorted(found.losses)}"
    for round in range(min(first, ROUNDS)):
        assert found.losses[round] == expected.losses[round], f"round {round}: another loss"
    if first == ROUNDS:
        assert found.model == expected.model, "another model, though only the coordinator was killed"
    assert abs(found.accuracy - expected.accuracy) <= ACCURACY, f"accuracy {found.accuracy}, not {expected.accuracy}"
    last = [np.mean([c.losses[r] for r in range(ROUNDS - 10, ROUNDS)]) for c in (found, expected)]
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
