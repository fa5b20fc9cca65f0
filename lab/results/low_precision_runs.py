#!/usr/bin/env python3
"""Train eight boards in int8 and in fp32, with the algorithms of the low-precision decentralised
training paper.

    python -m lab.results.low_precision_runs DATA_DIR [--rounds N] [--seed N] [--algorithm NAME]
        [--skew SKEW] [--left-out PERCENT] [--out lab/results/pages/low-precision.md]

Each line is one run of eight real processes over real sockets: Fashion-MNIST, ResNet-8 with Range
EvoNorm in int8 (LP) and with EvoNorm-S0 in fp32, a directed ring, DeepSqueeze and CHOCO-SGD in
their push-sum forms (Sparse-Push, Quant-SGP), as in Aketi, Kodge, Roy 2021, section 3 and table 2.
A run that is in the output's JSON already is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgegossip.sweep.results import Result
from lab.results import resumable

ALGORITHMS = {"Deep-Squeeze": "sparse-push", "CHOCO": "quant-sgp"}
SKEWS = (0.0, 0.8)
RATIOS = {0: None, 99: 0.01}  # % left out of what is sent, and what stays
# Averaging rates at 99 %; the paper has 0.01, for 200 epochs. Deep-Squeeze sends models, whose
# parts add up until they travel: above 0.02 what arrives at once is more than the model.
RATES = {"Deep-Squeeze": 0.02, "CHOCO": 0.05}
PRECISIONS = {"fp32": "evonorm-s0", "int8": "range-evonorm"}


def settings(case: tuple[str, float, int, str], options: argparse.Namespace) -> dict[str, Any]:
    name, skew, left_out, precision = case
    pairs = {
        "run.nodes": 8,
        "run.rounds": options.rounds,
        "run.seed": options.seed,
        "data.skew": skew,
        "data.train_examples": options.train_examples,
        "model.name": "resnet8",
        "model.norm": PRECISIONS[precision],
        "training.precision": precision,
        "training.lr": 0.1,
        "training.nesterov": "true",
        "training.schedule": "step",
        "gossip.algorithm": ALGORITHMS[name],
        "gossip.topology": "directed-ring",
        "evaluation.every": options.rounds,
    }
    if RATIOS[left_out] is None:
        return pairs | {"codec.name": "fp32"}
    compressed = {"codec.name": "topk", "codec.params.ratio": RATIOS[left_out], "gossip.params.eta": RATES[name]}
    return pairs | compressed


def command_of(case: tuple[str, float, int, str], options: argparse.Namespace) -> list[str]:
    pairs = [part for key, value in settings(case, options).items() for part in ("--set", f"{key}={value}")]
    return ["edgegossip", "run", "fashion-gossip", *pairs]


def run(case: tuple[str, float, int, str], options: argparse.Namespace) -> Result:
    """One line of the table."""
    name, skew, left_out, precision = case
    command = command_of(case, options)
    line: Result = {"algorithm": name, "skew": skew, "left_out": left_out, "precision": precision}
    line |= {"seed": options.seed, "command": " ".join(command)}
    with tempfile.TemporaryDirectory() as folder:
        more = ["--set", f"data.dir={options.data}", "--runs", folder, "--no-plots", "--json"]
        done = subprocess.run([sys.executable, "-m", *command, *more], capture_output=True, text=True)
    if done.returncode:
        return line | {"failed": (done.stderr.strip().splitlines() or [str(done.returncode)])[-1]}
    summary = json.loads(done.stdout)
    return line | {key: summary[key] for key in ("accuracy", "bits_per_value", "sent_bytes", "seconds")}


def table(lines: list[Result]) -> str:
    """A row for what is the same but for the precision."""
    rows = resumable.heading(
        "algorithm, skew, left out, fp32, int8, int8 less fp32, bits a value, seconds fp32, seconds int8"
    )
    for name, skew, left_out in itertools.product(ALGORITHMS, SKEWS, RATIOS):
        same = [n for n in lines if (n["algorithm"], n["skew"], n["left_out"]) == (name, skew, left_out)]
        if not same:
            continue
        of = {n["precision"]: n for n in same if "failed" not in n}
        cells = [f"{100 * of[p]['accuracy']['mean']:.2f} %" if p in of else "-" for p in PRECISIONS]
        both = len(of) == len(PRECISIONS)
        less = f"{100 * (of['int8']['accuracy']['mean'] - of['fp32']['accuracy']['mean']):+.2f}" if both else "-"
        bits = f"{of['int8']['bits_per_value']:.2f}" if "int8" in of else "-"
        seconds = [f"{of[p]['seconds']:.0f}" if p in of else "-" for p in PRECISIONS]
        rows.append(f"| {name} | {skew} | {left_out} % | {' | '.join([*cells, less, bits, *seconds])} |")
    return "\n".join(rows)


def text(options: argparse.Namespace) -> str:
    return (
        f"Eight boards as processes on one machine, real sockets, {options.train_examples or 60_000} images of Fashion-MNIST, "
        f"ResNet-8, batches of 32, {options.rounds} rounds of one step, directed ring. fp32: EvoNorm-S0; int8: Range EvoNorm, "
        "`dw = 16`. "
        "Mean of the boards' accuracies on all 10,000 test images.\n\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder with Fashion-MNIST")
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--train-examples", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("lab/results/pages/low-precision.md"))
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), action="append", help="only this one; may be repeated")
    parser.add_argument("--skew", choices=SKEWS, type=float, action="append", help="only this one")
    parser.add_argument("--left-out", choices=list(RATIOS), type=int, action="append", help="only this percentage")
    options = parser.parse_args()
    wanted = (options.algorithm or ALGORITHMS, options.skew or SKEWS, options.left_out or RATIOS, PRECISIONS)
    lines = resumable.finished(options.out)
    for case in itertools.product(*wanted):
        if " ".join(command_of(case, options)) in {line["command"] for line in lines}:
            continue
        lines.append(run(case, options))
        print(lines[-1], flush=True)
        title = "Eight boards in int8 and in fp32"
        resumable.write(options.out, lines, title, "low_precision_runs", text(options) + table(lines))
    return resumable.exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
