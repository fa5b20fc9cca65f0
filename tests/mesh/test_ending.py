"""The end of a run: whoever has everything leaves, and no frame that arrived is reported as
failed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc
import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import PeerDown, PeerUp, Received, SendFailed, SendReceipt, TransportEvent
from edgegossip.mesh.wire import METHOD
from tests.mesh.relay import SlowAnswers
from tests.mesh.support import PATIENCE_S, QUICK, RUN, PeerProcess, connect_all, wait_for

LONG_S = 4 * PATIENCE_S  # whoever waits for one of these times fails the test
PATIENT = replace(
    QUICK,
    **dict.fromkeys(("flush_s", "linger_s", "grace_s", "hello_s", "keepalive_s", "keepalive_timeout_s"), LONG_S),
)


@contextmanager
def pair_with_slow_answers(delay_s: float, **limits: float) -> Iterator[tuple[GrpcTransport, GrpcTransport]]:
    """a and b; what a answers to b's frames comes late, everything else at once."""
    with (
        GrpcTransport("a", RUN, limits=replace(PATIENT, **limits)) as a,
        GrpcTransport("b", RUN, limits=replace(PATIENT, **limits)) as b,
    ):
        relay = SlowAnswers(a.address, delay_s)
        try:
            a.connect({"b": b.address})
            b.connect({"a": relay.address})
            wait_for(a, PeerUp)
            wait_for(b, PeerUp)
            yield a, b
        finally:
            relay.close()


def until_down(transport: GrpcTransport) -> tuple[list[TransportEvent], PeerDown]:
    seen: list[TransportEvent] = []
    return seen, wait_for(transport, PeerDown, seen=seen)


@pytest.mark.parametrize("size", [1_000, 300_000])
def test_frames_that_arrived_before_the_peer_left_are_acknowledged(size):
    with pair_with_slow_answers(0.4) as (a, b):
        tickets = [b.send("a", [bytes(size)]) for _ in range(3 if size > 100_000 else 30)]
        for _ in tickets:
            wait_for(a, Received)
        a.close()  # the goodbye is at b before the acknowledgements are
        seen, down = until_down(b)
        assert [e.frame_id for e in seen if isinstance(e, SendReceipt)] == tickets
        assert not [e for e in seen if isinstance(e, SendFailed)]
        assert down == PeerDown("a", "a left", left=True)


def test_a_peer_that_left_takes_no_more_and_is_not_up_again():
    with pair_with_slow_answers(0.4) as (a, b):
        b.send("a", [b"x"])
        wait_for(a, Received)
        closing = threading.Thread(target=a.close)
        closing.start()
        tickets, seen = [1], []
        while not any(isinstance(e, SendFailed) for e in seen):
            tickets.append(b.send("a", [b"late"]))
            event = b.incoming(0.01)
            seen += [event] if event else []
        assert [e.reason for e in seen if isinstance(e, SendFailed)] == ["a is leaving"]
        rest, _ = until_down(b)
        closing.join(PATIENCE_S)
        seen += rest
        assert sorted(e.frame_id for e in seen if isinstance(e, (SendReceipt, SendFailed))) == tickets
        taken = 1 + sum(isinstance(e, Received) for e in iter(lambda: a.incoming(None), None))
        assert [e.frame_id for e in seen if isinstance(e, SendReceipt)] == tickets[:taken]
        assert not isinstance(b.incoming(0.5), PeerUp)


def test_answers_that_never_come_fail_the_frame_in_the_end():
    with pair_with_slow_answers(1.0, linger_s=0.2) as (a, b):
        frame_id = b.send("a", [b"x"])
        wait_for(a, Received)
        a.close()
        seen, down = until_down(b)
        assert [e.frame_id for e in seen if isinstance(e, SendFailed)] == [frame_id]
        assert down.left


class Board(threading.Thread):
    """Sends `frames` to every peer and closes as soon as it has all of theirs and all receipts."""

    def __init__(self, transport: GrpcTransport, peers: list[str], frames: list[bytes]) -> None:
        super().__init__()
        self.transport, self.peers, self.frames = transport, peers, frames
        self.receipts = self.received = 0
        self.failed: list[SendFailed] = []

    def run(self) -> None:
        for frame in self.frames:
            for peer in self.peers:
                self.transport.send(peer, [frame])
        wanted = len(self.frames) * len(self.peers)
        while self.receipts < wanted or self.received < wanted:
            event = self.transport.incoming(PATIENCE_S)
            self.receipts += isinstance(event, SendReceipt)
            self.received += isinstance(event, Received)
            if event is None or isinstance(event, SendFailed):
                self.failed += [event] if event else []
                break
        self.transport.close()


def run_boards(count: int, frames: list[bytes]) -> None:
    names = [f"board-{i}" for i in range(count)]
    transports = [GrpcTransport(name, RUN, limits=PATIENT) for name in names]
    connect_all(transports, names)
    boards = [
        Board(t, [peer for peer in names if peer != name], frames) for name, t in zip(names, transports, strict=True)
    ]
    for board in boards:
        board.start()
    for board in boards:
        board.join(PATIENCE_S)
        assert not board.is_alive()
    wanted = len(frames) * (count - 1)
    assert [(b.receipts, b.received, b.failed) for b in boards] == [(wanted, wanted, [])] * count


def test_every_board_leaves_when_it_has_everything():
    frames = [os.urandom(n) for n in (100, 70_000, 1_000, 400_000, 10)]
    for _ in range(15):
        run_boards(2, frames)
    for _ in range(3):
        run_boards(4, frames)


def close_at_once(transports: list[GrpcTransport]) -> None:
    """Every transport closes at the same moment, none of them waits until a time-out."""
    barrier = threading.Barrier(len(transports))

    def close(transport: GrpcTransport) -> None:
        barrier.wait(PATIENCE_S)
        transport.close()

    threads = [threading.Thread(target=close, args=(t,)) for t in transports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("frames", [0, 3])
def test_four_boards_that_close_at_the_same_moment_do_not_wait_for_each_other(frames):
    names = [f"board-{i}" for i in range(4)]
    transports = [GrpcTransport(name, RUN, limits=PATIENT) for name in names]
    connect_all(transports, names)
    for name, t in zip(names, transports, strict=True):
        for peer in names:
            for _ in range(frames if peer != name else 0):
                t.send(peer, [bytes(100_000)])
    close_at_once(transports)
    for t in transports:
        list(iter(lambda t=t: t.incoming(None), None))
    assert not [t.name for t in threading.enumerate() if t.name.startswith("mesh ")]


def test_a_board_whose_inbox_is_full_can_close():
    limits = replace(PATIENT, max_inbox_bytes=1_000_000)
    with GrpcTransport("a", RUN, limits=limits) as a, GrpcTransport("b", RUN, limits=limits) as b:
        connect_all([a, b], ["a", "b"])
        tickets = [b.send("a", [bytes(600_000)]) for _ in range(4)]
        wait_for(b, SendReceipt)
        close_at_once([a])
        seen, down = until_down(b)
        assert down.left
        failed = [e.frame_id for e in seen if isinstance(e, SendFailed)]
        taken = [e for e in iter(lambda: a.incoming(None), None) if isinstance(e, Received)]
        assert failed == tickets[len(taken) :]
        assert len(taken) >= 1


def test_a_peer_that_hangs_does_not_hold_up_closing():
    peer = PeerProcess("b")
    try:
        with GrpcTransport("a", RUN, limits=replace(QUICK, flush_s=0.1, linger_s=0.1)) as a:
            a.connect({"b": peer.address})
            peer.connect({"a": a.address})
            wait_for(a, PeerUp)
            a.send("b", [b"x"])
            wait_for(a, Received)  # its echo: both streams are open
            peer.process.send_signal(signal.SIGSTOP)
            late = a.send("b", [bytes(5 << 20)])
            close_at_once([a])
            left = list(iter(lambda: a.incoming(None), None))
            assert [e.frame_id for e in left if isinstance(e, SendFailed)][-1:] == [late]
    finally:
        peer.kill()


def test_a_peer_that_hears_goodbye_and_stays_does_not_hold_up_closing():
    with (
        GrpcTransport("b", RUN, limits=replace(QUICK, flush_s=0.1, linger_s=0.1)) as b,
        grpc.insecure_channel(b.address) as channel,
    ):
        b.connect({"a": "127.0.0.1:1"})
        over = threading.Event()

        def requests():
            yield pb.ExchangeRequest(
                hello=pb.Hello(protocol_version=1, run_id=RUN, sender="a", receiver="b", session=9)
            ).SerializeToString()
            over.wait(PATIENCE_S)

        call = channel.stream_stream(METHOD)(requests(), timeout=PATIENCE_S)
        assert pb.ExchangeResponse.FromString(next(call)).WhichOneof("kind") == "welcome"
        close_at_once([b])
        over.set()


def test_a_stranger_that_says_nothing_does_not_hold_up_closing():
    with (
        GrpcTransport("b", RUN, limits=PATIENT) as b,
        grpc.insecure_channel(b.address) as channel,
    ):
        over = threading.Event()

        def requests():
            over.wait(PATIENCE_S)
            yield b""

        call = channel.stream_stream(METHOD)(requests(), timeout=PATIENCE_S)
        grpc.channel_ready_future(channel).result(PATIENCE_S)
        close_at_once([b])
        over.set()
        call.cancel()
