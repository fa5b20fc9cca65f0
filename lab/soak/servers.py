"""Runs with a server as a user starts them, one command a process, killed and started again: a
coordinator and its boards, or the job server of `scale` and the boards that follow it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgegossip.telemetry.run_folder import read_run
from lab.soak.boards import Boards

COORDINATOR, OPERATOR = "coordinator", "operator"


class ServerFleet(Boards):
    """`folder` gets a runs folder and a log for each. When boards are enrolled there are TLS and
    keys."""

    def __init__(
        self, folder: Path, port: int, boards: Sequence[str], settings: Sequence[str], patience_s: float
    ) -> None:
        super().__init__(folder, boards, COORDINATOR)
        self.port, self.settings, self.patience_s = port, tuple(settings), patience_s

    def command(self, name: str) -> list[str]:
        settings = [part for setting in self.settings for part in ("--set", setting)]
        where = ["--runs", str(self.runs(name)), "--boards", ",".join(self.boards), "quickstart-server", *settings]
        fleet = self.folder / "fleet"
        if name == COORDINATOR:
            how = ["coordinator", "--port", str(self.port), "--no-plots"]
            secure = ["--fleet", str(fleet)]
        else:
            how = ["node", "--name", name, "--coordinator", f"127.0.0.1:{self.port}"]
            secure = ["--identity", str(self.identity(name))]
        return ["edgegossip", *how, *(secure if fleet.exists() else ()), *where]

    def start_all(self) -> None:
        self.enrol()
        for name in self.names:
            self.start(name)
        self.until(self.rounds, "a round is over")

    def run_folder(self, name: str) -> Path:
        (found,) = (self.folder / name).glob("*/run.json")  # one, however often it was started
        return found.parent

    def records(self) -> list[dict[str, Any]]:
        """The coordinator's records of its rounds, in the order in which they were written."""
        found = list((self.folder / COORDINATOR).glob("*/metrics.jsonl"))
        lines = found[0].read_text(errors="replace").splitlines() if found else []
        return [json.loads(line) for line in lines if '"server/used"' in line and line.endswith("}")]

    def rounds(self) -> int:
        return max((record["step"] + 1 for record in self.records()), default=0)

    def until_round(self, round: int) -> None:
        end = time.monotonic() + self.patience_s
        while self.rounds() < round:
            assert time.monotonic() < end, self.logs()
            time.sleep(0.02)

    def finish(self) -> None:
        for name, process in self.processes.items():
            try:
                self.check_exit(name, process.wait(self.patience_s))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} has not ended: {self.logs()}") from None

    def check_exit(self, name: str, code: int) -> None:
        """A board that finished ends with 0; the coordinator with 7 where it says itself that it
        lost boards, and with 0 otherwise."""
        summary = (read_run(self.run_folder(name)).summary or {}) if name == COORDINATOR else {}
        assert code == (7 if summary.get("failed_nodes") else 0), f"{name} ended with {code}: {self.logs()}"


class JobFleet(Boards):
    """Boards that follow an operator's `scale --on boards`, with one cell to run: a gossip run in
    which each takes one example a step."""

    def __init__(self, folder: Path, ports: Sequence[int], boards: Sequence[str], settings: Sequence[str]) -> None:
        """`ports`: the operator's, then one a board."""
        super().__init__(folder, boards, OPERATOR)
        self.settings, self._ports = (*settings, "training.batch_size=1"), dict(zip(self.names, ports, strict=True))
        self.port = self._ports[OPERATOR]

    def command(self, name: str) -> list[str]:
        listen = ["--listen", f"127.0.0.1:{self._ports[name]}", "--output", str(self.folder / name)]
        if name == OPERATOR:
            sets = [part for setting in self.settings for part in ("--set", setting)]
            how = ["quickstart-gossip", "--on", "boards", "--boards", str(len(self.boards)), "--schemes", "dpsgd"]
            return ["edgegossip", "scale", *how, "--fleet", str(self.folder / "fleet"), *listen, "--no-plots", *sets]
        trusted = [part for s in self.settings if s.startswith("model.name=") for part in ("--set", s)]
        how = ["--follow", f"127.0.0.1:{self.port}", "--name", name, "--identity", str(self.identity(name))]
        return ["edgegossip", "scale", *how, *listen, *trusted]

    def runs(self, name: str) -> Path:
        """The folder of the one cell, once there is one."""
        return next((self.folder / name).glob("scale-*"), self.folder / name)

    def head(self) -> bytes:
        """The first line of records of that cell."""
        cell = self.runs(self.boards[0]).name.split("-")[1]
        return json.dumps({"cell": cell, "code": 0, "reason": "", "accuracy": None}).encode() + b"\n"

    def start_all(self) -> None:
        self.enrol()
        for name in self.names:
            self.start(name)
        self.until(lambda: all(self.last(name) for name in self.boards), "every board trains")


@contextmanager
def server_fleet(
    folder: Path, boards: Sequence[str], settings: Sequence[str], patience_s: float
) -> Iterator[ServerFleet]:
    from edgegossip.flower.superlink import free_port

    fleet = ServerFleet(folder, free_port("127.0.0.1", 0), boards, settings, patience_s)
    try:
        yield fleet
    finally:
        fleet.close()
