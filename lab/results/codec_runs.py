#!/usr/bin/env python3
"""Train the quickstart recipes with every codec, and write one table of what came out of it.

    python -m lab.results.codec_runs [--modes gossip,server] [--seed N]
        [--out lab/results/pages/codec-runs.md] [NAME...]

Each line is one run of four real processes over real sockets; bits a value are those that the
boards measured of the bodies they sent. A run that is in the output's JSON already (same command,
codec, seed) is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from edgegossip import codecs
from edgegossip.sweep.results import Result
from lab.results import resumable

# D-PSGD exchanges whole models, so a codec must be nearly exact; changes of a model (server) can be
# coarse. What does not fit is run all the same with --all, and labelled.
FITS_MODELS = ("fp32", "fp16", "bf16", "minmax8", "8-bit-elastiquant", "8-bit-qsgd")


def settings(name: str, seed: int) -> list[str]:
    """--set arguments of one run."""
    pairs = {"codec.name": name, "run.seed": seed}
    if name == "dgc":
        pairs["training.momentum"] = 0.0  # the codec's own momentum takes its place
    return [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]


def run(mode: str, name: str, seed: int) -> Result:
    """One line of the table."""
    command = ["edgegossip", "run", f"quickstart-{mode}", *settings(name, seed)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *command, "--runs", folder, "--no-plots", "--json"], capture_output=True, text=True
        )
    line: Result = {"mode": mode, "codec": name, "seed": seed, "command": " ".join(command)}
    if done.returncode:
        return line | {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else str(done.returncode)}
    summary = json.loads(done.stdout)
    return line | {
        "accuracy": summary["accuracy"]["mean"],
        "bits_per_value": summary["bits_per_value"],
        "payload": summary["sent_bytes"]["payload"],
        "socket": summary["sent_bytes"]["socket"],
        "seconds": summary["seconds"],
    }


def table(lines: list[Result]) -> str:
    rows = [
        "| mode | codec | test accuracy | bits a value | payload, kB | socket, kB | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in lines:
        if "failed" in line:
            rows.append(f"| {line['mode']} | `{line['codec']}` | failed: {line['failed']} | | | | |")
            continue
        note = "" if line["mode"] == "server" or line["codec"] in FITS_MODELS else " (not meant for whole models)"
        rows.append(
            f"| {line['mode']} | `{line['codec']}`{note} | {line['accuracy']:.4f} | {line['bits_per_value']:.2f} "
            f"| {line['payload'] / 1e3:.0f} | {line['socket'] / 1e3:.0f} | {line['seconds']:.1f} |"
        )
    return "\n".join(rows)


TEXT = """Four boards as processes on one machine, UCI digits. `gossip` sends whole models (D-PSGD, ring, 250 rounds), `server`
changes of the model (FedAvg, 60 rounds of 5 steps). Bits a value and payload: bodies of the frames that the boards sent, as they
measured them; socket: TCP bytes, by the kernel's count.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=None, help="codecs; default: all")
    parser.add_argument("--modes", default="server,gossip")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="codecs that do not fit whole models in gossip too")
    parser.add_argument("--out", type=Path, default=Path("lab/results/pages/codec-runs.md"))
    options = parser.parse_args()
    lines = resumable.finished(options.out)
    have = {(line["mode"], line["codec"], line["seed"]) for line in lines}
    for mode in options.modes.split(","):
        for name in options.names or codecs.names():
            if mode == "gossip" and not options.all and name not in FITS_MODELS:
                continue
            if (mode, name, options.seed) in have:
                continue
            lines.append(run(mode, name, options.seed))
            print(lines[-1], flush=True)
            title = "The quickstart recipes with every codec"
            resumable.write(options.out, lines, title, "codec_runs", TEXT + table(lines))
    return resumable.exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
