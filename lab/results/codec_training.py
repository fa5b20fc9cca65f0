#!/usr/bin/env python3
"""Sum up what training takes with each codec: lab/results/pages/codec-training.json and a picture.

    edgegossip study cifar10-server --sweep-file codecs-server --set data.dir=DIR -o SERVER
    edgegossip study cifar10-gossip --sweep-file codecs-gossip --set data.dir=DIR -o GOSSIP
    python -m lab.results.codec_training SERVER GOSSIP
    python -m lab.results codec-training

The picture is lab/results/pages/images/codec-training.png.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgegossip.files import write_json
from edgegossip.sweep import plots
from edgegossip.sweep.results import read_results
from edgegossip.telemetry.machine import environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "lab" / "results" / "pages"
PANELS = ("through the coordinator", "CHOCO-SGD on a ring")
TARGET = 0.68  # the accuracy that counts
HEAD = ["codec", "learning rate", "seed", "accuracy at the end, %", "bits a value", "rounds", "MB a board", "of fp32's"]


def curve(result: Mapping[str, Any]) -> list[tuple[int, float, float]]:
    """Return (rounds, MB that a board sent, accuracy of the averaged model) of each test."""
    nodes = result["nodes"]
    points = [(e["round"] + 1, e["sent_bytes"] / nodes / 1e6, e["accuracy"]) for e in result["curve"]]
    sent_bytes = sum(result["sent_bytes"].values())
    return [*points, (result["rounds"], sent_bytes / nodes / 1e6, result["accuracy"]["averaged"])]


def table(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what each run took to the accuracy, those that took least first."""
    lines = []
    for r in results:
        reached = next(((n, mb) for n, mb, accuracy in curve(r) if accuracy >= TARGET), None)
        lines.append((reached, r))
    dense = [reached[1] for reached, r in lines if reached and r["name"] == "fp32"]
    rows = []
    for reached, r in sorted(lines, key=lambda line: (line[0] or (0, 1e9))[1]):
        rounds, mb, share = "not reached", "-", "-"
        if reached:
            rounds, mb = str(reached[0]), f"{reached[1]:.3g}"
            share = f"1/{statistics.fmean(dense) / reached[1]:.0f}" if dense else "-"
        accuracy = f"{100 * r['accuracy']['averaged']:.1f}"
        lr = f"{r['recipe']['training']['lr']:g}"
        rows.append([r["name"], lr, str(r["seed"]), accuracy, f"{r['bits_per_value']:.3f}", rounds, mb, share])
    return {"head": HEAD, "right": [False] + [True] * (len(HEAD) - 1), "rows": rows}


def drawn(panel: str, results: Sequence[Mapping[str, Any]]) -> list[plots.PlotSeries]:
    """Return a curve for each codec and its parameters, in the codec's colour: the mean over its
    seeds."""
    groups: dict[str, list[list[tuple[int, float, float]]]] = defaultdict(list)
    for r in results:
        groups[r["name"]].append(curve(r))
    return [
        plots.PlotSeries(
            panel,
            name.split()[0],
            "",
            [
                (1e6 * statistics.fmean(p[1] for p in at), statistics.fmean(p[2] for p in at))
                for at in zip(*runs, strict=True)
            ],
        )
        for name, runs in groups.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs=2, type=Path, metavar="STUDY", help="of the server path, and of gossip")
    parser.add_argument("--commit", help="that made the studies; default: the present one")
    arguments = parser.parse_args()
    machine = environment([])
    commit = arguments.commit or subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    document: dict[str, Any] = {
        "source": {"machine": machine["cpu"], "isa": machine["isa"], "commit": commit, "dirty": machine["dirty"]},
        "tables": [],
    }
    series: list[plots.PlotSeries] = []
    for folder, panel in zip(arguments.studies, PANELS, strict=True):
        results = [r for r in read_results(folder / "study.jsonl").values() if r["state"] == "done"]
        document["tables"].append(table(results))
        series += drawn(panel, results)
    write_json(PAGES / "codec-training.json", document)
    x, y = (
        plots.Axis("bytes that a board sent", log=10, unit="B"),
        plots.Axis("test accuracy, averaged model", unit="%"),
    )
    plots.panels(series, "CIFAR-10, CNN, 8 boards", PAGES / "images" / "codec-training.png", x, y, "lines")


if __name__ == "__main__":
    main()
