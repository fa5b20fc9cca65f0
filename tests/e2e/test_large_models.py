"""Models of more than a gigabyte: exchanged whole, with memory that is bounded by the model's size.

The model has one small layer that trains, and tables of 300 million values that travel and change a
little without gradients, so that what is measured is the exchange: a run's own gradients and
optimiser come on top while it trains."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgegossip.modelfile import ModelFile
from tests.e2e.command import Running, edgegossip

VALUES = int(os.environ.get("EDGEGOSSIP_LARGE_VALUES", 300_000_000))
MODEL_BYTES = 4 * VALUES
# What a process of torch, gRPC or Flower takes without a model; part of the limit at full size.
LIMIT_BYTES = 3.5 * MODEL_BYTES + (0 if VALUES >= 300_000_000 else 400e6)

OWN = """
import numpy as np
import torch
from torch import nn


class Huge(nn.Module):
    def __init__(self, values: int) -> None:
        super().__init__()
        self.small = nn.Linear(4, 2)
        for k in range(3):
            setattr(self, f"table{k}", nn.Parameter(torch.linspace(-1, 1, values // 3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:  # else chunks of changes were the same objects, of which Flower moves one
            with torch.no_grad():
                for k in range(3):
                    for part in getattr(self, f"table{k}").split(1 << 18):
                        part.mul_(1 - 1e-6 * torch.rand(1))
        return self.small(x)


def build(input_shape, classes, norm, values):
    return Huge(values)


def data(folder):
    inputs = np.random.default_rng(0).standard_normal((16, 4), np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int64)
    return inputs[:12], labels[:12], inputs[12:], labels[12:]
"""
SETTINGS = {
    "run.nodes": 2,
    "run.rounds": 3,
    "data.name": "huge:data",
    "model.name": "huge:build",
    "model.params.values": VALUES,
    "training.batch_size": 4,
    "training.local_steps": 1,
    "training.momentum": 0.0,
    "evaluation.every": 100,
    "gossip.topology": "complete",
}


class Peaks:
    """The most memory that each process of a run had, by what it does."""

    def __init__(self, running: Running) -> None:
        self._running, self._stop = running, threading.Event()
        self.anonymous: dict[str, int] = {}  # cannot be given back: the heap, and shared memory
        self.resident: dict[str, int] = {}  # with pages of mapped files, which can
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        known: dict[int, str] = {}
        listed_s = 0.0
        while not self._stop.wait(0.02):
            if time.monotonic() - listed_s > 0.5:
                listed_s = time.monotonic()
                known = {p.pid: _role(p) for p in self._running.processes()}
            for pid, role in known.items():
                try:
                    text = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
                kib = {
                    name: int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmHWM") if name in fields
                }
                anonymous = 1024 * (kib.get("RssAnon", 0) + kib.get("RssShmem", 0))
                self.anonymous[role] = max(self.anonymous.get(role, 0), anonymous)
                self.resident[role] = max(self.resident.get(role, 0), 1024 * kib.get("VmHWM", 0))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _role(process: psutil.Process) -> str:
    try:
        words = " ".join(process.cmdline()).split()
    except psutil.Error:
        return "gone"
    if "--name" in words:
        return words[words.index("--name") + 1]
    if any("superlink" in word for word in words):
        return "superlink"
    return "fork_server" if any("fork_server" in word for word in words) else "command"


@contextmanager
def watched(running: Running) -> Iterator[Peaks]:
    peaks = Peaks(running)
    try:
        yield peaks
    finally:
        peaks.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mode", "codec", "more"),
    [
        ("gossip", "fp32", {"gossip.algorithm": "dpsgd"}),
        ("gossip", "bf16", {"gossip.algorithm": "dpsgd"}),
        ("server", "fp32", {}),
        ("server", "minmax8", {}),
    ],
    ids=["gossip-fp32", "gossip-bf16", "server-fp32", "server-minmax8"],
)
def test_a_model_of_a_gigabyte_is_exchanged(mode: str, codec: str, more: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "huge.py").write_text(OWN)
    settings = {**SETTINGS, "run.mode": mode, "codec.name": codec, **more}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={_toml(value)}")]
    began_s = time.monotonic()
    with (
        edgegossip(
            "run", "quickstart-gossip", *sets, "--json", "--no-plots", runs=tmp_path / "runs", cwd=tmp_path
        ) as run,
        watched(run) as peaks,
    ):
        out, err = run.process.communicate(timeout=1500)
    assert run.process.returncode == 0, err
    summary = json.loads(out)
    models = {role: peak / MODEL_BYTES for role, peak in peaks.anonymous.items()}
    print(f"{mode} {codec}: {time.monotonic() - began_s:.0f} s; peaks in models, not to be given back: {_text(models)}")
    print(f"resident: {_text({role: peak / MODEL_BYTES for role, peak in peaks.resident.items()})}")
    assert not summary["failed_nodes"] and summary["rounds"] == 3
    events = [json.loads(line) for line in (run.folder() / "events.jsonl").read_text().splitlines()]
    assert not [e for e in events if e["event"] in ("suspect", "refused", "peer-down", "lost")]
    names = ("board-0", "board-1") if mode == "gossip" else ("model",)
    table = np.linspace(-1, 1, VALUES // 3, dtype=np.float32)
    for name in names:
        file = ModelFile(run.folder() / "checkpoint" / f"{name}.npz")
        np.testing.assert_allclose(file["table2"], table, atol=1e-5 if codec == "fp32" else 0.02)
    for role, peak in peaks.anonymous.items():
        assert peak <= LIMIT_BYTES, f"{role}: {peak / MODEL_BYTES:.2f} models"


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _text(models: dict[str, float]) -> str:
    return ", ".join(f"{role} {peak:.2f}" for role, peak in sorted(models.items()))
