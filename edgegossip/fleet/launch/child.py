"""One board as a child process: its records come over its standard output, its log goes to a
file."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from edgegossip.fleet.launch.nursery import Nursery
from edgegossip.fleet.launch.process import Process
from edgegossip.telemetry.lines import EventRecord, LogText, MetricsRecord, Record, parse_record
from edgegossip.telemetry.sinks import HEARTBEAT
from edgegossip.types import NodeId

STOP_S = 3.0  # a board that is asked to stop gets this long before it is killed


@dataclass(frozen=True, slots=True)
class Said:
    """A record that a board printed."""

    node: NodeId
    record: Record


@dataclass(frozen=True, slots=True)
class Ended:
    """A board's process is gone and everything it printed has been read."""

    node: NodeId
    code: int  # exit status; -N when signal N killed it


@dataclass(frozen=True, slots=True)
class Beat:
    """A board's process is running."""

    node: NodeId


News: TypeAlias = Said | Ended | Beat


@dataclass(slots=True)
class Child:
    """A running board."""

    name: NodeId
    process: Process
    log: Path
    reader: threading.Thread
    last_error: str = ""
    joined: bool = False
    finished: bool = False
    code: int | None = None
    starts: int = 1  # of this board, this one included
    heard_s: float = field(default_factory=time.monotonic)
    round_s: float = field(default_factory=time.monotonic)  # when it last said that a round was done

    def tell(self, line: str) -> None:
        """One line to the board's standard input. A board that is gone is not told."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except (BrokenPipeError, OSError):
            pass

    def notice(self, news: News) -> None:
        """Remember what later says how the board ended."""
        self.heard_s = time.monotonic()
        match news:
            case Ended(_, code):
                self.code = code
            case Said(_, MetricsRecord()):
                self.round_s = self.heard_s
            case Said(_, EventRecord(name="error", text=text)):
                self.last_error = text
            case Said(_, EventRecord(name="joined")):
                self.joined = True
            case Said(_, EventRecord(name="finished")):
                self.finished = True

    def part_with(self, peer: NodeId, why: str) -> None:
        """Tell the board that a peer is gone for good."""
        self.tell(json.dumps({"lost": peer, "why": why}))

    def why(self) -> str:
        """One clause on how the board ended, for people."""
        if self.last_error:
            return self.last_error
        if self.code is not None and self.code < 0:
            return f"its process was killed by {signal.Signals(-self.code).name}"
        return f"its process ended with exit code {self.code}; its log is {self.log}"


def spawn(
    nursery: Nursery,
    name: NodeId,
    arguments: Sequence[str],
    log: Path,
    news: queue.Queue[News],
    namespace: str = "",
) -> Child:
    """Start `edgegossip ARGUMENTS` in a session of its own, so that Ctrl-C at the terminal reaches
    the parent only. The board ends when its standard input does, which is when this process dies,
    however it dies. `namespace`: of its network, if it is not ours. Raises HostError."""
    process = nursery.spawn(arguments, log, namespace)
    reader = threading.Thread(target=_read, args=(name, process, log, news), daemon=True, name=f"read-{name}")
    reader.start()
    return Child(name, process, log, reader)


def stop_all(children: Sequence[Child]) -> None:
    """Ask, wait, kill. Returns when none of the processes is left."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
            child.process.send_signal(signal.SIGCONT)  # a stopped process cannot end
    until = time.monotonic() + STOP_S
    for child in children:
        try:
            child.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        _close_input(child)


def _close_input(child: Child) -> None:
    """A line that a board never read stays in the pipe's buffer, and closing tries to send it once
    more."""
    assert child.process.stdin is not None
    with contextlib.suppress(OSError):
        child.process.stdin.close()


def _read(name: NodeId, process: Process, log: Path, news: queue.Queue[News]) -> None:
    assert process.stdout is not None
    with log.open("ab", buffering=0) as rest:
        for line in process.stdout:
            if line == HEARTBEAT:
                news.put(Beat(name))
                continue
            record = parse_record(line, node=name)
            if isinstance(record, LogText):
                with contextlib.suppress(OSError):  # such as a full disk: the board must not wait for its reader
                    rest.write(line)
            else:
                news.put(Said(name, record))
    news.put(Ended(name, process.wait()))
