"""`edgegossip fleet serve`: where boards check in, on the machine that has the fleet's folder. They get the time, the newest
revocation list and their release (edgegossip/update/client.py), and `fleet status` shows what they said (checkins/NAME.json).

TLS 1.3 with certificates both ways: a connection of anybody but a board of the fleet, or of a revoked one, ends in the
handshake. One thread a connection, few of them, each with deadlines; a report is bounded and kept as plain values."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from edgegossip.fleet import making, releases
from edgegossip.fleet.store import Fleet
from edgegossip.fleet.strangers import Stranger, Strangers
from edgegossip.mesh import address as addresses
from edgegossip.mesh.security import tls
from edgegossip.mesh.security.identity import CRL, Identity
from edgegossip.mesh.security.revocations import Revocations, write_file
from edgegossip.types import ConfigError, EdgegossipError, HostError, NodeId
from edgegossip.untrusted import printable, request_target, whole_number
from edgegossip.update.client import CHECK_IN, MAX_ANSWER_BYTES, RELEASE, REVOCATIONS

SILENT_S = 30.0
LINGER_S = 1.0  # for a refused caller to hear the alert
MAX_CONNECTIONS = 64  # of boards; strangers have places of their own
MAX_PART_BYTES = 8 << 20
_TEXTS = ("version", "release", "packages", "state", "status")
_NUMBERS = ("sequence", "restarts", "uptime_s")

Say = Callable[[str], None]


class Desk:
    """What is known and answered, without sockets. Thread-safe."""

    def __init__(self, folder: Path, identity: Identity, say: Say, clock: Callable[[], float] = time.time) -> None:
        present = Revocations.load(folder / CRL, identity.authority)
        self.identity = replace(identity, revocations=present)
        self.folder, self._say, self._clock = folder, say, clock
        self._lock, self._seen = threading.Lock(), dict[NodeId, str]()
        self._context, self._number = tls.server_context(self.identity), present.number
        (folder / "checkins").mkdir(mode=0o700, exist_ok=True)

    def context(self) -> ssl.SSLContext:
        """For the next connection, with the newest list."""
        with self._lock:
            with suppress(EdgegossipError):  # half copied, or gone: the one that we have stays
                self.identity.revocations.look_at_file()
            if self.identity.revocations.number != self._number:
                self._context, self._number = tls.server_context(self.identity), self.identity.revocations.number
            return self._context

    def check_in(self, name: NodeId, address: str, report: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what a board says; the answer. Raises EdgegossipError, OSError."""
        now_s = self._clock()
        kept: dict[str, Any] = {"name": name, "address": address, "at_s": round(now_s, 1)}
        kept |= {k: printable(str(report.get(k, ""))) for k in _TEXTS}
        kept |= {k: _number(report.get(k)) for k in _NUMBERS}
        failed = report.get("failed")
        kept["failed"] = (
            {printable(str(k), 20): printable(str(v)) for k, v in failed.items()} if isinstance(failed, dict) else {}
        )
        kept["trial"] = report.get("trial") is True
        write_file(self.folder / "checkins" / f"{name}.json", (json.dumps(kept) + "\n").encode(), 0o600)
        news = f"{name} checks in from {address}: version {kept['version']}, {kept['state']}"
        with self._lock:
            is_new, self._seen[name] = self._seen.get(name) != news, news
        if is_new:
            self._say(news)
        wanted = releases.load(self.folder).wanted.get(name, 0)
        answer = {"time_s": self._clock(), "crl_number": self.identity.revocations.number, "sequence": wanted}
        return answer | self._order(name, report.get("number"))

    def _order(self, name: NodeId, number: object) -> dict[str, Any]:
        """What it should run, where that was changed since its last word."""
        if not isinstance(number, int):
            return {}
        try:
            order = making.order(Fleet.open(self.folder), name, number)
        except ConfigError as error:  # its profile does not say what it runs
            self._say(str(error))
            return {}
        return {} if order is None else {"order": order}

    def part(self, name: NodeId, sequence: int, at: int, count: int) -> bytes:
        """Of the bundle that this board should have. Raises PermissionError for another one, OSError."""
        if releases.load(self.folder).wanted.get(name) != sequence:
            raise PermissionError
        with open(releases.bundle_file(self.folder, sequence), "rb") as file:
            file.seek(at)
            return file.read(count)


class Server(ThreadingHTTPServer):
    """Listens; `serve_forever` and `shutdown` as its parent."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, desk: Desk, listen: str) -> None:
        where = addresses.parse(listen, "--listen", any_port=True)
        self.address_family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        self.desk, self._strangers = desk, Strangers()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((where.host, where.port), _Handler)
        except OSError as error:
            raise HostError(f"cannot listen on {listen}: {(error.strerror or str(error)).lower()}") from error

    @property
    def address(self) -> str:
        return str(addresses.Address(str(self.server_address[0]), int(self.server_address[1])))

    def process_request(self, request: Any, client_address: Any) -> None:
        stranger = self._strangers.come(request, *client_address[:2])
        if stranger is None:
            self.shutdown_request(request)
            return
        threading.Thread(target=self._meet, args=(request, client_address, stranger), daemon=True).start()

    def _meet(self, request: Any, client_address: Any, stranger: Stranger) -> None:
        """On a thread of its own."""
        try:
            stranger.listen(request)
            with _greeted(self.desk.context(), request) as connection:
                subject, serial = tls.peer_of(connection.getpeercert(), self.desk.identity.fleet)
                self._strangers.done(stranger)
                if subject.role == "board":
                    self._serve(connection, client_address, subject.name, serial)
        except (OSError, EdgegossipError):
            pass  # a stranger: the handshake's alert has told it why
        finally:
            self._strangers.done(stranger)
            self.shutdown_request(request)

    def _serve(self, connection: ssl.SSLSocket, client_address: Any, name: NodeId, serial: int) -> None:
        """A board, if there is a place."""
        if self._free.acquire(blocking=False):
            try:
                connection.settimeout(SILENT_S)
                _Handler(connection, client_address, self, name, serial)
            finally:
                self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke."""


def _greeted(context: ssl.SSLContext, request: socket.socket) -> ssl.SSLSocket:
    """The connection after the handshake. Raises OSError; then the caller has been told why."""
    connection = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
    try:
        connection.do_handshake()
    except OSError:
        # With TLS 1.3 the caller's request may be here by now. Closing with bytes unread would reset the connection, and the
        # alert that says why would be lost on the way.
        with connection, suppress(OSError):
            connection.settimeout(LINGER_S)
            socket.socket.shutdown(connection, socket.SHUT_WR)
            until = time.monotonic() + LINGER_S
            while time.monotonic() < until and socket.socket.recv(connection, 4096):
                pass
        raise
    return connection


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def __init__(self, request: Any, client_address: Any, server: Server, name: NodeId = "", serial: int = 0) -> None:
        self._name, self._serial = name, serial
        super().__init__(request, client_address, server)

    def parse_request(self) -> bool:
        """Whether there is one that may be answered. A connection may outlive its board's certificate."""
        if not super().parse_request():
            return False
        self.server.desk.context()  # looks at the list
        if self.server.desk.identity.revocations.revoked(self._serial):
            length = self.headers.get("content-length", "")
            if left := whole_number(
                length, MAX_ANSWER_BYTES
            ):  # closed with something unread, it may take the answer along
                self.rfile.read(left)
            self._refuse(HTTPStatus.FORBIDDEN, f"the certificate of {self._name} was revoked")
            return False
        return True

    def do_POST(self) -> None:
        length = whole_number(self.headers.get("content-length", ""), MAX_ANSWER_BYTES)
        if self.path != CHECK_IN or length is None:
            return self._refuse(HTTPStatus.BAD_REQUEST, "this is not how a board checks in")
        try:
            report = json.loads(self.rfile.read(length))
            if not isinstance(report, dict):
                raise ValueError
        except (ValueError, RecursionError):
            return self._refuse(HTTPStatus.BAD_REQUEST, "a report that makes no sense")
        try:
            answer = self.server.desk.check_in(self._name, str(self.client_address[0]), report)
        except (EdgegossipError, OSError) as error:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"the fleet's folder: {error}")
        self._answer(json.dumps(answer).encode())

    def do_GET(self) -> None:
        url = request_target(self.path)
        if url is None:
            return self._refuse(HTTPStatus.BAD_REQUEST, "this is no address")
        if url.path == REVOCATIONS:
            return self._answer(self.server.desk.identity.revocations.present.der)
        asked = parse_qs(url.query)
        number = url.path.removeprefix(f"{RELEASE}/")
        at, count = (asked.get(k, [""])[0] for k in ("from", "count"))
        if (
            not all(t.isascii() and t.isdigit() and len(t) < 16 for t in (number, at, count))
            or int(count) > MAX_PART_BYTES
        ):
            return self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        try:
            self._answer(self.server.desk.part(self._name, int(number), int(at), int(count)))
        except PermissionError:
            self._refuse(HTTPStatus.FORBIDDEN, f"release {number} is not for {self._name}")
        except (EdgegossipError, OSError) as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"the fleet's folder: {error}")

    def _answer(self, body: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._answer(why.encode(), status)

    def log_message(self, format: str, *args: Any) -> None:
        """What matters is said by the desk."""


def open_desk(folder: Path, identity: Path, say: Say) -> Desk:
    """With the identity of a coordinator of this fleet. Raises EdgegossipError."""
    return Desk(folder, Identity.load(identity), say)


def _number(value: object) -> float | int:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15 else 0
