#!/usr/bin/env python3
"""Train the quickstart recipe with every gossip algorithm, kill one board on the way, and write one
table of what came of it.

python -m lab.results.gossip_runs [--seed N] [--out lab/results/pages/gossip-runs.md] [NAME...]

Each line is one run of real processes over real sockets. Once every board has done --kill-at
rounds, board-1 gets SIGKILL; `run` starts it again (network.restarts) with nothing but its address,
and it has to catch up with the others. A run that is in the output's JSON already is not run
again. One table is of one setting but for the seed: where the JSON has lines of another one
(rounds, steps, codec, when the board is killed, ...), nothing is run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip import gossip
from edgegossip.sweep.results import Result
from edgegossip.telemetry.run_folder import RunData, read_run
from lab.results import resumable

VICTIM = "board-1"
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """What one algorithm is run with: a topology that it works on without any one board, and a
    codec that suits it."""

    topology: str
    codec: str
    nodes: int = 4


CASES = {
    "dpsgd": Case("ring", "minmax8"),
    "d2": Case("ring", "minmax8"),
    "deep-squeeze": Case("ring", "4-bit-elastiquant"),
    "choco-sgd": Case("ring", "topk", 8),
    "sgp": Case("exponential", "minmax8", 6),
    "sparse-push": Case("exponential", "4-bit-elastiquant", 5),
    "quant-sgp": Case("exponential", "topk", 5),
    "bagua-lp": Case("ring", "8-bit-elastiquant"),
    "parallel-sgd": Case("complete", "4-bit-elastiquant"),
    "ad-psgd": Case("complete", "8-bit-elastiquant"),
}
OTHERS = Case("ring", "minmax8")  # of a later algorithm


def settings(name: str, case: Case, options: argparse.Namespace, seed: int) -> list[str]:
    """--set arguments of one run."""
    pairs = {
        "gossip.algorithm": name,
        "gossip.topology": case.topology,
        "codec.name": case.codec,
        "run.nodes": case.nodes,
        "run.rounds": options.rounds,
        "run.seed": seed,
        "training.local_steps": options.local_steps,
        "network.restarts": 1,
        "checkpoint.every": 0,  # it comes back with nothing, which is the harder case
    }
    if name == "k-gt":
        pairs["training.momentum"] = 0.0
    return [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]


def command_of(name: str, options: argparse.Namespace, seed: int) -> list[str]:
    return ["edgegossip", "run", "quickstart-gossip", *settings(name, CASES.get(name, OTHERS), options, seed)]


def is_of(line: Result, options: argparse.Namespace) -> bool:
    """Tell whether a result is of a run with these settings, whatever its seed. One that does not
    say when its board was killed is not."""
    command = " ".join(command_of(line["algorithm"], options, line["seed"]))
    return bool(line["command"] == command and line.get("kill_at") == options.kill_at)


def run(name: str, options: argparse.Namespace) -> Result:
    """One line of the table."""
    case, command = CASES.get(name, OTHERS), command_of(name, options, options.seed)
    line: Result = {"algorithm": name, "topology": case.topology, "codec": case.codec, "nodes": case.nodes}
    line |= {"seed": options.seed, "kill_at": options.kill_at, "command": " ".join(command)}
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", *command, "--runs", folder, "--no-plots", "--json"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                killed = kill_on_the_way(process, Path(folder), case.nodes, options.kill_at)
                out, err = process.communicate(timeout=LIMIT_S)
            finally:
                process.terminate()
        if process.returncode or not killed:
            why = err.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            return line | {"failed": why[0] if process.returncode else "no board was killed"}
        return line | outcome(json.loads(out), read_run(next(Path(folder).iterdir())))


def kill_on_the_way(process: subprocess.Popen[str], runs: Path, nodes: int, at: int) -> bool:
    """Ends the victim without a warning once every board has done `at` rounds. False when the run
    ended before."""
    until = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
        for records in runs.glob("*/metrics.jsonl"):
            done = {r.node: r.step for r in read_run(records.parent).metrics()}
            if len(done) == nodes and min(done.values()) + 1 >= at:
                os.kill(board(process.pid), 9)
                return True
    return False


def board(parent: int) -> int:
    """Process id of the victim: the child of `run` with its name."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().rstrip(b"\0").split()
            ours = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if ours and b"--name" in words and words[words.index(b"--name") + 1] == VICTIM.encode():
                return int(entry.name)
    raise LookupError(VICTIM)


def outcome(summary: dict[str, Any], data: RunData) -> dict[str, Any]:
    """What is said of a run that ended well."""
    steps = {r.step for r in data.metrics() if r.node == VICTIM}
    own = next(row for row in summary["boards"] if row["node"] == VICTIM)
    return {
        "accuracy": summary["accuracy"],
        "bits_per_value": summary["bits_per_value"],
        "restarted_accuracy": own["accuracy"],
        "missed": summary["rounds"] - len(steps),
        "adopted": sum(e.name == "adopted" and e.node == VICTIM for e in data.events()),
        "rounds": summary["rounds"],
        "seconds": summary["seconds"],
    }


def table(lines: list[Result]) -> str:
    rows = resumable.heading(
        "algorithm, boards and topology, codec, mean accuracy, min, max, restarted board, rounds missed, bits a value, seconds"
    )
    for line in lines:
        head = f"| `{line['algorithm']}` | {line['nodes']}, {line['topology']} | `{line['codec']}` |"
        if "failed" in line:
            rows.append(f"{head} failed: {line['failed']} | | | | | | |")
            continue
        a = line["accuracy"]
        rows.append(
            f"{head} {a['mean']:.4f} | {a['min']:.4f} | {a['max']:.4f} | {line['restarted_accuracy']:.4f} "
            f"| {line['missed']} of {line['rounds']} | {line['bits_per_value']:.2f} | {line['seconds']:.0f} |"
        )
    return "\n".join(rows)


def text(options: argparse.Namespace) -> str:
    return (
        f"Boards as processes on one machine, real sockets, UCI digits, {options.rounds} rounds of {options.local_steps} "
        f"steps. When every board had done {options.kill_at} rounds, {VICTIM} got SIGKILL; `run` started it again with nothing "
        "but its address (`network.restarts = 1`), the others waiting for it for `network.grace_s` = 3 s and then going on. "
        "It took over a neighbour's model and went on in their round. Bits a value: bodies of all frames, the full states of "
        "catching up among them. What one-sided rounds leave in the correction of `d2` comes again in every later round "
        '(docs/gossip.md, "What they tolerate"), so it minds a death most.\n\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=None, help="algorithms; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--local-steps", type=int, default=5)
    parser.add_argument("--kill-at", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("lab/results/pages/gossip-runs.md"))
    options = parser.parse_args()
    lines = resumable.finished(options.out)
    if others := [line["algorithm"] for line in lines if not is_of(line, options)]:
        which = f"{options.out.with_suffix('.json')} has lines of other settings ({', '.join(others)})"
        parser.error(f"{which}: give another --out, or delete it to run them all anew")
    for name in options.names or gossip.names():
        if (name, options.seed) in {(line["algorithm"], line["seed"]) for line in lines}:
            continue
        lines.append(run(name, options))
        print(lines[-1], flush=True)
        lines.sort(key=lambda line: gossip.names().index(line["algorithm"]))
        title = "The quickstart recipe with every gossip algorithm, and a board that is killed on the way"
        resumable.write(options.out, lines, title, "gossip_runs", text(options) + table(lines))
    return resumable.exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
