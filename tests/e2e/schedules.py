"""Random faults on short runs of real boards in network namespaces. Resumable: what the file has is not run again.

    python -m tests.e2e.schedules --count 100 --out schedules.jsonl

A schedule is four to six boards on digits and two to four faults at random times: a board killed and started again, a split that
heals, a link cut in one direction that is mended, a board asleep for up to 12 s, a board that leaves and comes back.
It holds when every board ends by itself in time with exit code 0 or 7, no process is left, and nobody's accuracy is far below
the usual.
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

from tests.e2e.members import Members, members
from tests.e2e.network import network

SETTINGS = ("run.rounds=120", "training.local_steps=30", "evaluation.every=1000", "gossip.deadline_s=10")
START_S = 600.0  # until somebody trains: boards load PyTorch at the same time, on a machine that may be busy
DEADLINE_S = 600.0  # from then on; a run without faults takes some 20 s on an idle machine
LEAVE_S = 120.0  # from SIGTERM to the end of the process, likewise
ACCURACY = 0.85
CLOCKS_S = 1.0  # between the time of a record and that of its file


class Schedule:
    """Everything follows from the seed, as far as a real machine allows."""

    def __init__(self, seed: int, fleet: Members, size: int) -> None:
        self.random, self.fleet, self.size = Random(seed), fleet, size
        self.log: list[str] = []
        self.began = self.began_training = time.monotonic()

    def say(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self.began:.1f} {text}")

    def alive(self) -> list[int]:
        return [k for k, board in self.fleet.boards.items() if board.process.poll() is None]

    def play(self) -> None:
        self.fleet.start_all(self.size)
        self.fleet.wait_until(lambda: any(self.fleet.metrics(k) for k in self.fleet.boards), "somebody trains", START_S)
        self.began_training = time.monotonic()
        faults: list[Callable[[], None]] = [self.kill, self.split, self.cut, self.sleep, self.leave]
        for fault in self.random.choices(faults, k=self.random.randint(2, 4)):
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
        """Every board ends by itself, in time, and well; one that came back when the others were done says so."""
        last = sorted(self.fleet.boards, key=lambda k: self.fleet.lives[k])  # who may have come too late
        too_late: list[int] = []
        for k, board in [(k, self.fleet.boards[k]) for k in last]:
            left_s = max(5.0, DEADLINE_S - (time.monotonic() - self.began_training))
            others_done = all(b.process.poll() is not None for m, b in self.fleet.boards.items() if m != k)
            if others_done and not self.fleet.events(k):
                self.say(f"{k} found nobody any more")
                too_late.append(k)
                continue
            code, _, err = board.finish(left_s)
            if code == 6 and "was started again when" in err:
                self.say(f"{k} came when the others were done")
                too_late.append(k)
                continue
            assert code in (0, 7), f"pi-{k} ended with {code}: {err[-400:]}"
            assert board.nobody_left(), f"pi-{k} left a process behind"
            accuracy = self.fleet.accuracy(k)
            self.say(f"{k} ended with accuracy {accuracy:.4f}")
            assert accuracy > ACCURACY, f"pi-{k} ended with accuracy {accuracy}"
        for k in filter(self.fleet.events, too_late):
            done_s = {m: self.fleet.finished_unix_s(m) for m in self.fleet.boards if m not in too_late}
            early = [m for m, at_s in done_s.items() if at_s > self.fleet.ended_unix_s(k) + CLOCKS_S]
            assert not early, f"pi-{k} took the run for over, but {early} were at work"


def run(seed: int) -> dict[str, object]:
    size = Random(-seed).randint(4, 6)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        network(size) as net,
        members(net, Path(folder), size, *SETTINGS) as fleet,
    ):
        schedule, failure = Schedule(seed, fleet, size), ""
        try:
            schedule.play()
        except Exception:
            failure = traceback.format_exc()[-1500:]
            for k in fleet.boards:
                tail = [f"{e['t_s']:.1f} {e['event']}: {e['text']}" for e in fleet.events(k)][-25:]
                failure += f"\npi-{k}:\n  " + "\n  ".join(tail)
    took = round(time.monotonic() - began, 1)
    return {"seed": seed, "boards": size, "seconds": took, "log": schedule.log, "failure": failure}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("schedules.jsonl"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no board and no namespace is left
    text = options.out.read_text() if options.out.exists() else ""
    done = {json.loads(line)["seed"] for line in text.splitlines() if line.endswith("}")}
    for seed in range(options.first, options.first + options.count):
        if seed in done:
            continue
        result = run(seed)
        with options.out.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{seed}: {'FAILED' if result['failure'] else 'held'} in {result['seconds']} s", flush=True)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()]
    failed = [row["seed"] for row in rows if row["failure"]]
    print(f"{len(rows)} schedules, {len(failed)} failed {failed or ''}")


if __name__ == "__main__":
    main()
