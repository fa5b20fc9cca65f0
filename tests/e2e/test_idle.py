"""A board that waits for its peers is small: no torch yet, under 60 MiB resident, of which 28 are
pages of libraries' files; and it says for whom it waits."""

from __future__ import annotations

import compileall
import signal
from pathlib import Path

import psutil

import edgegossip as edgegossip_package
from edgegossip.telemetry.run_folder import read_run
from tests.e2e.command import edgegossip


def test_idle_gossip_node(tmp_path: Path) -> None:
    compileall.compile_dir(Path(edgegossip_package.__file__).parent, quiet=1)  # as an installed package is
    peers = [f"--peer={name}=127.0.0.1:{port}" for name, port in (("b", 9), ("c", 10), ("d", 11))]
    with edgegossip("node", "quickstart-gossip", "--name", "a", *peers, runs=tmp_path) as running:
        running.wait_until(lambda: any(e.name == "waiting" for e in _events(tmp_path)), 60)
        process = psutil.Process(running.process.pid)
        libraries = {Path(m.path).name for m in process.memory_maps()}
        assert not {name for name in libraries if "torch" in name}
        found = process.memory_info()  # how much of its files the kernel maps goes by what else it has read
        assert found.rss - found.shared < (60 - 28) * 2**20
        running.process.send_signal(signal.SIGTERM)
        code, out, err = running.finish(20)
    assert code == 130 and "Traceback" not in out + err
    waiting = [e.text for e in _events(tmp_path) if e.name == "waiting"]
    assert waiting[0] == "waiting 0/2: missing b (never seen), d (never seen)"


def _events(runs: Path) -> list:
    return [e for file in runs.glob("*/events.jsonl") for e in read_run(file.parent).events()]
