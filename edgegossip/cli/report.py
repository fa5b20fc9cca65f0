"""`edgegossip report`: tables, plots, the page and exports of run folders, of runs that ended or
that go on."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.options import JSON, PLOTS, TOGETHER

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument(
    "runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the page goes. Default: report.html in the run's folder; of several runs, in the present folder.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the rounds as a trace for ui.perfetto.dev or chrome://tracing.",
)
@click.option("--csv", type=_FOLDER, metavar="DIR", help="Write metrics, events and links as CSV files.")
@click.option("--parquet", type=_FOLDER, metavar="DIR", help="The same as Parquet files (needs pyarrow).")
@click.option(
    "--tensorboard", type=_FOLDER, metavar="DIR", help="Write an event file a board, for `tensorboard --logdir DIR`."
)
@TOGETHER
@PLOTS
@JSON
def report(
    runs: tuple[Path, ...],
    html: Path | None,
    trace: Path | None,
    csv: Path | None,
    parquet: Path | None,
    tensorboard: Path | None,
    together: bool,
    plots: bool,
    as_json: bool,
) -> None:
    """Print the table of each run folder RUN, draw its plots, and write one page that has it all:
    where every second went, loss and accuracy, links, sensors, events; of several runs also their
    speed-up.

    \b
    Examples:
      edgegossip report runs/20260102-030405-quickstart-gossip
      edgegossip report runs/*-table3-* --html table3.html
      edgegossip report RUN --trace trace.json --csv out
      edgegossip report pi-*/runs/* --together --html fleet.html

    The page is one file that asks nobody for anything; open it in a browser (docs/report.md).
    """
    from edgegossip.fleet.launch.run_folders import show
    from edgegossip.report.command import Exports, read_runs, write_exports

    views = read_runs(runs, together=together)
    summaries = [view.summary() for view in views]
    if as_json:
        click.echo(json.dumps(summaries[0] if len(views) == 1 else {"runs": summaries}))
    else:
        for summary, view in zip(summaries, views, strict=True):
            show(summary, view.folder, plots=plots and not together)  # plots are of one folder's records
    for written in write_exports(views, Exports(html, trace, csv, parquet, tensorboard), page=not as_json):
        click.echo(written, err=as_json)
