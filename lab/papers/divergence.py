"""Why runs of lab/results/pages/study-fashion.json diverge at 99 %: a table and a picture of
lab/results/pages/papers/divergence.json.

    edgegossip study fashion-gossip --sweep-file lab/results/pages/papers/divergence.toml \
        --set data.dir=DIR -o FOLDER
    python -m lab.papers keep divergence FOLDER
    python -m lab.results study-fashion
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.results.resumable import heading

PAGES = Path(__file__).resolve().parents[1] / "results" / "pages"
RESULTS = PAGES / "papers" / "divergence.json"


def run_table(document: Any) -> str:
    """Return a row a run: how far it came, how far apart its models were, what they learnt."""
    lines = heading("case, seed, rounds, ended, models apart at round 50, at the end, training loss, accuracy %")
    for row in sorted(document["rows"], key=lambda row: (row["case"], row["seed"])):
        distances = dict(row["consensus"])
        last = max(distances)
        middle = f"{distances[50]:.3g}" if 50 in distances else ""
        ended = "diverged" if row["state"] == "failed" else "in time"
        accuracy = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f}"
        shown = f"{row['case']} | {row['seed']} | {last} | {ended} | {middle} | {distances[last]:.3g} | {row['train_loss']:.3g}"
        lines.append(f"| {shown} | {accuracy} |")
    return "\n".join(lines)


TABLES: Mapping[str, Callable[[Any], str]] = {"runs": run_table}


def pictures() -> None:
    """Draw how far the models of a run are apart, round by round."""
    from edgegossip.sweep.plots import Axis, PlotSeries, panels

    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    series = [
        PlotSeries("distance of the models from their mean", row["case"], f"seed {row['seed']}", row["consensus"])
        for row in document["rows"]
    ]
    path = PAGES / "images" / "papers-divergence.png"
    print(panels(series, "Fashion-MNIST at 99 %", path, Axis("round"), Axis("distance", log=10), "curves"))


if __name__ == "__main__":
    pictures()
