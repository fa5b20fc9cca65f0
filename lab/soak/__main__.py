"""Six boards that train, and are killed, stopped and sent home at random: whether a finished round
is lost, a record contradicts another, somebody is blamed who was there, or anything grows.

    python -m lab.soak --mode gossip --minutes 20 --out soak-gossip
    python -m lab.soak --mode server --minutes 20 --out soak-server

A fleet as people start it: certificates, one command a process, D-PSGD on a ring or FedAvg through
a coordinator, digits, a checkpoint every round. Boards rest in every round (slow_mlp.py). At random
times, which follow from --seed, one of them, or the coordinator, gets SIGKILL, SIGSTOP or SIGTERM;
after a random while it is started again with the same command, or goes on. --faults 0 plays none.
Everything is written to the folder as it happens. `--judge FOLDER` judges what is there by now:

- what a board had recorded when it died is in its records at the end, where it was; at most the
  last of its rounds is done again;
- no run folder breaks a law of lab/laws;
- every event, cause and line of the verdict that blames a board is true (blame.py);
- memory, threads, descriptors and coroutines of each process that lived long are flat (growth.py);
- nobody ended by itself or said a traceback, and all train to the end.

The verdict goes to verdict.json there, and in words to the last line; `not judged` names whose
growth nobody looked at. The exit status is 1 when something is wrong. Linux only."""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from edgegossip.telemetry.records import EVALUATED
from edgegossip.telemetry.run_folder import read_run
from lab.laws.laws import verify
from lab.soak import growth
from lab.soak.blame import Absence, played, timed, until_it_trained, until_level, untrue, waits_of
from lab.soak.boards import Boards, Fleet, at_work
from lab.soak.servers import COORDINATOR, ServerFleet

SETTINGS = (
    "model.name=lab.soak.slow_mlp:slow_mlp",
    "training.lr=0.02",
    "training.local_steps=1",
    "run.rounds=1000000",
    "evaluation.every=500",
)
QUANTITIES = tuple(growth.LIMITS)
EVERY_S = 25.0  # between two faults, on average
CALM_S = 60.0  # at the start, and between two faults of one process
# In so much of the time, at the end, the coordinator and two boards are not killed: what a process
# holds is judged once it is old.
SPARED = 2 / 3
END_S = 120.0  # without faults at the end: all are to train again
AWAY_AT_ONCE = 2
KINDS = {"SIGKILL": 0.5, "SIGSTOP": 0.3, "SIGTERM": 0.2}
WARM_S = 300.0
LONG_MINUTES = 10.0  # of a run in which some process of each kind is to be judged
# When others come and go a heap is scattered for ten minutes; what is allocated stays the same.
SCATTERED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    name: str
    kind: str  # a signal's name
    back_s: float


def schedule(seed: int, names: Sequence[str], seconds: float) -> list[Fault]:
    """Who is struck when, for how long, and how."""
    random, free_s, found, at_s = Random(seed), dict.fromkeys(names, CALM_S), list[Fault](), CALM_S
    while (at_s := at_s + random.expovariate(1 / EVERY_S)) < seconds - END_S:
        # A coordinator that is told to end ends the run.
        [kind] = random.choices(list(KINDS), list(KINDS.values()))
        old = {COORDINATOR, *[n for n in names if n != COORDINATOR][:2]}
        spared = old if kind != "SIGSTOP" and at_s > (1 - SPARED) * seconds else set[str]()
        spared |= {COORDINATOR} if kind == "SIGTERM" else set()
        victims = [n for n in names if free_s[n] <= at_s and n not in spared]
        name, back_s = random.choice(victims or [""]), at_s + random.choice((2.0, 8.0, 60.0)) * random.random()
        if name and sum(at_s < f.back_s + CALM_S / 2 for f in found) < AWAY_AT_ONCE:
            found.append(Fault(at_s, name, kind, back_s))
            free_s[name] = back_s + CALM_S
    return found


def fleet_of(mode: str, size: int, pause_s: float, out: Path) -> Boards:
    names = [f"pi-{k}" for k in range(1, size + 1)]
    settings = (*SETTINGS, f"model.params.pause_s={pause_s}")
    if mode == "gossip":
        return Fleet(names, settings, out)
    from edgegossip.flower.superlink import free_port

    return ServerFleet(out, free_port("127.0.0.1", 0), names, (*settings, f"run.nodes={size}"), 600.0)


def soak(boards: Boards, faults: Sequence[Fault], minutes: float, every_s: float, about: Mapping[str, Any]) -> None:
    """One line a sample and a fault; the last line tells how it ended."""
    with at_work(boards), (boards.folder / "soak.jsonl").open("w") as file:

        def write(**what: Any) -> None:
            file.write(json.dumps({"unix_s": round(time.time(), 3), **what}) + "\n")
            file.flush()

        began = time.monotonic()
        write(names=boards.names, every_s=every_s, **about)
        due: list[tuple[float, str, Fault | None]] = [(fault.at_s, "gone", fault) for fault in faults]
        due += [(k * every_s, "sample", None) for k in range(int(60 * minutes / every_s) + 1)]
        heapq.heapify(due)
        struck = set[str]()  # who is away by our doing
        while due:
            at_s, what, fault = heapq.heappop(due)
            time.sleep(max(0.0, began + at_s - time.monotonic()))
            if fault is None:
                early = {n: p.poll() for n, p in boards.processes.items() if n not in struck and p.poll() is not None}
                pids, held = {n: p.pid for n, p in boards.processes.items()}, boards.sample() | boards.children()
                processes = {f"{n}:{pids[n.partition('/')[0]]}": h for n, h in held.items()}
                write(load=os.getloadavg()[0], processes=processes, early=early)
                continue
            process = boards.processes[fault.name]
            if what == "gone":
                struck.add(fault.name)
                write(gone=fault.name, kind=fault.kind)
                process.send_signal(getattr(signal, fault.kind))
                heapq.heappush(due, (fault.back_s, "back", fault))
                continue
            if fault.kind == "SIGSTOP":
                process.send_signal(signal.SIGCONT)
            else:
                code = process.wait(60)
                write(ended=fault.name, code=code, kept=kept(boards.runs(fault.name)))
                boards.start(fault.name)
            struck.discard(fault.name)
            write(back=fault.name, kind=fault.kind)
        write(stopping=True)
        write(codes=boards.stop())


def kept(runs: Path) -> dict[str, tuple[int, str]]:
    """Of each file of records: bytes of its whole lines, and their hash."""
    found = {}
    for file in runs.glob("*/metrics.jsonl"):
        whole = file.read_bytes().rpartition(b"\n")[0]
        found[str(file)] = len(whole), hashlib.sha256(whole).hexdigest()
    return found


# -- the judge


def judge(out: Path) -> tuple[dict[str, Any], list[str]]:
    """What a folder says, and what is wrong."""
    lines = [json.loads(line) for line in (out / "soak.jsonl").read_text().splitlines() if line.endswith("}")]
    about, samples, names = lines[0], [line for line in lines if "processes" in line], lines[0]["names"]
    early = {name: code for sample in samples for name, code in sample["early"].items()}
    wrong = [f"{name} ended by itself with {code}" for name, code in early.items()]
    # What was recorded is there.
    lost = 0
    for line in lines:
        for file, (size, digest) in line.get("kept", {}).items():
            if hashlib.sha256(Path(file).read_bytes()[:size]).hexdigest() != digest:
                lost += 1
                wrong.append(f"records that {line['ended']} had written are not where they were: {file}")
    folders = {name: sorted(f.parent for f in (out / name).glob("*/events.jsonl")) for name in names}
    wrong += [f"{name} began {len(found)} run folders" for name, found in folders.items() if len(found) != 1]
    runs = {name: read_run(folder) for name, found in folders.items() for folder in found}
    contradictions = [f"{name}: {found.law}: {found.text}" for name, run in runs.items() for found in verify(run)]
    redone = 0  # that were over when the process was killed, and not kept yet
    for name, run in runs.items():
        own = (r for r in run.metrics() if r.node == name and not all(v.startswith(EVALUATED) for v in r.values))
        for before, after in pairwise(record.step for record in own):
            redone += after == before
            if after < before:
                wrong.append(f"{name} has lost rounds {after} to {before - 1}")
    # Blame.
    began = {n: [at_s for at_s, e in timed(run) if e.name == "started" and e.node == n] for n, run in runs.items()}
    absences = [Absence(name, "", 0.0, about["unix_s"]) for name in names]
    absences += [Absence(name, "SIGTERM", end["unix_s"]) for end in lines if "stopping" in end for name in names]
    for k, line in enumerate(lines):
        if "gone" in line:
            back_s = next((b["unix_s"] for b in lines[k:] if b.get("back") == line["gone"]), float("inf"))
            absences.append(Absence(line["gone"], line["kind"], line["unix_s"], back_s))
    absences = [until_it_trained(absence, began[absence.board]) for absence in absences]
    waits, rounds = waits_of(runs.values(), names), {name: played(run, name) for name, run in runs.items()}
    behind = [until_level(absence, rounds) for absence in absences]
    blames = [text for run in runs.values() for text in untrue(run, behind, names, waits)]
    wrong += contradictions + blames
    # Growth, of each process that lived long, while nobody was away.
    series: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    born_s: dict[str, float] = {}
    for sample in samples:
        calm = not any(absence.covers(sample["unix_s"]) for absence in absences)
        for process, held in sample["processes"].items():
            old = sample["unix_s"] - born_s.setdefault(process, sample["unix_s"]) >= WARM_S
            for quantity in QUANTITIES if calm and old else ():
                if quantity in held:
                    series[process][quantity].append(held[quantity])
    long = {p: rows for p, rows in series.items() if len(rows["rss_bytes"]) >= growth.MIN_SAMPLES}
    grown, grew = growth.judge(long, SCATTERED_BYTES if any("gone" in line for line in lines) else 0.0)
    wrong += grew
    minutes = round((samples[-1]["unix_s"] - samples[0]["unix_s"]) / 60, 1)
    nobody = unjudged(about["mode"], long)
    wrong += nobody if minutes >= LONG_MINUTES else []
    # All train to the end.
    rounds = {n: h["round"] for p, h in samples[-1]["processes"].items() if (n := p.partition(":")[0]) in names}
    wrong += [f"{name} trains no more" for name in names if rounds.get(name, -1) < 0.98 * max(rounds.values())]
    wrong += [f"{n} ended with {code}, not 130" for n, code in lines[-1].get("codes", {}).items() if code != 130]
    wrong += [
        f"{n} printed a traceback" for n in names if "Traceback" in (out / f"{n}.log").read_text(errors="replace")
    ]
    document = {
        **{k: about[k] for k in ("mode", "seed", "when", "every_s", "pause_s")},
        "minutes": minutes,
        "rounds": rounds,
        "load": sorted(s["load"] for s in samples)[len(samples) // 2],
        "faults": Counter(line["kind"] for line in lines if "gone" in line),
        "records checked": sum(len(line.get("kept", {})) for line in lines),
        "records lost": lost,
        "rounds redone": redone,
        "contradictions": len(contradictions),
        "events": dict(Counter(e.name for run in runs.values() for e in run.events())),
        "untrue": len(blames),
        "processes": {p: {q: [g.before, g.after] for q, g in rows.items()} for p, rows in grown.items()},
        "not judged": nobody,
        "ended": "codes" in lines[-1],
        "wrong": wrong,
    }
    return document, wrong


def unjudged(mode: str, judged: Collection[str]) -> list[str]:
    """Whose growth nobody looked at: names are as in the samples."""
    kinds = {"gossip": {"board": ""}, "server": {"board": "pi-", "SuperLink": "coordinator/"}}[mode]
    return [
        f"no {kind} lived long enough to be judged"
        for kind, start in kinds.items()
        if not any(p.startswith(start) for p in judged)
    ]


def told(document: Mapping[str, Any], wrong: Collection[str]) -> str:
    """The verdict in words."""
    begin = f"{len(wrong)} wrong" if wrong else "nothing wrong"
    boards = sum(name != COORDINATOR for name in document["rounds"])
    did = f"{begin}: {sum(document['faults'].values())} faults played, records of {boards} boards checked"
    return "; ".join([f"{did}, growth judged in {len(document['processes'])} processes", *document["not judged"]])


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter): ...


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.soak", description=__doc__, formatter_class=_Help)
    parser.add_argument("--mode", choices=("gossip", "server"), default="gossip", help="of the run")
    parser.add_argument("--minutes", type=float, default=20.0, help="of the soak")
    parser.add_argument("--nodes", type=int, default=6, help="boards")
    parser.add_argument("--faults", type=int, default=1, choices=(0, 1), help="0: none")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds that a board rests in each round")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="a new folder")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge a folder that is there")
    options = parser.parse_args(words)
    out = options.judge or options.out
    if options.judge and not (out / "soak.jsonl").exists():
        parser.error(f"--judge {out}: there is no soak.jsonl, which a soak writes")
    if options.judge is None:
        if out.exists():
            parser.error(f"--out {out} is there: name a new folder, or judge it with --judge {out}")
        boards = fleet_of(options.mode, options.nodes, options.pause, out.resolve())
        faults = schedule(options.seed, boards.names, 60 * options.minutes) if options.faults else []
        if options.faults and not faults:
            parser.error(
                f"--minutes {options.minutes:g} leaves no time for a fault: the first minute and the last two have "
                f"none; give {LONG_MINUTES:g} or more, or --faults 0"
            )
        out.mkdir(parents=True)
        about = {k: getattr(options, k) for k in ("mode", "seed")} | {"pause_s": options.pause}
        when = datetime.now(UTC).isoformat(timespec="seconds")
        soak(boards, faults, options.minutes, options.every, {**about, "when": when})
    document, wrong = judge(out)
    (out / "verdict.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    print(told(document, wrong), file=sys.stderr)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
