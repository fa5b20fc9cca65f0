"""Boards on machines of their own that found and join a run, lose and find each other again. One
member never comes, so its neighbours do not train. What else may happen to members is in
tests/mesh/membership, in virtual time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import Running, edgegossip
from tests.e2e.network import Network, needs_namespaces, network

PORT = 7700
BUSY_S = 20.0  # 10 s are promised; this machine may be running other tests
# Everybody waits for the one that never comes, and so nobody has torch.
FOUNDS = ("quickstart-gossip", "--set", "gossip.topology=complete", "--members")


class Members:
    """pi-1 on machine 1, pi-2 on machine 2, ... pi-1 founds, the others join. The last never
    comes."""

    def __init__(self, net: Network, stack: ExitStack, runs: Path) -> None:
        self.net, self._stack, self._runs = net, stack, runs
        self._boards: dict[int, Running] = {}
        for k in range(1, net.size):
            names = ",".join(f"pi-{j}" for j in range(1, net.size + 1))
            self._start(k, *((*FOUNDS, names) if k == 1 else ("--join", f"{net.address(1)}:{PORT}")))
            self.wait_until(lambda k=k: bool(self.events(k, "listening")), "it listens")  # type: ignore[misc]

    def _start(self, k: int, *how: str) -> None:
        common = ("--name", f"pi-{k}", "--listen", f"{self.net.address(k)}:{PORT}", "--insecure")
        board = edgegossip("node", *how, *common, runs=self._runs / f"pi-{k}", prefix=self.net.inside(k))
        self._boards[k] = self._stack.enter_context(board)

    def events(self, machine: int, kind: str) -> list[dict[str, Any]]:
        lines = [line for f in self._runs.glob(f"pi-{machine}/*/events.jsonl") for line in f.read_text().splitlines()]
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [e for e in found if e["event"] == kind]

    def about(self, machine: int, kind: str, other: int) -> list[dict[str, Any]]:
        return [e for e in self.events(machine, kind) if e.get("peer") == f"pi-{other}"]

    def wait_until(self, what: Callable[[], bool], say: str, timeout_s: float = 60.0) -> None:
        until_s = time.monotonic() + timeout_s
        while not what():
            ended = {k: board.process.poll() for k, board in self._boards.items()}
            assert time.monotonic() < until_s and not any(code is not None for code in ended.values()), (say, ended)
            time.sleep(0.05)


@needs_namespaces
@pytest.mark.timeout(240)
def test_halves_name_each_other_and_heal(tmp_path: Path) -> None:
    left, right = {1, 2}, {3}
    across = [(a, b) for a in left for b in right] + [(a, b) for a in right for b in left]
    within = [(a, b) for half in (left, right) for a in half for b in half - {a}]
    with network(4) as net, ExitStack() as stack:
        fleet = Members(net, stack, tmp_path)

        def say(kind: str, pairs: list[tuple[int, int]], times: int = 1) -> bool:
            return all(len(fleet.about(a, kind, b)) == times for a, b in pairs)

        fleet.wait_until(lambda: say("member-here", across + within), "everybody knows everybody")
        net.split(sorted(right))
        fleet.wait_until(lambda: say("member-dead", across), "each half names the other", BUSY_S)
        assert not any(fleet.about(a, "member-dead", b) for a, b in within)
        fleet.wait_until(
            lambda: any("may be split" in e["text"] for e in fleet.events(3, "notice")),
            "the smaller half says what so many deaths may mean, in a line after the last of them",
        )
        net.heal()
        fleet.wait_until(lambda: say("member-here", across, 2), "all are back")
