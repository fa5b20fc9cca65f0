"""The plots of a scalability run: which there are, and what they show. Drawn by `draw`, which
imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgegossip.types import HostError

Result = Mapping[str, Any]


def write_plots(folder: Path, name: str, rows: Sequence[Mapping[str, Any]], results: Sequence[Result]) -> list[Path]:
    """time.png, speedup.png, loss.png, round.png and links.png in `folder`; those without data are
    left out. `name`: of the recipe. Raises HostError without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise HostError("plots need matplotlib: pip install 'edgegossip[report]'") from None
    from edgegossip.lab.scale import draw

    done = [row for row in rows if row["t_s"] is not None]
    what = f"{name}, {'modelled' if done[0]['on'] == 'model' else done[0]['on']}"
    written = [draw.times(done, what, folder / "time.png"), draw.speedups(done, what, folder / "speedup.png")]
    largest = max(row["devices"] for row in done)
    shown = [result for result in results if result["devices"] == largest]
    if curves := _curves(results):
        written.append(draw.losses(curves, what, folder / "loss.png"))
    ends = _ends(shown)
    if gantt := [r for r in ends if r.get("marks")]:
        written.append(draw.rounds(gantt, what, folder / "round.png"))
    if linked := [r for r in ends if r.get("links")]:
        written.append(draw.links(linked, what, folder / "links.png"))
    return written


def _curves(results: Sequence[Result]) -> list[Result]:
    """Those on the largest count on which there is more than one round to see."""
    long = [result for result in results if len(result.get("curve", ())) > 1]
    return [result for result in long if result["devices"] == max(r["devices"] for r in long)]


def _ends(results: Sequence[Result]) -> list[Result]:
    """The slowest and the fastest of them."""
    ordered = sorted(results, key=lambda r: -float(r["row"]["t_s"]))
    return ordered if len(ordered) < 2 else [ordered[0], ordered[-1]]
