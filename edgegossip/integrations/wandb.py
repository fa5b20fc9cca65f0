"""A run in Weights & Biases: `--track wandb`, or `WandbSink` in a Tee.

Where it goes is wandb's own to say (WANDB_MODE, WANDB_PROJECT, WANDB_BASE_URL); WANDB_MODE=offline
keeps it here. Each run of edgegossip is a run there, its recipe the configuration, every number of
every board a metric, `pi-01/train/loss`, over that board's own rounds (`pi-01/round`). What
happened to boards is an alert where W&B sends any."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import wandb
from typing_extensions import override

from edgegossip.recipe import Recipe, flat
from edgegossip.telemetry.records import EventRecord, Record
from edgegossip.telemetry.sinks import RecordSink

ALERTS = ("lost", "error", "refused")


class WandbSink(RecordSink):
    """Writes to Weights & Biases, for a Tee: a server that hangs holds nobody.

    Example:
        sink = Tee(folder, WandbSink(folder.path.name, recipe))
    """

    what = "Weights & Biases"
    needed = False

    def __init__(self, run: str, recipe: Recipe) -> None:
        super().__init__()
        project = os.environ.get("WANDB_PROJECT", "edgegossip")
        quiet = wandb.Settings(console="off")  # else it takes what the process prints
        self._run = wandb.init(project=project, name=run, config=flat(recipe), settings=quiet)
        self._nodes: set[str] = set()

    @override
    def write(self, record: Record) -> None:
        if isinstance(record, EventRecord):
            if record.name in ALERTS:
                self._run.alert(title=f"{record.name}: {record.node}", text=record.text)
            return
        if record.node not in self._nodes:
            self._nodes.add(record.node)
            self._run.define_metric(f"{record.node}/*", step_metric=f"{record.node}/round")
        found = ((name, record.number(name)) for name in record.values)
        values: Mapping[str, Any] = {f"{record.node}/{name}": value for name, value in found if value is not None}
        self._run.log({f"{record.node}/round": record.step + 1, **values})

    @override
    def close(self) -> None:
        self._run.finish()
