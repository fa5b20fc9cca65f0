"""Runs the real command line in a real process, marked so that every process it leaves behind can
be found."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgegossip.cli.main import main
from edgegossip.fleet.launch.fork_server import ForkServer

TIMEOUT_S = 180.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def free_port() -> int:
    return free_ports(1)[0]


class Kept(nullcontext["Kept"]):
    """A fork server in place of a run's own, which it does not end."""

    def __init__(self, server: ForkServer) -> None:
        super().__init__(self)
        self.spawn = server.spawn

    def close(self) -> None: ...


@dataclass
class Running:
    process: subprocess.Popen[str]
    mark: str
    runs: Path

    def processes(self) -> list[psutil.Process]:
        """Every live process that the command started, itself included."""
        found = []
        for p in psutil.process_iter():
            try:
                if p.status() != psutil.STATUS_ZOMBIE and p.environ().get("EDGEGOSSIP_TEST_MARK") == self.mark:
                    found.append(p)
            except psutil.Error:
                continue
        return found

    def board(self, name: str) -> psutil.Process:
        """The process of a board under `run`."""
        for p in self.processes():
            command = " ".join(p.cmdline()).split()  # a title is one string
            if "--name" in command and command[command.index("--name") + 1] == name:
                return p
        raise LookupError(name)

    def folder(self) -> Path:
        (folder,) = self.runs.iterdir()
        return folder

    def wait_until(self, what: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        until = time.monotonic() + timeout_s
        while not what():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until, "timed out"
            time.sleep(0.02)

    def rounds_done(self, at_least: int, boards: int = 4) -> bool:
        """Whether every one of so many boards has finished so many rounds."""
        files = list(self.runs.glob("*/metrics.jsonl"))
        if not files:
            return False
        lines = [json.loads(line) for line in files[0].read_text().splitlines() if line.endswith("}")]
        return len({r["node"] for r in lines if r["step"] + 1 >= at_least}) >= boards

    def finish(self, timeout_s: float = TIMEOUT_S) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def nobody_left(self) -> bool:
        until = time.monotonic() + 10
        while self.processes() and time.monotonic() < until:
            time.sleep(0.05)
        return not self.processes()


@contextmanager
def edgegossip(
    *arguments: str, runs: Path, prefix: tuple[str, ...] = (), python: str = sys.executable, cwd: Path | None = None
) -> Iterator[Running]:
    """`edgegossip ARGUMENTS --runs RUNS`, killed with all it started when the block is left. `run`
    goes without TLS, which takes a second or two, unless the arguments say otherwise."""
    if arguments[0] == "run" and not {"--resume", "network.tls=on"} & {*arguments}:
        arguments = (arguments[0], "--set", "network.tls=off", *arguments[1:])  # what follows -- is the script's
    mark = uuid.uuid4().hex
    environment = {**os.environ, "EDGEGOSSIP_TEST_MARK": mark, "PYTHONUNBUFFERED": "1"}
    command = [*prefix, python, "-m", "edgegossip", arguments[0], "--runs", str(runs), *arguments[1:]]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=cwd, start_new_session=True
    )
    running = Running(process, mark, runs)
    try:
        yield running
    finally:
        for p in running.processes():
            with suppress(psutil.Error):
                p.send_signal(signal.SIGKILL)
        process.communicate()


def unwrapped(out: str) -> str:
    """Output with each note on one line, which a terminal's width had cut."""
    return out.replace("\n  ", " ")


def in_this_process(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command in this process, which has loaded
    most of what it needs: for tests of what is said, not of processes."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return int(ended.value.code or 0), *capfd.readouterr()


def run_json(*arguments: str, runs: Path) -> dict[str, Any]:
    """The JSON document of a run that must succeed."""
    with edgegossip(arguments[0], "--json", *arguments[1:], runs=runs) as running:
        code, out, err = running.finish()
        assert code == 0, (code, out, err)
        assert running.nobody_left()
        document = json.loads(out)
    assert isinstance(document, dict)
    return document
