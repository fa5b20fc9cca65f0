"""What a board refuses, with the reason in both logs, and that nobody else is harmed."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from dataclasses import replace

import grpc
import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.address import Address
from edgegossip.mesh.base import MeshLimits, Notice, PeerUp, Received
from edgegossip.mesh.connections import ChannelFactory
from edgegossip.mesh.wire import METHOD, chunk_message
from edgegossip.types import PeerError
from tests.mesh.support import PATIENCE_S, QUICK, RUN, connect_all, wait_for


@pytest.fixture
def pair():
    limits = replace(QUICK, max_frame_bytes=1 << 20, hello_s=1.0)
    a, b = GrpcTransport("a", RUN, limits=limits), GrpcTransport("b", RUN, limits=limits)
    connect_all([a, b], ["a", "b"])
    yield a, b
    a.close()
    b.close()


def still_works(a: GrpcTransport, b: GrpcTransport) -> None:
    a.send("b", [b"still here"])
    assert bytes(wait_for(b, Received).data) == b"still here"


def hello(**changes: object) -> bytes:
    fields = {"protocol_version": 1, "run_id": RUN, "sender": "a", "receiver": "b", "session": 99, **changes}
    return pb.ExchangeRequest(hello=pb.Hello(**fields)).SerializeToString()


def converse(address: str, *messages: bytes) -> list[pb.ExchangeResponse]:
    """What a board answers to these messages until it ends the stream."""
    done = threading.Event()

    def requests():
        yield from messages
        done.wait(PATIENCE_S)  # the board is to end the stream, not we

    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(METHOD)(requests(), timeout=PATIENCE_S)
        try:
            return [pb.ExchangeResponse.FromString(message) for message in call]
        finally:
            done.set()


def chunk(transfer: int, offset: int, total: int, data: bytes) -> bytes:
    return chunk_message(transfer, offset, total, False, [memoryview(data)])


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"protocol_version": 2}, pb.REFUSAL_CODE_PROTOCOL_VERSION, "mesh protocol 2"),
        ({"run_id": b"y" * 16}, pb.REFUSAL_CODE_RUN_ID, "belongs to run " + (b"y" * 16).hex()),
        ({"run_id": b""}, pb.REFUSAL_CODE_RUN_ID, "without id"),
        ({"sender": "mallory"}, pb.REFUSAL_CODE_UNKNOWN_SENDER, "mallory is not among the peers of b"),
        ({"sender": "x\n\x1b[31m" * 50}, pb.REFUSAL_CODE_UNKNOWN_SENDER, "x  [31mx"),
        ({"receiver": "c"}, pb.REFUSAL_CODE_WRONG_RECEIVER, "looks for c, but this is b"),
    ],
)
def test_a_wrong_hello(pair, changes, code, words):
    a, b = pair
    [answer] = converse(b.address, hello(**changes))
    assert answer.refusal.code == code
    assert words in answer.refusal.reason
    notice = wait_for(b, Notice)
    assert notice.text.startswith("refused ")
    assert words in notice.text
    assert notice.text.isprintable()
    assert " at 127.0.0.1:" in notice.text, "the caller's address and nothing of gRPC's"
    still_works(a, b)


def test_every_stranger_leaves_a_line_and_the_same_one_only_one(pair):
    _, b = pair
    for sender in ("mallory", "mallory", "trudy", "mallory"):
        converse(b.address, hello(sender=sender))
    converse(b.address, hello(sender="mallory", run_id=b"y" * 16))
    told = [e.text for e in iter(lambda: b.incoming(0), None) if isinstance(e, Notice)]
    assert [text.split()[1] for text in told] == ["mallory", "trudy", "mallory"]
    assert "belongs to run" in told[-1]


def test_a_sender_that_says_nothing(pair):
    a, b = pair
    [answer] = converse(b.address)
    assert "said nothing for 1 s" in answer.refusal.reason
    still_works(a, b)


@pytest.mark.parametrize(
    "first", [b"", b"\xff" * 40, chunk(1, 0, 4, b"data"), pb.ExchangeRequest(goodbye=pb.Goodbye()).SerializeToString()]
)
def test_a_stream_without_hello(pair, first):
    a, b = pair
    [answer] = converse(b.address, first)
    assert answer.refusal.code == pb.REFUSAL_CODE_MALFORMED
    still_works(a, b)


@pytest.mark.parametrize(
    "messages",
    [
        [chunk(1, 1, 4, b"ata")],
        [chunk(1, 0, 4, b"data!")],
        [chunk(1, 0, 4, b"")],
        [chunk(1, 0, 0, b"")],
        [chunk(0, 0, 4, b"data")],
        [chunk(1, 0, 8, b"data"), chunk(2, 4, 8, b"data")],
        [chunk(1, 0, 8, b"data"), chunk(1, 4, 9, b"data")],
        [chunk(1, 0, 8, b"data"), chunk(1, 0, 8, b"data")],
        [hello()],
        [b"\x12\xff\xff"],
    ],
)
def test_broken_chunks(messages):
    with GrpcTransport("b", RUN, limits=QUICK) as b:
        b.connect({"a": "127.0.0.1:1"})
        answers = converse(b.address, hello(), *messages)
        assert [m.WhichOneof("kind") for m in answers] == ["welcome", "refusal"]
        assert answers[1].refusal.code == pb.REFUSAL_CODE_MALFORMED
        wait_for(b, Notice, lambda n: n.text.startswith("refused a at "))


def test_a_replayed_transfer():
    with GrpcTransport("b", RUN, limits=QUICK) as b:
        b.connect({"a": "127.0.0.1:1"})
        answers = converse(b.address, hello(), chunk(1, 0, 4, b"data"), chunk(1, 0, 4, b"data"))
        assert [m.WhichOneof("kind") for m in answers] == ["welcome", "ack", "refusal"]
        [welcome, refusal] = converse(b.address, hello(), chunk(1, 0, 4, b"data"))
        assert welcome.welcome.completed == 1
        assert "here already" in refusal.refusal.reason
        [welcome, *_] = converse(b.address, hello(session=100), chunk(1, 1, 4, b"x"))
        assert welcome.welcome.completed == 0  # another process counts from 1 again
        assert bytes(wait_for(b, Received).data) == b"data"
        assert not [e for e in iter(lambda: b.incoming(0), None) if isinstance(e, Received)]


def test_a_huge_declared_frame_takes_no_memory():
    with GrpcTransport("b", RUN, limits=QUICK) as b:
        b.connect({"a": "127.0.0.1:1"})
        [_, answer] = converse(b.address, hello(), chunk(7, 0, 2**63, b"data"))
        assert (answer.refusal.code, answer.refusal.transfer) == (pb.REFUSAL_CODE_OVERSIZE, 7)


def test_the_newest_of_two_streams_wins():
    with GrpcTransport("b", RUN, limits=QUICK) as b, grpc.insecure_channel(b.address) as channel:
        b.connect({"a": "127.0.0.1:1"})
        over = threading.Event()

        def requests():
            yield hello()
            over.wait(PATIENCE_S)

        older = channel.stream_stream(METHOD)(requests(), timeout=PATIENCE_S)
        assert pb.ExchangeResponse.FromString(next(older)).WhichOneof("kind") == "welcome"
        answers = converse(b.address, hello(session=5), chunk(1, 0, 4, b"data"), b"\xff")
        assert [m.WhichOneof("kind") for m in answers] == ["welcome", "ack", "refusal"]
        refusal = pb.ExchangeResponse.FromString(next(older)).refusal
        assert refusal.code == pb.REFUSAL_CODE_SUPERSEDED
        with pytest.raises(StopIteration):
            next(older)
        over.set()
        told: list[object] = []
        assert bytes(wait_for(b, Received, seen=told).data) == b"data"
        assert not [e for e in told if isinstance(e, Notice) and "took over" in e.text]  # a did nothing wrong


def test_a_board_of_another_run_reads_the_reason():
    with GrpcTransport("a", b"z" * 16, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        for t in (a, b):
            own = wait_for(t, Notice, lambda n: n.text.startswith("cannot reach"))
            assert "refused: it belongs to run" in own.text
        a.close()
        assert not any(isinstance(e, PeerUp) for e in iter(lambda: a.incoming(None), None))


def test_a_caller_before_the_peers_are_known_waits():
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        a.connect({"b": b.address})
        a.send("b", [b"early"])
        assert not isinstance(a.incoming(0.2), PeerUp)
        b.connect({"a": a.address})
        assert wait_for(a, PeerUp) == PeerUp("b")
        assert bytes(wait_for(b, Received).data) == b"early"


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(100_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(10_000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    ],
)
def test_garbage_on_the_port_harms_nobody(pair, garbage, capfd):
    a, b = pair
    host, port = b.address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as s:
        try:
            s.sendall(garbage)
            while s.recv(65_536):
                pass
        except ConnectionError:
            pass
        still_works(a, b)
    assert capfd.readouterr() == ("", "")


def test_another_method_is_not_there(pair):
    _, b = pair
    with grpc.insecure_channel(b.address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/edgegossip.v1.Mesh/Shutdown")(b"", timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_something_else_listens_at_the_peers_address():
    with socket.create_server(("127.0.0.1", 0)) as server, GrpcTransport("a", RUN, limits=QUICK) as a:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        a.connect({"b": f"127.0.0.1:{server.getsockname()[1]}"})
        notice = wait_for(a, Notice)
        assert "no edgegossip board" in notice.text
        thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "the connection was reset"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.9', 7700)"), "connection refused"),
        (OSError(errno.EHOSTDOWN, "Host is down"), "host is down"),
        (ConnectionAbortedError("what Python says"), "it does not answer"),
    ],
)
def test_what_the_system_reports_of_a_peer_is_said_in_plain_words(error: OSError, words: str) -> None:
    class Broken:
        async def check(self, *_args: object) -> None:
            raise error

    channels = ChannelFactory(MeshLimits(), Broken())  # type: ignore[arg-type]
    with pytest.raises(PeerError, match=f"^{words}$"):
        asyncio.run(channels.check("b", Address("10.0.0.9", 7700)))


def test_a_large_frame_that_was_begun_before_its_size_was_known_keeps_nobody_out(monkeypatch):
    """c brings the first chunk of it and then says nothing more."""
    monkeypatch.setattr("edgegossip.mesh.inbound._LEAST_INBOX_BYTES", 1 << 20)
    limits = replace(QUICK, max_unmeasured_bytes=3 << 20)
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=limits) as b:
        connect_all([a, b], ["a", "b"])
        b.connect({"c": "127.0.0.1:1"})
        silent = threading.Event()

        def requests():
            yield hello(sender="c")
            yield chunk_message(1, 0, 3 << 20, True, [memoryview(bytes(1000))])
            silent.wait(PATIENCE_S)

        with grpc.insecure_channel(str(b.address)) as channel:
            answers = channel.stream_stream(METHOD)(requests(), timeout=PATIENCE_S)
            kinds = [pb.ExchangeResponse.FromString(next(answers)).WhichOneof("kind") for _ in range(2)]
            assert kinds == ["welcome", "ack"]
            b.limit_frames(1000)
            still_works(a, b)
            silent.set()
