"""A coordinator and four boards on machines of their own, with TLS and keys; strangers, a kill -9
of the coordinator, and a way out that nobody takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

from edgegossip.fleet.store import Fleet
from edgegossip.telemetry.run_folder import read_run
from tests.e2e.command import Running, edgegossip
from tests.e2e.network import NOBODY, Network, ip, needs_namespaces, network

pytestmark = [needs_namespaces, pytest.mark.slow, pytest.mark.timeout(600)]
BOARDS = ("pi-1", "pi-2", "pi-3", "pi-4")
PORT = 8000
ROUNDS = 60
COORDINATOR = 1  # its machine; board pi-k is on machine k + 1, strangers on machine 6
STRANGER = 6
OWN = ("--set", "model.name=tests.e2e.slow_mlp:slow_mlp")  # a function that a board has to name itself
RECIPE = (
    "quickstart-server",
    "--set",
    f"run.rounds={ROUNDS}",
    "--set",
    "codec.name=co3",
    "--set",
    "training.local_steps=20",
    "--set",
    "model.params.pause_s=0.02",  # or the run is over before everybody has been there who has no business in it
    *OWN,
)


def _fleet(folder: Path, names: Sequence[str]) -> Path:
    fleet = Fleet.create(folder, "test", 20)
    for name in names:
        fleet = fleet.add(name, "board", 20)
    return fleet.folder


@contextmanager
def _sniffer(net: Network, machine: int) -> Iterator[list[Any]]:
    """What a machine sends meanwhile. There is a way out, on which everything is lost."""
    name = net.inside(machine)[-1]
    ip("-n", name, "route", "add", "default", "via", "10.78.0.254", "dev", "wire")
    ip("-n", name, "neigh", "replace", "10.78.0.254", "lladdr", NOBODY, "dev", "wire", "nud", "permanent")
    command = [*net.inside(machine), sys.executable, "-m", "tests.e2e.sniffer"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "listening\n"
    seen: list[Any] = []
    try:
        yield seen
        seen += json.loads(process.communicate(timeout=30)[0])
    finally:
        process.kill()
        process.wait()


def _rounds(coordinator: Running) -> int:
    found = list(coordinator.runs.glob("*/metrics.jsonl"))
    lines = found[0].read_text(errors="replace").splitlines() if found else []
    return max(
        (json.loads(line)["step"] + 1 for line in lines if '"server/used"' in line and line.endswith("}")), default=0
    )


def test_four_boards_over_tls_a_stranger_and_a_killed_coordinator(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path / "fleet", (*BOARDS, "pi-9"))
    other = _fleet(tmp_path / "other", ("pi-1",))
    where = f"10.78.0.{COORDINATOR}:{PORT}"
    how = (*RECIPE, "--boards", ",".join(BOARDS))
    serve = ("coordinator", *how, "--host", "0.0.0.0", "--port", str(PORT), "--fleet", str(fleet), "--no-plots")
    with ExitStack() as stack:
        net = stack.enter_context(network(6))
        outside = [stack.enter_context(_sniffer(net, machine)) for machine in (COORDINATOR, 2)]
        inside = stack.enter_context(ExitStack())  # ends before the sniffers do

        def start(machine: int, runs: str, *command: str) -> Running:
            return inside.enter_context(edgegossip(*command, runs=tmp_path / runs, prefix=net.inside(machine)))

        coordinator = start(COORDINATOR, "coordinator", *serve)
        boards = [
            start(
                k + 2,
                name,
                "node",
                *((*how, "--name", name) if k % 2 else OWN),  # half of them are told the recipe by the coordinator
                "--coordinator",
                where,
                "--identity",
                str(fleet / "boards" / name),
            )
            for k, name in enumerate(BOARDS)
        ]
        coordinator.wait_until(lambda: _rounds(coordinator) >= 3)
        _strangers(start, where, fleet, other)
        # All are read before any is killed: the SuperLink ends with its coordinator, and a zombie
        # has no command line.
        for process in [p for p in coordinator.processes() if "coordinator" in p.cmdline()]:
            process.kill()
        coordinator.process.wait(30)
        again = start(COORDINATOR, "coordinator", *serve)
        for running in (again, *boards):
            code, out, err = running.finish(300)
            assert code == 0, (out, err)
            assert running.nobody_left()
        assert coordinator.nobody_left()
        _check(again)
        inside.close()
    for seen in outside:
        assert seen, "the sniffer saw nothing"
        away = [s for s in seen if s[1] != "tcp" or not s[2].startswith(("10.78.0.", "127.0.0.1"))]
        assert not away, f"something was sent elsewhere: {away}"


def _strangers(start: Any, where: str, fleet: Path, other: Path) -> None:
    """Who has no business here is told why, and ends at once."""
    four = ("--boards", ",".join(BOARDS), "--coordinator", where)
    five = ("--boards", ",".join((*BOARDS, "pi-9")), "--set", "run.nodes=5", "--coordinator", where)
    for runs, arguments, words in (
        (
            "unregistered",
            (*five, "--name", "pi-9", "--identity", str(fleet / "boards" / "pi-9")),
            "pi-9 is not a board of this",
        ),
        (
            "foreign",
            (*four, "--name", "pi-1", "--identity", str(other / "boards" / "pi-1")),
            "certificate is of another fleet",
        ),
        ("plain", (*four, "--name", "pi-1", "--insecure"), "speaks TLS: start this board with --identity"),
    ):
        code, _, err = start(STRANGER, runs, "node", *RECIPE, *arguments).finish(60)
        assert code == 5 and words in err, (code, err)


def _check(coordinator: Running) -> None:
    """The run folder of both processes: one run to its end, and who was refused."""
    data = read_run(coordinator.folder())
    texts = [e.text for e in data.events()]
    assert sum("training goes on in round" in text for text in texts) == 1
    stranger = f"refused 10.78.0.{STRANGER}: "
    assert any(stranger + "pi-9 is not a board of this run" in text for text in texts)
    assert any(stranger + "it says that our certificate is of another fleet" in text for text in texts)
    assert any(stranger + "it does not speak TLS" in text for text in texts)
    used = {r.step: r.values["server/used"] for r in data.metrics() if "server/used" in r.values}
    assert sorted(used) == list(range(ROUNDS)) and set(used.values()) == {4}
    assert data.summary is not None and data.summary["accuracy"]["mean"] > 0.9
    with np.load(coordinator.folder() / "checkpoint" / "model.npz") as model:
        assert all(np.isfinite(model[name]).all() for name in model.files)
    assert set(BOARDS) <= {r.node for r in data.metrics()}
