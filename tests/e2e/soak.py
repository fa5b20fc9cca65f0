"""Boards that train for an hour, and whether anything grows: memory, threads, descriptors,
coroutines.

    python -m tests.e2e.soak --minutes 60 --nodes 8 --out soak.jsonl

A fleet as people start it: certificates of `edgegossip fleet`, `edgegossip node` once with
--members and then with --join, a ring, D-PSGD on digits, a checkpoint every round. Boards rest
in every round (tests/e2e/slow_mlp.py). Every --every seconds each process is looked at in /proc,
and its coroutines are read from its metrics. Samples go to OUT as they are taken; `--judge OUT`
judges what is there again. Beside it OUT.md and OUT.json have the verdict; the exit status is 1
when something grew or a board failed. Linux only."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.e2e import growth
from tests.e2e.loopback import fleet

SETTINGS = (
    "model.name=tests.e2e.slow_mlp:slow_mlp",
    "training.lr=0.02",
    "run.rounds=1000000",
    "evaluation.every=500",
)
QUANTITIES = tuple(growth.LIMITS)


def soak(nodes: int, minutes: float, every_s: float, pause_s: float, out: Path) -> None:
    """One line a sample, the last one tells how it ended."""
    names = [f"pi-{k}" for k in range(1, nodes + 1)]
    with fleet(names, (*SETTINGS, f"model.params.pause_s={pause_s}")) as boards, out.open("w") as file:

        def write(what: Mapping[str, Any]) -> None:
            file.write(json.dumps(what) + "\n")
            file.flush()

        began = time.monotonic()
        write({"when": datetime.now(UTC).isoformat(timespec="seconds"), "every_s": every_s, "pause_s": pause_s})
        due = began
        while due <= began + 60 * minutes:
            time.sleep(max(0.0, due - time.monotonic()))
            load = os.getloadavg()[0]
            write({"t_s": round(time.monotonic() - began, 2), "load": load, "boards": boards.sample()})
            due += every_s
        early = {name: p.returncode for name, p in boards.processes.items() if p.poll() is not None}
        codes = boards.stop()
        kinds = ("member-dead", "peer-down", "refused", "error", "checkpoint-failed")
        events = {n: [e["text"] for e in boards.events(n) if e["event"] in kinds] for n in boards.names}
        logs = {n: boards.log(n) for n in boards.names if "Traceback" in boards.log(n)}
        write({"early": early, "codes": codes, "events": {n: e[:20] for n, e in events.items() if e}, "logs": logs})


def verdict(out: Path) -> tuple[dict[str, Any], list[str]]:
    """What OUT says, and what is wrong."""
    lines = [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]
    samples = [line for line in lines if "boards" in line]
    names = sorted({name for s in samples for name in s["boards"]}, key=lambda n: int(n.partition("-")[2]))
    series = {n: {q: [s["boards"][n][q] for s in samples if n in s["boards"]] for q in QUANTITIES} for n in names}
    found, wrong = growth.judge(series)
    end = lines[-1] if "codes" in lines[-1] else {}
    wrong += [f"{name} ended early with {code}" for name, code in end.get("early", {}).items()]
    wrong += [f"{name} ended with {code}, not 130" for name, code in end.get("codes", {}).items() if code != 130]
    wrong += [f"{name} printed a traceback: {log}" for name, log in end.get("logs", {}).items()]
    wrong += [f"{name} is missing in a sample" for name in names if any(name not in s["boards"] for s in samples)]
    quarter = len(samples) // 4
    for name in names:
        rounds = [s["boards"][name]["round"] for s in samples if name in s["boards"]]
        steps = [rounds[min((k + 1) * quarter, len(rounds) - 1)] - rounds[k * quarter] for k in range(4)]
        if min(steps) < 0.5 * max(steps):
            wrong.append(f"{name} trained unevenly: {steps} rounds in the four quarters")
    seconds = samples[-1]["t_s"] - samples[0]["t_s"]
    cpu = sum(samples[-1]["boards"][n]["cpu_s"] - samples[0]["boards"][n]["cpu_s"] for n in names)
    document = {
        **{k: lines[0][k] for k in ("when", "every_s", "pause_s")},
        "minutes": round(seconds / 60, 1),
        "samples": len(samples),
        "rounds": max(s["boards"][n]["round"] for s in samples[-1:] for n in names),
        "cores": round(cpu / seconds, 3),
        "load": sorted(s["load"] for s in samples)[len(samples) // 2],
        "boards": {n: {q: [g.before, g.after] for q, g in rows.items()} for n, rows in found.items()},
        "events": end.get("events", {}),
        "ended": bool(end),
        "wrong": wrong,
    }
    return document, wrong


def markdown(document: Mapping[str, Any]) -> str:
    """A table: median of the second quarter, and by how much that of the last one differs."""
    head = (
        f"{document['when']}: {len(document['boards'])} boards, {document['minutes']} minutes, {document['rounds']} rounds, "
        f"a sample each {document['every_s']:g} s, {document['cores']} cores in all, load {document['load']:.1f} (median)."
    )
    rows = ["| board | " + " | ".join(QUANTITIES) + " |", "| --- |" + " ---: |" * len(QUANTITIES)]
    for name, found in document["boards"].items():
        cells = []
        for quantity in QUANTITIES:
            before, after = found[quantity]
            unit, places = (1 << 20, 2) if quantity.endswith("bytes") else (1, 0)
            cells.append(f"{before / unit:.{places}f} {(after - before) / unit:+.{places}f}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    said = "Nothing grew." if not document["wrong"] else "**" + "; ".join(document["wrong"]) + "**"
    return (
        f"{head}\n\nMedian of the second quarter, and what the last quarter's differs by; sizes in MiB.\n\n"
        + "\n".join([*rows, "", said, ""])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds that a board rests in each round")
    parser.add_argument("--out", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--judge", type=Path, help="judge a file that is there")
    options = parser.parse_args()
    out = options.judge or options.out
    if options.judge is None:
        soak(options.nodes, options.minutes, options.every, options.pause, out)
    document, wrong = verdict(out)
    out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(document))
    print(markdown(document))
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
