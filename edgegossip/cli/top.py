"""`edgegossip top`: what the boards of a run are doing, now."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.options import JSON, RUNS, TOGETHER, Seconds
from edgegossip.types import ConfigError


@click.command()
@click.argument("run", metavar="[RUN]", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@RUNS
@click.option("--web", is_flag=True, help="Serve the page of `edgegossip report`, live, instead of a table.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Of --web; 0 takes a free one. Default: 8765, or a free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where --web listens. Whoever can connect there sees the run.",
)
@click.option("--once", is_flag=True, help="Print the table as it is now and end.")
@click.option(
    "--every",
    "interval_s",
    default=1.0,
    show_default=True,
    type=Seconds(0.1, 3600),
    help="Seconds between two looks.",
)
@TOGETHER
@JSON
def top(
    run: tuple[Path, ...],
    runs_dir: str,
    web: bool,
    port: int | None,
    host: str,
    once: bool,
    interval_s: float,
    together: bool,
    as_json: bool,
) -> None:
    """Watch the run folder RUN while it is written: each board's round, loss, seconds by part,
    bytes, temperature, and who waits for whom. Without RUN: the folder under --runs that was
    written to last. Ends with the run, or with Ctrl-C.

    \b
    Examples:
      edgegossip top
      edgegossip top runs/20260102-030405-quickstart-gossip --web

    Without a terminal it prints plain lines. --json prints the summary as it is now and ends.
    """
    from edgegossip.report.watch import newest_run

    if once and web:
        raise ConfigError("--once prints the table, --web serves the page: leave one out")
    if len(run) > 1 and not web:
        raise ConfigError("top shows one run; --web shows several")
    folders = run or (newest_run(Path(runs_dir)),)
    if as_json:
        from edgegossip.telemetry.run_folder import read_run
        from edgegossip.telemetry.summary import summarise

        click.echo(json.dumps(summarise(read_run(folders[0]))))
        return
    try:
        if web:
            from edgegossip.report.web.serve import LiveRuns, listen

            with listen(LiveRuns(folders, together=together), host, port) as server:
                click.echo(f"{', '.join(folder.name for folder in folders)}: {server.url}  (Ctrl-C ends)")
                server.serve_forever()
        else:
            from edgegossip.report.top import follow

            follow(folders[0], once=once, interval_s=interval_s)
    except KeyboardInterrupt:  # the usual way to leave
        return
