"""Where the records of a run go besides its folder: the display or a log of JSON lines, a port for
Prometheus, experiment trackers. Common to `run`, `node` and `coordinator`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from edgegossip.options import option
from edgegossip.types import HostError, NodeId

if TYPE_CHECKING:
    from edgegossip.recipe import Recipe
    from edgegossip.telemetry.run_folder import RunFolder
    from edgegossip.telemetry.sinks import RecordSink, Tee

_PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb"}


@dataclass(frozen=True, slots=True)
class Outputs:
    """Says where records go, as the command line does."""

    log: Literal["text", "json"] = option(
        "text", "What is said meanwhile: text for people, or a line of JSON each; json is --json as well."
    )
    metrics: str | None = option(
        None,
        "Serve what is measured to Prometheus at http://HOST:PORT/metrics; a PORT alone is for this machine only.",
        metavar="[HOST:]PORT",
    )
    track: Literal["mlflow", "wandb"] | None = option(
        None, "Send what is measured to MLflow or Weights & Biases, too; they say where by their own variables."
    )

    @property
    def as_json(self) -> bool:
        """Whether programs read what is said."""
        return self.log == "json"

    def open(
        self,
        folder: RunFolder,
        recipe: Recipe,
        members: Sequence[NodeId],
        *more: RecordSink,
        quiet: bool = False,
        start_s: float | None = None,
    ) -> Tee:
        """Return a sink of all these, the folder among them, and `more`. `quiet`: no display.
        Raises ConfigError for an address that is none, HostError where nothing can listen there or
        the tracker does not answer. `start_s`: of a run that goes on, when it began."""
        from edgegossip.telemetry.sinks import Tee

        name, rounds = folder.path.name, recipe.run.rounds
        sinks: list[RecordSink] = [folder]
        with ExitStack() as unless_all_are_there:
            if self.metrics is not None:
                sinks.append(_exporter(name, rounds, self.metrics, quiet or self.as_json))
                unless_all_are_there.callback(sinks[-1].close)
            if self.track is not None:
                sinks.append(_tracker(self.track, name, recipe))
            unless_all_are_there.pop_all()
        if self.as_json:  # a board that waits has in memory what it needs
            from edgegossip.report.json_log import JsonLog

            sinks.append(JsonLog(name, sys.stderr))
        else:
            from edgegossip.report.live import Live
            from edgegossip.telemetry.run_folder import read_run

            before = None if start_s is None else read_run(folder.path)
            sinks.append(Live(members, rounds, stream=sys.stderr, enabled=not quiet, before=before))
        return Tee(*sinks, *more, start_s=start_s)


def _exporter(name: str, rounds: int, where: str, quiet: bool) -> RecordSink:
    from edgegossip.mesh import address
    from edgegossip.report.openmetrics import Exporter

    where = f"127.0.0.1:{where}" if where.isdecimal() else where
    listen = address.parse(where, "--metrics", any_port=True)
    exporter = Exporter(name, rounds, listen.host, listen.port)
    if not quiet:
        click.echo(f"metrics: {exporter.url}", err=True)
    return exporter


def _tracker(kind: str, name: str, recipe: Recipe) -> RecordSink:
    from edgegossip.fleet.launch.preflight import require

    require(kind, f"pip install {_PACKAGES[kind]}")
    try:
        if kind == "mlflow":
            from edgegossip.integrations.mlflow import MlflowSink

            return MlflowSink(name, recipe)
        from edgegossip.integrations.wandb import WandbSink

        return WandbSink(name, recipe)
    except Exception as error:  # each has kinds of its own
        raise HostError(f"--track {kind}: {' '.join(str(error).split())[:300] or type(error).__name__}") from error
