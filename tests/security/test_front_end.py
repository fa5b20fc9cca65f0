"""The TLS front end by itself, before a server that says who was handed on to it."""

from __future__ import annotations

import os
import queue
import resource
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from edgegossip.mesh.base import MeshLimits
from edgegossip.security import handshake, tls
from edgegossip.security.admission import Admission, Caller
from edgegossip.security.front_end import FrontEnd
from edgegossip.security.names import serial_name
from edgegossip.types import HostError
from tests.mesh.fleet import TestFleet

PATIENCE_S = 20.0
LIMITS = replace(MeshLimits(), handshake_s=10.0, max_pending_handshakes=8, max_pending_handshakes_per_address=8)


class Port:
    """A front end of board b. `said` has its log, `lists` what callers brought."""

    def __init__(self, fleet: TestFleet, limits: MeshLimits = LIMITS) -> None:
        self.fleet, self.admission = fleet, Admission(fleet.security("b").identity)
        self.said, self.lists = queue.Queue[str](), queue.Queue[bytes]()
        self.looked, self.look_on = threading.Event(), threading.Event()
        self.look_on.set()
        self.upstream = f"test-{os.getpid()}-{secrets.token_hex(4)}"
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind("\0" + self.upstream)
        self.server.listen()
        self.server.settimeout(PATIENCE_S)
        context = tls.server_context(self.admission.identity)
        self.front_end = FrontEnd(
            "127.0.0.1",
            0,
            self.upstream,
            limits,
            self.admission,
            lambda: context,
            self._look,
            self._on_list,
            lambda _caller, said: self.said.put(str(said)),
        )

    def _look(self) -> None:
        self.looked.set()
        assert self.look_on.wait(PATIENCE_S)

    def _on_list(self, _caller: Caller, crl: bytes, _told: int) -> None:
        self.lists.put(crl)

    def says(self, words: str) -> str:
        while words not in (text := self.said.get(timeout=PATIENCE_S)):
            pass
        return text

    def dial(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self.front_end.address, PATIENCE_S, source_address=(source, 0))

    @contextmanager
    def begin_admission(self, name: str = "c") -> Iterator[ssl.SSLSocket]:
        context = self.fleet.client_context(self.fleet.of(name), tls.ADMISSION)
        with self.dial() as plain, context.wrap_socket(plain) as s:
            yield s

    def admitted(self, name: str = "c") -> str:
        """A one-time token."""
        with self.begin_admission(name) as s:
            s.sendall(handshake.hello(1))
            found = answer(s)
            assert found.welcome, found.text
            s.sendall(handshake.blob(b""))
            return found.text

    def hello_with(self, token: str) -> bytes:
        """A ClientHello of c."""
        outgoing = ssl.MemoryBIO()
        context = self.fleet.client_context(self.fleet.of("c"), tls.H2)
        server_name = serial_name(self.admission.identity.certificate.serial, self.fleet.ca.fleet_id, token)
        with suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=server_name).do_handshake()
        return outgoing.read()

    def close(self) -> None:
        self.look_on.set()
        self.front_end.close()
        self.server.close()


def answer(s: ssl.SSLSocket) -> handshake.Answer:
    data = b""
    while (found := handshake.parse_answer(data)) is None:
        more = s.recv(4096)
        assert more, "the end"
        data += more
    return found


def ended(s: socket.socket) -> bool:
    with suppress(ConnectionError):
        while s.recv(4096):
            pass
    return True


def received(s: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += s.recv(size - len(data))
    return data


def is_refused(port: Port, token: str) -> bool:
    with port.dial() as s:
        s.sendall(port.hello_with(token))
        with suppress(OSError):
            s.shutdown(socket.SHUT_WR)
        return ended(s)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> TestFleet:
    return TestFleet.make(tmp_path_factory.mktemp("front-end"))


@pytest.fixture
def port(fleet: TestFleet) -> Iterator[Port]:
    made = Port(fleet)
    made.front_end.start()
    yield made
    made.close()
    assert made.front_end.alive


def test_a_port_that_is_taken(port: Port) -> None:
    def open_here() -> list[int]:
        return [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]

    before = open_here()
    with pytest.raises(HostError, match="cannot listen on .*: address already in use"):
        FrontEnd(
            *port.front_end.address,
            "nobody",
            LIMITS,
            port.admission,
            lambda: ssl.create_default_context(),
            lambda: None,
            lambda *_: None,
            lambda *_: None,
        )
    assert all(now <= then for now, then in zip(open_here(), before, strict=True))


def test_an_admission_handshake_in_pieces_of_one_byte(port: Port) -> None:
    with port.begin_admission() as s:
        for byte in handshake.hello(1):
            s.send(bytes([byte]))
        assert answer(s).welcome
        for byte in handshake.blob(b"a list"):
            s.send(bytes([byte]))
        assert ended(s)
    assert port.lists.get(timeout=PATIENCE_S) == b"a list"


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (b"EGK0" + bytes(8), b"", "an admission handshake that is none"),
        (handshake.hello(1), handshake.blob(b"list") + b"more", "something follows a revocation list"),
        (handshake.hello(1), struct.pack(">I", 1 << 21), "bytes are too many"),
    ],
)
def test_what_is_no_admission_handshake(port: Port, first: bytes, then: bytes, words: str) -> None:
    with port.begin_admission() as s, suppress(ConnectionError):
        s.sendall(first)
        if then:
            answer(s)
            s.sendall(then)
        assert ended(s)
    assert port.says(words).startswith("refused c at 127.0.0.1:")
    assert port.lists.empty()
    assert len(port.admitted("a")) == 32


def test_a_reset_in_the_middle_is_no_news(port: Port) -> None:
    with port.dial() as plain:
        s = port.fleet.client_context(port.fleet.of("c"), tls.ADMISSION).wrap_socket(plain)
        s.sendall(handshake.hello(1))
        answer(s)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    port.admitted("a")
    assert port.said.empty()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("hello", [b"", b"\x16", b"\x16\x03\x01\x00\x00", "half", "whole"])
def test_who_only_ends_its_connection_in_the_handshake_is_no_news(port: Port, hello: bytes | str, reset: bool) -> None:
    if isinstance(hello, str):
        hello = port.hello_with("0" * 32)[: 100 if hello == "half" else None]
    with port.begin_admission() as other:
        port.look_on.clear()
        other.sendall(handshake.hello(1))
        assert port.looked.wait(PATIENCE_S)  # so all of it is there when the front end looks
        with port.dial() as s:
            s.sendall(hello)
            if reset:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        port.look_on.set()
        assert answer(other).welcome
    port.admitted("a")
    assert port.said.empty()


@pytest.mark.parametrize("piece", [1, 7, 1 << 14])
def test_a_token_is_found_however_the_client_hello_is_cut(port: Port, piece: int) -> None:
    hello = port.hello_with(port.admitted())
    with port.dial() as s:
        for at in range(0, len(hello), piece):
            s.sendall(hello[at : at + piece])
        inside, address = port.server.accept()
        with inside:
            inside.settimeout(PATIENCE_S)
            assert received(inside, len(hello)) == hello  # to the last byte, and by no other name
            caller = port.front_end.caller("unix-abstract:" + address[1:].decode())
            assert caller is not None and caller.subject.name == "c"
            inside.sendall(b"an answer")
            assert received(s, 9) == b"an answer"


def test_a_token_is_good_once_and_not_after_a_revocation_or_in_quarantine(port: Port) -> None:
    token = port.admitted()
    with port.dial() as s:
        s.sendall(port.hello_with(token))
        port.server.accept()[0].close()
    others = [port.admitted() for _ in range(3)]
    assert is_refused(port, token)
    port.admission.misbehaved(port.fleet.security("c").identity.subject, "a reason")
    assert is_refused(port, others[0])
    assert port.says("it is in quarantine").startswith("refused c at")
    with port.begin_admission() as s:
        s.sendall(handshake.hello(1))
        assert answer(s).text.startswith("in quarantine for")
    port.front_end.cut(lambda caller: caller.subject.name == "c", "its certificate was revoked")
    assert is_refused(port, others[1])
    port.server.settimeout(0)
    with pytest.raises(BlockingIOError):
        port.server.accept()


@pytest.mark.parametrize(
    "hello",
    [
        b"\x16\x03\x01\xff\xff" + b"\x01" * (1 << 16),
        b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + b"a" * 0x3FFC,
        b"\x16\x03\x01\x40\x00" + (b"%032x.7.serial." % 7) * 400,
    ],
)
def test_a_client_hello_that_is_none_ends_its_own_connection(port: Port, hello: bytes) -> None:
    with port.dial() as s:
        with suppress(OSError):  # it may be quicker
            s.sendall(hello)
            s.shutdown(socket.SHUT_WR)
        assert ended(s)
    port.says("refused 127.0.0.1")
    port.admitted()


def test_a_server_that_is_gone_behind_the_front_end(port: Port) -> None:
    """As while a board ends: who is handed on is closed, and nothing is wrong."""
    token = port.admitted()
    port.server.close()
    with port.dial() as s:
        s.sendall(port.hello_with(token))
        assert ended(s)
    port.admitted("a")
    assert port.said.empty()


def test_cut_ends_who_is_in_its_admission_handshake(port: Port) -> None:
    with port.begin_admission() as c, port.begin_admission("a") as a:
        c.sendall(handshake.hello(1))
        a.sendall(handshake.hello(1))
        assert answer(c).welcome and answer(a).welcome
        port.front_end.cut(lambda caller: caller.subject.name == "c", "its certificate was revoked")
        assert ended(c)
        a.sendall(handshake.blob(b"still there"))
        assert ended(a)
    assert port.lists.get(timeout=PATIENCE_S) == b"still there"


def test_a_defect_in_a_job_is_said_and_the_port_goes_on(port: Port) -> None:
    def wrong(caller: Caller) -> bool:
        raise ZeroDivisionError(caller.subject.name)

    port.admitted()
    port.front_end.cut(wrong, "nothing")
    assert port.says("trouble of this board").endswith("zerodivisionerror c")
    port.admitted()


def test_more_callers_than_are_accepted_at_a_time_wait_for_the_start(fleet: TestFleet) -> None:
    limits = replace(LIMITS, connection_burst=200, max_pending_handshakes=200, max_pending_handshakes_per_address=200)
    port = Port(fleet, limits)
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(port.dial("127.0.0.2"))
        stack.callback(port.close)
        port.front_end.start()
        port.admitted()
        assert port.said.empty()


def test_without_descriptors_the_port_waits_and_goes_on(port: Port) -> None:
    _, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with port.begin_admission() as first, port.dial() as idle, socket.socket() as late:
        first.sendall(handshake.hello(1))
        assert answer(first).welcome
        lowest_free = os.dup(0)
        os.close(lowest_free)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            late.connect(port.front_end.address)
            text = port.says("takes no connections for a moment")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert text == "this board takes no connections for a moment: too many open files"
        late.settimeout(PATIENCE_S)
        with port.fleet.client_context(port.fleet.of("c"), tls.ADMISSION).wrap_socket(late) as s:
            s.sendall(handshake.hello(1))
            assert answer(s).welcome
        idle.close()


def test_who_has_to_go_is_not_listened_to_any_more(fleet: TestFleet) -> None:
    """It speaks in the moment in which a newcomer takes its place."""
    port = Port(fleet, replace(LIMITS, max_pending_handshakes_per_address=1))
    port.front_end.start()
    try:
        with port.dial("127.0.0.2") as old, port.begin_admission() as busy:
            port.look_on.clear()
            busy.sendall(handshake.hello(1))
            assert port.looked.wait(PATIENCE_S)  # from here on the front end waits for us
            with port.dial("127.0.0.2") as newcomer:
                old.sendall(b"\x16\x03")
                port.look_on.set()
                assert ended(old)
                assert "1 of its connections have not finished" in port.says("refused 127.0.0.2")
                context = fleet.client_context(fleet.of("a"), tls.ADMISSION)
                with context.wrap_socket(newcomer) as s:
                    s.sendall(handshake.hello(1))
                    assert answer(s).welcome
    finally:
        port.close()


def test_who_is_refused_hears_why_though_it_went_on_talking(port: Port, tmp_path: Path) -> None:
    stranger = TestFleet.make(tmp_path)
    context = stranger.client_context(stranger.of("c"), tls.ADMISSION)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing)
    with port.dial() as s:
        with pytest.raises(ssl.SSLWantReadError):
            session.do_handshake()
        while not finished(session):
            s.sendall(outgoing.read())
            incoming.write(s.recv(65_536))
        session.write(bytes(50_000))
        s.sendall(outgoing.read())  # its certificate, and more than anybody reads before judging that
        port.says("its certificate is of another fleet")
        s.sendall(b"and more")
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
            read_on(session, incoming, s)
    assert port.admitted("a")


def read_on(session: ssl.SSLObject, incoming: ssl.MemoryBIO, s: socket.socket) -> None:
    while True:
        incoming.write(s.recv(65_536))
        with suppress(ssl.SSLWantReadError):
            session.read(4096)


def finished(session: ssl.SSLObject) -> bool:
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_who_is_refused_and_never_ends_is_cut_off(fleet: TestFleet) -> None:
    port = Port(fleet, replace(LIMITS, max_pending_handshakes_per_address=1))
    port.front_end.start()
    try:
        with port.dial("127.0.0.2") as s:
            s.sendall(b"GET / HTTP/1.1\r\n\r\n")
            port.says("it does not speak TLS")
            assert ended(s)  # our side
            with suppress(ConnectionError):
                while True:
                    s.sendall(bytes(65_536))
        assert port.admitted("a")
    finally:
        port.close()


def test_close_ends_who_is_in_a_handshake(fleet: TestFleet) -> None:
    port = Port(fleet)
    port.front_end.start()
    with port.dial() as s, port.begin_admission() as c:
        port.close()
        assert ended(s) and ended(c)


def test_a_list_of_somebody_in_quarantine_is_not_read(port: Port) -> None:
    with port.begin_admission() as s:
        s.sendall(handshake.hello(1))
        assert answer(s).welcome
        port.admission.misbehaved(port.fleet.security("c").identity.subject, "a reason")
        s.sendall(handshake.blob(b"a list"))
        assert ended(s)
    port.says("in quarantine for")
    assert port.lists.empty()
