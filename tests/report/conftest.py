"""A small run folder to show: four boards, one of which is lost half-way."""

from __future__ import annotations

import math

import pytest

from edgegossip.telemetry.records import PARTS, EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder

RECIPE = """[run]
name = "demo"
mode = "gossip"
rounds = 20
[gossip]
topology = "ring"
algorithm = "dpsgd"
[codec]
name = "minmax8"
"""


@pytest.fixture
def run_dir(tmp_path):
    return _make(tmp_path)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """The plots of that run by name, drawn once for all tests."""
    pytest.importorskip("matplotlib", reason="an extra: pip install '.[report]'")
    from edgegossip.report.plots import write_plots

    return {path.name: path for path in write_plots(_make(tmp_path_factory.mktemp("runs")))}


def _make(parent):
    folder = RunFolder.create(parent, "demo", RECIPE, {})
    names = [f"board-{k}" for k in range(4)]
    folder.write_partition(names, ["zero", "one"], [[10, 5], [3, 12], [8, 7], [15, 0]])
    for step in range(20):
        for name in names:
            if name == "board-2" and step >= 10:
                continue
            values = {"train/loss": math.exp(-step / 8), "net/sent_bytes": 1200, "net/payload_bytes": 1000}
            values |= {"net/overhead_bytes": 100, "codec/bits_per_value": 8.25}
            values |= {f"time/{part}_s": 0.01 for part in PARTS}
            if step % 5 == 4:
                values |= {"eval/loss": 0.5, "eval/accuracy": 0.9}
            folder.write(MetricsRecord(name, step, 0.06 * (step + 1), values))
    for name in names:
        end = "lost" if name == "board-2" else "finished"
        folder.write(EventRecord(name, 1.3, end, f"{end} {name}"))
    folder.close()
    return folder.path
