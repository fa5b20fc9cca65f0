"""A connection whose other end is lost, seen from the listening end, which sends nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.network import Network, needs_namespaces

LISTEN = """
import select, sys, time
from edgegossip.mesh.base import MeshLimits
from edgegossip.security.front_end import listen, prepare

listener = listen(sys.argv[1], 7000)
print("listens", flush=True)
select.select([listener], [], [])
connection, _ = listener.accept()
prepare(connection, MeshLimits(keepalive_s=1.0, keepalive_timeout_s=2.0))
print("accepted", flush=True)
if sys.argv[3]:  # something is under way when the other end is lost
    time.sleep(1.0)
    connection.send(b"acknowledged")
came, _, _ = select.select([connection], [], [], float(sys.argv[2]))
try:
    print("still there" if not came else f"got {connection.recv(1)!r}", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""
CALL = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000))
sys.stdin.read()
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as made:
        made.open()
        yield made


@needs_namespaces
@pytest.mark.parametrize("under_way", ["", "something"], ids=["silent", "sending"])
@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_kernel_gives_up_a_connection_whose_host_is_lost(network: Network, lost: bool, under_way: str) -> None:
    python = (sys.executable, "-c")
    where = network.address(1)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": dict(os.environ)}
    with (
        subprocess.Popen(
            [*network.inside(1), *python, LISTEN, where, "20" if lost else "6", under_way], **pipes
        ) as server,  # type: ignore[call-overload]
    ):
        assert server.stdout.readline() == "listens\n"
        with subprocess.Popen([*network.inside(2), *python, CALL, where], **pipes) as client:  # type: ignore[call-overload]
            assert server.stdout.readline() == "accepted\n"
            if lost:
                network.split([2])
            # A second and a half of silence, then two questions a second apart: 4 s, and 6 were
            # given when nothing is lost.
            assert server.stdout.readline() == ("TimeoutError\n" if lost else "still there\n")
            client.stdin.close()
