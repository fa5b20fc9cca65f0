"""Random faults on short runs of real boards in network namespaces.

    python -m tests.e2e.schedules --count 100

A schedule is four to six boards on digits and two to four faults at random times: a board killed
and started again, a split that heals, a link cut in one direction that is mended, a board asleep
for up to 12 s, a board that leaves and comes back. It holds when every board ends by itself in time
with exit code 0, no process is left, and nobody's accuracy is far below that of a run without
faults, of which there is one for each number of boards. At the end all of them together must have
lost no more than half a point in the mean.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from tests.e2e.members import Members, members
from tests.e2e.network import network

SETTINGS = ("run.rounds=120", "training.local_steps=30", "evaluation.every=1000", "gossip.deadline_s=10")
START_S = 600.0  # until somebody trains: boards load PyTorch at the same time, on a machine that may be busy
DEADLINE_S = 600.0  # from then on; a run without faults takes some 20 s on an idle machine
LEAVE_S = 120.0  # from SIGTERM to the end of the process, likewise
BOARD = 0.03  # what one board may lose: a hundredth is 3.5 of the 355 test images, and who was away missed a share of the data
MEAN = 0.005  # what all boards of all schedules may lose on average
SIZES = (4, 6)
CLOCKS_S = 1.0  # between the time of a record and that of its file


class Schedule:
    """Everything follows from the seed, as far as a real machine allows."""

    def __init__(self, seed: int, fleet: Members, size: int) -> None:
        self.random, self.fleet, self.size = Random(seed), fleet, size
        self.log: list[str] = []
        self.accuracy: dict[int, float] = {}
        self.began = self.began_training = time.monotonic()

    def say(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self.began:.1f} {text}")

    def alive(self) -> list[int]:
        return [k for k, board in self.fleet.boards.items() if board.process.poll() is None]

    def play(self, faulty: bool) -> None:
        self.fleet.start_all(self.size)
        self.fleet.wait_until(lambda: any(self.fleet.metrics(k) for k in self.fleet.boards), "somebody trains", START_S)
        self.began_training = time.monotonic()
        faults: list[Callable[[], None]] = [self.kill, self.split, self.cut, self.sleep, self.leave]
        for fault in self.random.choices(faults, k=self.random.randint(2, 4)) if faulty else ():
            time.sleep(self.random.uniform(0.2, 2.0))
            if len(self.alive()) >= 3:
                fault()
        self.end()

    def again(self, k: int) -> None:
        """Start board k again through somebody who is there, unless the run is over."""
        seeds = [s for s in self.alive() if s != k]
        if not seeds or any(self.fleet.events(s, "finished") for s in seeds):
            self.say(f"{k} stays away: the others are done")
            del self.fleet.boards[k]
            return
        seed = self.random.choice(seeds)
        self.say(f"{k} joins through {seed}")
        self.fleet.start(k, seed=seed)

    def kill(self) -> None:
        k = self.random.choice(self.alive())
        self.say(f"kill {k}")
        self.fleet.kill(k)
        time.sleep(self.random.uniform(0.0, 6.0))
        self.again(k)

    def leave(self) -> None:
        k = self.random.choice(self.alive())
        self.say(f"{k} leaves")
        self.fleet.signal(signal.SIGTERM, k)
        self.fleet.boards[k].process.wait(LEAVE_S)
        time.sleep(self.random.uniform(0.0, 4.0))
        self.again(k)

    def split(self) -> None:
        part = self.random.sample(range(1, self.size + 1), self.random.randint(1, self.size // 2))
        self.say(f"split off {sorted(part)}")
        self.fleet.net.split(part)
        time.sleep(self.random.uniform(1.0, 12.0))
        self.say("heal")
        self.fleet.net.heal()

    def cut(self) -> None:
        a, b = self.random.sample(range(1, self.size + 1), 2)
        self.say(f"cut {a} -> {b}")
        self.fleet.net.cut(a, b)
        time.sleep(self.random.uniform(1.0, 10.0))
        self.say("mend")
        self.fleet.net.mend(a, b)

    def sleep(self) -> None:
        k, seconds = self.random.choice(self.alive()), self.random.uniform(0.5, 12.0)
        self.say(f"{k} sleeps for {seconds:.1f} s")
        self.fleet.signal(signal.SIGSTOP, k)
        time.sleep(seconds)
        self.fleet.signal(signal.SIGCONT, k)

    def end(self) -> None:
        """Every board ends by itself, in time, and well; one that came back when the others were
        done says so."""
        # Last who may have come too late; after them who has found no member yet, and waits for one
        # as long as it takes
        last = sorted(self.fleet.boards, key=lambda k: (not self.fleet.events(k), self.fleet.incarnations[k]))
        too_late: list[int] = []
        for k, board in [(k, self.fleet.boards[k]) for k in last]:
            left_s = max(5.0, DEADLINE_S - (time.monotonic() - self.began_training))
            at_work = [m for m, b in self.fleet.boards.items() if b.process.poll() is None and self.fleet.events(m)]
            if not at_work and not self.fleet.events(k):
                self.say(f"{k} found nobody any more")
                too_late.append(k)
                continue
            code, _, err = board.finish(left_s)
            if code == 6 and "was started again when" in err:
                self.say(f"{k} came when the others were done")
                too_late.append(k)
                continue
            assert code == 0, f"pi-{k} ended with {code}: {err[-400:]}"
            assert board.nobody_left(), f"pi-{k} left a process behind"
            self.accuracy[k] = self.fleet.accuracy(k)
            self.say(f"{k} ended with accuracy {self.accuracy[k]:.4f}")
        for k in filter(self.fleet.events, too_late):
            done_s = {m: self.fleet.finished_unix_s(m) for m in self.fleet.boards if m not in too_late}
            early = [m for m, at_s in done_s.items() if at_s > self.fleet.ended_unix_s(k) + CLOCKS_S]
            assert not early, f"pi-{k} took the run for over, but {early} were at work"


def run(seed: int, size: int, *, faulty: bool = True) -> dict[str, Any]:
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        network(size) as net,
        members(net, Path(folder), size, *SETTINGS) as fleet,
    ):
        schedule, failure = Schedule(seed, fleet, size), ""
        try:
            schedule.play(faulty)
        except Exception:
            failure = traceback.format_exc()[-1500:]
            for k in fleet.boards:
                tail = [f"{e['t_s']:.1f} {e['event']}: {e['text']}" for e in fleet.events(k)][-25:]
                failure += f"\npi-{k}:\n  " + "\n  ".join(tail)
    row = {"boards": size, "seconds": round(time.monotonic() - began, 1), "accuracy": schedule.accuracy}
    return {"seed": seed, "faults": faulty, **row, "log": schedule.log, "failure": failure}


def judge(row: dict[str, Any], without: float) -> dict[str, Any]:
    """A schedule in which a board ended too far below the accuracy `without` faults failed."""
    low = {k: accuracy for k, accuracy in row["accuracy"].items() if accuracy < without - BOARD}
    if low and not row["failure"]:
        row["failure"] = f"accuracies {low}, without faults {without}"
    return row


def sum_up(rows: list[dict[str, Any]]) -> bool:
    """Print the verdict. Whether it is good."""
    without = references(rows)
    faulty = [row for row in rows if row["faults"]]
    failed = [row["seed"] for row in faulty if row["failure"]]
    lost = [without[row["boards"]] - accuracy for row in faulty for accuracy in row["accuracy"].values()]
    mean = fmean(lost) if lost else 0.0
    print(f"{len(faulty)} schedules, {len(failed)} failed {failed or ''}")
    print(
        f"accuracy without faults: {without}; lost: {100 * mean:.2f} points in the mean, {100 * max(lost, default=0):.2f} at most"
    )
    return not failed and mean <= MEAN


def references(rows: list[dict[str, Any]]) -> dict[int, float]:
    """Mean accuracy of the runs without faults, by number of boards."""
    return {row["boards"]: fmean(row["accuracy"].values()) for row in rows if not row["faults"] and row["accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no board and no namespace is left
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any], what: str) -> None:
        rows.append(row)
        print(f"{what}: {'held' if not row['failure'] else json.dumps(row)} in {row['seconds']} s", flush=True)

    seeds = {seed: Random(-seed).randint(*SIZES) for seed in range(options.first, options.first + options.count)}
    for size in sorted({*seeds.values()}):
        keep(run(size, size, faulty=False), f"{size} boards without faults")
    without = references(rows)
    for seed, size in seeds.items():
        keep(judge(run(seed, size), without[size]), str(seed))
    sys.exit(not sum_up(rows))


if __name__ == "__main__":
    main()
