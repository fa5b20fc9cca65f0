"""`edgegossip report`, `runs` and `top`: tables, plots, the page and exports of run folders; what
the boards of a run are doing, now."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import click

from edgegossip.cli.options import JSON, RUNS, TOGETHER, command
from edgegossip.options import REQUIRED, option
from edgegossip.report.exports import Exports
from edgegossip.report.style import Figures
from edgegossip.types import EXIT_OK, ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommand:
    """Options of `edgegossip report`."""

    runs: tuple[Path, ...] = option(REQUIRED, argument=True, path="folder", exists=True, metavar="RUN...")
    exports: Exports
    together: bool = TOGETHER()
    figures: Figures
    as_json: bool = JSON()


@command(ReportCommand)
def report(options: ReportCommand) -> int:
    """Print the table of each run folder RUN, draw its plots, and write one page that has it all:
    where every second went, loss and accuracy, links, sensors, events; of several runs also their
    speed-up.

    \b
    Examples:
      edgegossip report runs/20260102-030405-quickstart-gossip
      edgegossip report runs/*-table3-* --html table3.html
      edgegossip report RUN --csv out
      edgegossip report RUN --plot-format pdf --no-plot-titles
      edgegossip report pi-*/runs/* --together --html fleet.html

    The page is one file without network requests; open it in a browser (docs/report.md).
    """
    from edgegossip.fleet.launch.run_folders import show
    from edgegossip.report.exports import write_exports
    from edgegossip.report.web.view import read_runs

    views = read_runs(options.runs, together=options.together)
    summaries = [view.summary() for view in views]
    if options.as_json:
        click.echo(json.dumps(summaries[0] if len(views) == 1 else {"runs": summaries}))
    else:
        for summary, view in zip(summaries, views, strict=True):
            # Plots are of one folder's records.
            show(summary, view.folder, replace(options.figures, plots=options.figures.plots and not options.together))
    for written in write_exports(views, options.exports, page=not options.as_json):
        click.echo(written, err=options.as_json)
    return EXIT_OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Options of `edgegossip runs`."""

    runs: Path = option(Path("runs"), "Folder of the run folders.", flag="--runs", path="folder")
    as_json: bool = JSON()


@command(Runs)
def runs(options: Runs) -> None:
    """List the runs of this machine, the newest first: boards, rounds, score, bytes, and how each
    ended.

    \b
    Examples:
      edgegossip runs
      edgegossip report runs/$(edgegossip runs --json | jq -r '.[0].run')
    """
    from edgegossip.report.table import runs_table
    from edgegossip.telemetry.run_folder import read_run
    from edgegossip.telemetry.summary import summarise

    folders = sorted((path for path in options.runs.glob("*") if (path / "recipe.toml").is_file()), reverse=True)
    data = [read_run(folder) for folder in folders]
    summaries = [run.summary or summarise(run) for run in data]
    if options.as_json:
        click.echo(json.dumps(summaries))
    elif summaries:
        click.echo("\n".join(runs_table(summaries)))
    else:
        click.echo(f"no run is in {options.runs}; start one with: edgegossip run quickstart-gossip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """Options of `edgegossip top`."""

    folders: tuple[Path, ...] = option((), argument=True, path="folder", exists=True, metavar="[RUN]")
    runs: Path = RUNS()
    web: bool = option(False, "Serve the page of `edgegossip report`, live, instead of a table.")
    port: int | None = option(None, "Of --web; 0 takes a free one. Default: 8765, or a free one.", low=0, high=65_535)
    host: str = option("127.0.0.1", "Where --web listens. Whoever can connect there sees the run.")
    once: bool = option(False, "Print the table as it is now and end.")
    every_s: float = option(1.0, "Seconds between two looks.", flag="--every", low=0.1, high=3600)
    together: bool = TOGETHER()


@command(Top)
def top(options: Top) -> None:
    """Watch the run folder RUN while it is written: each board's round, loss, seconds by part,
    bytes, temperature, and who waits for whom. Without RUN: the folder under --runs that was
    written to last. Ends with the run, or with Ctrl-C.

    \b
    Examples:
      edgegossip top
      edgegossip top runs/20260102-030405-quickstart-gossip --web

    Without a terminal it prints plain lines. `edgegossip report RUN --json` prints the summary.
    """
    from edgegossip.report.progress import newest_run

    if options.once and options.web:
        raise ConfigError("--once prints the table, --web serves the page: leave one out")
    if len(options.folders) > 1 and not options.web:
        raise ConfigError("top shows one run; --web shows several")
    folders = options.folders or (newest_run(options.runs),)
    try:
        if options.web:
            from edgegossip.report.web.serve import LiveRuns, listen

            with listen(LiveRuns(folders, together=options.together), options.host, options.port) as server:
                click.echo(f"{', '.join(folder.name for folder in folders)}: {server.url}  (Ctrl-C ends)")
                server.serve_forever()
        else:
            from edgegossip.report.live import follow

            follow(folders[0], once=options.once, interval_s=options.every_s)
    except KeyboardInterrupt:  # the usual way to leave
        return
