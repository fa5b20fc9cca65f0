"""An HTTP server that only members of a fleet reach: TLS 1.3 with certificates both ways, for
boards that check in or ask for work.

One thread a connection, few of them and fewer with one certificate. A request has the time that a
slow link needs for its bytes, and no more. A connection of anybody but a board of the fleet, or of
a revoked one, ends in the handshake, and one that is there ends when a newer revocation list names
its certificate. Connections that have not shown a certificate yet have places of their own, so that
those that say nothing take none of a board's. Where places are full the newcomer stays, and another
one goes (limits.ConnectionLimiter, `MemberServer._make_room`)."""

from __future__ import annotations

import math
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from edgegossip.security import tls
from edgegossip.security.admission import Admission, Caller
from edgegossip.security.limits import (
    ConnectionLimiter,
    RateLimitedLog,
    TokenBuckets,
    cannot_listen,
    endpoint,
    network_of,
)
from edgegossip.types import EdgegossipError, PeerError
from edgegossip.untrusted import Refusal, printable, whole_number

HANDSHAKE_S = 10.0
LINGER_S = 1.0  # for a refused caller to hear the alert
MAX_CONNECTIONS, MAX_CONNECTIONS_PER_CERTIFICATE = 64, 3  # after it; a board needs one
# For a request to come and its answer to go: so many seconds, and those that their bytes take at a
# third of the slowest rate that docs/mesh.md names; and never longer than LONGEST_S, in which
# 64 MiB come at that rate.
REQUEST_S, SLOWEST_BYTES_PER_S, LONGEST_S = 60.0, 2048.0, 10 * 3600.0
REQUESTS_PER_S, REQUEST_BURST = 50.0, 200.0  # with one certificate; the next ones wait
MAX_PENDING, MAX_PENDING_PER_ADDRESS = 64, 32  # in their handshakes; many boards may be behind one address
CONNECTIONS_PER_S, CONNECTION_BURST = 50.0, 200  # of one address
_MAX_UNREAD_BYTES = 1 << 20
_BYTES_MOVED = struct.Struct("=120xQQ")  # acknowledged and received, in struct tcp_info (linux/tcp.h)


class PendingConnection:
    """Keeps a connection before its handshake is done."""

    def __init__(self, connection: socket.socket, host: str, port: int) -> None:
        self.address, self.silent, self.since_s = endpoint(host, port), True, time.monotonic()
        self._connection = connection.dup()  # TLS takes the other one

    def listen(self, connection: socket.socket) -> None:
        """Wait until it says something. Raises OSError."""
        connection.settimeout(HANDSHAKE_S)
        if not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError
        self.silent = False

    def evict(self) -> None:
        """End it: its thread finds the connection closed."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give up our descriptor of it; the connection itself stays."""
        self._connection.close()


class _Place:
    """Is a connection that is served, with this certificate's serial number."""

    def __init__(self, connection: socket.socket, serial: int | None) -> None:
        self.connection, self.serial = connection, serial
        self.until_s = math.inf  # whatever it does
        self.begin()

    def begin(self) -> None:
        """Give its next request the whole time."""
        self._since_s, self._before = time.monotonic(), moved_bytes(self.connection)

    def over(self, now_s: float) -> bool:
        """Return whether it took longer than a slow link does."""
        moved, longest_s = moved_bytes(self.connection), LONGEST_S
        if moved is not None and self._before is not None:
            longest_s = min(longest_s, REQUEST_S + (moved - self._before) / SLOWEST_BYTES_PER_S)
        return now_s >= min(self.until_s, self._since_s + longest_s)

    def shut(self) -> None:
        """End it: its thread finds the connection closed. TLS is not asked, which may wait."""
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)


class MemberServer(ThreadingHTTPServer):
    """Listens from construction; `serve_forever` and `shutdown` as its parent. `admission` None:
    without TLS, for anybody. `handler` answers the requests of one connection. `silent_s`: how long
    a caller may say nothing. `refused` hears who was refused and why, the same at most once a
    minute. Raises HostError."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        host: str,
        port: int,
        handler: Callable[[Any, Any, Any, Caller | None], object],
        admission: Admission | None,
        silent_s: float,
        refused: Callable[[Refusal], None] = lambda refusal: None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.admission, self._handler, self._silent_s = admission, handler, silent_s
        self._refused, self._lines = refused, RateLimitedLog()
        self._limiter = ConnectionLimiter(CONNECTIONS_PER_S, CONNECTION_BURST, MAX_PENDING, MAX_PENDING_PER_ADDRESS)
        self._pending, self._places = list[PendingConnection](), list[_Place]()  # the oldest first
        self._requests = TokenBuckets(REQUESTS_PER_S, REQUEST_BURST)
        self._lock = threading.Lock()
        self._context = None if admission is None else tls.server_context(admission.identity)
        try:
            super().__init__((host, port), BaseHTTPRequestHandler)  # which is never made: see `_serve`
        except OSError as error:
            raise cannot_listen(host, port, error) from error

    @property
    def address(self) -> str:
        """host:port that it listens on."""
        return endpoint(str(self.server_address[0]), int(self.server_address[1]))

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection, with the newest revocation list; None
        without TLS. Connections whose certificates are on it end."""
        with self._lock:
            if self.admission is not None and self.admission.look():
                self._context = tls.server_context(self.admission.identity)
                soon_s = time.monotonic() + LINGER_S
                for place in self._places:
                    if self.revoked(place.serial):
                        place.until_s = min(place.until_s, soon_s)  # who asks before it is told why
            return self._context

    @override
    def service_actions(self) -> None:
        """End what is over: called by `serve_forever` all the time."""
        with suppress(OSError, EdgegossipError):  # a list that cannot be read ends no server
            self.context()
        with self._lock:
            for place in self._places:
                if place.over(time.monotonic()):
                    place.shut()

    def begin_request(self, connection: socket.socket) -> None:
        """Give its next request the whole time."""
        with self._lock:
            place = self._place(connection)
            if place is not None:
                place.begin()

    def wait_turn(self, connection: socket.socket) -> None:
        """Wait until its certificate has asked little enough to ask again, or it had to go. A board
        that fetches a release may ask often, so it is slowed down and not refused."""
        while True:
            with self._lock:
                place = self._place(connection)
                if place is None or self._requests.take(place.serial, time.monotonic()):
                    return
            time.sleep(1 / REQUESTS_PER_S)

    def tell(self, caller: Caller | None, host: str, why: str) -> None:
        """Say that somebody was refused, if nobody has said so of late."""
        refusal = Refusal(caller.subject.name if caller else "", host, printable(why.strip(), 400))
        source = caller.subject if caller else network_of(host)
        with self._lock:
            is_new = self._lines.worth((source, refusal.why), time.monotonic(), source)
        if is_new:
            self._refused(refusal)

    def revoked(self, serial: int | None) -> bool:
        """Return whether that certificate is on our list; without TLS there is none."""
        return serial is not None and self.admission is not None and self.admission.revoked(serial)

    def _place(self, connection: socket.socket) -> _Place | None:
        return next((place for place in self._places if place.connection is connection), None)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        host, port = client_address[:2]
        with self._lock:
            now_s = time.monotonic()
            if self._limiter.why_not(host, now_s):
                self.shutdown_request(request)
                return
            if found := self._limiter.to_evict(host, self._pending, now_s):
                found[0].evict()
                self._pending.remove(found[0])
            pending = PendingConnection(request, host, port)
            self._pending.append(pending)
        threading.Thread(target=self._handle_connection, args=(request, client_address, pending), daemon=True).start()

    def _forget(self, pending: PendingConnection) -> None:
        """Note that it has shown its certificate, or is gone."""
        with self._lock:
            if pending in self._pending:  # or it had to go
                self._pending.remove(pending)
            pending.close()

    def _handle_connection(self, request: Any, client_address: Any, pending: PendingConnection) -> None:
        """Serve a connection on a thread of its own: who does not finish the handshake keeps nobody
        else waiting."""
        try:
            pending.listen(request)
            context, caller = self.context(), None
            if context is None or self.admission is None:
                self._forget(pending)
                self._serve(request, client_address, None)
                return
            with _handshake(context, request) as connection:
                caller = self.admission.by_connection(connection.getpeercert(), pending.address)
                self._forget(pending)
                if caller.subject.role != "board":
                    raise PeerError(f"it is no board: its certificate is for {caller.subject.role}s")
                self._serve(connection, client_address, caller)
        except ssl.SSLError as error:  # a stranger: the handshake's alert has told it why
            if not tls.went_away(error):
                self.tell(caller, str(client_address[0]), tls.words(error))
        except EdgegossipError as error:
            self.tell(caller, str(client_address[0]), str(error))
        except OSError:
            pass
        finally:
            self._forget(pending)
            self.shutdown_request(request)

    def _serve(self, connection: socket.socket, client_address: Any, caller: Caller | None) -> None:
        """Answer a member."""
        place = _Place(connection, None if caller is None else caller.serial)
        with self._lock:
            if caller is not None and self.admission is not None:
                self.admission.check(caller)  # the list may have come since the handshake
            self._make_room(place.serial)
            self._places.append(place)
        try:
            connection.settimeout(self._silent_s)
            self._handler(connection, client_address, self, caller)
        finally:
            with self._lock:
                if place in self._places:  # or it had to go
                    self._places.remove(place)

    def _make_room(self, serial: int | None) -> None:
        """End the oldest connection with this certificate where it has too many, or else of all the
        oldest with the certificate that has most: its owner has likely forgotten it."""
        count = Counter(place.serial for place in self._places)
        if serial is None or count[serial] < MAX_CONNECTIONS_PER_CERTIFICATE:
            if len(self._places) < MAX_CONNECTIONS:
                return
            serial = max(count, key=lambda other: (count[other], other == serial))
        oldest = next(place for place in self._places if place.serial == serial)
        oldest.shut()
        self._places.remove(oldest)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that broke is no news."""


def _handshake(context: ssl.SSLContext, request: socket.socket) -> ssl.SSLSocket:
    """Return the connection after the handshake. Raises OSError; then the caller has been told
    why."""
    connection = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
    try:
        connection.do_handshake()
    except OSError:
        # With TLS 1.3 the caller's request may be here by now. Closing with bytes unread would
        # reset the connection, and the alert that says why would be lost on the way.
        with connection, suppress(OSError):
            connection.settimeout(LINGER_S)
            socket.socket.shutdown(connection, socket.SHUT_WR)
            until = time.monotonic() + LINGER_S
            while time.monotonic() < until and socket.socket.recv(connection, 4096):
                pass
        raise
    return connection


def moved_bytes(connection: socket.socket) -> int | None:
    """Return how many bytes have come and gone; None where the kernel does not say, or the socket
    is closed."""
    try:
        acknowledged, received = _BYTES_MOVED.unpack(
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_MOVED.size)
        )
        return int(acknowledged + received)
    except (AttributeError, OSError, struct.error):
        return None


class MemberHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection; a subclass has `do_GET` and `do_POST`.
    `caller` is who sends them, by its certificate; None without TLS."""

    server: MemberServer

    def __init__(self, request: Any, client_address: Any, server: Any, caller: Caller | None) -> None:
        self.caller = caller
        super().__init__(request, client_address, server)

    def refuse(self, status: HTTPStatus, why: str) -> None:
        """Answer with the reason, log it, and end the connection."""
        self.close_connection = True
        self.server.tell(self.caller, str(self.client_address[0]), why)
        self.answer(self.worded(printable(why, 400)), status)

    def worded(self, why: str) -> bytes:
        """Return the body of an answer that is a refusal."""
        return why.encode()

    @override
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request. What it quotes is left out: whoever sent that could have every
        line of the log to itself."""
        said = (message or "").partition("(")[0].strip()
        self.refuse(HTTPStatus(code), said or HTTPStatus(code).phrase)

    @override
    def handle_one_request(self) -> None:
        self.server.begin_request(self.connection)
        super().handle_one_request()

    @override
    def parse_request(self) -> bool:
        """Return whether there is a request that may be answered. A connection may outlive its
        board's certificate."""
        if not super().parse_request():
            return False
        if self.caller is not None:
            self.server.wait_turn(self.connection)
        self.server.context()  # looks at the list
        if self.caller is not None and self.server.revoked(self.caller.serial):
            length = self.headers.get("content-length", "")
            if left := whole_number(length, _MAX_UNREAD_BYTES):
                self.rfile.read(left)  # closed with something unread, it may take the answer along
            self.refuse(HTTPStatus.FORBIDDEN, f"the certificate of {self.caller.subject.name} was revoked")
            return False
        return True

    def answer(self, body: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what matters is said elsewhere: boards ask all the time."""
