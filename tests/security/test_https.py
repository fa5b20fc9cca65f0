"""The HTTP server for members: who reaches it, who does not, and what a revocation does to a connection that stays."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from edgegossip.fleet.store import Fleet
from edgegossip.launch.admission import coordinator_of
from edgegossip.security import tls
from edgegossip.security.admission import Admission
from edgegossip.security.https import MemberHandler, MemberServer
from edgegossip.security.identity import Identity
from edgegossip.types import HostError


class Handler(MemberHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer((self.caller.subject.name if self.caller else "anybody").encode())

    def refuse(self, status: HTTPStatus, why: str) -> None:
        self.answer(why.encode(), status)


@contextmanager
def running(admission: Admission | None) -> Iterator[MemberServer]:
    server = MemberServer("127.0.0.1", 0, Handler, admission, silent_s=5.0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def ask(s: socket.socket, body: bytes = b"") -> bytes:
    s.sendall(b"GET / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    data = b""
    while b"\r\n\r\n" not in data or not data.partition(b"\r\n\r\n")[2]:
        if not (more := s.recv(4096)):
            break
        data += more
    return data


def test_without_tls_anybody_asks() -> None:
    with running(None) as server, socket.create_connection(server.server_address, 5) as s:
        assert ask(s).endswith(b"anybody")
        with pytest.raises(HostError, match="cannot listen on"):
            MemberServer("127.0.0.1", server.server_address[1], Handler, None, 1.0)


@pytest.mark.parametrize("body", [b"", b"unread"])
def test_a_board_is_served_until_it_is_revoked(tmp_path: Path, body: bytes) -> None:
    fleet = Fleet.create(tmp_path / "fleet", "test", 1).add("a", "board", 1)
    serves = Identity.load(coordinator_of(fleet.folder))
    context = tls.caller_context(Identity.load(fleet.folder / "boards/a"), "coordinator")
    with running(Admission(serves)) as server, socket.create_connection(server.server_address, 5) as plain:
        with context.wrap_socket(plain) as s:
            assert ask(s).endswith(b"a")
            Fleet.open(fleet.folder).revoke("a")
            (serves.folder / "crl.pem").write_bytes((fleet.folder / "crl.pem").read_bytes())
            assert b" 403 " in ask(s, body)
        with socket.create_connection(server.server_address, 5) as silent:
            silent.shutdown(socket.SHUT_WR)
            assert silent.recv(1) == b""
