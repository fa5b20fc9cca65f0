"""What two boards say to each other that send no frames, in bytes on the link."""

from __future__ import annotations

import time
from dataclasses import replace

from edgegossip.mesh import GrpcTransport, MeshLimits
from edgegossip.mesh.base import Received, SendReceipt
from edgegossip.telemetry.sockets import SocketMeter, SocketTotals
from tests.mesh.fleet import TestFleet
from tests.mesh.security.support import LIMITS, left
from tests.mesh.support import RUN, connect_all, until, wait_for

HASTE = 10.0  # their silences are so many times shorter than a board's
RECEIPTS = 500  # bytes, more than of the acknowledgements that follow a frame, fewer than of a question
SAID = 3000  # of more than one question and answer


def sample(meter: SocketMeter) -> SocketTotals:
    """What the process's sockets have sent and got."""
    counts = meter.sample()
    assert counts is not None
    return counts


def test_boards_that_send_no_frames_say_little_and_nothing_once_they_let_go(fleet: TestFleet) -> None:
    """On a ring a board has half of two pairs, which is what both of one say here."""
    limits = replace(LIMITS, keepalive_s=MeshLimits().keepalive_s / HASTE)
    a, b = (GrpcTransport(name, RUN, limits=limits, security=fleet.security(name)) for name in "ab")
    with a, b:
        connect_all([a, b], ["a", "b"])
        for source, name, target in ((a, "b", b), (b, "a", a)):
            source.send(name, [b"what opens a connection has come before"])
            wait_for(source, SendReceipt)
            wait_for(target, Received)
        meter = SocketMeter()
        until(lambda: sample(meter).sent_link_bytes > RECEIPTS, "they ask each other whether they are there")
        first, since_s = sample(meter).sent_link_bytes, time.monotonic()
        until(lambda: sample(meter).sent_link_bytes > first + SAID, "they ask again and again")
        said = sample(meter)
        assert (said.sent_link_bytes - first) / (time.monotonic() - since_s) / HASTE <= 150
        a.let_go(["b"])
        b.let_go(["a"])
        before = said.sent_segments

        def is_still() -> bool:
            nonlocal before
            time.sleep(2 * limits.keepalive_s)
            now = sample(meter)
            still, before = now.sent_segments == before, now.sent_segments
            return still

        until(is_still, "their connections end")
        assert not left(a) and not left(b)
