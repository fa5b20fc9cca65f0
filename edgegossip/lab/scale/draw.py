"""The figures of a scalability run, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from edgegossip.lab.scale.measure import PARTS
from edgegossip.report.draw import PALETTE
from edgegossip.report.style import INK, MUTED, STYLE, class_colors, new_figure, save
from edgegossip.report.units import printable

Row = Mapping[str, Any]
_EDGE: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_NS = 1e-9


def _schemes(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["scheme"] for row in rows))


def times(rows: Sequence[Row], what: str, path: Path) -> Path:
    """Seconds of an epoch, a stacked bar a count, scheme by scheme."""
    schemes = _schemes(rows)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(max(6.4, 1.2 + 1.75 * len(schemes)), 4.2, f"{what}: where the seconds of an epoch go")
        grid = figure.subplots(1, len(schemes), sharey=True, squeeze=False)
        for axes, scheme in zip(grid[0], schemes, strict=True):
            _bars(axes, [row for row in rows if row["scheme"] == scheme])
            axes.set_title(printable(scheme, 26), fontsize=8.5, color=INK)
        grid[0][0].set_ylabel("seconds an epoch")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(PARTS))
        return save(figure, path)


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    bottom = np.zeros(len(rows))
    for key, part in PARTS.items():
        seconds = np.array([row[key] for row in rows])
        axes.bar(range(len(rows)), seconds, bottom=bottom, color=PALETTE[part], label=part, width=0.78, **_EDGE)
        bottom += seconds
    for x, total in enumerate(bottom):
        axes.text(x, total, f"{total:.3g}", ha="center", va="bottom", fontsize=8, fontweight="bold")
    axes.set_xticks(range(len(rows)), [str(row["devices"]) for row in rows])
    axes.set_xlabel("boards")
    axes.grid(axis="y")


def speedups(rows: Sequence[Row], what: str, path: Path) -> Path:
    """How many times faster than on the smallest count, with the line on which no board is
    wasted."""
    schemes = _schemes(rows)
    counts = sorted({int(row["devices"]) for row in rows})
    with matplotlib.rc_context(STYLE):
        figure = new_figure(7.2, 4.6, f"{what}: speed-up")
        axes = figure.subplots()
        ideal = [count / counts[0] for count in counts]
        axes.plot(counts, ideal, color=MUTED, linestyle="--", linewidth=1.2, label="ideal")
        for k, (scheme, color) in enumerate(zip(schemes, class_colors(len(schemes)), strict=True)):
            own = sorted((row for row in rows if row["scheme"] == scheme), key=lambda row: int(row["devices"]))
            own = [row for row in own if row["speedup"] is not None]  # without the smallest count there is none
            x, y = [row["devices"] for row in own], [row["speedup"] for row in own]
            axes.plot(x, y, color=color, marker=_MARKERS[k % len(_MARKERS)], markersize=5, label=printable(scheme, 40))
        axes.set_xticks(counts)
        axes.set_xlabel("boards")
        axes.set_ylabel(f"times as fast as {counts[0]} boards")
        axes.set_ylim(bottom=0)
        axes.grid(True)
        axes.legend(loc="upper left")
        return save(figure, path)


def losses(results: Sequence[Row], what: str, path: Path) -> Path:
    """Training loss against seconds and against bytes sent by all boards, on the largest count."""
    with matplotlib.rc_context(STYLE):
        title = f"{what}: training loss on {results[0]['devices']} boards"
        figure = new_figure(9.6, 4.2, title)
        grid = figure.subplots(1, 2, sharey=True)
        for column, axes in enumerate(grid):
            for k, (result, color) in enumerate(zip(results, class_colors(len(results)), strict=True)):
                shown = [p for p in result["curve"] if column == 0 or p[1] > 0]  # no zero on a logarithmic axis
                points = np.array(shown, np.float64)  # a loss that nobody told is nan
                if not len(points):
                    continue
                style: dict[str, Any] = {"marker": _MARKERS[k % len(_MARKERS)], "markersize": 3.5, "linewidth": 1.4}
                label = printable(result["scheme"], 40)
                axes.plot(points[:, column], points[:, 2], color=color, label=label, **style)
            axes.grid(True)
        grid[0].set_xlabel("seconds")
        grid[0].set_xlim(left=0)
        grid[1].set_xlabel("bytes sent by all boards")
        grid[1].set_xscale("log")
        grid[1].xaxis.set_major_formatter(EngFormatter(unit="B"))
        grid[0].set_ylabel("training loss")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return save(figure, path)


_GANTT = (
    ("start", "computed", "compute"), ("computed", "ready", "encode"), ("ready", "go", "wait"), ("go", "done", "transmit"),
)  # fmt: skip


def rounds(results: Sequence[Row], what: str, path: Path) -> Path:
    """One round of each run: a bar a board, from the moment on at which the first one begins to
    compute."""
    with matplotlib.rc_context(STYLE):
        boards = max(len(result["marks"]) for result in results)
        figure = new_figure(9.6, 1.6 + len(results) * (0.7 + 0.17 * boards), f"{what}: one round")
        grid = figure.subplots(len(results), 1, squeeze=False)
        for axes, result in zip(grid[:, 0], results, strict=True):
            marks = sorted(result["marks"], key=lambda mark: str(mark["node"]))
            begin = min(mark["start"] for mark in marks)
            for y, mark in enumerate(marks):
                for since, until, part in _GANTT:
                    left, width = (mark[since] - begin) * _NS, (mark[until] - mark[since]) * _NS
                    label = "exchange" if part == "transmit" else part
                    axes.barh(y, width, left=left, color=PALETTE[part], height=0.8, label=label if y == 0 else None)
            axes.set_yticks(range(len(marks)), [printable(mark["node"], 20) for mark in marks], fontsize=6.5)
            axes.set_ylim(len(marks) - 0.4, -0.6)
            axes.set_title(printable(f"{result['scheme']} on {result['devices']} boards", 60), fontsize=9.5, color=INK)
            axes.set_xlabel("seconds")
            axes.set_xlim(left=0)
            axes.grid(axis="x")
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_GANTT))
        return save(figure, path)


def links(results: Sequence[Row], what: str, path: Path) -> Path:
    """Bytes from board to board in the counted rounds."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(5.0 * len(results) + 0.6, 4.8, f"{what}: what went over which link")
        grid = figure.subplots(1, len(results), squeeze=False)
        for axes, result in zip(grid[0], results, strict=True):
            nodes = sorted({*result["links"], *(to for own in result["links"].values() for to in own)})
            table = np.array([[result["links"].get(a, {}).get(b, 0) for b in nodes] for a in nodes], float)
            image = axes.imshow(np.where(table > 0, table, np.nan), cmap="viridis", vmin=0)
            figure.colorbar(image, ax=axes, format=EngFormatter(unit="B"), shrink=0.8)
            names = [printable(node, 20).removeprefix("board-") for node in nodes]
            axes.set_xticks(range(len(nodes)), names, fontsize=6.5)
            axes.set_yticks(range(len(nodes)), names, fontsize=6.5)
            axes.set_xlabel("to")
            axes.set_ylabel("from")
            axes.set_title(printable(f"{result['scheme']} on {result['devices']} boards", 60), fontsize=9.5, color=INK)
        return save(figure, path)
