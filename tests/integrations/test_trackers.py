"""Runs in MLflow and Weights & Biases: written by their own packages without a network, and read
back."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgegossip.telemetry.sinks import RecordSink, Tee
from tests.training.fakes import recipe

ROUNDS = 5


def play(sink: RecordSink) -> None:
    """Let two boards train; one is lost."""
    tee = Tee(sink)
    for step in range(ROUNDS):
        for k, node in enumerate(("pi-01", "pi-02")):
            tee.metrics(node, step, {"train/loss": 1 / (step + 1) + k, "eval/loss": math.nan, "time/spans": "ce"})
    tee.event("pi-02", "lost", "lost pi-02: killed by SIGKILL", signal=9)
    tee.event("pi-01", "finished", "pi-01 finished")
    tee.close()


def logged(log: bytes) -> Iterator[bytes]:
    """Yield the records of LevelDB's log format, which wandb's files have after 7 bytes of their
    own."""
    parts, at, block = b"", 7, 32768
    while at + 7 <= len(log):
        if block - at % block < 7:  # no room for a head: padding
            at += block - at % block
            continue
        size, kind = struct.unpack_from("<HB", log, at + 4)
        parts += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def test_mlflow_has_recipe_curves_and_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="no mlflow here: pip install mlflow-skinny")
    from edgegossip.integrations.mlflow import MlflowSink

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes ten times as long to make
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits")
    play(MlflowSink("demo", recipe(training={"lr": 0.25})))
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("digits")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "demo" and run.info.status == "FINISHED" and run.data.params["training.lr"] == "0.25"
    history = client.get_metric_history(run.info.run_id, "pi-02/train/loss")
    assert [(m.step, m.value) for m in history] == [(step, 1 / (step + 1) + 1) for step in range(ROUNDS)]
    assert set(run.data.metrics) == {"pi-01/train/loss", "pi-02/train/loss"}
    assert run.data.tags["lost.pi-02"] == "lost pi-02: killed by SIGKILL"


def test_wandb_has_recipe_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="no wandb here: pip install wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    from edgegossip.integrations.wandb import WandbSink

    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    play(WandbSink("demo", recipe(training={"lr": 0.25})))
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = [Record.FromString(data) for data in logged(file.read_bytes())]
    [run] = {r.run.display_name: r.run for r in records if r.HasField("run")}.values()
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert run.display_name == "demo" and run.project == "edgegossip" and config["training.lr"] == 0.25
    rows = [
        {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    curve = [(row["pi-02/round"], row["pi-02/train/loss"]) for row in rows if "pi-02/round" in row]
    assert curve == [(step + 1, 1 / (step + 1) + 1) for step in range(ROUNDS)]
    assert not any("spans" in key or "eval" in key for row in rows for key in row)
