"""A fleet on this machine's loopback as people start it: certificates, one board that founds,
others that join. For long runs: what boards print goes to files, and what they hold is read from
/proc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TAIL_BYTES = 8192  # of metrics.jsonl, more than its last line
START_S = 600.0  # many boards on a machine that is busy with other things


class Fleet:
    """Boards of these names; the first founds. `modules` names what is run in place of `edgegossip`
    for some of them."""

    def __init__(
        self, names: Sequence[str], settings: Sequence[str], folder: Path, modules: Mapping[str, str] | None = None
    ) -> None:
        self.names, self._settings, self._modules = list(names), settings, modules or {}
        self._folder, self._fleet = folder, folder / "fleet"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """The first founds; when it listens, the others join."""
        for arguments in (("init", str(self._fleet)), ("add", "--fleet", str(self._fleet), *self.names)):
            subprocess.run(_command("edgegossip", "fleet", *arguments), check=True, capture_output=True, cwd=ROOT)
        sets = [part for s in self._settings for part in ("--set", s)]
        first = self.names[0]
        self._start(first, "quickstart-gossip", "--members", ",".join(self.names), *sets)
        until = time.monotonic() + START_S
        while not self.address(first):
            self._still_wait(until, "the founder listens")
        trusted = [part for s in self._settings if s.startswith("model.name=") for part in ("--set", s)]
        for name in self.names[1:]:
            self._start(name, "--join", self.address(first), *trusted)
        while not all(self.last(name) for name in self.names):
            self._still_wait(until, "every board trains")

    def _start(self, name: str, *arguments: str) -> None:
        where = ("--listen", "127.0.0.1:0", "--identity", str(self.identity(name)), "--runs", str(self.runs(name)))
        module = self._modules.get(name, "edgegossip")
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                _command(module, "node", *arguments, "--name", name, *where),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )

    def _still_wait(self, until: float, what: str) -> None:
        ended = {name: p.returncode for name, p in self.processes.items() if p.poll() is not None}
        if ended or time.monotonic() > until:
            raise RuntimeError(f"not within {START_S:g} s: {what}; ended: {ended}; {self.log(self.names[0])}")
        time.sleep(0.2)

    def identity(self, name: str) -> Path:
        return self._fleet / "boards" / name

    def runs(self, name: str) -> Path:
        return self._folder / name

    def address(self, name: str) -> str:
        """Where a board listens; empty while it does not."""
        found = [str(e["address"]) for e in self.events(name) if e["event"] == "listening"]
        return found[0] if found else ""

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def events(self, name: str) -> list[dict[str, Any]]:
        text = "".join(f.read_text() for f in self.runs(name).glob("*/events.jsonl"))
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def last(self, name: str) -> dict[str, Any]:
        """The latest metrics record of a board, empty while there is none."""
        for file in self.runs(name).glob("*/metrics.jsonl"):
            with file.open("rb") as lines:
                lines.seek(max(0, file.stat().st_size - TAIL_BYTES))
                whole = [line for line in lines.read().split(b"\n")[:-1] if line.startswith(b'{"node"')]
            if whole:
                return dict(json.loads(whole[-1]))
        return {}

    def sample(self) -> dict[str, dict[str, float]]:
        """What each live board holds now."""
        found = {}
        for name, process in self.processes.items():
            with suppress(OSError):  # it ended
                record = self.last(name)
                found[name] = {**_held(process.pid), "tasks": record["sys/tasks"], "round": record["step"]}
        return found

    def stop(self) -> dict[str, int]:
        """SIGTERM to each; their exit statuses."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        return {name: process.wait(60) for name, process in self.processes.items()}

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def _command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-X", "faulthandler", "-m", module, *arguments]


def _held(pid: int) -> dict[str, float]:
    """Of a process, from /proc: sizes in bytes, CPU in seconds."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    if "VmRSS" not in status:
        raise ProcessLookupError(f"process {pid} has ended and waits for its parent")

    def kib(key: str) -> int:
        return int(status[key].split()[0]) << 10

    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {
        "rss_bytes": kib("VmRSS"),
        "anonymous_bytes": kib("RssAnon") + kib("VmSwap"),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "cpu_s": (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
    }


@contextmanager
def fleet(names: Sequence[str], settings: Sequence[str], modules: Mapping[str, str] | None = None) -> Iterator[Fleet]:
    """All of them train when the block begins; none lives when it ends, even if that is SIGTERM's
    doing. Main thread only."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Not the prefix of `run`, which removes folders that such a run has left.
    with tempfile.TemporaryDirectory(prefix="edgegossip-boards-") as folder:
        boards = Fleet(names, settings, Path(folder), modules)
        try:
            boards.start()
            yield boards
        finally:
            boards.kill()
            signal.signal(signal.SIGTERM, before)
