"""Peers in processes of their own: killed, stopped, restarted, ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received, SendFailed, SendReceipt, TransportEvent
from tests.mesh.support import QUICK, ROOT, RUN, PeerProcess, wait_for

FAST = {"grace_s": 0.5, "backoff_max_s": 0.2}


@pytest.fixture
def a():
    with GrpcTransport("a", RUN, limits=replace(QUICK, keepalive_s=1.0, keepalive_timeout_s=1.0)) as transport:
        yield transport


@pytest.fixture
def b():
    peer = PeerProcess("b", **FAST)
    yield peer
    if peer.process.poll() is None:
        peer.kill()


def join(a: GrpcTransport, b: PeerProcess) -> None:
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    wait_for(a, PeerUp)


def test_a_killed_peer_is_down_after_the_grace_time_and_its_frames_fail(a, b):
    join(a, b)
    b.process.send_signal(signal.SIGSTOP)  # so that the frame is surely under way
    frame_id = a.send("b", [bytes(5 << 20)])
    killed_s = time.monotonic()
    b.kill()
    seen = []
    down = wait_for(a, PeerDown, seen=seen)
    took_s = time.monotonic() - killed_s
    assert (down.peer, down.left) == ("b", False)
    assert took_s >= 0.5
    assert [e.frame_id for e in seen if isinstance(e, SendFailed)] == [frame_id]
    told = [e.text for e in seen if isinstance(e, Notice) and e.text.endswith("; trying again")]
    # And no line for each try to reach it again.
    assert len(told) == 1 and told[0].startswith(f"lost b at {b.address}: ")
    late = a.send("b", [b"x"])
    assert wait_for(a, SendFailed).frame_id == late


def test_a_peer_restarted_on_its_port_takes_traffic_again(a, b):
    join(a, b)
    b.kill()
    wait_for(a, PeerDown)
    again = PeerProcess("b", b.address, **FAST)
    try:
        again.connect({"a": a.address})
        assert wait_for(a, PeerUp) == PeerUp("b")
        a.send("b", [b"welcome back"])
        assert bytes(wait_for(a, Received).data) == b"welcome back"
    finally:
        again.kill()


def test_a_quick_restart_is_told_as_down_and_up():
    patient = replace(QUICK, grace_s=60.0)
    with GrpcTransport("a", RUN, limits=patient) as a:
        b = PeerProcess("b", **FAST)
        join(a, b)
        b.kill()
        again = PeerProcess("b", b.address, **FAST)
        try:
            again.connect({"a": a.address})
            assert wait_for(a, PeerDown) == PeerDown("b", "b was restarted")
            assert wait_for(a, PeerUp) == PeerUp("b")
        finally:
            again.kill()


def test_a_stopped_peer_is_noticed_and_comes_back(a, b):
    join(a, b)
    b.process.send_signal(signal.SIGSTOP)
    try:
        down = wait_for(a, PeerDown)
        assert "the connection was silent" in down.reason
    finally:
        b.process.send_signal(signal.SIGCONT)
    wait_for(a, PeerUp)
    frame_id = a.send("b", [b"awake"])
    echoed: list[TransportEvent] = []
    assert wait_for(a, SendReceipt, seen=echoed).frame_id == frame_id
    back = [e for e in echoed if isinstance(e, Received)] or [wait_for(a, Received)]  # its echo may come first
    assert bytes(back[0].data) == b"awake"


@pytest.mark.parametrize("ending", ["raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), 2)"])
def test_a_program_ends_quietly_however_it_ends(ending):
    program = f"""
from edgegossip.mesh import GrpcTransport
t, u = GrpcTransport("t", bytes(16)), GrpcTransport("u", bytes(16))
t.connect({{"u": u.address, "v": "127.0.0.1:1"}})
u.connect({{"t": t.address}})
t.incoming(10)
t.send("u", [bytes(3_000_000)])
try:
    {ending}
except KeyboardInterrupt:
    pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == (3 if "SystemExit" in ending else 0)


def test_the_package_of_the_interface_does_not_load_grpc():
    program = (
        "import sys, edgegossip.mesh.base; assert 'grpc' not in sys.modules and 'google.protobuf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
