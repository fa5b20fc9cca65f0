"""Boards on this machine's loopback as people start them: certificates, one command a process,
killed and started again. For long runs: what they print goes to files, and what they hold is read
from /proc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from edgegossip.fleet.launch.fork_server import MODULES, ForkServer

ROOT = Path(__file__).resolve().parents[2]
TAIL_BYTES = 8192  # of metrics.jsonl, more than its last line
START_S = 600.0  # many boards on a machine that is busy with other things


class Boards(ABC):
    """Processes of one run: boards, and what else there is; each has a runs folder and a log in
    `folder`. `forks`: where they come from, if not each for itself."""

    forks: ForkServer | None = None
    settings: Sequence[str] = ()  # of the recipe
    more: Mapping[str, Sequence[str]] = {}  # by process: options of its command

    def __init__(self, folder: Path, boards: Sequence[str], *others: str) -> None:
        self.folder, self.boards, self.names = folder, tuple(boards), (*others, *boards)
        self.processes: dict[str, Any] = {}  # subprocess.Popen, or what a fork server gives

    @abstractmethod
    def command(self, name: str) -> list[str]:
        """What starts it, the first time and again."""

    def enrol(self) -> Path:
        """A fleet of these boards, with certificates; its folder."""
        from edgegossip.fleet.store import Fleet as Store

        store = Store.create(self.folder / "fleet", "test", 20)
        for name in self.boards:
            store = store.add(name, "board", 20)
        return store.folder

    def identity(self, name: str) -> Path:
        return self.folder / "fleet" / "boards" / name

    def runs(self, name: str) -> Path:
        return self.folder / name

    def start(self, name: str) -> None:
        command = [*self.command(name), *self.more.get(name, ())]
        if self.forks is not None:
            self.processes[name] = self.forks.spawn(command[1:], self.folder / f"{name}.log")
            return
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )

    @abstractmethod
    def start_all(self) -> None:
        """All of them train when it returns."""

    def until(self, what: Callable[[], object], said: str) -> None:
        """Wait for it, while none ends."""
        until = time.monotonic() + START_S
        while not what():
            ended = {name: code for name, p in self.processes.items() if (code := p.poll()) is not None}
            if ended or time.monotonic() > until:
                raise RuntimeError(f"not within {START_S:g} s: {said}; ended: {ended}; {self.logs()}")
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self) -> dict[str, int]:
        """SIGTERM to each; their exit statuses."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        return {name: process.wait(60) for name, process in self.processes.items()}

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    # -- what they say and hold

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def logs(self) -> str:
        return "\n".join(f"{name}: {self.log(name)}" for name in self.processes)

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
                tasks = {"tasks": record["sys/tasks"]} if "sys/tasks" in record else {}
                found[name] = {**held(process.pid), **tasks, "round": record.get("step", -1)}
        return found

    def children(self) -> dict[str, dict[str, float]]:
        """What the processes hold that boards have started."""
        found = {}
        for name, process in self.processes.items():
            with suppress(psutil.Error, OSError):
                for child in psutil.Process(process.pid).children(recursive=True):
                    found[f"{name}/{child.pid}"] = held(child.pid)
        return found


class Fleet(Boards):
    """A gossip run of these boards; the first founds."""

    def __init__(self, names: Sequence[str], settings: Sequence[str], folder: Path) -> None:
        super().__init__(folder, names)
        self.settings = settings

    def command(self, name: str) -> list[str]:
        sets = [part for s in self.settings for part in ("--set", s)]
        if name == self.names[0]:
            how = ["quickstart-gossip", "--members", ",".join(self.names), *sets]
        else:
            others = [at for other in self.names if other != name and (at := self.address(other))]
            trusted = [part for s in self.settings if s.startswith("model.name=") for part in ("--set", s)]
            how = [*(part for at in others for part in ("--join", at)), *trusted]
        where = ["--listen", self.address(name) or "127.0.0.1:0", "--runs", str(self.runs(name))]
        return ["edgegossip", "node", *how, "--name", name, "--identity", str(self.identity(name)), *where]

    def start_all(self) -> None:
        """The first founds; when it listens, the others join."""
        self.enrol()
        self.start(self.names[0])
        self.until(lambda: self.address(self.names[0]), "the founder listens")
        for name in self.names[1:]:
            self.start(name)
        self.until(lambda: all(self.last(name) for name in self.names), "every board trains")

    def address(self, name: str) -> str:
        """Where a board listens; empty while it never did."""
        found = [str(e["address"]) for e in self.events(name) if e["event"] == "listening"]
        return found[-1] if found else ""


def held(pid: int) -> dict[str, float]:
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


B = TypeVar("B", bound=Boards)


@contextmanager
def at_work(boards: B) -> Iterator[B]:
    """All of them train when the block begins; none lives when it ends, even if that is SIGTERM's
    doing. Main thread only."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        boards.start_all()
        yield boards
    finally:
        boards.close()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def fleet(names: Sequence[str], settings: Sequence[str]) -> Iterator[Fleet]:
    """A gossip run in a folder of its own, see `at_work`; its boards are forked."""
    # Not the prefix of `run`, which removes folders that such a run has left.
    with tempfile.TemporaryDirectory(prefix="edgegossip-boards-") as folder, ExitStack() as stack:
        boards = Fleet(names, settings, Path(folder))
        boards.forks = stack.enter_context(ForkServer(MODULES["gossip"], 1, boards.folder / "forks.log"))
        yield stack.enter_context(at_work(boards))
