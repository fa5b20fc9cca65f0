"""The main job with real processes and sockets: a killed board is named, nothing is left behind."""

from __future__ import annotations

import signal
import statistics
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from edgegossip.cli.main import cli
from edgegossip.telemetry.run_folder import read_run
from tests.e2e.command import Running, edgegossip, free_port

MODES = ("gossip", "server")
PARTS = ("compute", "encode", "transmit", "decode", "wait")
LONG = ("--set", "run.rounds=100000", "--set", "evaluation.every=50000", "--no-plots")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_nearly_all_of_a_round_is_accounted_for(mode: str, tmp_path: Path) -> None:
    """But for evaluations. By CPU time, and by the wall in most rounds: on a busy machine others
    may have the core."""
    long = ("--set", "run.rounds=12", "--set", "training.local_steps=200", "--set", "evaluation.every=6", "--no-plots")
    with edgegossip("run", f"quickstart-{mode}", *long, runs=tmp_path) as running:
        assert running.finish(110)[0] == 0
        rows = [r for r in read_run(running.folder()).metrics() if r.node.startswith("board")]
    for board in {r.node for r in rows}:
        plain = [r for r in rows if r.node == board and r.number("eval/accuracy") is None]
        known = sum(r.number(f"cpu/{p}_s") or 0 for r in plain for p in PARTS)
        assert known == pytest.approx(sum(r.number("time/cpu_s") for r in plain), rel=0.03)
        shares = [sum(r.number(f"time/{p}_s") or 0 for p in PARTS) / r.number("time/round_s") for r in plain]
        assert statistics.median(shares) >= 0.97, (board, shares)


@pytest.mark.parametrize("mode", ["gossip", pytest.param("server", marks=pytest.mark.slow)])
def test_a_killed_board_is_named_the_others_go_on_and_ctrl_c_leaves_no_process(mode: str, tmp_path: Path) -> None:
    """Until then Prometheus can read what each board measured."""
    where, nodes = f"127.0.0.1:{free_port()}", ("--set", "run.nodes=3")
    with edgegossip("run", f"quickstart-{mode}", *LONG, *nodes, "--metrics", where, runs=tmp_path) as running:
        running.wait_until(lambda: running.rounds_done(2, boards=3))
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as answer:
            families = {f.name: f.samples for f in text_string_to_metric_families(answer.read().decode())}
        _kill(running, "board-1")
        running.wait_until(lambda: _said(running, "lost") == {"board-1"})
        steps = _steps(running)
        running.wait_until(lambda: all(_steps(running)[b] > steps[b] + 20 for b in ("board-0", "board-2")))
        running.process.send_signal(signal.SIGINT)
        code, out, err = running.finish()
        assert running.nobody_left()
    rounds = {s.labels["node"]: s.value for s in families["edgegossip_rounds"]}
    assert rounds.keys() - {"coordinator"} == {f"board-{k}" for k in range(3)} and min(rounds.values()) >= 1, rounds
    assert code == 130 and "Traceback" not in out + err
    assert "board-1" in out + err and "SIGKILL" in out + err
    assert f"  edgegossip run --resume {running.folder()}" in err.splitlines()  # to copy as a line
    assert (running.folder() / "report.html").is_file() and "report.html" in err


def _kill(running: Running, name: str) -> None:
    """By hand, as the documentation has it."""
    pid = running.process.pid if name == "coordinator" else running.board(name).pid
    done = CliRunner().invoke(cli, ["kill", "--runs", str(running.runs), name], standalone_mode=False)
    assert done.exception is None and done.output == f"killed {name} of {running.folder().name}, process {pid}\n"


def _steps(running: Running) -> dict[str, int]:
    return {r.node: r.step for r in read_run(running.folder()).metrics()}


def _said(running: Running, name: str) -> set[str]:
    """Boards that have an event of this name."""
    if not list(running.runs.glob("*/events.jsonl")):
        return set()
    return {e.node for e in read_run(running.folder()).events() if e.name == name}
