"""What a user sees at the end of a run, and the exit code that says how it went."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from edgegossip.report.plots import write_plots
from edgegossip.report.table import run_table
from edgegossip.report.web.page import write_page
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import summarise
from edgegossip.types import EXIT_DEGRADED, EXIT_OK, EXIT_RUIN, EXIT_RUN, EdgegossipError, HostError


def exit_code(summary: Mapping[str, Any]) -> int:
    """0 when every board finished, EXIT_DEGRADED when some were lost, EXIT_RUN when all were;
    EXIT_RUIN when the verdict is that the run failed its purpose, lost boards or not."""
    failed = len(summary["failed_nodes"])
    if failed and failed == summary["nodes"]:
        return EXIT_RUN
    if any(finding["ruin"] for finding in summary["verdict"]):
        return EXIT_RUIN
    return EXIT_DEGRADED if failed else EXIT_OK


def conclude(folder: RunFolder, *, plots: bool, as_json: bool) -> int:
    """Write summary.json, print it or the table, draw the plots. Returns the exit code."""
    summary = summarise(read_run(folder.path))
    trouble: HostError | None = None
    try:
        folder.write_summary(summary)
    except HostError as error:  # such as a full disk: what was trained is shown all the same
        trouble = error
    if as_json:
        click.echo(json.dumps(summary))
    else:
        show(summary, folder.path, plots=plots and trouble is None)
        if plots and trouble is None:
            click.echo(f"page {write_page([folder.path], folder.path / 'report.html')}")
    if trouble is not None:
        raise trouble
    return exit_code(summary)


@contextmanager
def shown_when_it_fails(folder: RunFolder, *, as_json: bool, quiet: bool = False) -> Iterator[None]:
    """A run that fails after boards have trained still shows what they reached, before its error
    goes on. `quiet`: it is only written to summary.json."""
    try:
        yield
    except EdgegossipError:
        data = read_run(folder.path)
        if any(True for _ in data.metrics()):
            with suppress(HostError):  # such as a full disk: why the run failed is what counts
                if quiet:
                    folder.write_summary(summarise(data))
                else:
                    conclude(folder, plots=False, as_json=as_json)
        raise


def show(summary: Mapping[str, Any], folder: Path, *, plots: bool) -> None:
    """The table, and the plots when matplotlib is there."""
    click.echo(run_table(summary))
    if plots:
        try:
            for path in write_plots(folder):
                click.echo(f"plot {path}")
        except HostError as error:
            click.echo(f"no plots: {error}", err=True)
    click.echo(f"run folder {folder}")
