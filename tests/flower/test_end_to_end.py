"""Real processes, real sockets: a coordinator and boards that train a small least-squares model in
numpy."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edgegossip import recipe as recipes
from edgegossip.flower import Coordinator
from edgegossip.flower import coordinator as coordinators
from edgegossip.flower.superlink import free_port
from edgegossip.types import HostError, Vec
from tests.flower import toy
from tests.flower.conftest import Memory

PATIENCE_S = 60.0  # for a loaded machine; nothing here takes more than a few seconds


class Fleet:
    """A coordinator in this process and boards as children of it."""

    def __init__(self, folder: Path, sink: Memory) -> None:
        self.folder, self.sink = folder, sink
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.coordinator: Coordinator | None = None
        self.initial = toy.Toy(0).initial(1)
        self.on_model: Callable[[Vec], None] = lambda model: None

    def start(
        self, boards: int, rounds: int, delay_s: float = 0.0, faults: tuple[str, ...] = (), **sections: Any
    ) -> str:
        names = [f"board-{k}" for k in range(boards)]
        run = {"mode": "server", "rounds": rounds, "nodes": boards}
        recipe = recipes.from_dict({"run": run, **sections})
        self.coordinator = Coordinator(
            recipe, toy.LAYOUT, self.initial, names, self.sink, self.folder, on_model=self.on_model
        )
        address = self.coordinator.start()
        for k, name in enumerate(names):
            fault = faults[k] if k < len(faults) else ""
            command = [sys.executable, "-m", "tests.flower.toy", name, address, str(k), str(delay_s), fault]
            with (self.folder / f"{name}.jsonl").open("wb") as out:
                self.children[name] = subprocess.Popen(command, stdout=out)
        return address

    def finish(self) -> np.ndarray[Any, Any]:
        assert self.coordinator is not None
        assert self.coordinator.wait(PATIENCE_S)
        return self.coordinator.model

    def records(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.jsonl").read_text().splitlines()]

    def close(self) -> None:
        if self.coordinator is not None:
            self.coordinator.stop()
        for child in self.children.values():
            child.kill()
            child.wait()


@pytest.fixture
def fleet(tmp_path: Path, sink: Memory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, sink)
    yield fleet
    fleet.close()


def test_a_port_is_free_or_its_user_hears_that_it_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(HostError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", port) == port and free_port("127.0.0.1", 0) > 0


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow  # whole runs through a coordinator are tests/e2e/test_forked.py's
def test_three_boards_give_exact_fedavg_and_leave_nothing_behind(
    fleet: Fleet, sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that cannot be read is missing in its round, and a model that finds no room is held
    and tried again."""
    monkeypatch.setattr(coordinators, "AGAIN_S", 0.01)
    tries: list[Vec] = []

    def save(model: Vec) -> None:
        tries.append(model)
        if len(tries) < 4:
            raise HostError("cannot save the model to model.npz: No space left on device")

    fleet.on_model = save
    address = fleet.start(boards=3, rounds=5, faults=("", "", "malformed"))
    port = int(address.rpartition(":")[2])
    second = Coordinator(
        recipes.from_dict({"run": {"mode": "server"}}), toy.LAYOUT, fleet.initial, ["a"], sink, fleet.folder, port=port
    )
    with pytest.raises(HostError, match=f"cannot listen on 127.0.0.1:{port}"):
        second.start()
    x = fleet.finish()
    without = toy.fedavg(2, 1, toy.fedavg(3, 1, fleet.initial).astype(np.float32)).astype(np.float32)
    np.testing.assert_allclose(x, toy.fedavg(3, 3, without), atol=1e-6)
    assert [child.wait(PATIENCE_S) for child in fleet.children.values()] == [0, 0, 0]
    _check_records(fleet, sink, x)
    _check_what_was_not_taken(fleet, sink)
    assert len(tries) == 4 and all(model is x for model in tries)
    waits = [text for text in sink.texts("waiting") if "No space left" in text]
    assert len(waits) == 3 and "the coordinator holds the trained model and tries again" in waits[0]
    assert fleet.coordinator is not None and fleet.coordinator._superlink is not None
    superlink = fleet.coordinator._superlink
    fleet.coordinator.stop()
    assert _gone(superlink.process.pid) and not superlink.home.exists()
    assert (fleet.folder / "logs" / "superlink.log").stat().st_size > 0


def _check_what_was_not_taken(fleet: Fleet, sink: Memory) -> None:
    (refused,) = sink.texts("refused")
    assert refused.startswith("refused the update of board-2: its answer was not taken: ") and "500" in refused
    used = [values["server/used"] for _, _, values in sink.records if "server/used" in values]
    assert used == [3, 2, 3, 3, 3]
    told = [r["text"] for r in fleet.records("board-2") if r.get("event") == "refused"]
    assert len(told) == 1 and told[0].startswith("the coordinator did not take an answer of board-2: ")


def _check_records(fleet: Fleet, sink: Memory, x: np.ndarray[Any, Any]) -> None:
    from_boards = sum(values.get("net/received_bytes", 0) for _, _, values in sink.records)
    written = [
        r["net/payload_bytes"] + r["net/overhead_bytes"]
        for n in fleet.children
        for r in fleet.records(n)
        if "step" in r
    ]
    assert 0.7 * sum(written) < from_boards < 1.5 * sum(written)  # polls and beats come in between
    for k, name in enumerate(fleet.children):
        records = fleet.records(name)
        rounds = [r for r in records if "step" in r]
        assert [r["step"] for r in rounds] == list(range(5))
        assert {r["event"] for r in records if "event" in r} >= {"started", "finished"}
        for r in rounds:
            assert r["train/examples"] == 10 * (k + 1)
            assert r["net/payload_bytes"] == 4 * toy.LAYOUT.size
            assert r["net/overhead_bytes"] > 0
            parts = [r[f"time/{part}_s"] for part in ("compute", "encode", "transmit", "decode", "wait", "other")]
            assert sum(parts) == pytest.approx(r["time/round_s"], rel=1e-6)
            assert all(part >= 0 for part in parts) and r["time/transmit_s"] > 0 and r["time/wait_s"] > 0
    evaluations = sink.evaluations()
    assert sorted(evaluations) == [0, 1, 2, 3, 4]
    assert evaluations[4] == pytest.approx(float(np.mean(x**2)), rel=1e-5)
    assert evaluations[0] == pytest.approx(float(np.mean(toy.fedavg(3, 1, fleet.initial) ** 2)), rel=1e-5)
