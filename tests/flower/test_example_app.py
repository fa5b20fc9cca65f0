"""The example app: its own client and server functions in this process, then as `flwr run` runs it,
both ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
# Each run draws other keys for its codecs. Over eight of them two clients are at 0.77 to 0.82 after
# the third round, at 0.90 or more from the fifth on; eighteen at 0.87 and at 0.92.
ROUNDS = 5
CONFIG = {"num-server-rounds": 4, "clients": 4, "lr": 0.1, "strategy": "fedavg", "report": ""}


class InProcess(Grid):
    """Clients that are called one after the other, each with its own lasting Context."""

    def __init__(self, app: Any, clients: int) -> None:
        self._app = app
        self._contexts = {
            10 + k: Context(77, 10 + k, {"partition-id": k, "num-partitions": clients}, RecordDict(), {})
            for k in range(clients)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = "m"
            replies.append(self._app(message, self._contexts[message.metadata.dst_node_id]))
        return replies

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Any: ...

    def push_messages(self, messages: Any) -> Any: ...

    def pull_messages(self, message_ids: Any) -> Any: ...


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in [m for m in sys.modules if m.startswith("digits_app")]:
        del sys.modules[name]


@pytest.mark.parametrize("strategy", ["fedavg", pytest.param("fedmedian", marks=pytest.mark.slow)])
def test_it_learns_over_an_eighth_of_the_bytes(strategy: str, example: None, in_run: int, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
    from digits_app import client_app, server_app

    grid = InProcess(client_app.app, 4)
    report = tmp_path / "report.json"
    config = {**CONFIG, "strategy": strategy, "report": str(report)}
    server_app.app(grid, Context(77, 1, {}, RecordDict(), config))
    found = json.loads(report.read_text())
    assert found["accuracy"][-1] > 0.8
    assert found["times_smaller"] > 6
    assert all(any(key.startswith("edgegossip") for key in context.state) for context in grid._contexts.values())


def _flwr(home: Path, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("flwr")), *arguments]
    return subprocess.run(command, env=dict(environment), cwd=home, capture_output=True, text=True, timeout=300)


def _environment(home: Path) -> dict[str, str]:
    from edgegossip.flower.superlink import QUIET

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}


def _await(report: Path) -> dict[str, Any]:
    end = time.monotonic() + 240.0
    while time.monotonic() < end:
        if report.exists() and report.read_text().endswith("}"):
            return dict(json.loads(report.read_text()))
        time.sleep(0.5)
    raise AssertionError("the app has not finished")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stock_supernodes_run_it(tmp_path: Path) -> None:
    from edgegossip.flower.superlink import answers, free_port
    from lab.bench import processes

    environment, port = _environment(tmp_path), free_port("127.0.0.1", 0)
    address = f"127.0.0.1:{port}"
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{address}"\ninsecure = true\n'
    )
    fleet = []
    try:
        fleet.append(_start("flower-superlink", ["--insecure", "--port", str(port)], tmp_path, environment))
        assert answers(address, lambda: None)
        for k in range(2):
            share = f"partition-id={k} num-partitions=2"
            arguments = ["--insecure", "--superlink", address, "--port", str(free_port("127.0.0.1", 0))]
            fleet.append(_start("flower-supernode", [*arguments, "--node-config", share], tmp_path, environment))
        report = tmp_path / "report.json"
        settings = f'num-server-rounds={ROUNDS} clients=2 report="{report}"'
        done = _flwr(tmp_path, environment, "run", str(EXAMPLE), "--run-config", settings)
        assert done.returncode == 0, done.stdout + done.stderr
        found = _await(report)
    finally:
        processes.stop(fleet)
    assert found["accuracy"][-1] > 0.8 and found["times_smaller"] > 6, found


def _start(program: str, arguments: list[str], folder: Path, environment: Mapping[str, str]) -> Any:
    from lab.bench import processes

    path = Path(sys.executable).with_name(program)
    return processes.start([str(path), *arguments], folder / f"{program}.log", environment)


def _stop_what_flower_leaves(home: Path) -> None:
    """`flwr run` starts a SuperLink of its own for simulations, which stays for the next ones."""
    import psutil

    left = [p for p in psutil.process_iter(["cmdline"]) if any(str(home) in word for word in p.info["cmdline"] or ())]
    left += [child for process in left for child in process.children(recursive=True)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_simulation_engine_runs_it_with_18_clients(tmp_path: Path) -> None:
    pytest.importorskip(
        "ray", reason="the simulation engine is an extra of Flower: make test-slow, or pip install 'flwr[simulation]'"
    )
    environment, report = _environment(tmp_path), tmp_path / "report.json"
    (tmp_path / "config.toml").write_text(
        '[superlink]\ndefault = "simulation"\n\n[superlink.simulation]\noptions.num-supernodes = 18\n'
        "options.backend.client-resources.num-cpus = 1\n"
    )
    settings = f'num-server-rounds={ROUNDS} report="{report}"'
    try:
        done = _flwr(tmp_path, environment, "run", str(EXAMPLE), "--run-config", settings)
        assert done.returncode == 0, done.stdout + done.stderr
        found = _await(report)
    finally:
        _stop_what_flower_leaves(tmp_path)
    assert found["accuracy"][-1] > 0.8 and found["times_smaller"] > 6, found
