"""ad-psgd with real processes and sockets: it trains, its seconds add up, and boards that are slow,
killed or late hold up nobody."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from edgegossip.telemetry.run_folder import read_run
from tests.e2e.command import edgegossip, run_json

# The simulator has slow and dead neighbours in virtual time, and tests/node/test_gossip_node.py the
# seconds of a board.
pytestmark = pytest.mark.slow
SETTINGS = ("--set", "gossip.algorithm=ad-psgd", "--set", "run.nodes=3", "--no-plots")
PARTS = ("compute", "encode", "transmit", "decode", "wait", "other")


@pytest.mark.parametrize("momentum", ["training", "quasi-global"])
def test_run_trains_and_accounts_for_every_second(momentum: str, tmp_path: Path) -> None:
    chosen = () if momentum == "training" else ("gossip.momentum=quasi-global", "training.momentum=0")
    extra = [word for setting in ("run.rounds=60", *chosen) for word in ("--set", setting)]
    result = run_json("run", "quickstart-gossip", *SETTINGS, *extra, runs=tmp_path)
    assert (result["nodes"], result["rounds"], result["failed_nodes"]) == (3, 60, [])
    assert result["accuracy"]["min"] > 0.6
    assert result["bits_per_value"] == 32  # the few bytes that close an exchange are overhead
    run = read_run(next(tmp_path.iterdir()))
    rows = [r for r in run.metrics() if r.node.startswith("board")]
    assert len(rows) == 3 * 60
    for row in rows:
        assert sum(row.number(f"time/{p}_s") or 0 for p in PARTS) == pytest.approx(row.number("time/round_s"), rel=1e-6)
    assert not {e.name for e in run.events()} & {"refused", "suspect", "waiting", "error"}


def test_a_killed_board_holds_up_nobody(tmp_path: Path) -> None:
    with edgegossip(
        "run", "quickstart-gossip", *SETTINGS, "--set", "run.rounds=400", "--json", runs=tmp_path
    ) as running:
        running.wait_until(lambda: running.rounds_done(3, boards=3))
        running.board("board-1").send_signal(signal.SIGKILL)
        code, out, err = running.finish()
        assert running.nobody_left()
    result = json.loads(out)
    assert (code, result["failed_nodes"]) == (7, ["board-1"]), err
    assert result["accuracy"]["min"] > 0.5
