"""The figures of a run, with matplotlib, and what all figures of the package have in common: they
are drawn off screen, in the colours of style.py, as PNG, SVG or PDF, with a title or without, and
their panels are labelled (a), (b), ...
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, MaxNLocator

from edgegossip.report.series import Curves, Numbers, column_mean, column_range, smooth
from edgegossip.report.style import LIGHT, MATPLOTLIB, SERIES, TEST, TEXTURES, TRAIN, places
from edgegossip.report.units import bytes_text, seconds_text
from edgegossip.telemetry.records import EVALUATED, PARTS, score_text
from edgegossip.telemetry.summary import evaluated_by
from edgegossip.types import HostError
from edgegossip.untrusted import printable

DPI = 150
INK, MUTED = LIGHT["ink"], LIGHT["muted"]


def class_colors(count: int) -> list[str]:
    """Return one colour a class: a palette that can be told apart up to ten, an even scale
    beyond."""
    if count <= len(SERIES):
        return list(SERIES[:count])
    scale = matplotlib.colormaps["viridis"]
    return [matplotlib.colors.to_hex(scale(k / (count - 1))) for k in range(count)]


def scheme_colors(names: Sequence[str]) -> dict[str, str]:
    """Return the colour of each scheme, the same in all figures as far as they can be told apart;
    an even scale beyond ten."""
    if len(names) > len(SERIES):
        return dict(zip(names, class_colors(len(names)), strict=True))
    return {name: SERIES[place] for name, place in places(names).items()}


def new_figure(width_in: float, height_in: float, title: str) -> Figure:
    """Return an empty figure, made without pyplot: no global state, no display. Without a title
    where that is empty."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.03)  # inches, inches, shares
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(printable(title, 160), x=0.012, ha="left", fontsize=11, fontweight="bold")
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Label the panels of a figure, write it as what the path's name ends with (.png, .svg, .pdf),
    and return where it is. A box stands for each character of a name that the font lacks, and no
    warning. Raises HostError where the disk does not take it."""
    panels = [axes for axes in figure.axes if axes.axison and axes.get_label() != "<colorbar>"]
    for k, axes in enumerate(panels if len(panels) > 1 else ()):
        axes.set_title(
            f"({chr(ord('a') + k)})" if k < 26 else f"({k + 1})", loc="left", fontsize=9.5, fontweight="bold"
        )
    if (layout := figure.get_layout_engine()) is not None:  # here, as savefig draws all twice for one
        layout.execute(figure)
        figure.set_layout_engine(None)
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        try:
            figure.savefig(path, dpi=DPI, metadata=undated)
        except OSError as error:
            path.unlink(missing_ok=True)  # half of a picture is none
            raise HostError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def share_limits(low: float, high: float) -> tuple[float, float]:
    """Return the axis of shares, such as accuracies, that lie from low to high: from 0 to 1 where
    they use most of that, else as much as they do, and 5 points at least, in steps of 5. The same
    as in chart.js.

    Example:
        share_limits(0.1, 0.93)   # (0.0, 1.0)
        share_limits(0.91, 0.975)  # (0.9, 1.0)
    """
    if not 0 <= low <= high <= 1 or low < 0.25:
        return (min(0.0, low), max(1.0, high))
    bottom = math.floor(20 * low - 0.2) / 20
    top = math.ceil(20 * high + 0.2) / 20
    return max(0.0, bottom), min(1.0, top)


def legend_text(text: str, most: int) -> str:
    """Return a name for a legend, in which matplotlib leaves out what begins with "_"."""
    return ("\N{ZERO WIDTH SPACE}" if text.startswith("_") else "") + printable(text, most)


def legend_columns(labels: Sequence[str], most: int, letters: int) -> int:
    """Return how many labels go into one line of a legend that is so wide: else the widest are cut
    off."""
    return max(1, min(most, len(labels), letters // (max(map(len, labels), default=0) + 8)))


_EDGE: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6}  # keeps neighbouring pieces of a bar apart


def part_style(part: str) -> dict[str, Any]:
    """Return the colour and texture of a part of a round, as arguments of a bar."""
    return {"color": LIGHT[part], "hatch": TEXTURES.get(part), **_EDGE}


def draw_learning(curves: Curves, title: str, path: Path, summary: Mapping[str, Any]) -> Path:
    """Draw loss and the score that the run goes by on test data, against seconds and against bytes
    sent by all boards; without a score the loss alone. Where a board's process ended too early is
    marked. `summary` is the run's."""
    score, boards = summary["score"], _of_boards(summary)
    score = None if score == "loss" else score  # which is drawn anyway
    with matplotlib.rc_context(MATPLOTLIB):
        figure = new_figure(10.0, 6.2 if score else 3.7, title)
        axes = figure.subplots(2 if score else 1, 2, sharex="col", sharey="row", squeeze=False)
        for column, x in enumerate((curves.t_s, curves.sent_bytes)):
            _loss(axes[0, column], x, curves, boards, _whose(summary))
            if score:
                _score(axes[1, column], x, curves, score)
            for row in axes[:, column]:
                _marks(row, x, curves, summary)
        axes[-1, 0].set_xlabel("seconds of training")
        axes[-1, 0].set_xlim(left=0)
        _bytes_axis(axes[-1, 1], curves.sent_bytes)
        known = [word for word, name in _LOSSES.items() if np.isfinite(curves.values.get(name, np.nan)).any()]
        axes[0, 0].set_ylabel(f"{' and '.join(known)} loss".strip())
        if score:
            axes[1, 0].set_ylabel(f"test {printable(score, 32)}")
        figure.legend(*axes[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return save(figure, path)


_LOSSES = {"training": "train/loss", "test": "eval/loss"}


def _of_boards(summary: Mapping[str, Any]) -> str:
    return f", mean of {summary['nodes']} boards" if summary["nodes"] > 1 else ""


def _whose(summary: Mapping[str, Any]) -> str:
    return ", by the coordinator" if evaluated_by(summary) == "coordinator" else _of_boards(summary)


def _marks(axes: Axes, x: Numbers, curves: Curves, summary: Mapping[str, Any]) -> None:
    """A line down the plot, at the last round that the board, or the slowest one, had done."""
    again = [one for one in summary["interruptions"] if one["event"] == "restarted"]
    lost = [one for one in summary["interruptions"] if one["event"] != "restarted"]
    for found, words, color, style in (
        (lost, "a board was lost", "alarm", "--"),
        (again, "a board was started again", "again", ":"),
        (summary.get("resumes") or (), "the run was resumed", "ink", (0, (9, 4))),
    ):
        for k, one in enumerate(found):
            at = max(0, int(np.searchsorted(curves.steps, one["rounds"] - 1, side="right")) - 1)
            axes.axvline(x[at], color=LIGHT[color], linewidth=1.2, linestyle=style, label=None if k else words)


def _loss(axes: Axes, x: Numbers, curves: Curves, boards: str, whose: str) -> None:
    """Training loss: the boards' range faint, their mean smoothed. Test loss: a dot an
    evaluation."""
    train = curves.values.get("train/loss", np.empty((0, x.size)))
    mean, window = column_mean(train), max(1, x.size // 50)
    low, high = column_range(train)
    if np.isfinite(mean).any():
        axes.fill_between(x, low, high, color=TRAIN, alpha=0.16, linewidth=0, label="training, every board")
        label = f"training{boards}" + (f", smoothed over {window} rounds" if window > 1 else "")
        axes.plot(x, smooth(mean, window), color=TRAIN, linewidth=1.8, label=label)
    _evaluations(axes, x, curves.values.get("eval/loss"), f"test{whose}")
    if axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y")


def _score(axes: Axes, x: Numbers, curves: Curves, name: str) -> None:
    """The boards' mean and range of a score; an accuracy is in per cent."""
    found, percent = curves.values.get(f"{EVALUATED}{name}"), name == "accuracy"
    mean = _evaluations(axes, x, found, "")
    axes.grid(axis="y")
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if mean is None or found is None:
        return
    low, high = column_range(found)
    at = np.flatnonzero(np.isfinite(low))
    axes.fill_between(x[at], low[at], high[at], color=TEST, alpha=0.16, linewidth=0)
    last = np.flatnonzero(np.isfinite(mean))[-1]
    middle = 0.5 * float(np.nanmax(high) + np.nanmin(low))
    offset = (-2, -14) if mean[last] > middle else (-2, 8)
    style: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontweight": "bold", "color": TEST}
    axes.annotate(score_text(name, mean[last]), (x[last], mean[last]), offset, **style)
    if percent:
        axes.set_ylim(*share_limits(float(np.nanmin(low)), float(np.nanmax(high))))
        for drawn in axes.lines:
            drawn.set_clip_on(False)  # a line along 100 % has its whole width
    elif axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)


def _evaluations(axes: Axes, x: Numbers, matrix: Numbers | None, label: str) -> Numbers | None:
    """A line through the rounds that were evaluated; returns the mean over boards, None without
    any."""
    if matrix is None or not np.isfinite(matrix).any():
        return None
    mean = column_mean(matrix)
    at = np.flatnonzero(np.isfinite(mean))
    marker = "o" if at.size <= 60 else ""
    axes.plot(x[at], mean[at], color=TEST, marker=marker, markersize=3.5, linewidth=1.6, label=label)
    return mean


def draw_time(summary: Mapping[str, Any], title: str, path: Path) -> Path:
    """Draw what each board's seconds went to, one stacked bar a board."""
    rows = [row for row in summary["boards"] if any(v is not None for v in row["time_s"].values())]
    with matplotlib.rc_context(MATPLOTLIB):
        figure = new_figure(10.0, 1.7 + 0.36 * len(rows), title)
        axes = figure.subplots()
        totals = np.array([sum(row["time_s"][part] or 0.0 for part in PARTS) for row in rows])
        longest = float(totals.max()) or 1.0
        left = np.zeros(len(rows))
        for part in PARTS:
            seconds = np.array([row["time_s"][part] or 0.0 for row in rows])
            axes.barh(range(len(rows)), seconds, left=left, label=part, height=0.72, **part_style(part))
            _inside(axes, left, seconds, longest, part)
            left += seconds
        for y, total in enumerate(totals):
            axes.text(total + 0.008 * longest, y, seconds_text(total), va="center", fontweight="bold")
        axes.set_yticks(range(len(rows)), [_board_label(row) for row in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 1.1 * longest)
        axes.set_xlabel("seconds in a board's own rounds")
        axes.grid(axis="x")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS))
        return save(figure, path)


def _inside(axes: Axes, left: Numbers, seconds: Numbers, longest: float, part: str) -> None:
    """Write the seconds into the pieces that have room for them, with no texture behind them."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "color": _ink_on(LIGHT[part]), "fontsize": 8.5}
    style["bbox"] = {"facecolor": LIGHT[part], "edgecolor": "none", "pad": 1.0}
    for y, (start, width) in enumerate(zip(left, seconds, strict=True)):
        if width > 0.075 * longest:
            axes.text(start + width / 2, y, seconds_text(width), **style)


def _board_label(row: Mapping[str, Any]) -> str:
    words = [f"{row['restarts']}x started again"] if row["restarts"] else []
    if row["state"] != "finished" and row["role"] == "board":
        words.append(f"{row['state']} after {row['rounds']} round{'' if row['rounds'] == 1 else 's'}")
    return printable(row["node"], 40) + (f"\n({', '.join(words)})" if words else "")


def draw_partition(nodes: Sequence[str], classes: Sequence[str], counts: Any, title: str, path: Path) -> Path:
    """Draw who has which training examples: one stacked bar a board, one colour a class; counts
    int[nodes, classes]."""
    table = np.asarray(counts)
    with matplotlib.rc_context(MATPLOTLIB):
        figure = new_figure(10.0, 1.9 + 0.36 * len(nodes), title)
        axes = figure.subplots()
        left = np.zeros(len(nodes))
        widest = max(float(table.sum(axis=1).max(initial=0)), 1.0)
        colors = class_colors(len(classes))
        for k, name in enumerate(classes):
            axes.barh(
                range(len(nodes)),
                table[:, k],
                left=left,
                color=colors[k],
                label=legend_text(name, 20),
                height=0.72,
                **_EDGE,
            )
            for y, count in enumerate(table[:, k]):
                if count > 0.045 * widest:
                    ink = _ink_on(colors[k])
                    axes.text(left[y] + count / 2, y, str(count), ha="center", va="center", color=ink, fontsize=8)
            left += table[:, k]
        for y, total in enumerate(left):
            axes.text(total + 0.008 * widest, y, f"{total:.0f}", va="center", fontweight="bold")
        axes.set_yticks(range(len(nodes)), [printable(node, 40) for node in nodes])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(nodes) - 0.5, -0.5)
        axes.set_xlim(0, 1.08 * widest)
        axes.set_xlabel("training examples")
        axes.grid(axis="x")
        handles, labels = axes.get_legend_handles_labels()
        columns = legend_columns(labels, 10, 190)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, title="class")
        return save(figure, path)


def _ink_on(color: str) -> str:
    red, green, blue = matplotlib.colors.to_rgb(color)
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def _bytes_axis(axes: Axes, sent_bytes: Numbers) -> None:
    total = float(sent_bytes[-1])
    axes.set_xlabel(f"bytes sent by all boards ({bytes_text(total)} in all)" if total else "bytes sent (not measured)")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
