"""The plots of a run as files: how it learned, where its time went, who had which data.

matplotlib is imported when something is drawn, never before, and draws without a screen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip.report.series import Curves, Series, SeriesReader, align
from edgegossip.report.style import Figures
from edgegossip.telemetry.run_folder import RunData, read_run
from edgegossip.telemetry.summary import COORDINATOR, recipe_of, summarise
from edgegossip.types import DataError, HostError, NodeId

_COUNTED = (("nodes", "board"), ("rounds", "round"))


def write_plots(run_dir: Path, figures: Figures = Figures()) -> list[Path]:
    """Draw learning.png, time.png and partition.png into `<run_dir>/plots`, or what `figures` says;
    those without data are left out. Raises HostError without matplotlib, DataError for a folder
    without records."""
    require_matplotlib()
    from edgegossip.report.draw import draw_learning, draw_partition, draw_time

    run = read_run(run_dir)
    summary, curves = read_curves(run)
    if curves.t_s.size == 0 and run.partition is None:
        raise DataError(f"{run_dir} has no records to draw yet")
    title, folder = figures.title(run_title(run, summary)), Path(run_dir) / "plots"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make {folder}: {error.strerror}") from None
    written: list[Path] = []
    if curves.t_s.size:
        written.append(draw_learning(curves, title, figures.path(folder, "learning"), summary))
    if any(seconds is not None for row in summary["boards"] for seconds in row["time_s"].values()):
        written.append(draw_time(summary, title, figures.path(folder, "time")))
    if run.partition is not None:
        nodes, classes, counts = (run.partition[key] for key in ("nodes", "classes", "counts"))
        written.append(draw_partition(nodes, classes, counts, title, figures.path(folder, "partition")))
    return written


def read_curves(run: RunData) -> tuple[Mapping[str, Any], Curves]:
    """Return a run's summary and its curves, in one pass over what may be a hundred megabytes."""
    reader = SeriesReader()
    summary = summarise(run, reader.watch(run.metrics()))
    return summary, _curves(reader.series())


def run_title(run: RunData, summary: Mapping[str, Any]) -> str:
    """Return one line that says what was run, such as "quickstart-gossip: gossip (ring, dpsgd),
    minmax8, 4 boards, 60 rounds"."""
    recipe = recipe_of(run)
    section = {name: recipe.get(name, {}) for name in ("run", "gossip", "server", "codec", "data", "model")}
    mode = summary["mode"]
    how = ("topology", "algorithm") if mode == "gossip" else ("strategy",)
    details = [str(section[mode][key]) for key in how if key in section.get(mode, {})]
    parts = [f"{mode} ({', '.join(details)})" if details else mode]
    script = section["run"].get("script")  # which stands in for data and model
    parts += [Path(script).name] if script else [section[name].get("name") for name in ("data", "model")]
    parts.append(section["codec"].get("name"))
    parts += [f"{summary[key]} {word}{'' if summary[key] == 1 else 's'}" for key, word in _COUNTED]
    return f"{section['run'].get('name', run.name)}: " + ", ".join(str(p) for p in parts if p)


def _curves(series: Mapping[NodeId, Series]) -> Curves:
    """All boards on one axis. Where boards do not evaluate, the coordinator's figures stand in."""
    curves = align(series)
    rows = [k for k, node in enumerate(series) if node != COORDINATOR]
    return replace(curves, values={name: _pick(m, rows) for name, m in curves.values.items()})


def _pick(matrix: Any, rows: list[int]) -> Any:
    return matrix[rows] if rows and np.isfinite(matrix[rows]).any() else matrix


def require_matplotlib() -> None:
    """Raise HostError, which says what to install, where nothing can be drawn."""
    try:
        import matplotlib  # noqa: F401  # asked for here, so that modules that draw may import it
    except ImportError:
        raise HostError("plots need matplotlib: pip install matplotlib") from None
