"""Socket counters: against known traffic on loopback, and against an interface's own counter in
network namespaces."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edgegossip.telemetry import sockets
from edgegossip.telemetry.sockets import SocketMeter, SocketReader, SocketTotals, parse_tcp_info

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_INFO is read on Linux only")


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


def carry(near: socket.socket, far: socket.socket, size: int) -> None:
    """`size` bytes from near to far, all acknowledged by an answer of one byte."""
    left = size
    while left:
        sent = near.send(bytes(min(left, 60_000)))
        left -= sent
        while sent:
            sent -= len(far.recv(sent))
    far.sendall(b"!")
    assert near.recv(1) == b"!"


@linux
def test_both_ends_are_counted_to_the_byte():
    meter = SocketMeter()
    near, far = connection()
    with near, far:
        carry(near, far, 1_000_000)
        totals = meter.sample()
    assert totals is not None
    assert totals.sent_bytes - totals.retransmitted_bytes == 1_000_001
    assert totals.received_bytes == 1_000_001
    assert totals.sent_segments > 0
    assert totals.sent_link_bytes >= totals.sent_bytes + 54 * totals.sent_segments


@linux
def test_closed_sockets_stay_counted_and_older_traffic_is_not():
    old = connection()
    carry(*old, 5_000)
    before = SocketReader().read()
    assert before is not None
    assert sum(totals.sent_bytes for totals in before.values()) >= 5_001
    meter = SocketMeter()
    first = meter.sample()
    assert first is not None
    assert first.sent_bytes == 0
    for i in range(1, 4):
        near, far = connection()
        with near, far:
            carry(near, far, 10_000)
            assert meter.sample() is not None
        totals = meter.sample()
        assert totals is not None
        assert totals.sent_bytes - totals.retransmitted_bytes == i * 10_001
    for end in old:
        end.close()
    last = meter.sample()
    assert last is not None
    assert last.sent_bytes == totals.sent_bytes


@linux
def test_other_descriptors_are_left_alone(tmp_path):
    before = os.listdir("/proc/self/fd")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.create_server(("127.0.0.1", 0)) as listening,
        open(tmp_path / "file", "w") as file,
    ):
        found = SocketReader().read()
        assert found is not None
        for other in (unix, udp, listening, file):
            assert os.fstat(other.fileno()).st_ino not in found
    assert os.listdir("/proc/self/fd") == before


def test_an_inode_used_again_is_a_new_socket(monkeypatch):
    states = iter(
        [
            {},
            {7: SocketTotals(100, 10, 0, 5, 0)},
            {7: SocketTotals(30, 3, 0, 2, 0)},
            {},
        ]
    )
    monkeypatch.setattr(SocketReader, "read", lambda _: next(states))
    meter = SocketMeter()
    assert [meter.sample().sent_bytes for _ in range(3)] == [100, 130, 130]


def test_elsewhere_there_is_nothing(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert SocketReader().read() is None
    assert SocketMeter().sample() is None


def test_where_the_kernel_says_less_there_is_nothing(monkeypatch):
    """As under QEMU's user-mode emulation: a zero would be a measurement."""
    monkeypatch.setattr(sockets, "_is_told", sockets._is_told.__wrapped__)
    assert SocketReader().read() is not None
    monkeypatch.setattr(sockets, "_tcp_info", lambda _: b"\1\0\0\0")
    assert SocketReader().read() is None
    assert SocketMeter().sample() is None


def info(size: int, *, state: int = 1, options: int = 0) -> bytes:
    """A struct tcp_info of `size` bytes with the numbers of interest in it."""
    whole = bytearray(256)
    whole[0], whole[5] = state, options
    for at, length, value in ((128, 8, 500), (136, 4, 7), (140, 4, 6), (200, 8, 1000), (208, 8, 50)):
        whole[at : at + length] = value.to_bytes(length, sys.byteorder)
    return bytes(whole[:size])


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        (232, 0, SocketTotals(1000, 500, 50, 7, 7 * 54)),
        (256, 1, SocketTotals(1000, 500, 50, 7, 7 * 66)),
        (192, 0, None),
    ],
)
def test_older_kernels_have_shorter_structs(size, options, expected):
    assert parse_tcp_info(info(size, options=options)) == expected


def test_a_listening_socket_says_nothing():
    assert parse_tcp_info(info(232, state=10)) is None


@pytest.fixture
def namespaces():
    """Two network namespaces joined by a veth pair; 10.97.0.1 and 10.97.0.2."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux, root and iproute2")
    left, right = f"eg{os.getpid()}a", f"eg{os.getpid()}b"

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    try:
        made = subprocess.run(["ip", "netns", "add", left], capture_output=True, text=True)
        if made.returncode:  # where one can be made, all that comes after has to work
            pytest.skip(f"cannot make network namespaces here: {made.stderr.strip()}")
        ip("netns", "add", right)
        ip("link", "add", "v0", "netns", left, "type", "veth", "peer", "name", "v0", "netns", right)
        for name, address in ((left, "10.97.0.1/24"), (right, "10.97.0.2/24")):
            ip("-n", name, "addr", "add", address, "dev", "v0")
            ip("-n", name, "link", "set", "v0", "up")
        yield left, right
    finally:
        for name in (left, right):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


EXCHANGE = """
import json, sys
from pathlib import Path
from edgegossip.mesh.base import Received, PeerUp
from edgegossip.mesh import GrpcTransport
from edgegossip.telemetry.sockets import SocketMeter
node, other, listen, peer = sys.argv[1:]
sent = lambda: int(Path("/sys/class/net/v0/statistics/tx_bytes").read_text())
meter, before = SocketMeter(), sent()
with GrpcTransport(node, bytes(16), listen, insecure=True) as transport:
    transport.connect({other: peer})
    sizes = [10_000] * 50 + [1_000_000] * 20
    for size in sizes:
        transport.send(other, [bytes(size)])
    waiting = len(sizes)
    acknowledged, other_done = 0, False
    while waiting or acknowledged < len(sizes):
        event = transport.incoming(30)
        assert event is not None
        if isinstance(event, Received):
            done = len(event.data) == 4
            other_done, waiting = other_done or done, waiting - (not done)
        acknowledged += type(event).__name__ == "SendReceipt"
    totals, after = meter.sample(), sent()
    transport.send(other, [b"done"])  # whoever leaves takes the connections along, and with them what was not sampled
    while not other_done:
        event = transport.incoming(30)
        assert event is not None
        other_done = isinstance(event, Received)
print(json.dumps([after - before, totals.sent_bytes, totals.sent_link_bytes]))
"""


@linux
@pytest.mark.parametrize("hardware_cuts", [True, False], ids=["segments-cut-late", "segments-cut-by-kernel"])
def test_sent_bytes_are_those_of_the_interface(namespaces, hardware_cuts):
    if not hardware_cuts:
        for name in namespaces:
            subprocess.run(["ip", "-n", name, "link", "set", "v0", "gso_max_segs", "1"], check=True)
    ports = ("10.97.0.1:7201", "10.97.0.2:7202")
    children = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", EXCHANGE, node, other, ports[i], ports[1 - i]],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for i, (name, node, other) in enumerate(zip(namespaces, "ab", "ba", strict=True))
    ]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    for child, output in zip(children, outputs, strict=True):
        assert child.returncode == 0
        interface, payload, link = json.loads(output)
        assert payload > 20_500_000
        counted = payload if hardware_cuts else link
        assert abs(counted - interface) <= 0.03 * interface, (interface, payload, link)
