"""Bytes between pairs of sockets: all of them, in order, bounded, and the ends are passed on."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from edgegossip.security.front_end import Relay
from tests.mesh.support import until

PATIENCE_S = 20.0


@pytest.fixture
def relay():
    r = Relay()
    yield r
    r.close()


def pair(relay: Relay) -> tuple[socket.socket, socket.socket, int]:
    """The two far ends of a relayed connection, and its id."""
    outside, near = socket.socketpair()
    far, inside = socket.socketpair()
    for s in (outside, far):
        s.settimeout(PATIENCE_S)
    return outside, far, relay.add(near.detach(), inside.detach())


def news(relay: Relay) -> list[tuple[int, int, int]]:
    assert select.select([relay], [], [], PATIENCE_S)[0]
    return relay.ended()


def read_all(s: socket.socket) -> bytes:
    data = bytearray()
    while piece := s.recv(1 << 16):
        data += piece
    return bytes(data)


def test_bytes_go_both_ways_at_the_same_time_and_the_end_is_told(relay):
    a, b, number = pair(relay)
    there, back = os.urandom(5_000_000), os.urandom(3_000_000)
    got: dict[str, bytes] = {}

    def send(s: socket.socket, data: bytes) -> None:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)

    work = [threading.Thread(target=send, args=(a, there)), threading.Thread(target=send, args=(b, back))]
    work += [
        threading.Thread(target=lambda: got.update(a=read_all(a))),
        threading.Thread(target=lambda: got.update(b=read_all(b))),
    ]
    for t in work:
        t.start()
    for t in work:
        t.join(PATIENCE_S)
    assert (got["b"], got["a"]) == (there, back)
    assert news(relay) == [(number, len(there), len(back))]
    assert relay.ended() == []


def test_one_way_ends_and_the_other_goes_on(relay):
    a, b, _ = pair(relay)
    a.sendall(b"question")
    a.shutdown(socket.SHUT_WR)
    assert read_all(b) == b"question"
    b.sendall(b"answer")
    b.close()
    assert read_all(a) == b"answer"
    assert len(news(relay)) == 1


def send_what_is_taken(s):
    """Send until nothing more is taken in time; return how many bytes were."""
    sent = 0
    with suppress(TimeoutError):
        while True:
            sent += s.send(bytes(65_536))
    return sent


def test_who_does_not_read_holds_the_sender_back(relay):
    a, b, _ = pair(relay)
    a.settimeout(0.5)
    sent = send_what_is_taken(a)
    assert sent < 4 << 20
    got = 0
    while got < sent:
        got += len(b.recv(1 << 20))
    a.settimeout(PATIENCE_S)
    a.sendall(b"more")
    assert b.recv(10) == b"more"


def test_a_slow_pair_does_not_hold_up_others(relay):
    a, kept, _ = pair(relay)  # `kept` is open, and reads nothing
    a.settimeout(0.2)
    send_what_is_taken(a)
    for _ in range(50):
        c, d, _ = pair(relay)
        c.sendall(b"x")
        assert d.recv(1) == b"x"
    kept.close()


def test_cut(relay):
    a, b, number = pair(relay)
    other, far, _ = pair(relay)
    relay.cut(number)
    relay.cut(number)
    relay.cut(10_000)
    assert a.recv(1) == b"" and b.recv(1) == b""
    assert [row[0] for row in news(relay)] == [number]
    other.sendall(b"x")
    assert far.recv(1) == b"x"


def test_a_reset_ends_both_sides(relay):
    listener = socket.create_server(("127.0.0.1", 0))
    a = socket.create_connection(listener.getsockname())
    near, _ = listener.accept()
    far, inside = socket.socketpair()
    far.settimeout(PATIENCE_S)
    relay.add(near.detach(), inside.detach())
    a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    a.close()
    assert far.recv(1) == b""
    assert len(news(relay)) == 1
    listener.close()


def test_close_ends_all_and_leaves_nothing_open():
    before = len(os.listdir("/proc/self/fd"))
    relay = Relay()
    far = [pair(relay)[:2] for _ in range(20)]
    relay.close()
    relay.close()
    for a, b in far:
        assert a.recv(1) == b"" and b.recv(1) == b""
        a.close()
        b.close()
    near, inside = socket.socketpair()
    with pytest.raises(RuntimeError, match="closed"):
        relay.add(near.detach(), inside.detach())
    del relay
    assert len(os.listdir("/proc/self/fd")) <= before


def threads() -> set[Path]:
    return {*Path("/proc/self/task").iterdir()}


def sleeps(thread: Path) -> bool:
    """Whether a thread has no turn for a tenth of a second, and wants none: one that waits for a
    turn is not asleep, however many others there are."""
    turns = (thread / "schedstat").read_text()
    time.sleep(0.1)
    return (thread / "stat").read_text().rpartition(") ")[2][0] == "S" and (thread / "schedstat").read_text() == turns


def test_an_idle_relay_takes_no_time():
    others = threads()
    with closing(Relay()) as relay:
        [thread] = threads() - others
        pairs = [pair(relay) for _ in range(10)]
        for a, b, _ in pairs:
            a.sendall(b"x")
            assert b.recv(1) == b"x"  # it waits for more
        for a, _, _ in pairs:
            a.close()  # the other way lingers
        for _, b, _ in pairs:
            assert b.recv(1) == b""
        until(lambda: sleeps(thread), "it sleeps")
        assert relay.ended() == []  # they still linger: it looks at their deadline five times a second


def test_a_process_may_end_while_a_thread_is_in_it():
    """Python ends a daemon thread that wants its lock back by unwinding, which C++ answers with
    SIGABRT."""
    busy = "relay.cut(1); runs.set()\nwhile True: relay.cut(1)"
    lines = (
        "import threading",
        "from edgegossip.security.front_end import Relay",
        "relay = Relay()",
        "runs = threading.Event()",
        f"threading.Thread(target=exec, args=({busy!r}, dict(relay=relay, runs=runs)), daemon=True).start()",
        "assert runs.wait(60)",
    )
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
