"""Who takes its time, and who comes too often."""

from __future__ import annotations

import queue
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import grpc

from edgegossip.frame import LEAST_FRAME_BYTES
from edgegossip.mesh import GrpcTransport, MeshLimits
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import MAX_CHUNK_BYTES, Notice, Received
from edgegossip.mesh.wire import METHOD
from edgegossip.security import front_end
from edgegossip.security.names import serial_name
from edgegossip.security.tls import ADMISSION, H2
from tests.mesh.fleet import TestFleet
from tests.mesh.security.support import (
    LIMITS,
    admission_handshake,
    channel_to_b,
    converse,
    dial,
    ended,
    hello,
    in_quarantine,
    others,
    told,
)
from tests.mesh.support import PATIENCE_S, RUN, connect_all, until, wait_for


def test_limits_for_strangers_are_short():
    assert MeshLimits().handshake_s <= 2.0
    assert MeshLimits().silence_s(True) <= 2.0


def test_a_caller_that_connects_and_says_nothing(pair, clock):
    _, b = pair
    with dial(b.address) as s:
        clock.too_late_for(s, b, "the TLS handshake")
        assert ended(s)
    told(b, f"it did not finish the TLS handshake in {LIMITS.handshake_s:g} s")


def test_a_caller_that_drips(fleet, pair, clock, monkeypatch):
    """One byte after the other does not make it last longer. The clock goes on from byte to
    byte."""
    _, b = pair
    stepped = threading.Semaphore(0)
    step = front_end.PendingHandshake.step

    def counted(self: front_end.PendingHandshake) -> None:
        try:
            step(self)
        finally:
            stepped.release()

    monkeypatch.setattr(front_end.PendingHandshake, "step", counted)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = fleet.client_context(fleet.of("c"), ADMISSION).wrap_bio(incoming, outgoing)
    with dial(b.address) as s:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                s.sendall(outgoing.read())
                incoming.write(s.recv(1 << 16))
        last_words = outgoing.read()  # its certificate, and that it has finished
        for byte in last_words[:10]:
            clock.now_s += LIMITS.handshake_s / 9.5
            s.send(bytes([byte]))
            assert stepped.acquire(timeout=PATIENCE_S)
        assert ended(s)
    told(b, f"it did not finish the TLS handshake in {LIMITS.handshake_s:g} s")


def test_a_caller_that_says_nothing_in_the_admission_handshake(fleet, pair, clock):
    _, b = pair
    with dial(b.address) as plain, fleet.client_context(fleet.of("c"), ADMISSION).wrap_socket(plain) as s:
        clock.too_late_for(s, b, "the admission handshake")
        assert ended(s)
    told(b, f"it did not finish the admission handshake in {LIMITS.handshake_s:g} s")


def test_a_caller_with_a_token_that_stalls_in_tls(fleet, clock):
    """gRPC's own limit ends it; the front end's clock stands still."""
    limits = replace(LIMITS, handshake_s=0.4)
    with GrpcTransport("b", RUN, limits=limits, security=fleet.security("b")) as b:
        token = admission_handshake(fleet, fleet.of("c"), b.address).text
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = serial_name(7, fleet.ca.fleet_id, token)
        with suppress(ssl.SSLWantReadError):
            context = fleet.client_context(fleet.of("c"), H2)
            context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
        with dial(b.address) as s:
            s.sendall(outgoing.read())
            assert ended(s)


def test_a_stream_without_hello(fleet, pair):
    _, b = pair
    b._inbound._limits = replace(LIMITS, handshake_s=0.4)  # of streams, and not of the connections that they need
    [answer] = converse(fleet, "c", b.address)
    assert "said nothing for 0.4 s" in answer.refusal.reason
    told(b, "it said nothing for 0.4 s")


def test_a_flood_of_connections(fleet):
    """From one address; boards elsewhere get through meanwhile."""
    limits = replace(LIMITS, connection_burst=30, connections_per_s=1.0, max_pending_handshakes_per_address=10)
    with GrpcTransport("b", RUN, limits=limits, security=fleet.security("b")) as b:
        connections = []
        try:
            for _ in range(100):
                with suppress(OSError):
                    connections.append(dial(b.address, "127.0.0.2"))
            for words in ("10 of its connections have not finished the TLS handshake", "more than 1 connections"):
                wait_for(b, Notice, lambda n, words=words: n.text.startswith(f"refused 127.0.0.2: {words}"))
            with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.security("a")) as a:
                connect_all([a, b], ["a", "b"])
                others(a, b)
        finally:
            for s in connections:
                s.close()


def test_a_flood_of_streams(fleet, pair):
    _, b = pair
    flood = threading.Event()
    threading.Thread(target=_flood, args=(fleet, b.address, flood), daemon=True).start()
    told(b, "it opens more than 5 streams a second|a newer stream of c")
    in_quarantine(b)
    flood.set()


def _flood(fleet: TestFleet, address: str, stop: threading.Event) -> None:
    with channel_to_b(fleet, fleet.of("c"), address) as channel, suppress(grpc.RpcError):
        while not stop.is_set():
            next(channel.stream_stream(METHOD)(iter([hello()]), timeout=PATIENCE_S))


def test_a_flood_of_tiny_frames_waits_at_its_sender(fleet):
    limits = replace(LIMITS, max_inbox_bytes=64 << 10)
    with (
        GrpcTransport("b", RUN, limits=limits, security=fleet.security("b")) as b,
        GrpcTransport("a", RUN, limits=LIMITS, security=fleet.security("a")) as a,
    ):
        connect_all([a, b], ["a", "b"])
        for _ in range(500):
            a.send("b", [b"x"])
        until(lambda: b._inbox._used_bytes + LEAST_FRAME_BYTES > 64 << 10, "no more has room")
        for _ in range(500):
            assert b._inbox._used_bytes <= 64 << 10
            wait_for(b, Received)


def test_calls_of_one_board_are_few_and_the_next_one_waits(fleet):
    limits = MeshLimits()
    assert limits.max_connections_per_peer * limits.max_streams * MAX_CHUNK_BYTES <= 128 << 20, "of what never ends"
    over, speak = threading.Event(), threading.Event()

    def silent(last: bool) -> Iterator[bytes]:
        if last:
            speak.wait(PATIENCE_S)
            yield hello()
        over.wait(PATIENCE_S)

    with (
        GrpcTransport("b", RUN, limits=LIMITS, security=fleet.security("b")) as b,
        channel_to_b(fleet, fleet.of("c"), b.address) as channel,
    ):
        b.connect({"c": "127.0.0.1:1"})
        grpc.channel_ready_future(channel).result(PATIENCE_S)
        exchange = channel.stream_stream(METHOD)
        lasts = [k == limits.max_streams - 1 for k in range(limits.max_streams)]
        calls = [exchange(silent(last), timeout=PATIENCE_S) for last in lasts]
        until(lambda: len(b._inbound._streams) == limits.max_streams, "so many are served")
        more = exchange(iter([hello()]), timeout=PATIENCE_S)
        speak.set()
        next(calls[-1])  # what it says has come behind the next call
        assert len(b._inbound._streams) == limits.max_streams
        calls[0].cancel()
        assert pb.ExchangeResponse.FromString(next(more)).WhichOneof("kind") == "welcome"
        over.set()


def test_of_too_many_connections_of_one_board_the_oldest_goes(fleet):
    limits = replace(LIMITS, max_connections_per_peer=2)
    with GrpcTransport("b", RUN, limits=limits, security=fleet.security("b")) as b:
        connections = [channel_to_b(fleet, fleet.of("c"), b.address) for _ in range(3)]
        states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
        try:
            grpc.channel_ready_future(connections[0]).result(PATIENCE_S)
            connections[0].subscribe(states.put)
            for channel in connections[1:]:
                grpc.channel_ready_future(channel).result(PATIENCE_S)
            told(b, "it has more than 2 connections; the oldest is closed")
            while states.get(timeout=PATIENCE_S) is grpc.ChannelConnectivity.READY:
                pass
        finally:
            for channel in connections:
                channel.close()
