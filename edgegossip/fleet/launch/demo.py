"""`demo`: a run in each mode, one after the other; then what came of them, where it lies, and what
to try next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from edgegossip import recipe as recipes
from edgegossip.files import seen_from_here
from edgegossip.fleet.launch.run import trained
from edgegossip.fleet.launch.run_folders import conclude
from edgegossip.report.table import verdict_lines
from edgegossip.report.units import bytes_text, seconds_text
from edgegossip.telemetry.records import score_text
from edgegossip.telemetry.run_folder import read_run
from edgegossip.types import EXIT_OK, HostError

_WAYS = {"quickstart-gossip": "peer to peer", "quickstart-server": "through a coordinator"}
_NEXT = (
    (
        "edgegossip run quickstart-gossip --set gossip.algorithm=choco-sgd --set codec.name=deadzone",
        "the same accuracy for a sixteenth of the bytes",
    ),
    (
        "edgegossip run quickstart-gossip --set run.rounds=3000 --set network.restarts=3",
        "then, in a second terminal, kill a board: edgegossip kill board-2",
    ),
)


def run_demo(runs_dir: Path, settings: Sequence[str], *, plots: bool) -> int:
    """Train peer to peer, then through a coordinator, with the same `settings`, and say what to do
    with the results. Returns the worse exit code of both; raises as `trained` does. Without Flower
    only the first way is gone, and the code says so."""
    chosen = [recipes.load(name, settings) for name in _WAYS]
    code = EXIT_OK
    folders: list[Path] = []
    said: list[str] = []
    for recipe, way in zip(chosen, _WAYS.values(), strict=True):
        try:
            with trained(recipe, runs_dir, quiet=False) as folder:
                code = max(code, conclude(folder, plots=plots, as_json=False))
        except HostError as error:  # such as a package that is missing: what can be shown is shown
            if not folders:
                raise
            said.append(f"{way}: {error}")
            code = max(code, error.exit_code)
            continue
        folders.append(seen_from_here(folder.path))
        click.echo("")
    summaries = [read_run(path).summary or {} for path in folders]
    said = [*map(_in_short, _WAYS.values(), summaries), *said, _judged(summaries, len(folders) == len(_WAYS))]
    click.echo("\n".join([*said, "", *_where(folders), "", *_next(folders)]))
    return code


def _in_short(way: str, summary: Mapping[str, Any]) -> str:
    """What a run reached, and what it took."""
    score, parts = summary["score"], {k: v for k, v in summary["time_s"].items() if v}
    reached = score_text(score, summary["scores"][score]["mean"]) if score else "no accuracy"
    busiest = max(parts, key=lambda part: parts[part], default=None)
    share = f"; {100 * parts[busiest] / sum(parts.values()):.0f} % of a round is {busiest}" if busiest else ""
    seconds, sent = seconds_text(summary["seconds"]), bytes_text(summary["sent_bytes"]["payload"])
    return f"{way}: {reached} on digits it never saw, in {seconds}, with {sent} sent{share}"


def _judged(summaries: Sequence[Mapping[str, Any]], whole: bool) -> str:
    """The first thing to mend, or that there is none."""
    if findings := [line for summary in summaries for line in verdict_lines(summary)]:
        return findings[0]
    return f"verdict: every board finished, and nothing is wrong{'' if whole else ' with what could run here'}"


def _where(folders: Sequence[Path]) -> Iterator[str]:
    for folder in folders:
        for what, path in (("page", folder / "report.html"), ("plots", folder / "plots")):
            if path.exists():
                yield f"{what:5}  {path}"


def _next(folders: Sequence[Path]) -> Iterator[str]:
    """Three commands to try, in the shell that the user has."""
    yield "next: try"
    activate = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("edgegossip") is None and activate.exists():
        yield f"  source {seen_from_here(activate)}"
    yield f"  edgegossip report {' '.join(map(str, folders))}"
    yield "      # a page with everything, opened in a browser; of two runs side by side"
    for command, why in _NEXT:
        yield f"  {command}"
        yield f"      # {why}"
