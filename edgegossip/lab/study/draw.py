"""The figures of a study, with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

from edgegossip.lab.study.variants import Point, Variant
from edgegossip.report.style import INK, MUTED, STYLE, class_colors, new_figure, save
from edgegossip.report.units import printable

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (5, 4)))
_WIDTH_IN, _HEIGHT_IN = 4.2, 3.4  # of a panel
_COLUMNS = 3

Draw = Callable[[Axes, Variant, str, int], None]


def draw_bits(variants: Sequence[Variant], study: str, path: Path) -> Path:
    """Final score against bits per value, one mark a variant, with its deviation over the seeds."""

    def draw(axes: Axes, v: Variant, color: str, mark: int) -> None:
        style: dict[str, Any] = {"color": color, "capsize": 2.5, "linewidth": 1.0, "markersize": 6.5, "alpha": 0.9}
        style["markerfacecolor"] = "none"  # marks that lie on one another stay apart
        marker = _MARKERS[mark % len(_MARKERS)]
        axes.errorbar(v.bits_per_value, v.value, v.std or None, marker=marker, **style)

    shown = [v for v in variants if v.bits_per_value > 0]
    score = _score_of(shown)
    return _panels(shown, f"{study}: {score} against bits", path, draw, partial(_bits_axes, score), lines=False)


def draw_bytes(variants: Sequence[Variant], study: str, path: Path) -> Path:
    """Score on the way, against the bytes that a node has sent until then."""

    def draw(axes: Axes, v: Variant, color: str, mark: int) -> None:
        _curve(axes, v.by_bytes, color, mark)

    shown = [v for v in variants if v.by_bytes]
    score = _score_of(shown)
    title = f"{study}: {score} against bytes sent"
    return _panels(shown, title, path, draw, partial(_bytes_axes, score), lines=True)


def _score_of(variants: Sequence[Variant]) -> str:
    """What the vertical axis shows; a study of several tasks has one axis for all of them."""
    return printable(" or ".join(dict.fromkeys(v.score for v in variants)), 60)


def draw_loss(variants: Sequence[Variant], study: str, path: Path) -> Path:
    """Training loss on the way, against the bits that a node has sent until then, as in ElastiCL's
    Figure 1."""

    def draw(axes: Axes, v: Variant, color: str, mark: int) -> None:
        _curve(axes, v.loss_by_bits, color, mark)

    shown = [v for v in variants if v.loss_by_bits]
    return _panels(shown, f"{study}: loss against bits sent", path, draw, _loss_axes, lines=True)


def _curve(axes: Axes, points: Sequence[Point], color: str, mark: int) -> None:
    x, y = zip(*points, strict=True)
    dots = "" if len(x) > 30 else _MARKERS[mark % len(_MARKERS)]
    style: dict[str, Any] = {"linestyle": _LINES[mark % len(_LINES)], "marker": dots, "markersize": 3.5}
    axes.plot(x, y, color=color, linewidth=1.4, alpha=0.9, **style)


def draw_consensus(variants: Sequence[Variant], study: str, path: Path) -> Path:
    """How far the nodes' models are apart, round by round."""

    def draw(axes: Axes, v: Variant, color: str, mark: int) -> None:
        x, y = zip(*((x, y) for x, y in v.by_round if y > 0), strict=True)
        axes.plot(x, y, color=color, linewidth=1.2, alpha=0.9, linestyle=_LINES[mark % len(_LINES)])

    shown = [v for v in variants if any(y > 0 for _, y in v.by_round)]
    return _panels(shown, f"{study}: consensus distance", path, draw, _consensus_axes, lines=True)


def _bits_axes(score: str, axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bits a value")
    _score_axis(score, axes)


def _bytes_axes(score: str, axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bytes sent by a node")
    _score_axis(score, axes)


def _loss_axes(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(unit="bit"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bits sent by a node")
    axes.set_ylabel("training loss")


def _score_axis(score: str, axes: Axes) -> None:
    axes.set_ylabel(f"test {score}, averaged model")
    if score == "accuracy":
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")


def _consensus_axes(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.set_xlabel("round")
    axes.set_ylabel("consensus distance")


def _panels(
    variants: Sequence[Variant], title: str, path: Path, draw: Draw, finish: Callable[[Axes], None], *, lines: bool
) -> Path:
    names = [list(dict.fromkeys(words)) for words in zip(*((v.panel, v.color, v.mark) for v in variants), strict=True)]
    panels, colors, marks = names
    paint = dict(zip(colors, class_colors(len(colors)), strict=True))
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(max(6.4, _WIDTH_IN * columns), 0.9 + _HEIGHT_IN * rows, title)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for k, axes in enumerate(grid.flat):
            if k >= len(panels):
                axes.set_axis_off()
                continue
            for v in (v for v in variants if v.panel == panels[k]):
                draw(axes, v, paint[v.color], marks.index(v.mark))
            finish(axes)
            axes.set_title(printable(panels[k], 60), fontsize=9.5, color=INK)
            axes.grid(True)
            axes.label_outer()
        _legend(figure, paint, marks, lines)
        return save(figure, path)


_LEGEND_LETTERS = 130  # in a line below the panels


def _legend(figure: Figure, paint: dict[str, str], marks: Sequence[str], lines: bool) -> None:
    """Colours, then marks; a kind of which there is but one says nothing."""
    entries = [Line2D([], [], color=c, linewidth=5, label=_label(name)) for name, c in paint.items()] * (len(paint) > 1)
    for k, name in enumerate(marks if len(marks) > 1 else ()):
        style: dict[str, Any] = {"marker": _MARKERS[k % len(_MARKERS)], "linestyle": "none"}
        if lines:
            style = {"linestyle": _LINES[k % len(_LINES)]}
        entries.append(Line2D([], [], color=MUTED, label=_label(name), **style))
    if entries:
        longest = max(len(str(entry.get_label())) for entry in entries)
        columns = max(1, min(4, len(entries), _LEGEND_LETTERS // (longest + 8)))  # else the widest entries are cut off
        figure.legend(handles=entries, loc="outside lower center", ncols=columns, handlelength=2.6)


def _label(words: str) -> str:
    return printable(words, 60) or "as in the recipe"
