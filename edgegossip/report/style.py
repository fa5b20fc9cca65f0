"""How every figure of the package looks: drawn off screen, with colours of Okabe and Ito, which
people with any kind of colour vision tell apart (M. Okabe, K. Ito, "Color Universal Design",
2008)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from edgegossip.report.units import printable

INK, MUTED, GRID = "#22272E", "#667079", "#E4E7EA"
CATEGORIES = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#7F7F7F",
    "#332288",
    "#882255",
)

STYLE: Any = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "legend.frameon": False,
}


def class_colors(count: int) -> list[str]:
    """One colour a class: a palette that can be told apart up to ten, an even scale beyond."""
    if count <= len(CATEGORIES):
        return list(CATEGORIES[:count])
    scale = matplotlib.colormaps["viridis"]
    return [matplotlib.colors.to_hex(scale(k / (count - 1))) for k in range(count)]


def new_figure(width_in: float, height_in: float, title: str) -> Figure:
    """Not through pyplot: no global state, no display."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.03)  # inches, inches, shares
    figure = Figure(figsize=(width_in, height_in), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(printable(title, 160), x=0.012, ha="left", fontsize=11, fontweight="bold")
    return figure


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=150)
    return path
