"""A run in MLflow: `--track mlflow`, or `MlflowSink` in a Tee.

Where it goes is MLflow's own to say (MLFLOW_TRACKING_URI; without it a file here), and so is the
experiment (MLFLOW_EXPERIMENT_NAME). Each run of edgegossip is a run there, its recipe the
parameters, every number of every board a metric, `pi-01/train/loss`, by rounds. What happened to
boards is a tag."""

from __future__ import annotations

import os
import re
import time

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from typing_extensions import override

from edgegossip.recipe import Recipe, flat
from edgegossip.telemetry.records import EventRecord, MetricsRecord, Record
from edgegossip.telemetry.sinks import RecordSink

FLUSH_S = 2.0  # numbers go in batches: a request takes some milliseconds
MOST_METRICS, MOST_PARAMS = 1000, 100  # in a request, by MLflow's own limits
KEPT = ("lost", "error", "restarted", "refused")  # events that are tags, the last one of each kind and board
_ODD = re.compile(r"[^\w\-. /]")  # what no metric's name may have


class MlflowSink(RecordSink):
    """Writes to MLflow, for a Tee: a server that hangs holds nobody.

    Example:
        sink = Tee(folder, MlflowSink(folder.path.name, recipe))
    """

    what = "MLflow"
    needed = False

    def __init__(self, run: str, recipe: Recipe) -> None:
        super().__init__()
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # of its 7 the last comes after four minutes
        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "edgegossip")
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        self._run = self._client.create_run(experiment, run_name=run).info.run_id
        params = [Param(key, str(value)[:6000]) for key, value in flat(recipe).items()]
        for k in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run, params=params[k : k + MOST_PARAMS])
        self._metrics: list[Metric] = []
        self._flushed_s = time.time()

    @override
    def write(self, record: Record) -> None:
        if isinstance(record, EventRecord):
            if record.name in KEPT:
                self._client.set_tag(self._run, _ODD.sub("_", f"{record.name}.{record.node}"), record.text[:5000])
            return
        self._metrics += self._of(record)
        if time.time() - self._flushed_s >= FLUSH_S or len(self._metrics) >= MOST_METRICS:
            self._flush()

    def _of(self, record: MetricsRecord) -> list[Metric]:
        at_ms = int(1000 * time.time())
        found = ((name, record.number(name)) for name in record.values)
        return [
            Metric(_ODD.sub("_", f"{record.node}/{name}"), value, at_ms, record.step)
            for name, value in found
            if value is not None
        ]

    def _flush(self) -> None:
        for k in range(0, len(self._metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=self._metrics[k : k + MOST_METRICS])
        self._metrics, self._flushed_s = [], time.time()

    @override
    def close(self) -> None:
        self._flush()
        self._client.set_terminated(self._run)
