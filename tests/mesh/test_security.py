"""Attacks on a board over real sockets: each is refused, the reason is in the log, and the others go on undisturbed."""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from edgegossip.fleet.store import tell
from edgegossip.mesh import GrpcTransport, MeshLimits, wire
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received
from edgegossip.mesh.edge import METHOD
from edgegossip.mesh.security import knock, quarantine
from edgegossip.mesh.security.names import serial_name
from edgegossip.mesh.security.tls import H2, KNOCK
from edgegossip.types import PeerError
from tests.mesh.fleet import TestFleet
from tests.mesh.relay import SlowAnswers
from tests.mesh.support import PATIENCE_S, QUICK, RUN, PeerProcess, connect_all, wait_for

LIMITS = replace(QUICK, handshake_s=0.4, max_frame_bytes=1 << 20)
BAD = ["other fleet", "expired", "not yet valid", "wrong usage", "self-signed"]
WORDS = {
    "none": "it has no certificate",
    "other fleet": "its certificate is of another fleet|is forged",
    "expired": "its certificate has expired",
    "not yet valid": "its certificate is not valid yet",
    "wrong usage": "its certificate is for another use",
    "self-signed": "its certificate is self-signed",
    "as b": "its certificate is for another name",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> TestFleet:
    return TestFleet.make(tmp_path_factory.mktemp("security"))


@pytest.fixture
def pair(fleet: TestFleet) -> Iterator[tuple[GrpcTransport, GrpcTransport]]:
    """Boards a and b, connected; b also expects c, which never comes by itself."""
    a, b = (GrpcTransport(name, RUN, limits=LIMITS, security=fleet.guard(name)) for name in "ab")
    connect_all([a, b], ["a", "b"])
    b.connect({"c": "127.0.0.1:1"})
    wait_for(b, Notice, lambda n: n.text.startswith("cannot reach c"))
    yield a, b
    others(a, b)
    assert not [e for e in left(a) if isinstance(e, PeerDown) and e.peer == "b"]
    for t in (a, b):
        t.close()


def left(t: GrpcTransport) -> list:
    return list(iter(lambda: t.incoming(0), None))


def others(a: GrpcTransport, b: GrpcTransport) -> None:
    """The bystanders still reach each other, both ways."""
    for source, target, sink in ((a, "b", b), (b, "a", a)):
        source.send(target, [b"still here"])
        assert bytes(wait_for(sink, Received).data) == b"still here"


def told(b: GrpcTransport, words: str) -> str:
    """b says in its log that it refused somebody, and why."""
    notice = wait_for(b, Notice, lambda n: n.text.startswith("refused"))
    assert any(w in notice.text for w in words.split("|")), notice.text
    assert "127.0.0.1" in notice.text and notice.text.isprintable()
    return notice.text


def dial(address: str, source: str = "127.0.0.1") -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=(source, 0))


def is_refused(context: ssl.SSLContext, address: str) -> None:
    """The connection does not get through the handshake, or is ended before it may say anything."""
    with dial(address) as plain, pytest.raises((OSError, AssertionError)):  # SSLError is an OSError
        with context.wrap_socket(plain) as s:
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            assert s.recv(1), "ended"


# -- who comes in --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["none", *BAD])
def test_a_caller_with(fleet, pair, what):
    _, b = pair
    is_refused(fleet.client_context(fleet.files(what), KNOCK), b.address)
    told(b, WORDS[what])


@pytest.mark.parametrize("what", [*BAD, "as b"])
def test_a_listener_with(fleet, what):
    """Board a looks for c and finds somebody else."""
    context = fleet.server_context(fleet.files(what), KNOCK, H2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    with suppress(OSError), context.wrap_socket(plain, server_side=True) as s:
                        s.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.guard("a")) as a:
            a.connect({"c": f"127.0.0.1:{server.getsockname()[1]}"})
            notice = wait_for(a, Notice)
            assert any(w in notice.text for w in WORDS[what].split("|")), notice.text
        server.shutdown(socket.SHUT_RDWR)


def test_a_listener_without_tls(fleet):
    with GrpcTransport("c", RUN, limits=LIMITS) as c:
        with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.guard("a")) as a:
            a.connect({"c": c.address})
            assert "it does not speak TLS" in wait_for(a, Notice).text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"maximum_version": ssl.TLSVersion.TLSv1_2}, "it does not speak TLS 1.3"),
        (
            {
                "minimum_version": ssl.TLSVersion.TLSv1_1,
                "maximum_version": ssl.TLSVersion.TLSv1_1,
                "ciphers": "ALL:@SECLEVEL=0",
            },
            "it does not speak TLS 1.3",
        ),
    ],
)
def test_a_downgrade(fleet, pair, changes, words):
    _, b = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is what it is about
        context = fleet.client_context(fleet.of("c"), H2, **changes)
    is_refused(context, b.address)
    told(b, words)


@pytest.mark.parametrize("hello", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", bytes(300)])
def test_plaintext(pair, hello):
    _, b = pair
    with dial(b.address) as s:
        s.sendall(hello)
        with suppress(OSError):
            while s.recv(4096):
                pass
    told(b, "it does not speak TLS")


def test_a_board_without_identity(fleet, pair):
    _, b = pair
    with GrpcTransport("c", RUN, limits=LIMITS) as c:
        c.connect({"b": b.address})
        told(b, "it does not speak TLS")
        wait_for(c, Notice)


def test_another_protocol_inside_tls(fleet, pair):
    _, b = pair
    is_refused(fleet.client_context(fleet.of("c"), "http/1.1"), b.address)
    told(b, "it speaks another kind of TLS")


def test_board_c_at_the_address_of_b(fleet, pair):
    """The wrong name: the certificate is good, but it is another board's."""
    a, b = pair
    with GrpcTransport("c", RUN, limits=LIMITS, security=fleet.guard("c")) as c:
        c.connect({"a": b.address})
        assert "its certificate is for another name" in wait_for(c, Notice).text


# -- who it is -----------------------------------------------------------------------------------------------


def knock_at(fleet: TestFleet, files: tuple[Path, Path], address: str) -> knock.Answer:
    """What the door of a board says."""
    with dial(address) as plain, fleet.client_context(files, KNOCK).wrap_socket(plain) as s:
        s.sendall(knock.hello(1))
        data = b""
        while (answer := knock.parse_answer(data)) is None:
            data += s.recv(4096)
        s.sendall(knock.blob(b""))
        assert s.recv(1) == b""
        return answer


def channel_to_b(fleet: TestFleet, files: tuple[Path, Path], address: str, ticket: str = "") -> grpc.Channel:
    """As a board opens it, but with whatever certificate."""
    ticket = ticket or knock_at(fleet, files, address).text
    certificate, key = (path.read_bytes() for path in files)
    credentials = grpc.ssl_channel_credentials((fleet.folder("b") / "ca.pem").read_bytes(), key, certificate)
    name = serial_name(fleet.guard("b").identity.certificate.serial, fleet.ca.fleet_id, ticket)
    options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(address, credentials, options)


def converse(
    fleet: TestFleet, name: str, address: str, *messages: bytes, ticket: str = ""
) -> list[pb.ExchangeResponse]:
    """What a board answers to these messages of the certified board `name`, until it ends the stream."""
    done = threading.Event()

    def requests() -> Iterator[bytes]:
        yield from messages
        done.wait(PATIENCE_S)

    answers: list[pb.ExchangeResponse] = []
    with channel_to_b(fleet, fleet.of(name), address, ticket) as channel:
        call = channel.stream_stream(METHOD)(requests(), timeout=PATIENCE_S)
        try:
            answers.extend(pb.ExchangeResponse.FromString(message) for message in call)
        except grpc.RpcError as error:
            if not answers:
                raise AssertionError(error.details()) from error
        finally:
            done.set()
    return answers


def hello(**changes: object) -> bytes:
    fields = {"protocol_version": 1, "run_id": RUN, "sender": "c", "receiver": "b", "session": 99, **changes}
    return pb.ExchangeRequest(hello=pb.Hello(**fields)).SerializeToString()


def chunk(transfer: int, offset: int, total: int, data: bytes) -> bytes:
    return wire.chunk_message(transfer, offset, total, False, [memoryview(data)])


def in_quarantine(b: GrpcTransport) -> None:
    assert wait_for(b, Notice, lambda n: "c is in quarantine for" in n.text).peer == "c"


def test_the_certificate_of_c_for_a_stream_of_a(fleet, pair):
    _, b = pair
    [answer] = converse(fleet, "c", b.address, hello(sender="a"))
    assert answer.refusal.code == pb.REFUSAL_CODE_IDENTITY
    told(b, "it says to be a, but its certificate is that of c")
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


def test_a_frame_of_another_run(fleet, pair):
    _, b = pair
    [answer] = converse(fleet, "c", b.address, hello(run_id=b"z" * 16))
    assert answer.refusal.code == pb.REFUSAL_CODE_RUN_ID
    told(b, "it belongs to run")


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


def test_a_board_in_quarantine_hears_why_and_for_how_long(fleet, pair, monkeypatch):
    monkeypatch.setattr(quarantine, "FIRST_S", 300.0)  # so that a slow machine is not too late for it
    _, b = pair
    converse(fleet, "c", b.address, hello(), b"\xff\xff")
    in_quarantine(b)
    with GrpcTransport("c", RUN, limits=LIMITS, security=fleet.guard("c")) as c:
        c.connect({"b": b.address})
        text = wait_for(c, Notice, lambda n: n.text.startswith("cannot reach b")).text
    assert "refused: in quarantine for " in text and "more seconds: a mesh message is not valid protobuf" in text


def test_recorded_bytes_sent_again(fleet):
    """What a listener on the network could record and repeat: TLS takes none of it."""
    relay = None
    with GrpcTransport("b", RUN, limits=LIMITS, security=fleet.guard("b")) as b:
        relay = Recorder(b.address)
        try:
            with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.guard("a")) as a:
                b.connect({"a": a.address})
                a.connect({"b": relay.address})
                wait_for(a, PeerUp)
                a.send("b", [b"pay once"])
                assert bytes(wait_for(b, Received).data) == b"pay once"
            recorded = [r for r in relay.recorded if len(r) > 100]
            assert len(recorded) >= 2  # the knock and the connection
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


# -- revocation ----------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path) -> TestFleet:
    return TestFleet.make(tmp_path)


def test_a_revocation_spreads_and_cuts_at_once(own):
    """Board a is told; b hears it from a and drops c, which is connected; c itself hears why it is refused."""
    a, b, c = (GrpcTransport(name, RUN, limits=LIMITS, security=own.guard(name)) for name in "abc")
    with a, b, c:
        connect_all([a, b, c], ["a", "b", "c"])
        kept = own.folder("b") / "crl.pem"
        before = kept.read_bytes()
        with hidden(own.fleet.folder / "boards"):  # the boards' folders are elsewhere
            fleet = own.fleet.revoke("c")
        assert kept.read_bytes() == before
        assert tell(fleet, a.address) == ("a", 2)
        wait_for(a, Notice, lambda n: n.text == "the-operator brought revocation list 2: 1 certificates are revoked")
        wait_for(b, Notice, lambda n: n.text.endswith("brought revocation list 2: 1 certificates are revoked"))
        for t in (a, b):
            assert wait_for(t, PeerDown).peer == "c"
        assert "it says that our certificate was revoked" in wait_for(c, Notice, lambda n: "revoked" in n.text).text
        others(a, b)
        assert kept.read_bytes() != before  # for its next start
        assert tell(fleet, b.address) == ("b", 2)


@contextmanager
def hidden(folder: Path) -> Iterator[None]:
    folder.rename(folder.with_name("elsewhere"))
    yield
    folder.with_name("elsewhere").rename(folder)


def test_a_revoked_caller_and_a_revoked_listener(own):
    """c was revoked before anybody met it: a refuses it at its door, and does not go in at c's."""
    old = own.of("c")
    own.fleet.revoke("c")
    with GrpcTransport("a", RUN, limits=LIMITS, security=own.guard("a")) as a:
        is_refused(own.client_context(old, H2), a.address)
        told(a, "its certificate was revoked")
        with GrpcTransport("c", RUN, limits=LIMITS, security=own.guard("c")) as c:
            a.connect({"c": c.address})
            wait_for(a, Notice, lambda n: "cannot reach c" in n.text and "its certificate was revoked" in n.text)


def test_a_list_copied_into_the_folder_of_a_running_board(own):
    with GrpcTransport("a", RUN, limits=LIMITS, security=own.guard("a")) as a:
        own.fleet.revoke("c")  # its folder is the fleet's own here, so it gets the list
        assert wait_for(a, Notice).text == "the folder has revocation list 2: 1 certificates are revoked"


def test_a_board_that_was_given_a_new_certificate_is_let_in_again(own):
    """Without a restart: its folder is replaced, and it is tried again."""
    a, c = (GrpcTransport(name, RUN, limits=LIMITS, security=own.guard(name)) for name in "ac")
    with a, c:
        connect_all([a, c], ["a", "c"])
        with hidden(own.fleet.folder / "boards"):
            fleet = own.fleet.revoke("c")
        tell(fleet, a.address)
        assert wait_for(a, PeerDown).peer == "c"
        fleet.add("c", "board", 20)
        assert wait_for(a, PeerUp).peer == "c"
        wait_for(c, PeerUp)
        a.send("c", [b"again"])
        assert bytes(wait_for(c, Received).data) == b"again"


def test_who_is_told_has_to_be_a_board_of_the_fleet(fleet, own):
    with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.guard("a")) as a:
        with pytest.raises(PeerError, match="of another fleet"):
            tell(own.fleet, a.address)
        told(a, "it says that our certificate is of another fleet")
    with pytest.raises(PeerError, match="connection refused"):
        tell(own.fleet, a.address)


# -- who takes its time, and who comes too often -------------------------------------------------------------


def test_limits_for_strangers_are_short():
    assert MeshLimits().handshake_s <= 2.0
    assert MeshLimits().silence_s(True) <= 2.0


def ended(s: socket.socket) -> bool:
    try:
        while s.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_a_caller_that_connects_and_says_nothing(pair):
    _, b = pair
    with dial(b.address) as s:
        assert ended(s)
    told(b, f"it did not finish the TLS handshake in {LIMITS.handshake_s:g} s")


def test_a_caller_that_drips(fleet, pair):
    """One byte after the other does not make it last longer."""
    _, b = pair
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        fleet.client_context(fleet.of("c"), H2).wrap_bio(incoming, outgoing).do_handshake()
    with dial(b.address) as s, suppress(OSError):
        for byte in outgoing.read():
            s.send(bytes([byte]))
            time.sleep(0.01)
        assert ended(s)
    told(b, f"it did not finish the TLS handshake in {LIMITS.handshake_s:g} s")


def test_a_caller_that_knocks_and_says_nothing(fleet, pair):
    _, b = pair
    with dial(b.address) as plain, fleet.client_context(fleet.of("c"), KNOCK).wrap_socket(plain) as s:
        assert ended(s)
    told(b, f"it did not finish its knock in {LIMITS.handshake_s:g} s")


def test_a_caller_with_a_ticket_that_stalls_in_tls(fleet, pair):
    _, b = pair
    ticket = knock_at(fleet, fleet.of("c"), b.address).text
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    name = serial_name(7, fleet.ca.fleet_id, ticket)
    with suppress(ssl.SSLWantReadError):
        context = fleet.client_context(fleet.of("c"), H2)
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    with dial(b.address) as s:
        s.sendall(outgoing.read())
        assert ended(s)  # gRPC's own limit


def test_a_stream_without_hello(fleet, pair):
    _, b = pair
    [answer] = converse(fleet, "c", b.address)
    assert f"said nothing for {LIMITS.handshake_s:g} s" in answer.refusal.reason
    told(b, f"it said nothing for {LIMITS.handshake_s:g} s")


def test_a_flood_of_connections(fleet):
    """From one address; boards elsewhere get through meanwhile."""
    limits = replace(LIMITS, connection_burst=30, connections_per_s=1.0, max_strangers_per_address=10)
    with GrpcTransport("b", RUN, limits=limits, security=fleet.guard("b")) as b:
        crowd = []
        try:
            for _ in range(100):
                with suppress(OSError):
                    crowd.append(dial(b.address, "127.0.0.2"))
            for words in ("10 of its connections have not finished the TLS handshake", "more than 1 connections"):
                wait_for(b, Notice, lambda n, words=words: n.text.startswith(f"refused 127.0.0.2: {words}"))
            with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.guard("a")) as a:
                connect_all([a, b], ["a", "b"])
                others(a, b)
        finally:
            for s in crowd:
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
    with GrpcTransport("b", RUN, limits=limits, security=fleet.guard("b")) as b:
        with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.guard("a")) as a:
            connect_all([a, b], ["a", "b"])
            for _ in range(500):
                a.send("b", [b"x"])
            time.sleep(0.5)  # b takes nothing meanwhile
            assert b._inbox._used_bytes <= 64 << 10
            for _ in range(500):
                wait_for(b, Received)


def test_of_too_many_connections_of_one_board_the_oldest_goes(fleet):
    limits = replace(LIMITS, max_connections_per_peer=2)
    with GrpcTransport("b", RUN, limits=limits, security=fleet.guard("b")) as b:
        crowd = [channel_to_b(fleet, fleet.of("c"), b.address) for _ in range(3)]
        states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
        try:
            grpc.channel_ready_future(crowd[0]).result(PATIENCE_S)
            crowd[0].subscribe(states.put)
            for channel in crowd[1:]:
                grpc.channel_ready_future(channel).result(PATIENCE_S)
            told(b, "it has more than 2 connections; the oldest is closed")
            while states.get(timeout=PATIENCE_S) is grpc.ChannelConnectivity.READY:
                pass
        finally:
            for channel in crowd:
                channel.close()


# -- tickets -------------------------------------------------------------------------------------------------


def test_grpc_without_a_knock(fleet, pair):
    _, b = pair
    is_refused(fleet.client_context(fleet.of("c"), H2), b.address)
    assert "refused c at" in told(b, "it comes in without a knock")


def test_a_ticket_is_for_one_connection(fleet, pair):
    _, b = pair
    ticket = knock_at(fleet, fleet.of("c"), b.address).text
    assert converse(fleet, "c", b.address, hello(run_id=b""), ticket=ticket)[-1].WhichOneof("kind") == "refusal"
    told(b, "it belongs to run")
    with pytest.raises(AssertionError):
        converse(fleet, "c", b.address, hello(), ticket=ticket)
    told(b, "it comes in without a knock")


def test_a_ticket_of_somebody_else(fleet, pair):
    """c overheard the ticket of a, and was quicker."""
    _, b = pair
    ticket = knock_at(fleet, fleet.of("a"), b.address).text
    [answer] = converse(fleet, "c", b.address, hello(sender="a"), ticket=ticket)
    assert answer.refusal.code == pb.REFUSAL_CODE_IDENTITY
    told(b, "its certificate is not the one with which a knocked")
    in_quarantine(b)  # c, and not a


def test_a_board_whose_interpreter_is_busy_still_answers(fleet):
    """As it is while it imports torch: what holds Python's lock must not look like a dead board."""
    limits = replace(LIMITS, keepalive_s=0.2, keepalive_timeout_s=0.3, grace_s=0.1)
    process = PeerProcess("b", identity=str(fleet.folder("b")))
    try:
        with GrpcTransport("a", RUN, limits=limits, security=fleet.guard("a")) as a:
            process.connect({"a": a.address})
            a.connect({"b": process.address})
            wait_for(a, PeerUp)
            process.hold(2.0)
            time.sleep(2.5)
            a.send("b", [b"awake?"])
            wait_for(a, Received)
            assert not [e for e in left(a) if isinstance(e, PeerDown)]
    finally:
        process.kill()
