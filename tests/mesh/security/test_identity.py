"""Who it is: what a certified board says under another name, twice or out of turn is refused with a
reason."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh import address as addresses
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received, SendFailed, Unreachable
from edgegossip.mesh.membership import client
from edgegossip.mesh.membership.client import RefusedToJoin
from edgegossip.mesh.wire import METHOD
from edgegossip.security import handshake
from edgegossip.security.admission import Quarantine
from edgegossip.security.tls import ADMISSION
from tests.mesh.relay import SlowAnswers
from tests.mesh.security.support import (
    LIMITS,
    channel_to_b,
    chunk,
    converse,
    dial,
    ended,
    hello,
    in_quarantine,
    left,
    told,
)
from tests.mesh.support import PATIENCE_S, RUN, wait_for


def test_the_certificate_of_c_for_a_stream_of_a(fleet, pair):
    _, b = pair
    [answer] = converse(fleet, "c", b.address, hello(sender="a"))
    assert answer.refusal.code == pb.REFUSAL_CODE_IDENTITY
    assert told(b, "it says to be a, but its certificate is that of c").startswith("refused c at ")
    in_quarantine(b)


def test_an_operator_is_no_board(fleet, pair):
    _, b = pair
    operator = fleet.fleet.folder / "operator"
    files = operator / "identity.pem", operator / "identity.key"
    with channel_to_b(fleet, files, b.address) as channel:
        call = channel.stream_stream(METHOD)(iter([hello()]), timeout=PATIENCE_S)
        answer = pb.ExchangeResponse.FromString(next(call))
    assert answer.refusal.code == pb.REFUSAL_CODE_IDENTITY
    told(b, "its role is operator, where board is due")


def test_a_coordinator_is_no_board_to_join_through(fleet):
    """Who joins does not know the name of who listens, so its TLS takes every server of the
    fleet."""
    context = fleet.server_context(fleet.files("coordinator"), ADMISSION)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:

        def listens() -> bool:
            with server.accept()[0] as plain, context.wrap_socket(plain, server_side=True) as s:
                try:
                    s.sendall(handshake.answer(handshake.Answer(True, 0, "token", b"")))
                except OSError:  # the caller had seen enough, and was gone
                    return True
                return ended(s)

        listening = pool.submit(listens)
        where = addresses.Address("127.0.0.1", server.getsockname()[1])
        with pytest.raises(RefusedToJoin, match="c is a coordinator, where a board is due"):
            client.request_join(where, "a", fleet.security("a"))
        assert listening.result(PATIENCE_S)


def test_a_replayed_frame(fleet, pair):
    _, b = pair
    answers = converse(fleet, "c", b.address, hello(), chunk(1, 0, 4, b"data"), chunk(1, 0, 4, b"data"))
    assert [m.WhichOneof("kind") for m in answers] == ["welcome", "ack", "refusal"]
    told(b, "transfer 1 is here already")
    in_quarantine(b)
    assert sum(isinstance(e, Received) for e in left(b)) <= 1


def test_a_huge_frame(fleet, pair):
    _, b = pair
    answers = converse(fleet, "c", b.address, hello(), chunk(1, 0, 2**62, b"data"))
    assert answers[-1].refusal.code == pb.REFUSAL_CODE_OVERSIZE
    told(b, "b takes at most 1048576")
    in_quarantine(b)


def test_a_board_in_quarantine_hears_why_and_for_how_long(fleet, pair):
    _, b = pair
    converse(fleet, "c", b.address, hello(), b"\xff\xff")
    in_quarantine(b)
    with GrpcTransport("c", RUN, limits=LIMITS, security=fleet.security("c")) as c:
        c.connect({"b": b.address})
        why = "refused: in quarantine for 300 s: a mesh message is not valid protobuf"
        wait_for(c, Notice, lambda n: n.text.startswith("cannot reach b") and why in n.text)
    with pytest.raises(Unreachable):  # so one that is started anew waits, and does not end for good
        client.request_join(addresses.parse(b.address, "address"), "c", fleet.security("c"))


@pytest.mark.parametrize(("length_s", "calls"), [(300.0, True), (0.5, True), (0.5, False)])
def test_a_board_in_quarantine_is_down_both_ways_and_back_afterwards(fleet, pair, monkeypatch, length_s, calls):
    """Nobody waits for a board that it lets nothing in of; and then it is tried again, whether it
    `calls` or not."""
    monkeypatch.setattr(Quarantine, "FIRST_S", length_s)
    _, b = pair
    with GrpcTransport("c", RUN, limits=LIMITS, security=fleet.security("c")) as c:
        c.expect(["b"])
        c.connect({"b": b.address} if calls else {})
        b.connect({"c": c.address})
        wait_for(b, PeerUp, lambda e: e.peer == "c")
        converse(fleet, "c", b.address, b"\xff\xff")
        down = wait_for(b, PeerDown, lambda e: e.peer == "c")
        assert down.reason == "c is in quarantine" and not (down.disagrees or down.closed or down.left)
        if length_s > 1:
            frame = b.send("c", [b"nobody takes this"])
            assert wait_for(b, SendFailed, lambda e: e.frame_id == frame).to == "c"
            return
        wait_for(b, PeerUp, lambda e: e.peer == "c")
        b.send("c", [b"welcome back"])
        assert bytes(wait_for(c, Received).data) == b"welcome back"


def test_recorded_bytes_sent_again(fleet):
    """What a listener on the network could record and repeat: TLS takes none of it."""
    relay = None
    with GrpcTransport("b", RUN, limits=LIMITS, security=fleet.security("b")) as b:
        relay = Recorder(b.address)
        try:
            with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.security("a")) as a:
                b.connect({"a": a.address})
                a.connect({"b": relay.address})
                wait_for(a, PeerUp)
                a.send("b", [b"pay once"])
                assert bytes(wait_for(b, Received).data) == b"pay once"
            recorded = [r for r in relay.recorded if len(r) > 100]
            assert len(recorded) >= 2  # the admission handshake and the connection
            for data in recorded:
                with dial(b.address) as s:
                    with suppress(OSError):
                        s.sendall(bytes(data))
                    assert ended(s)
            told(b, "decryption failed or bad record mac")  # once for both
            assert not [e for e in left(b) if isinstance(e, Received)]
        finally:
            relay.close()


class Recorder(SlowAnswers):
    """Keeps what callers say."""

    def __init__(self, address: str) -> None:
        self.recorded: list[bytearray] = []
        super().__init__(address, 0.0)

    def _read(self, source: socket.socket, sink: Callable[[bytes], None]) -> None:
        if source.getsockname()[1] == int(self.address.split(":")[1]):
            record = bytearray()
            self.recorded.append(record)

            def both(data: bytes) -> None:
                record.extend(data)
                sink(data)

            super()._read(source, both)
        else:
            super()._read(source, sink)
