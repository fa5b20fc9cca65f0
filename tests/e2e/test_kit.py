"""Boards that run from their kits, as an image's service starts them: one loses power in mid-run,
and is back by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgegossip.fleet import kitfile
from edgegossip.telemetry.run_folder import read_run
from tests.e2e.command import free_port

ROOT = Path(__file__).parents[2]
SETTINGS = ("run.rounds=120", "network.grace_s=20", "model.name=lab.soak.slow_mlp:slow_mlp")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Board:
    """What first boot made of a kit, and the service that runs from it."""

    def __init__(self, folder: Path, bundle: kitfile.ProvisioningBundle) -> None:
        self.home, self.kit = folder, folder / "etc"
        for name in ("etc", "state", "runtime"):
            (folder / name).mkdir(parents=True)
        for name, text in bundle.identity.items():
            (self.kit / name).write_text(text)
            (self.kit / name).chmod(0o600)
        (self.kit / "board.json").write_text(json.dumps({"name": bundle.name}))
        (self.kit / "node.args").write_text("\n".join(bundle.node) + "\n")

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "edgegossip",
            "node",
            "--kit",
            str(self.kit),
            "--runs",
            str(self.home / "state/runs"),
        ]
        places = {"STATE_DIRECTORY": str(self.home / "state"), "RUNTIME_DIRECTORY": str(self.home / "runtime")}
        with open(self.home / "log", "ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **places, "OMP_NUM_THREADS": "1"},
            )

    def events(self) -> list:
        files = sorted((self.home / "state/runs").glob("*/events.jsonl"))
        return [e for file in files for e in read_run(file.parent).events()]

    def rounds(self) -> int:
        files = (self.home / "state/runs").glob("*/metrics.jsonl")
        return sum(len(list(read_run(file.parent).metrics())) for file in files)


def wait(until: Callable[[], bool], seconds: float, boards: list[Board]) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "\n".join((b.home / "log").read_text() for b in boards)
        time.sleep(0.2)


def test_a_board_that_loses_power_is_back_in_the_run_by_itself(tmp_path: Path) -> None:
    from edgegossip.fleet import orders, provisioning
    from edgegossip.fleet.store import Fleet

    fleet = Fleet.create(tmp_path / "fleet", "home", 20).add_all(("a", "b", "c"), "board", 20)
    places = {name: f"127.0.0.1:{free_port()}" for name in ("a", "b", "c")}
    run = {"join": (places["a"],), "founder": "a", "settings": SETTINGS}
    for name, place in places.items():
        orders.change(fleet, (name,), {**run, "listen": place})
    boards = [Board(tmp_path / n, kitfile.parse(provisioning.make_bundle(fleet, n, time.time()))) for n in places]
    try:
        for board in boards:
            board.start()
        for cut in (boards[1], boards[0]):  # one that joined, then the founder itself
            before = cut.rounds()
            wait(lambda before=before, cut=cut: cut.rounds() > before + 10, 90, boards)
            cut.process.send_signal(signal.SIGKILL)
            cut.process.wait(10)
            cut.start()
            wait(lambda cut=cut: len([e for e in cut.events() if e.name == "started"]) == 2, 90, boards)
        wait(lambda: all(any(e.name == "finished" for e in b.events()) for b in boards), 120, boards)
        for board in boards[:2]:
            assert "going on with" in (board.home / "log").read_text()
            assert any(e.name == "started" and "from its checkpoint" in e.text for e in board.events())
            assert len(list((board.home / "state/runs").iterdir())) == 1, "one run, not two"
    finally:
        for board in boards:
            board.process.kill()
            board.process.wait(10)
