"""`plan` against real boards in network namespaces, in a run that it has not seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")

from click.testing import CliRunner

from edgegossip.cli.main import cli
from tests.e2e.network import needs_namespaces
from tests.e2e.test_scale import scale

RATE_BPS, BOARDS = 20_000_000, 4
RECIPE = (
    "--set",
    "model.params.hidden=[1024,128]",
    "--set",
    "data.train_examples=960",
    "--set",
    "training.batch_size=32",
)
EPOCH_ROUNDS = 960 / (BOARDS * 32)
PARALLEL = ("--set", "gossip.algorithm=parallel-sgd", "--set", "gossip.topology=complete", "--json")
FLEET = """
title = "boards that are processes of this machine"
boards = [["me.toml", 18]]
[link]
shared_bits_per_s = {rate}
latency_s = 0.0001
[sources]
boards = "measured: by `calibrate` here"
"link.shared_bits_per_s" = "vendor: by whoever shapes it"
"link.latency_s" = "predicted: one kernel"
"""


def document(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert done.exception is None, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_namespaces
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_plan_predicts_the_seconds_of_a_run(tmp_path: Path) -> None:
    document("calibrate", "-o", str(tmp_path / "me.toml"), "--recipe", "quickstart-gossip", *RECIPE, "--json")
    (tmp_path / "fleet.toml").write_text(FLEET.format(rate=RATE_BPS))
    where = ("--profile", str(tmp_path / "fleet.toml"), "--boards", str(BOARDS))
    planned = {
        scheme: document("plan", "quickstart-gossip", *where, *RECIPE, "--set", f"codec.name={codec}", *PARALLEL)
        for scheme, codec in (("sgd", "fp32"), ("4-bit-elastiquant", "4-bit-elastiquant"))
    }
    schemes = ("--schemes", ",".join(planned))
    run = scale(*schemes, "--boards", str(BOARDS), "--rate", "20mbit", "--on", "netns", out=tmp_path / "netns")
    assert run["failed"] == [] and len(run["rows"]) == len(planned)
    for row in run["rows"]:
        plan = planned[row["scheme"]]
        assert row["t_s"] == pytest.approx(EPOCH_ROUNDS * plan["round_s"], rel=0.2), (row, plan)
        assert sum(row["round_bytes"][part] for part in ("payload", "overhead")) == pytest.approx(
            plan["round_bytes"], rel=0.02
        )
