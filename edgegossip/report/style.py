"""How every figure looks, on the page (web/) and from matplotlib (draw.py, sweep/plots.py):
colours, textures, which colour a scheme has, how figures are written. No other file has a colour.

Lines have colours of Okabe and Ito (M. Okabe, K. Ito, "Color Universal Design", 2008) and of P.
Tol, which people with any kind of colour vision tell apart. The parts of a round differ in
lightness too, and two of them in texture, so that they can be told apart in print without colours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgegossip import codecs
from edgegossip.options import option

LIGHT: Mapping[str, str] = {
    "bg": "#f5f7f9", "card": "#ffffff", "ink": "#1c232b", "muted": "#56626f", "line": "#e2e7ec", "grid": "#e8ecf0",
    "accent": "#0072b2", "alarm": "#b3261e", "again": "#7b4ea3", "good": "#1a7f4b", "cold": "#eef4f9", "hot": "#0a4a7a",
    "compute": "#0072B2", "encode": "#E69F00", "transmit": "#A5331B", "decode": "#F7F08A", "wait": "#B8BDC4",
    "other": "#DFE3E7",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "bg": "#11151a", "card": "#191f26", "ink": "#e7ecf1", "muted": "#9ba8b5", "line": "#2b343e", "grid": "#242c35",
    "accent": "#5cb8ee", "alarm": "#ff8a80", "again": "#c9a3ee", "good": "#59c98d", "cold": "#1f2a35", "hot": "#8fd0ff",
    "compute": "#3a9bdc", "encode": "#f2b233", "transmit": "#bf4326", "decode": "#fbf6b4", "wait": "#6a7580",
    "other": "#333d47",
}  # fmt: skip
# Of lines, bars and classes, in their order; one place in a list is the same thing in both.
SERIES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#882255", "#117733", "#7F7F7F",
)  # fmt: skip
SERIES_DARK = (
    "#56B4E9", "#FF8A4C", "#2FC79A", "#E29CC7", "#F2B632", "#9AD0F5", "#A99BFF", "#E5739B", "#8FD18F", "#B4BAC0",
)  # fmt: skip
TEXTURES = {"transmit": "....", "wait": "////"}  # as matplotlib has them; page.css and chart.js have the same
TRAIN, TEST = SERIES[0], SERIES[1]

# For matplotlib, which need not be here.
MATPLOTLIB: Any = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "grid.color": LIGHT["grid"],
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "text.parse_math": False,  # names may hold any character, a "$" too
    "pdf.fonttype": 42,  # fonts that a publisher takes
    "svg.hashsalt": "edgegossip",  # the same figure is the same file
}

# Those that are compared most come first. A codec that is not among them has the place of its name.
_PLACES = (
    "fp32", "4-bit-elastiquant", "e-elastiquant", "co3", "8-bit-elastiquant", "minmax8", "qsgd", "topk", "powersgd",
    "elasticl",
)  # fmt: skip


def places(names: Iterable[str]) -> dict[str, int]:
    """Return the place in SERIES of each scheme (or of whatever else lines stand for): that of its
    codec, in every figure and on every page. Where several want one place the first has it. These
    others, and names without a codec, get what is left over; where all are taken, places go on
    counting.

    Example:
        places(["dpsgd, fp32", "choco-4-bit-elastiquant"])  # {"dpsgd, fp32": 0, "choco-...": 1}
    """
    wanted = {name: _wanted(name) for name in names}
    first = {place: name for name, place in reversed(wanted.items()) if place is not None}
    found = {name: place for place, name in first.items()}
    for name, place in wanted.items():
        if name not in found:
            taken = set(found.values())
            ways = (((place or 0) + k) % len(SERIES) for k in range(len(SERIES)))
            found[name] = next((way for way in ways if way not in taken), len(found))
    return {name: found[name] for name in wanted}


def _wanted(name: str) -> int | None:
    """The place of the codec in a scheme's name; None without one."""
    words, known = re.split(r"[\s,=;:+()]+", name), codecs.names()
    exact = [word for word in words if word in known]
    ending = [codec for word in words for codec in known if word.endswith(f"-{codec}")]
    plain = ["fp32" for word in words if word.endswith("sgd")]  # dpsgd, server-sgd: at full precision
    for codec in (*exact[-1:], *sorted(ending, key=len)[-1:], *plain[:1]):
        return _PLACES.index(codec) if codec in _PLACES else known.index(codec) % len(SERIES)
    return None


@dataclass(frozen=True, slots=True)
class Figures:
    """Says whether and how plots are drawn, as options of a command."""

    plots: bool = option(True, "Draw plots at the end (needs matplotlib).")
    plot_format: Literal["png", "svg", "pdf"] = option("png", "Of plots; svg and pdf are for papers and slides.")
    plot_titles: bool = option(True, "Give plots a title, or leave that to a caption.")

    def path(self, folder: Path, name: str) -> Path:
        """Return where the figure of this name goes."""
        return folder / f"{name}.{self.plot_format}"

    def title(self, words: str) -> str:
        """Return the title of a figure; "" is none."""
        return words if self.plot_titles else ""
