#!/usr/bin/env python3
"""Draw how much faster more boards are, with and without codecs, from lab/results/pages/scale.json.

python -m lab.results.speed_up [-o docs/images/speed-up.svg]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

from edgegossip.report.draw import INK, MUTED, new_figure
from edgegossip.report.style import MATPLOTLIB, SERIES

LAB = Path(__file__).resolve().parents[1]
TITLE = "Speed-up over one 100 Mbit/s access point, against 2 boards"
SHOWN = {  # scheme of the results -> what it is to a reader
    "choco-4-bit-elastiquant": "4 bits a value, to two neighbours only",
    "e-elastiquant": "about 3 bits a value",
    "8-bit-elastiquant": "8 bits a value",
    "sgd": "32 bits a value: no codec",
}


def speed_ups(results: Path = LAB / "results" / "pages" / "scale.json") -> dict[str, dict[int, float]]:
    """Return each shown scheme's speed-up by the number of boards, of the first table: real
    processes and sockets."""
    table = json.loads(results.read_text(encoding="utf-8"))["tables"][0]
    scheme, boards, value = (table["head"].index(name) for name in ("scheme", "boards", "speed-up"))
    found: dict[str, dict[int, float]] = {name: {} for name in SHOWN}
    for row in table["rows"]:
        if row[scheme] in found:
            found[row[scheme]][int(row[boards])] = float(row[value])
    return found


def draw(curves: dict[str, dict[int, float]], path: Path) -> None:
    """Draw a line a scheme, named where it ends. The same curves give the same file."""
    style = {**MATPLOTLIB, "svg.fonttype": "none", "svg.hashsalt": "edgegossip", "font.size": 11}
    with matplotlib.rc_context(style):
        figure = new_figure(9.0, 4.2, TITLE)
        axes = figure.subplots()
        for (scheme, curve), color in zip(curves.items(), SERIES, strict=False):
            boards, values = list(curve), list(curve.values())
            color = MUTED if scheme == "sgd" else color
            axes.plot(boards, values, color=color, marker="o", markersize=5, linewidth=2.2, clip_on=False)
            text = f"{values[-1]:.1f} times: {SHOWN[scheme]}"
            place = {"xytext": (8, -4), "textcoords": "offset points"}
            axes.annotate(text, (boards[-1], values[-1]), color=INK, annotation_clip=False, **place)
        axes.plot([2, 18], [1, 9], color=MUTED, linewidth=1, linestyle=":")
        axes.annotate("ideal", (14.6, 7.6), color=MUTED, ha="right")
        axes.set_xticks(boards)
        axes.set_xlim(1.5, 18)
        axes.set_ylim(0, 9.2)
        axes.set_xlabel("boards")
        axes.set_ylabel("times as fast as 2 boards")
        axes.grid(axis="y")
        figure.get_layout_engine().set(rect=(0, 0, 0.98, 1))  # type: ignore[union-attr, call-arg]
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Draw the picture of the README."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=LAB.parent / "docs" / "images" / "speed-up.svg")
    output = parser.parse_args().output
    draw(speed_ups(), output)
    print(output)


if __name__ == "__main__":
    main()
