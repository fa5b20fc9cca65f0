"""The figures of a campaign, drawn with matplotlib, which is imported only here and in
report.

`panels` draws what depends on something, problem by problem. The others show where time and bytes
go: `stacked_bars`, `speedups`, `losses` and `timelines`. Each writes one file, of the
kind that its name ends with, and returns its path; an empty title is none. `require_matplotlib`
(report/plots.py) says what to install where this cannot be imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogFormatter, LogLocator, NullFormatter

from edgegossip.report.draw import (
    INK,
    MUTED,
    legend_columns,
    legend_text,
    new_figure,
    part_style,
    save,
    scheme_colors,
    share_limits,
)
from edgegossip.report.style import MATPLOTLIB
from edgegossip.untrusted import printable

Point: TypeAlias = tuple[float, float]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (5, 4)))
_WIDTH_IN, _HEIGHT_IN = 4.2, 3.4  # of a panel
_COLUMNS = 3
_LEGEND_LETTERS = 130  # in a line below the panels


# -- panels


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """Is one curve, or one point with its error bar, and where it belongs."""

    panel: str
    color: str  # what the colour stands for
    mark: str  # what marker and line style stand for
    points: Sequence[Point]
    error: float = 0.0  # of the only point, up and down


@dataclass(frozen=True, slots=True)
class Axis:
    """Describes one axis of all panels."""

    label: str
    log: Literal[0, 2, 10] = 0  # base; 0: linear
    unit: Literal["", "B", "bit", "%"] = ""


def panels(
    series: Sequence[PlotSeries], title: str, path: Path, x: Axis, y: Axis, kind: Literal["points", "curves", "lines"]
) -> Path:
    """Draw a panel for each `panel` among the series; all share their axes and one legend below.

    `series` has one at least, each with a point at least. `kind`: "curves" have a dot at each
    point where those are few, "lines" have none."""
    names = [list(dict.fromkeys(words)) for words in zip(*((s.panel, s.color, s.mark) for s in series), strict=True)]
    problems, colors, marks = names
    paint = scheme_colors(colors)
    columns = min(_COLUMNS, len(problems))
    rows = math.ceil(len(problems) / columns)
    with matplotlib.rc_context(MATPLOTLIB):
        figure = new_figure(max(6.4, _WIDTH_IN * columns), 0.9 + _HEIGHT_IN * rows, title)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for k, axes in enumerate(grid.flat):
            if k >= len(problems):
                axes.set_axis_off()
                continue
            for s in (s for s in series if s.panel == problems[k]):
                _draw(axes, s, paint[s.color], marks.index(s.mark), kind)
            _finish(axes.xaxis, x)
            _finish(axes.yaxis, y)
            axes.set_title(printable(problems[k], 60), fontsize=9.5, color=INK)
            axes.grid(True)
            axes.label_outer()
        values = [value for s in series for _, value in s.points if math.isfinite(value)]
        if values and not y.log:
            _from_zero(grid.flat[0], values, y)
        _legend(figure, paint, marks, lines=kind != "points")
        return save(figure, path)


def _draw(axes: Axes, s: PlotSeries, color: str, mark: int, kind: str) -> None:
    xs, ys = zip(*s.points, strict=True)
    marker, line = _MARKERS[mark % len(_MARKERS)], _LINES[mark % len(_LINES)]
    style: dict[str, Any] = {"color": color, "alpha": 0.9}
    if kind == "points":
        # Marks that lie on one another stay apart, as they are not filled.
        style |= {"capsize": 2.5, "linewidth": 1.0, "markersize": 6.5, "markerfacecolor": "none"}
        axes.errorbar(xs, ys, s.error or None, marker=marker, **style)
    elif kind == "curves":
        dots = "" if len(xs) > 30 else marker
        axes.plot(xs, ys, linewidth=1.4, linestyle=line, marker=dots, markersize=3.5, **style)
    else:
        axes.plot(xs, ys, linewidth=1.2, linestyle=line, **style)


def _finish(drawn: DrawnAxis, axis: Axis) -> None:
    drawn.set_label_text(printable(axis.label, 80))
    if axis.log:
        scale = drawn.axes.set_xscale if drawn.axis_name == "x" else drawn.axes.set_yscale  # type: ignore[attr-defined]
        scale("log", base=axis.log)
    if axis.log == 2:
        drawn.set_major_locator(LogLocator(base=2))
        drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        drawn.set_minor_formatter(NullFormatter())
    elif axis.unit == "%":
        drawn.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
    elif axis.unit:
        drawn.set_major_formatter(EngFormatter(unit=axis.unit))
        drawn.set_minor_formatter(NullFormatter())
    elif axis.log:  # matplotlib's own choice is mathtext
        drawn.set_major_formatter(LogFormatter())
        drawn.set_minor_formatter(LogFormatter())


def _from_zero(axes: Axes, values: Sequence[float], y: Axis) -> None:
    """Let all panels begin at 0, as far as nothing is below: what changes little must not look like
    a collapse. Percentages of which all are high say nothing that way, and begin later."""
    if y.unit == "%":
        axes.set_ylim(*share_limits(min(values), max(values)))
    elif min(values) >= 0:
        axes.set_ylim(bottom=0)


def _legend(figure: Figure, paint: dict[str, str], marks: Sequence[str], lines: bool) -> None:
    """Colours, then marks; a kind of which there is but one says nothing."""
    entries = [Line2D([], [], color=c, linewidth=5, label=_label(name)) for name, c in paint.items()] * (len(paint) > 1)
    for k, name in enumerate(marks if len(marks) > 1 else ()):
        style: dict[str, Any] = {"marker": _MARKERS[k % len(_MARKERS)], "linestyle": "none"}
        if lines:
            style = {"linestyle": _LINES[k % len(_LINES)]}
        entries.append(Line2D([], [], color=MUTED, label=_label(name), **style))
    if entries:
        columns = legend_columns([str(entry.get_label()) for entry in entries], 4, _LEGEND_LETTERS)
        figure.legend(handles=entries, loc="outside lower center", ncols=columns, handlelength=2.6)


def _label(words: str) -> str:
    return legend_text(words, 60) or "as in the recipe"


# -- where time and bytes go


def stacked_bars(
    groups: Mapping[str, Sequence[tuple[str, Mapping[str, float]]]], title: str, path: Path, x: str, y: str
) -> Path:
    """Draw a panel a group, and in it a bar a label, stacked of its parts, with their sum on top.

    `groups` are lists of (label, seconds by part); parts are those of a round, the same
    for all bars.
    """
    with matplotlib.rc_context(MATPLOTLIB):
        figure = new_figure(max(6.4, 1.2 + 1.75 * len(groups)), 4.2, title)
        grid = figure.subplots(1, len(groups), sharey=True, squeeze=False)
        for axes, (name, bars) in zip(grid[0], groups.items(), strict=True):
            bottom = np.zeros(len(bars))
            for part in bars[0][1]:
                heights = np.array([parts[part] for _, parts in bars])
                axes.bar(range(len(bars)), heights, bottom=bottom, label=part, width=0.78, **part_style(part))
                bottom += heights
            for k, total in enumerate(bottom):
                axes.text(k, total, f"{total:.3g}", ha="center", va="bottom", fontsize=8, fontweight="bold")
            axes.set_xticks(range(len(bars)), [printable(label, 20) for label, _ in bars])
            axes.set_xlabel(x)
            axes.grid(axis="y")
            axes.set_title(printable(name, 26), fontsize=8.5, color=INK)
        grid[0][0].set_ylabel(y)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return save(figure, path)


def speedups(curves: Mapping[str, Sequence[Point]], counts: Sequence[int], title: str, path: Path) -> Path:
    """Draw (boards, times as fast as on the fewest) of each curve, with the line on which no board
    is wasted. `counts`: of boards, from few to many."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = new_figure(7.2, 4.6, title)
        axes = figure.subplots()
        ideal = [count / counts[0] for count in counts]
        axes.plot(counts, ideal, color=MUTED, linestyle="--", linewidth=1.2, label="ideal")
        paint = scheme_colors(list(curves))
        for k, (name, points) in enumerate(curves.items()):
            xs, ys = [x for x, _ in points], [y for _, y in points]
            style: dict[str, Any] = {"marker": _MARKERS[k % len(_MARKERS)], "markersize": 5, "color": paint[name]}
            axes.plot(xs, ys, label=legend_text(name, 40), **style)
        axes.set_xticks(counts)
        axes.set_xlabel("boards")
        axes.set_ylabel(f"times as fast as {counts[0]} boards")
        axes.set_ylim(bottom=0)
        axes.grid(True)
        axes.legend(loc="upper left")
        return save(figure, path)


def losses(curves: Sequence[tuple[str, Sequence[Sequence[float | None]]]], title: str, path: Path) -> Path:
    """Draw training loss against seconds and against bytes; a curve is (name, list of [seconds,
    bytes, loss]), and a loss that nobody told is None."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = new_figure(9.6, 4.2, title)
        grid, paint = figure.subplots(1, 2, sharey=True), scheme_colors([name for name, _ in curves])
        for column, axes in enumerate(grid):
            for k, (name, curve) in enumerate(curves):
                shown = [p for p in curve if column == 0 or (p[1] or 0) > 0]  # no zero on a logarithmic axis
                points = np.array(shown, np.float64)  # None becomes nan
                if not len(points):
                    continue
                style: dict[str, Any] = {"marker": _MARKERS[k % len(_MARKERS)], "markersize": 3.5, "linewidth": 1.4}
                axes.plot(points[:, column], points[:, 2], color=paint[name], label=legend_text(name, 40), **style)
            axes.grid(True)
        grid[0].set_xlabel("seconds of training")
        grid[0].set_xlim(left=0)
        if grid[0].dataLim.y0 >= 0:
            grid[0].set_ylim(bottom=0)
        grid[1].set_xlabel("bytes sent by all boards")
        grid[1].set_xscale("log")
        grid[1].xaxis.set_major_formatter(EngFormatter(unit="B"))
        grid[1].xaxis.set_minor_formatter(NullFormatter())
        grid[0].set_ylabel("training loss")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return save(figure, path)


Bar: TypeAlias = tuple[float, float, str]  # where it begins and how long it is, seconds; a part of a round


def timelines(rounds: Sequence[tuple[str, Mapping[str, Sequence[Bar]]]], title: str, path: Path) -> Path:
    """Draw a Gantt chart of each round: (name, bars by board). All boards have bars of the same
    parts, in order; transmitting is called exchange, as it is of all boards together."""
    with matplotlib.rc_context(MATPLOTLIB):
        most = max(len(boards) for _, boards in rounds)
        figure = new_figure(9.6, 1.6 + len(rounds) * (0.7 + 0.17 * most), title)
        grid = figure.subplots(len(rounds), 1, squeeze=False)
        for axes, (name, boards) in zip(grid[:, 0], rounds, strict=True):
            for y, bars in enumerate(boards.values()):
                for left, width, part in bars:
                    label = ("exchange" if part == "transmit" else part) if y == 0 else None
                    axes.barh(y, width, left=left, height=0.8, label=label, **part_style(part))
            axes.set_yticks(range(len(boards)), [printable(board, 20) for board in boards], fontsize=6.5)
            axes.set_ylim(len(boards) - 0.4, -0.6)
            axes.set_title(printable(name, 60), fontsize=9.5, color=INK)
            axes.set_xlabel("seconds since the first board began the round")
            axes.set_xlim(left=0)
            axes.grid(axis="x")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return save(figure, path)
