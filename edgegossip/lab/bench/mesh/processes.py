"""Worker processes and orders to them. They are sessions of their own and end with their standard
input."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from edgegossip.types import HostError

_START_S = 60.0
_END_S = 15.0
ORDER_S = 300.0  # longest time that one order may take


class Worker:
    """One process with one transport."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edgegossip.lab.bench.mesh.worker", kind, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=_environment(kind),
        )
        self._unread = b""

    def order(self, what: str, **details: Any) -> None:
        """Give an order; `answer` waits for its end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **details}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HostError(f"the process {self.name} of this measurement has ended; start it again") from error

    def answer(self, timeout_s: float = ORDER_S) -> Any:
        """What the oldest unanswered order came to. Raises HostError when it failed, or no answer
        comes in time."""
        line = self._line(time.monotonic() + timeout_s)
        reply = json.loads(line)
        if "error" in reply:
            raise HostError(f"the process {self.name} ({self.kind}) of this measurement failed: {reply['error']}")
        return reply["result"]

    def close_input(self) -> None:
        """Ask it to end."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def end(self) -> None:
        """Ask and wait; kill it when that takes too long."""
        self.close_input()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _line(self, end_s: float) -> bytes:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([handle], [], [], max(0.0, end_s - time.monotonic()))
            data = os.read(handle, 1 << 16) if ready else b""
            if not data:
                why = "has ended" if ready else "does not answer"
                raise HostError(
                    f"the process {self.name} ({self.kind}) of this measurement {why}; see its output above"
                )
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _environment(kind: str) -> dict[str, str]:
    """Bare gRPC is as it comes, without the poller that the mesh chooses; `tuned` has that, too."""
    mine = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return {"GRPC_EXPERIMENTS": "", **mine} if kind.startswith("grpc") else mine


class Fleet:
    """`count` workers of one kind, started together. Each is connected to its neighbours in a
    ring."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.workers: list[Worker] = []
        self._count = count

    def __enter__(self) -> Fleet:
        try:
            self.workers = [Worker(self.kind, f"p{i:02}") for i in range(self._count)]
            addresses = [worker.answer(_START_S) for worker in self.workers]
            for i, worker in enumerate(self.workers):
                worker.order("connect", peers={f"p{n:02}": addresses[n] for n in self._neighbours(i)})
            for worker in self.workers:
                worker.answer(_START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._end()

    def neighbours(self, i: int) -> list[str]:
        return [f"p{n:02}" for n in self._neighbours(i)]

    def all(self, what: str, **details: Any) -> list[Any]:
        """The same order to everybody; their answers."""
        for worker in self.workers:
            worker.order(what, **details)
        return [worker.answer() for worker in self.workers]

    def ring(self, rounds: int, size: int) -> list[list[float]]:
        """Rounds around the ring; each process's ends of rounds, seconds on its own clock."""
        for i, worker in enumerate(self.workers):
            worker.order("ring", neighbours=self.neighbours(i), rounds=rounds, size=size)
        return [worker.answer() for worker in self.workers]

    def pair(self, first: str, second: str, **details: Any) -> Any:
        """An order to the first worker against the second's; the first one's answer."""
        a, b = self.workers[:2]
        b.order(second, sender=a.name, **details)
        a.order(first, to=b.name, **details)
        result = a.answer()
        b.answer()
        return result

    def _neighbours(self, i: int) -> Sequence[int]:
        return sorted({(i - 1) % self._count, (i + 1) % self._count} - {i})

    def _end(self) -> None:
        for worker in self.workers:  # all inputs first, so that they leave together
            worker.close_input()
        for worker in self.workers:
            worker.end()
