"""What the mesh tests share: waiting for events, and a peer in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from edgegossip.mesh import GrpcTransport, MeshLimits
from edgegossip.mesh.base import PeerUp, TransportEvent

E = TypeVar("E")
ROOT = Path(__file__).resolve().parents[2]
RUN = bytes(range(16))
PATIENCE_S = 60.0  # only bounds a failing test
QUICK = MeshLimits(grace_s=0.5, backoff_max_s=0.2, flush_s=2.0)


def wait_for(
    transport: GrpcTransport, kind: type[E], match: Callable[[E], bool] = lambda _: True, seen: list | None = None
) -> E:
    """The next event of a kind; earlier events of other kinds go to `seen`."""
    end = time.monotonic() + PATIENCE_S
    events: list[TransportEvent] = []
    while time.monotonic() < end:
        event = transport.incoming(max(0.0, end - time.monotonic()))
        if isinstance(event, kind) and match(event):
            return event
        if event is not None:
            events.append(event)
            if seen is not None:
                seen.append(event)
    raise AssertionError(f"no {kind.__name__} came; what came: {events}")


def until(what: Callable[[], object], says: str) -> None:
    """Look again and again whether something is true, which `says` what it is."""
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, says
        time.sleep(0.02)


def connect_all(transports: Sequence[GrpcTransport], names: Sequence[str]) -> None:
    """Everybody to everybody, and wait until all are up."""
    table = {name: t.address for name, t in zip(names, transports, strict=True)}
    for name, t in zip(names, transports, strict=True):
        t.connect({peer: address for peer, address in table.items() if peer != name})
    for t in transports:
        for _ in range(len(names) - 1):
            wait_for(t, PeerUp)


class PeerProcess:
    """`tests.mesh.peer` as a child process: sends every frame back to its sender."""

    def __init__(self, node: str, listen: str = "127.0.0.1:0", identity: str = "", **limits: float) -> None:
        command = [sys.executable, "-m", "tests.mesh.peer", node, listen, RUN.hex(), json.dumps(limits), identity]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        self.address = self.read()["address"]

    def read(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the peer ended: {self.process.stderr.read() if self.process.stderr else ''}")
        return json.loads(line)

    def connect(self, peers: dict[str, str]) -> None:
        self._say(json.dumps(peers))

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hold(self) -> None:
        """Let nothing else of Python run in it from now until `let_go`."""
        self._say("hold")
        assert self.read()["held"]

    def let_go(self) -> None:
        self._say("go")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
