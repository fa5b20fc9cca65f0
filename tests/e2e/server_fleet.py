"""A server run as a user starts it: a coordinator and boards, one command a process, killed and
started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgegossip.telemetry.run_folder import read_run

COORDINATOR = "coordinator"


class ServerFleet:
    """`folder` gets a runs folder and a log for each. `secure`: what comes behind the command of
    each, such as --identity."""

    def __init__(
        self, folder: Path, port: int, boards: Sequence[str], settings: Sequence[str], patience_s: float
    ) -> None:
        self.folder, self.port, self.boards, self.settings = folder, port, tuple(boards), tuple(settings)
        self.patience_s = patience_s
        self.secure: dict[str, tuple[str, ...]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return (COORDINATOR, *self.boards)

    def command(self, name: str) -> list[str]:
        settings = [part for setting in self.settings for part in ("--set", setting)]
        where = ["--runs", str(self.folder / name), "--boards", ",".join(self.boards), "quickstart-server", *settings]
        if name == COORDINATOR:
            how = ["coordinator", "--port", str(self.port), "--no-plots"]
        else:
            how = ["node", "--name", name, "--coordinator", f"127.0.0.1:{self.port}"]
        return [sys.executable, "-m", "edgegossip", *how, *self.secure.get(name, ()), *where]

    def enrol(self) -> Path:
        """TLS and keys: a fleet of these boards; its folder."""
        from edgegossip.fleet.store import Fleet

        fleet = Fleet.create(self.folder / "fleet", "test", 20)
        for name in self.boards:
            fleet = fleet.add(name, "board", 20)
            self.secure[name] = ("--identity", str(fleet.folder / "boards" / name))
        self.secure[COORDINATOR] = ("--fleet", str(fleet.folder))
        return fleet.folder

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(self.command(name), stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

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

    def events(self, name: str) -> list[str]:
        return [e.text for e in read_run(self.run_folder(name)).events()]

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

    def logs(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text(errors='replace')[-1500:]}" for p in self.folder.glob("*.log"))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


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
