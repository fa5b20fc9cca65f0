"""Boards that found and join a run, each on a machine of its own, and what their logs say."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.command import Running, edgegossip
from tests.e2e.network import Network

PORT = 7700


class Members:
    """pi-1 on machine 1, pi-2 on machine 2, ... pi-1 founds, the others join. Each start has a runs
    folder of its own."""

    def __init__(self, net: Network, stack: ExitStack, runs: Path, size: int, *settings: str) -> None:
        self.net, self._stack, self.runs, self._settings = net, stack, runs, settings
        self.names = [f"pi-{k}" for k in range(1, size + 1)]
        self.boards: dict[int, Running] = {}
        self.incarnations: dict[int, int] = {}
        self.identities: Path | None = None  # boards' folders of `edgegossip fleet add`

    def start(self, machine: int, seed: int | None = None, port: int = PORT) -> Running:
        """Join through the board on machine `seed`; without one, found the run."""
        incarnation = self.incarnations[machine] = self.incarnations.get(machine, 0) + 1
        where = f"{self.net.address(machine)}:{port}"
        secure = ("--identity", str(self.identities / f"pi-{machine}")) if self.identities else ("--insecure",)
        common = ("--name", f"pi-{machine}", "--listen", where, *secure)
        if seed is None:
            sets = [part for s in self._settings for part in ("--set", s)]
            how = ("node", "quickstart-gossip", "--members", ",".join(self.names), *sets)
        else:
            # The model is a function of tests.
            ours = [part for s in self._settings if s.startswith("model.name=") for part in ("--set", s)]
            how = ("node", "--join", f"{self.net.address(seed)}:{PORT}", *ours)
        runs = self.runs / f"pi-{machine}-{incarnation}"
        board = edgegossip(*how, *common, runs=runs, prefix=self.net.inside(machine))
        self.boards[machine] = self._stack.enter_context(board)
        return self.boards[machine]

    def start_all(self, machines: int) -> None:
        self.start(1)
        self.wait_for(1, "listening")
        for k in range(2, machines + 1):
            self.start(k, seed=1)

    def signal(self, number: signal.Signals, *machines: int) -> None:
        """To the board's own process."""
        for k in machines:
            for process in self.boards[k].processes():
                process.send_signal(number)

    def kill(self, *machines: int) -> None:
        self.signal(signal.SIGKILL, *machines)
        for k in machines:
            self.boards[k].process.wait()

    # -- what they say -----------------------------------------------------------------------------

    def _lines(self, machine: int, file: str, incarnation: int | None = None) -> list[dict[str, Any]]:
        folder = self.runs / f"pi-{machine}-{incarnation or self.incarnations[machine]}"
        found = list(folder.glob(f"*/{file}"))
        text = found[0].read_text() if found else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def events(self, machine: int, kind: str | None = None) -> list[dict[str, Any]]:
        """Of the board's latest start."""
        return [e for e in self._lines(machine, "events.jsonl") if kind in (None, e["event"])]

    def metrics(self, machine: int, incarnation: int | None = None) -> list[dict[str, Any]]:
        return self._lines(machine, "metrics.jsonl", incarnation)

    def accuracy(self, machine: int) -> float:
        [finished] = self.events(machine, "finished")
        return float(finished["accuracy"])

    def finished_unix_s(self, machine: int) -> float:
        """When a board finished, by the clock of the machine."""
        [started], [finished] = self.events(machine, "started"), self.events(machine, "finished")
        return float(started["unix_s"] + finished["t_s"] - started["t_s"])

    def ended_unix_s(self, machine: int) -> float:
        """When the latest process of a board said its last word; 0 when it said none."""
        folder = self.runs / f"pi-{machine}-{self.incarnations[machine]}"
        return max((file.stat().st_mtime for file in folder.glob("*/events.jsonl")), default=0.0)

    def about(self, machine: int, kind: str, other: int) -> list[dict[str, Any]]:
        return [e for e in self.events(machine, kind) if e.get("peer") == f"pi-{other}"]

    def wait_for(
        self, machine: int, kind: str, which: Callable[[dict[str, Any]], bool] = lambda _: True, timeout_s: float = 60.0
    ) -> dict[str, Any]:
        until = time.monotonic() + timeout_s
        while True:
            found = [e for e in self.events(machine, kind) if which(e)]
            if found:
                return found[-1]
            if time.monotonic() > until or self.boards[machine].process.poll() is not None:
                board = self.boards[machine].process
                ended = board.communicate() if board.poll() is not None else "runs"
                raise AssertionError(f"pi-{machine} did not say {kind}: {self.events(machine)}; {ended}")
            time.sleep(0.05)

    def wait_until(self, what: Callable[[], bool], say: str, timeout_s: float = 60.0) -> float:
        """How long it took, in seconds."""
        began = time.monotonic()
        while not what():
            if time.monotonic() - began > timeout_s:
                logs = {k: [e["text"] for e in self.events(k)][-12:] for k in self.boards}
                raise AssertionError(f"not within {timeout_s:g} s: {say}; {json.dumps(logs, indent=1)}")
            time.sleep(0.05)
        return time.monotonic() - began

    def knows(self, machine: int, others: set[int]) -> bool:
        """Whether this board was told where each of the others is."""
        return all(self.about(machine, "member-here", k) for k in others - {machine})


@contextmanager
def members(net: Network, runs: Path, size: int, *settings: str) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(net, stack, runs, size, *settings)
