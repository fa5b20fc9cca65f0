"""Frames between transports in one process: content, order, receipts, bounds, ending."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from edgegossip.mesh import GrpcTransport, MeshLimits, inbound
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received, SendFailed, SendReceipt, Woken
from edgegossip.types import ConfigError, UsageError
from tests.mesh.support import PATIENCE_S, QUICK, RUN, connect_all, wait_for


@pytest.fixture
def pair():
    a, b = GrpcTransport("a", RUN, limits=QUICK), GrpcTransport("b", RUN, limits=QUICK)
    connect_all([a, b], ["a", "b"])
    yield a, b
    a.close()
    b.close()


@pytest.mark.parametrize("size", [1, 5, 262_143, 262_144, 262_145, 20 << 20])
def test_a_frame_in_pieces_arrives_whole(pair, size):
    a, b = pair
    data = os.urandom(size)
    cut = size // 3
    before_s = time.monotonic()
    frame_id = a.send("b", [data[:cut], memoryview(data)[cut:], b""])
    received = wait_for(b, Received)
    assert received.sender == "a"
    assert bytes(received.data) == data
    receipt = wait_for(a, SendReceipt)
    assert (receipt.frame_id, receipt.to, receipt.frame_bytes) == (frame_id, "b", size)
    assert size + 30 <= receipt.message_bytes <= size + 50 * (10 + size // (100 << 10))
    assert before_s <= receipt.start_s <= receipt.first_byte_s <= receipt.acknowledged_s <= time.monotonic()


def test_frames_of_one_sender_arrive_in_order_and_once(pair):
    a, b = pair
    sizes = [1 + (i * 7919) % 3000 if i % 50 else 600_000 for i in range(500)]
    tickets = [a.send("b", [i.to_bytes(4, "big"), bytes(n)]) for i, n in enumerate(sizes)]
    for i, n in enumerate(sizes):
        data = wait_for(b, Received).data
        assert int.from_bytes(data[:4], "big") == i
        assert len(data) == n + 4
    assert [wait_for(a, SendReceipt).frame_id for _ in sizes] == tickets


def test_wake_ends_one_wait_and_loses_nothing(pair):
    a, b = pair
    woken = threading.Timer(0.05, a.wake)
    woken.start()
    assert a.incoming(None) == Woken()  # without wake this would wait for ever
    woken.join()
    a.wake()
    b.send("a", [b"frame"])
    assert a.incoming(None) == Woken()
    assert bytes(wait_for(a, Received).data) == b"frame"


def test_four_boards_exchange_all_with_all():
    names = [f"board-{i}" for i in range(4)]
    boards = [GrpcTransport(name, RUN, limits=QUICK) for name in names]
    try:
        connect_all(boards, names)
        for t, name in zip(boards, names, strict=True):
            for peer in names:
                if peer != name:
                    for i in range(10):
                        t.send(peer, [f"{name} {peer} {i}".encode(), bytes(100_000)])
        for t, name in zip(boards, names, strict=True):
            next_of = Counter()
            for _ in range(30):
                event = wait_for(t, Received)
                expected = f"{event.sender} {name} {next_of[event.sender]}".encode()
                assert bytes(event.data[: len(expected)]) == expected
                next_of[event.sender] += 1
            assert set(next_of.values()) == {10}
    finally:
        for t in boards:
            t.close()


def test_a_full_inbox_holds_the_sender_back_and_loses_nothing():
    limits = replace(QUICK, max_inbox_bytes=3_000_000)
    with GrpcTransport("a", RUN, limits=limits) as a, GrpcTransport("b", RUN, limits=limits) as b:
        connect_all([a, b], ["a", "b"])
        for i in range(12):
            a.send("b", [bytes([i]) * 1_000_000])
        receipts = [wait_for(a, SendReceipt) for _ in range(3)]
        assert len(receipts) == 3
        assert a.incoming(0.3) is None  # the fourth has no room until somebody takes the first
        for i in range(12):
            assert wait_for(b, Received).data[0] == i


def test_before_the_frames_of_the_run_are_known_little_may_come_in_and_a_large_one_waits():
    limits = replace(QUICK, max_unmeasured_bytes=3_000_000)
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=limits) as b:
        connect_all([a, b], ["a", "b"])
        for _ in range(4):
            a.send("b", [bytes(1_000_000)])
        a.send("b", [bytes(4_000_000)])
        assert [wait_for(a, SendReceipt).frame_bytes for _ in range(3)] == [1_000_000] * 3
        assert a.incoming(0.2) is None
        for _ in range(4):
            wait_for(b, Received)
        wait_for(a, SendReceipt)
        assert a.incoming(0.2) is None  # with nothing else there, too
        b.limit_frames(4_000_000)
        assert wait_for(a, SendReceipt).frame_bytes == 4_000_000


def test_a_large_frame_that_waited_is_refused_when_the_run_has_none_of_its_size():
    limits = replace(QUICK, max_unmeasured_bytes=3_000_000)
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=limits) as b:
        connect_all([a, b], ["a", "b"])
        a.send("b", [bytes(4_000_000)])
        assert a.incoming(0.2) is None
        b.limit_frames(3_999_999)
        assert "a frame of 4000000 bytes" in wait_for(a, SendFailed).reason


def test_once_the_frames_of_the_run_are_known_only_a_few_of_a_peer_may_wait(monkeypatch):
    monkeypatch.setattr("edgegossip.mesh.inbound._LEAST_INBOX_BYTES", 1_000_000)
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        connect_all([a, b], ["a", "b"])
        b.limit_frames(1_000_000)
        for i in range(6):
            a.send("b", [bytes([i]) * 1_000_000])
        assert len([wait_for(a, SendReceipt) for _ in range(2)]) == 2
        assert a.incoming(0.3) is None
        b.connect({"c": "127.0.0.1:1"})  # another peer may send, too, and there is room for its frames
        assert len([wait_for(a, SendReceipt) for _ in range(2)]) == 2
        assert [wait_for(b, Received).data[0] for _ in range(6)] == list(range(6))


def test_a_full_queue_fails_the_frame_and_not_the_peer():
    limits = replace(QUICK, max_inbox_bytes=1_000, max_queue_bytes=5_000_000)
    with GrpcTransport("a", RUN, limits=limits) as a, GrpcTransport("b", RUN, limits=limits) as b:
        connect_all([a, b], ["a", "b"])
        tickets = [a.send("b", [bytes(1_000_000)]) for _ in range(12)]
        failed = wait_for(a, SendFailed)
        assert failed.frame_id in tickets
        assert "bytes wait for b already" in failed.reason
        wait_for(b, Received)
        wait_for(b, Received)  # b goes on taking frames


@pytest.mark.parametrize(("limit", "frames"), [(QUICK.max_queue_bytes, 10), (3_000_000, 3)])
def test_once_the_frames_of_the_run_are_known_only_a_few_may_wait_for_a_peer(monkeypatch, limit, frames):
    monkeypatch.setattr("edgegossip.mesh.outbound._LEAST_QUEUE_BYTES", 1_000_000)
    with GrpcTransport("a", RUN, limits=replace(QUICK, flush_s=0.01, max_queue_bytes=limit)) as a:
        a.connect({"b": "127.0.0.1:1"})
        a.limit_frames(1_000_000)
        a.connect({"c": "127.0.0.1:1"})
        for peer in ("b", "c"):
            tickets = [a.send(peer, [bytes(1_000_000)]) for _ in range(frames + 1)]
            assert wait_for(a, SendFailed).frame_id == tickets[-1]


def test_an_oversize_frame_is_refused_where_it_is_made_and_where_it_arrives():
    small = replace(QUICK, max_frame_bytes=100_000)
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=small) as b:
        connect_all([a, b], ["a", "b"])
        with pytest.raises(UsageError, match="1 to 100000 bytes"):
            b.send("a", [bytes(100_001)])
        with pytest.raises(UsageError, match="a frame of 0 bytes"):
            b.send("a", [b""])
        refused = a.send("b", [bytes(100_001)])
        good = a.send("b", [bytes(100_000)])
        failed = wait_for(a, SendFailed)
        assert failed.frame_id == refused
        assert "takes at most 100000" in failed.reason
        assert wait_for(a, SendReceipt).frame_id == good
        seen = []
        assert len(wait_for(b, Received, seen=seen).data) == 100_000
        assert any(isinstance(e, Notice) and e.peer == "a" and "100001 bytes" in e.text for e in seen)


def test_a_closed_peer_is_refused_and_others_are_not():
    a, b, c = (GrpcTransport(name, RUN, limits=QUICK) for name in "abc")
    try:
        connect_all([a, b, c], ["a", "b", "c"])
        seen: list[object] = []
        b.close_peer("a", "it sent a frame with a wrong checksum")
        down = wait_for(b, PeerDown, seen=seen)
        assert (down.peer, down.reason, down.left) == ("a", "it sent a frame with a wrong checksum", False)
        notice = wait_for(a, Notice, lambda n: "wrong checksum" in n.text)
        assert notice.peer == "b"
        assert wait_for(a, PeerDown).peer == "b"
        frame_id = b.send("a", [b"x"])
        assert wait_for(b, SendFailed, seen=seen).frame_id == frame_id
        c.send("b", [b"hello"])
        assert bytes(wait_for(b, Received, seen=seen).data) == b"hello"
        assert not [e for e in seen if isinstance(e, Notice)], "who closed it has logged why"
        b.send("c", [b"hello yourself"])
        assert bytes(wait_for(c, Received).data) == b"hello yourself"
    finally:
        for t in (a, b, c):
            t.close()


def test_a_peer_that_is_expected_may_send_before_its_address_is_known():
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        a.expect(["b"])
        a.connect({})
        b.connect({"a": a.address})
        wait_for(b, PeerUp)
        b.send("a", [b"early"])
        assert bytes(wait_for(a, Received).data) == b"early"
        a.close_peer("b", "it is enough")  # although there is no stream to it
        assert wait_for(a, PeerDown).closed
        assert "it is enough" in wait_for(b, PeerDown).reason
        a.connect({"b": b.address})  # it stays closed
        frame_id = a.send("b", [b"late"])
        assert wait_for(a, SendFailed).frame_id == frame_id


@pytest.mark.parametrize("connected", [True, False])
def test_a_peer_that_ended_over_a_difference_is_closed_as_one_that_disagrees(connected: bool):
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        a.expect(["b"])
        if connected:
            connect_all([a, b], ["a", "b"])
        a.close_peer("b", "b and a differ", disagrees=True)
        down = wait_for(a, PeerDown)
        assert (down.peer, down.reason, down.closed, down.disagrees) == ("b", "b and a differ", True, True)


def test_leaving_is_told_from_failing():
    with GrpcTransport("a", RUN, limits=QUICK) as a:
        b = GrpcTransport("b", RUN, limits=QUICK)
        connect_all([a, b], ["a", "b"])
        sent = [b.send("a", [bytes([i]) * 300_000]) for i in range(10)]
        b.close()
        for i in range(10):  # closing flushes
            assert wait_for(a, Received).data[0] == i
        receipts = []
        while (event := b.incoming(None)) is not None:
            receipts += [event.frame_id] if isinstance(event, SendReceipt) else []
        assert receipts == sent
        down = wait_for(a, PeerDown)
        assert (down.peer, down.left) == ("b", True)
        a.send("b", [b"x"])
        assert "down" in wait_for(a, SendFailed).reason


def test_closing_frees_the_port_and_the_threads_and_is_idempotent(pair):
    a, b = pair
    host, port = a.address.rsplit(":", 1)
    threads = [threading.Thread(target=a.close) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    a.close()
    b.close()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("mesh ")]
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((host, int(port)))
        s.listen()
    while a.incoming(None) is not None:
        pass
    assert a.incoming(None) is None
    with pytest.raises(UsageError, match="closed"):
        a.send("b", [b"x"])
    with pytest.raises(UsageError, match="closed"):
        a.connect({"c": "127.0.0.1:1"})


def test_many_transports_one_after_the_other_leave_nothing():
    def usage() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def once() -> None:
        with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
            connect_all([a, b], ["a", "b"])
            a.send("b", [b"x"])
            wait_for(b, Received)

    for _ in range(3):
        once()
    before = usage()
    for _ in range(10):
        once()
    after = usage()
    assert after[1] <= before[1]
    assert after[0] <= before[0] + 5  # gRPC frees some descriptors a little later


def test_frames_wait_for_a_peer_that_starts_later():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    with GrpcTransport("a", RUN, limits=QUICK) as a:
        a.connect({"b": address})
        a.send("b", [b"early"])
        notice = wait_for(a, Notice)
        assert notice == Notice("b", f"cannot reach b at {address}: connection refused; trying again")
        with GrpcTransport("b", RUN, address, limits=QUICK) as b:
            b.connect({"a": a.address})
            assert bytes(wait_for(b, Received).data) == b"early"
            assert wait_for(a, PeerUp) == PeerUp("b")


def test_a_peer_that_never_comes_is_down_after_first_contact():
    with GrpcTransport("a", RUN, limits=replace(QUICK, first_contact_s=0.3)) as a, socket.socket() as s:
        s.bind(("127.0.0.1", 0))  # taken and not listening
        a.connect({"b": f"127.0.0.1:{s.getsockname()[1]}"})
        frame_id = a.send("b", [b"x"])
        seen = []
        down = wait_for(a, PeerDown, seen=seen)
        assert down.peer == "b"
        assert "never reached" in down.reason
        assert [e.frame_id for e in seen if isinstance(e, SendFailed)] == [frame_id]


@pytest.mark.parametrize(
    ("act", "error", "match"),
    [
        (lambda t: t.send("z", [b"x"]), UsageError, "z is not a connected peer of a; connected peers: none"),
        (lambda t: t.close_peer("z", ""), UsageError, "z is not a connected peer"),
        (lambda t: t.connect({"a": "127.0.0.1:1"}), ConfigError, "cannot be its own peer"),
        (lambda t: t.connect({"b": "127.0.0.1"}), ConfigError, "write host:port"),
        (lambda t: t.connect({"b": "127.0.0.1:0"}), ConfigError, "port from 1 to 65535"),
    ],
)
def test_wrong_calls_say_what_is_right(act, error, match):
    with GrpcTransport("a", RUN) as t, pytest.raises(error, match=match):
        act(t)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("a", b"short"), "it must have 16"),
        (("", RUN), "1 to 64 printable"),
        (("a\n", RUN), "1 to 64 printable"),
    ],
)
def test_wrong_identity(arguments, match):
    with pytest.raises(ConfigError, match=match):
        GrpcTransport(*arguments)


@pytest.mark.parametrize(
    "wrong", [{"grace_s": 0}, {"chunk_bytes": 5 << 20}, {"backoff_min_s": 2.0, "backoff_max_s": 1.0}]
)
def test_wrong_limits(wrong):
    with pytest.raises(ConfigError):
        MeshLimits(**wrong)


def test_receipts_of_many_small_frames_are_exact_and_in_order(pair):
    """One acknowledgement speaks for many frames; its receipts tell when each was there, not when
    the word came."""
    a, b = pair
    tickets = [a.send("b", [bytes(100)]) for _ in range(300)]
    for _ in tickets:
        wait_for(b, Received)
    receipts = [wait_for(a, SendReceipt) for _ in tickets]
    assert [r.frame_id for r in receipts] == tickets
    assert all(r.start_s <= r.first_byte_s <= r.acknowledged_s <= time.monotonic() for r in receipts)
    assert sum(r.message_bytes for r in receipts) == 300 * receipts[0].message_bytes


def test_the_receipt_of_a_frame_in_many_chunks_is_not_held_back(monkeypatch):
    monkeypatch.setattr(inbound, "ACK_INTERVAL_S", 60.0)  # longer than `wait_for` is patient
    small = replace(QUICK, chunk_bytes=16 << 10)
    with GrpcTransport("a", RUN, limits=small) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        connect_all([a, b], ["a", "b"])
        for _ in range(8):
            a.send("b", [bytes(100_000)])
            wait_for(b, Received)
            wait_for(a, SendReceipt)


def test_a_stalled_peer_slows_only_its_own_edge():
    """c takes no frames; what goes to b does not notice."""
    stuck = replace(QUICK, max_inbox_bytes=1_000)
    with (
        GrpcTransport("a", RUN, limits=QUICK) as a,
        GrpcTransport("b", RUN, limits=QUICK) as b,
        GrpcTransport("c", RUN, limits=stuck) as c,
    ):
        connect_all([a, b, c], ["a", "b", "c"])
        for _ in range(30):
            a.send("c", [bytes(1_000_000)])
        for i in range(30):
            a.send("b", [bytes([i]) * 1_000_000])
            assert wait_for(b, Received).data[0] == i
        receipts = [wait_for(a, SendReceipt) for _ in range(31)]
        assert sorted(r.to for r in receipts) == ["b"] * 30 + ["c"]  # one frame has room with c
        for _ in range(30):
            wait_for(c, Received)


def test_an_interrupted_wait_leaves_the_transport_as_it_was():
    """A signal ends the wait in the main thread, and nothing of gRPC, which is in another."""
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        connect_all([a, b], ["a", "b"])
        for _ in range(3):
            timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])

            def wait(timer: threading.Timer = timer) -> None:
                timer.start()
                b.incoming(PATIENCE_S)

            with pytest.raises(KeyboardInterrupt):
                wait()
            timer.join()
            a.send("b", [b"still here"])
            assert bytes(wait_for(b, Received).data) == b"still here"


def test_a_wait_ends_in_time_and_one_in_a_loop_is_a_wait():
    with GrpcTransport("a", RUN, limits=QUICK) as a:
        for timeout_s in (0.0, 0.02, 0.01, -1.0):
            began_s = time.monotonic()
            assert a.incoming(timeout_s) is None
            assert time.monotonic() - began_s >= timeout_s - 0.002

        async def inside() -> object:
            return a.incoming(0.01)

        assert asyncio.run(inside()) is None
