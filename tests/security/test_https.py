"""The HTTP server for members: who reaches it, who does not, and what a revocation does to a
connection that stays."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.security import https, tls
from edgegossip.security.admission import Admission
from edgegossip.security.https import MemberHandler, MemberServer
from edgegossip.security.identity import Identity
from edgegossip.types import HostError
from edgegossip.untrusted import Refusal
from tests.mesh.fleet import TestFleet
from tests.mesh.security.support import Clock
from tests.mesh.support import PATIENCE_S, until

REFUSALS = {
    "none": "it wants a certificate of us",
    "other fleet": "another fleet|the TLS handshake failed: tlsv1 alert decrypt error",
    "expired": "our certificate is expired",
    "not yet valid": "does not accept our certificate|our certificate is expired",
    "wrong usage": "does not accept our certificate",
    "self-signed": "another fleet",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> TestFleet:
    return TestFleet.make(tmp_path_factory.mktemp("https"))


@pytest.fixture(scope="module")
def admission(fleet: TestFleet) -> Admission:
    return Admission(Identity.load(coordinator_of(fleet.fleet.folder)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(https, "time", clock)
    return clock


class Handler(MemberHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer((self.caller.subject.name if self.caller else "anybody").encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.answer(b"%d bytes" % len(body))

    def do_PUT(self) -> None:
        self.refuse(HTTPStatus.BAD_REQUEST, "nothing is put here\n")


@contextmanager
def running(
    admission: Admission | None,
    handler: type[MemberHandler] = Handler,
    refused: Callable[[Refusal], None] = lambda refusal: None,
) -> Iterator[MemberServer]:
    server = MemberServer("127.0.0.1", 0, handler, admission, silent_s=4 * PATIENCE_S, refused=refused)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


def ask(s: socket.socket, body: bytes = b"") -> bytes:
    s.sendall(b"GET / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    data = b""
    while b"\r\n\r\n" not in data or not data.partition(b"\r\n\r\n")[2]:
        if not (more := s.recv(4096)):
            break
        data += more
    return data


def test_without_tls_anybody_asks() -> None:
    with running(None) as server, socket.create_connection(server.server_address, PATIENCE_S) as s:
        assert ask(s).endswith(b"anybody")
        with pytest.raises(HostError, match="cannot listen on"):
            MemberServer("127.0.0.1", server.server_address[1], Handler, None, 1.0)


@pytest.mark.parametrize("body", [b"", b"unread"])
def test_a_board_is_served_until_it_is_revoked(tmp_path: Path, body: bytes, clock: Clock) -> None:
    fleet = Fleet.create(tmp_path / "fleet", "test", 1).add("a", "board", 1)
    serves = Identity.load(coordinator_of(fleet.folder))
    context = tls.caller_context(Identity.load(fleet.folder / "boards/a"), "coordinator")
    with running(Admission(serves)) as server, socket.create_connection(server.server_address, PATIENCE_S) as plain:
        with context.wrap_socket(plain) as s:
            assert ask(s).endswith(b"a")
            Fleet.open(fleet.folder).revoke("a")
            (serves.folder / "crl.pem").write_bytes((fleet.folder / "crl.pem").read_bytes())
            assert b" 403 " in ask(s, body)
        with socket.create_connection(server.server_address, PATIENCE_S) as silent:
            silent.shutdown(socket.SHUT_WR)
            assert silent.recv(1) == b""


def dial(server: MemberServer, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(server.server_address[:2], PATIENCE_S, source_address=(source, 0))


def closed(s: socket.socket) -> bool:
    with suppress(ConnectionError):
        return s.recv(1) == b""
    return True


def is_served(fleet: TestFleet, server: MemberServer, name: str) -> bool:
    context = fleet.client_context(fleet.of(name))
    with dial(server) as plain, context.wrap_socket(plain) as s, suppress(OSError):
        return ask(s).endswith(name.encode())
    return False


def refusal(context: ssl.SSLContext, server: MemberServer) -> str:
    """Why a connection is refused, as its caller hears it; in TLS 1.3 after its handshake."""
    try:
        with dial(server) as plain, context.wrap_socket(plain) as s:
            assert not ask(s), "an answer"
    except OSError as error:
        return tls.words(error)
    return tls.words(ConnectionResetError())


@pytest.mark.parametrize("what", REFUSALS)
def test_who_is_no_member_is_told_why_in_the_handshake(fleet: TestFleet, admission: Admission, what: str) -> None:
    with running(admission) as server:
        why = refusal(fleet.client_context(fleet.files(what)), server)
        assert any(words in why for words in REFUSALS[what].split("|")), why
        assert is_served(fleet, server, "a")


def test_an_older_tls_and_plaintext_are_refused_and_no_session_is_given(fleet: TestFleet, admission: Admission) -> None:
    with running(admission) as server:
        older = fleet.client_context(fleet.of("a"), maximum_version=ssl.TLSVersion.TLSv1_2)
        assert refusal(older, server) == "it does not speak TLS 1.3"
        with dial(server) as plain, suppress(ConnectionError):
            assert b"HTTP" not in ask(plain)
        with dial(server) as plain, fleet.client_context(fleet.of("a")).wrap_socket(plain) as s:
            assert ask(s).endswith(b"a")
            assert s.session is None or not s.session.has_ticket


def test_who_ends_its_connection_in_the_handshake_harms_nobody(fleet: TestFleet, admission: Admission) -> None:
    with running(admission) as server:
        for start in (b"", b"\x16", b"\x16\x03\x01\x02\x00" + bytes(20)):
            with dial(server) as s:
                s.sendall(start)
        assert is_served(fleet, server, "a")


def test_a_member_of_another_role_is_not_answered(tmp_path: Path) -> None:
    fleet = Fleet.create(tmp_path / "fleet", "test", 1).add("a", "board", 1)
    [operator] = [m for m in fleet.add("laptop", "operator", 1).members if m.name == "laptop"]
    context = tls.caller_context(Identity.load(fleet.folder / operator.folder), "coordinator")
    with (
        running(Admission(Identity.load(coordinator_of(fleet.folder)))) as server,
        dial(server) as plain,
        context.wrap_socket(plain) as s,
        suppress(ConnectionError),
    ):
        assert ask(s) == b""


def test_a_revoked_board_does_not_come_back(tmp_path: Path) -> None:
    fleet = TestFleet.make(tmp_path)
    serves = Identity.load(coordinator_of(fleet.fleet.folder))
    with running(Admission(serves)) as server:
        assert is_served(fleet, server, "c")
        Fleet.open(fleet.fleet.folder).revoke("c")
        (serves.folder / "crl.pem").write_bytes((fleet.fleet.folder / "crl.pem").read_bytes())
        assert "our certificate was revoked" in refusal(fleet.client_context(fleet.of("c")), server)
        assert is_served(fleet, server, "a")


@contextmanager
def connected(fleet: TestFleet, server: MemberServer, name: str) -> Iterator[ssl.SSLSocket]:
    with dial(server) as plain, fleet.client_context(fleet.of(name)).wrap_socket(plain) as s:
        assert ask(s).endswith(name.encode())
        yield s


def test_of_too_many_connections_of_one_board_the_oldest_goes(fleet: TestFleet, admission: Admission) -> None:
    with running(admission) as server, ExitStack() as stack:
        held = [stack.enter_context(connected(fleet, server, "c")) for _ in range(4)]
        assert closed(held[0])
        assert all(ask(s).endswith(b"c") for s in held[1:])


def test_one_board_takes_no_place_of_others(
    fleet: TestFleet, admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all places are taken, the oldest of who has most of them goes."""
    monkeypatch.setattr(https, "MAX_CONNECTIONS", 3)
    with running(admission) as server, ExitStack() as stack:
        held = [stack.enter_context(connected(fleet, server, "c")) for _ in range(3)]
        for s, name in zip(held, "ab", strict=False):
            held.append(stack.enter_context(connected(fleet, server, name)))
            assert closed(s)
        assert [ask(s)[-1:] for s in held[2:]] == [b"c", b"a", b"b"]


@pytest.mark.parametrize("tls_too", [True, False])
def test_a_request_has_one_deadline_whatever_trickles(
    fleet: TestFleet, admission: Admission, clock: Clock, tls_too: bool
) -> None:
    with running(admission if tls_too else None) as server, dial(server) as plain, ExitStack() as stack:
        s = stack.enter_context(fleet.client_context(fleet.of("c")).wrap_socket(plain)) if tls_too else plain
        s.sendall(b"GET / HTTP/1.1\r\nx: ")
        until(lambda: server._places, "it is served")

        def ended() -> bool:
            clock.now_s += https.REQUEST_S / 10
            with suppress(OSError):
                s.sendall(b"y")
            return not server._places

        until(ended, "it is served no more")
        assert closed(s)


def test_a_request_that_goes_on_keeps_its_connection(
    fleet: TestFleet, admission: Admission, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """The deadline is of a request, not of a connection, even if its bytes give no more time."""
    monkeypatch.setattr(https, "SLOWEST_BYTES_PER_S", 1e9)
    with running(admission) as server, connected(fleet, server, "a") as s:
        for _ in range(8):
            clock.now_s += https.REQUEST_S / 4
            server.service_actions()
            assert ask(s).endswith(b"a")


def test_a_slow_link_has_the_time_that_its_bytes_take(
    fleet: TestFleet, admission: Admission, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(https, "REQUEST_S", 0.3)
    monkeypatch.setattr(https, "SLOWEST_BYTES_PER_S", 20_000.0)
    with running(admission) as server, connected(fleet, server, "a") as s:
        [place] = server._places
        s.sendall(b"POST / HTTP/1.1\r\ncontent-length: 40000\r\nconnection: close\r\n\r\n")
        for _ in range(19):
            before = https.moved_bytes(place.connection)
            s.sendall(bytes(2000))
            until(lambda before=before: https.moved_bytes(place.connection) >= before + 2000, "they have come")
            clock.now_s += 0.09
            server.service_actions()
        s.sendall(bytes(2000))
        assert b"".join(iter(lambda: s.recv(4096), b"")).endswith(b"40000 bytes")


def test_each_refusal_leaves_one_line(fleet: TestFleet, admission: Admission) -> None:
    lines: list[str] = []
    with running(admission, refused=lambda refusal: lines.append(str(refusal))) as server:
        for k in range(3):  # with words of its own each time
            for request in (b"PUT / HTTP/1.1\r\n\r\n", b"\x00\xff%d\r\n\r\n" % k, b"DEL%d / HTTP/1.1\r\n\r\n" % k):
                with dial(server) as plain, fleet.client_context(fleet.of("a")).wrap_socket(plain) as s:
                    s.sendall(request)
                    assert s.recv(4096)
            refusal(fleet.client_context(fleet.files("self-signed")), server)
        assert is_served(fleet, server, "b")
    a, stranger = "refused a at 127.0.0.1: ", "refused 127.0.0.1: "
    assert [line.startswith(a) for line in lines] == [True] * 3 + [False] and lines[3].startswith(stranger)
    assert "refused a at 127.0.0.1: nothing is put here" in lines


def test_a_request_line_without_an_end_is_refused_as_what_it_is() -> None:
    lines: list[Refusal] = []
    with (
        running(None, refused=lines.append) as server,
        socket.create_connection(server.server_address, PATIENCE_S) as s,
    ):
        s.sendall(b"G" * 65537)
        assert s.recv(4096).startswith(b"HTTP/1.1 414 ")
    assert [*map(str, lines)] == [f"refused 127.0.0.1: {HTTPStatus.REQUEST_URI_TOO_LONG.phrase}"]


def test_what_a_network_of_many_addresses_is_refused_is_one_line(admission: Admission) -> None:
    """As one machine may have 2**64 of them."""
    lines: list[Refusal] = []
    with running(admission, refused=lines.append) as server:
        for host in (*(f"fd00:bad::{k:x}" for k in range(1, 50)), "fd00:bad:0:1::1"):
            server.tell(None, host, "it does not speak TLS 1.3")
    assert [line.address for line in lines] == ["fd00:bad::1", "fd00:bad:0:1::1"]


def test_connections_that_are_silent_end_when_their_certificate_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Also while one list comes after the other: the first that names it counts."""
    fleet = TestFleet.make(tmp_path)
    serves = Identity.load(coordinator_of(fleet.fleet.folder))
    admission = Admission(serves)
    look = admission.look
    monkeypatch.setattr(admission, "look", lambda: look() or True)
    with running(admission) as server, ExitStack() as stack:
        idle, trickles = (stack.enter_context(connected(fleet, server, "c")) for _ in range(2))
        other = stack.enter_context(connected(fleet, server, "a"))
        trickles.sendall(b"GET / HTTP/1.1\r\nx: ")
        Fleet.open(fleet.fleet.folder).revoke("c")
        (serves.folder / "crl.pem").write_bytes((fleet.fleet.folder / "crl.pem").read_bytes())
        for _ in range(3):
            server.service_actions()
            assert len(server._places) == 3
            clock.now_s += https.LINGER_S / 3
        clock.now_s += https.LINGER_S / 3
        assert closed(idle) and closed(trickles)
        assert ask(other).endswith(b"a")


def test_a_certificate_that_asks_too_often_waits(
    fleet: TestFleet, admission: Admission, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Whatever its connections are, it has one rate. No time goes by but what it waits."""
    monkeypatch.setattr(https, "REQUESTS_PER_S", 4.0)
    monkeypatch.setattr(https, "REQUEST_BURST", 2.0)
    monkeypatch.setattr(clock, "sleep", lambda seconds: setattr(clock, "now_s", clock.now_s + seconds))
    clock.now_s = 0.0
    with running(admission) as server, connected(fleet, server, "c") as s, connected(fleet, server, "c") as more:
        assert clock.now_s == 0.0
        assert all(ask(each).endswith(b"c") for each in (s, more, s))
        assert clock.now_s == 3 / 4


def test_a_certificate_that_asks_too_often_keeps_nobody_waiting(
    fleet: TestFleet, admission: Admission, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Another board is served while it waits."""
    waits, served = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        waits.set()
        served.wait()
        clock.now_s += seconds

    monkeypatch.setattr(https, "REQUEST_BURST", 1.0)
    monkeypatch.setattr(clock, "sleep", sleep)
    with running(admission) as server, connected(fleet, server, "c") as s:
        s.sendall(b"GET / HTTP/1.1\r\n\r\n")
        try:
            assert waits.wait(PATIENCE_S)
            assert is_served(fleet, server, "a")
        finally:
            served.set()
        assert s.recv(1)


def test_half_a_handshake_from_one_host_keeps_out_nobody_from_another(
    fleet: TestFleet, admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are places: the strangers' own connections have to go."""
    monkeypatch.setattr(https, "MAX_PENDING", 8)
    monkeypatch.setattr(https, "MAX_PENDING_PER_ADDRESS", 6)
    with running(admission) as server, ExitStack() as stack:
        flood = [stack.enter_context(dial(server, f"127.0.0.{2 + k % 3}")) for k in range(24)]
        for k, s in enumerate(flood):
            with suppress(OSError):
                s.sendall(b"\x16\x03\x01\x02\x00"[: k % 6])
        for name in "abc":
            assert is_served(fleet, server, name)
        assert closed(flood[0])


def test_an_address_that_connects_too_often_is_closed_at_once(
    fleet: TestFleet, admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "CONNECTION_BURST", 2)
    monkeypatch.setattr(https, "CONNECTIONS_PER_S", 0.001)
    with running(admission) as server, dial(server, "127.0.0.2"), dial(server, "127.0.0.2"):
        with dial(server, "127.0.0.2") as third:
            assert closed(third)
        assert is_served(fleet, server, "a")
        assert server.address == f"127.0.0.1:{server.server_address[1]}"


@pytest.mark.parametrize("start", [b"", b"\x16\x03"])
def test_a_handshake_that_does_not_go_on_is_ended(
    admission: Admission, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(https, "HANDSHAKE_S", 0.05)
    monkeypatch.setattr(https, "LINGER_S", 0.05)
    with running(admission) as server, dial(server) as s:
        s.sendall(start)
        while not closed(s):  # perhaps an alert first
            pass


def test_a_caller_whose_handshake_failed_is_heard_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(socket.socket):
        def do_handshake(self) -> None:
            raise ssl.SSLError

    monkeypatch.setattr(https, "LINGER_S", 0.05)
    ours, theirs = socket.socketpair()
    context = SimpleNamespace(wrap_socket=lambda _, **how: Refused(fileno=ours.detach()))
    with theirs, pytest.raises(ssl.SSLError):  # it stays, and says nothing
        https._handshake(context, ours)


def test_a_handler_that_breaks_ends_its_own_connection_only(fleet: TestFleet, admission: Admission) -> None:
    class Breaks(Handler):
        def do_GET(self) -> None:
            if self.caller is not None and self.caller.subject.name == "c":
                raise BrokenPipeError
            super().do_GET()

    with running(admission, Breaks) as server:
        assert not is_served(fleet, server, "c")
        assert is_served(fleet, server, "a")
