"""`edgegossip report`: the table and the plots of a run folder, of a run that ended or one that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.options import JSON, PLOTS


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False))
@PLOTS
@JSON
def report(run: str, plots: bool, as_json: bool) -> None:
    """Print the table of the run folder RUN again and draw its plots."""
    from edgegossip.launch.outcome import show
    from edgegossip.profiling.run_folder import read_run
    from edgegossip.profiling.summary import summarise

    summary = summarise(read_run(Path(run)))
    click.echo(json.dumps(summary)) if as_json else show(summary, Path(run), plots=plots)
