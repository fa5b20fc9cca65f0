"""Whom the fleet's machine does not listen to: revoked boards, other boards, strangers, odd
questions."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import threading
from contextlib import suppress

import pytest

from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.security import tls
from edgegossip.security.https import (
    HANDSHAKE_S,
    MAX_CONNECTIONS_PER_CERTIFICATE,
    MAX_PENDING,
    MAX_PENDING_PER_ADDRESS,
)
from edgegossip.security.identity import Identity
from edgegossip.types import PeerError
from edgegossip.update.client import Client
from tests.update.place import Machine


def test_a_revoked_board_is_refused_and_others_hear_of_it(place):
    place.check_in()
    place.fleet.revoke("pi-02")
    with pytest.raises(PeerError, match="revoked"), Client(place.identity("pi-02"), place.server.address) as client:
        client.check_in({})
    place.check_in()
    assert Identity.load(place.config).revocations.number == 2
    assert (place.config / "crl.pem").stat().st_mode & 0o004, (
        "the node, another user, reads it there (`CheckInRevocations`)"
    )


def test_a_board_that_runs_goes_no_further_than_to_a_coordinator_that_is_not_revoked(place):
    """Its context was made before the list came."""
    running = tls.caller_context(Identity.load(place.config), "coordinator")
    for says in ("", "its certificate was revoked"):
        with socket.create_connection(place.server.server_address, 5) as plain:
            if says:
                with pytest.raises(PeerError, match=says):
                    running.wrap_socket(plain)
            else:
                running.wrap_socket(plain).close()
        place.fleet = place.fleet.revoke(Identity.load(coordinator_of(place.fleet.folder)).name)
        shutil.copy(place.fleet.folder / "crl.pem", place.config / "crl.pem")


def test_a_connection_does_not_outlive_its_certificate(place):
    with Client(place.identity("pi-02"), place.server.address) as client:
        client.check_in({})
        place.fleet.revoke("pi-02")
        with pytest.raises(PeerError, match="revoked"):
            client.check_in({})


def test_who_it_is_says_the_certificate(place):
    """A stolen provisioning bundle of pi-01 with the name of pi-02 written into it reports as pi-01
    all the same."""
    with Client(place.identity(), place.server.address) as client:
        client.check_in({"name": "pi-02", "version": "1\n\x1b[2J", "restarts": {"a": 1}, "failed": [], "trial": 1})
    found = json.loads((place.fleet.folder / "checkins/pi-01.json").read_text())
    assert (
        found["name"] == "pi-01" and "\n" not in found["version"] and found["restarts"] == 0 and found["trial"] is False
    )
    assert not (place.fleet.folder / "checkins/pi-02.json").exists()


def test_nobody_else_comes_in(place, tmp_path):
    address = place.server.server_address
    other = Fleet.create(tmp_path / "other", "other", 20).add("pi-01", "board", 20)
    with pytest.raises(PeerError, match="of another fleet"):
        Client(Identity.load(other.folder / "boards/pi-01"), place.server.address).check_in({})
    operator = tls.caller_context(Identity.load(place.fleet.folder / "operator"), "coordinator")
    with socket.create_connection(address, 5) as plain, operator.wrap_socket(plain) as s:
        s.settimeout(5)
        assert s.recv(100) == b"", "an operator's certificate is no board's"
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    for wrap in (lambda plain: plain, bare.wrap_socket):
        heard = b""
        with suppress(OSError), socket.create_connection(address, 5) as plain, wrap(plain) as s:
            s.settimeout(HANDSHAKE_S)
            s.sendall(b"GET /v1/crl HTTP/1.1\r\n\r\n")
            heard = s.recv(1000)
        assert b"HTTP" not in heard
    place.check_in()


@pytest.mark.parametrize("say", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "the start of a handshake"])
def test_strangers_that_stay_keep_no_board_out(place, say):
    """More than there are places for, of boards and of strangers."""
    connections = []
    try:
        for _ in range(MAX_PENDING + 80):
            connections.append(socket.create_connection(place.server.server_address, 5))
            connections[-1].sendall(say)
        for _ in range(3):
            place.check_in()
        held = [s for s in connections if not _was_closed(s)]  # nobody had to wait until they had gone
        assert 0 < len(held) <= MAX_PENDING_PER_ADDRESS
    finally:
        for s in connections:
            s.close()


def _was_closed(s: socket.socket) -> bool:
    s.settimeout(0.0)
    try:
        return not s.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_many_boards_behind_one_address_take_no_strangers_place(place):
    """And who has shown a certificate is no stranger any more, whose connection may be closed for
    another's."""
    names = tuple(f"board-{k}" for k in range((MAX_PENDING_PER_ADDRESS + 4) // MAX_CONNECTIONS_PER_CERTIFICATE + 1))
    place.fleet.add_all(names, "board", 20)
    identities = [place.identity(name) for name in names for _ in range(MAX_CONNECTIONS_PER_CERTIFICATE)]
    clients = [Client(identity, place.server.address) for identity in identities]
    assert len(clients) > MAX_PENDING_PER_ADDRESS
    for client in clients:
        client.check_in({})
    for client in clients:
        client.check_in({})
        client.__exit__(None, None, None)


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /v1/release/1?from=0&count=99999999999 HTTP/1.1",
        "GET /v1/release/../../ca.key?from=0&count=9 HTTP/1.1",
        "GET / HTTP/1.1",
    ],
)
def test_odd_questions_get_a_refusal(place, request_line):
    context = tls.caller_context(place.identity(), "coordinator")
    with socket.create_connection(place.server.server_address, 60) as plain, context.wrap_socket(plain) as s:
        s.sendall(request_line.encode() + b"\r\n\r\n")
        assert s.recv(1000).split(b" ")[1] in (b"403", b"404")


def test_a_board_does_not_trust_another_board_with_its_time(place):
    """Nobody but a coordinator of the fleet answers for it: here pi-02 does, with its own
    certificate."""
    context = tls.server_context(place.identity("pi-02"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place.names(f"127.0.0.1:{listener.getsockname()[1]}")

        def pretend() -> None:
            with suppress(OSError):
                context.wrap_socket(listener.accept()[0], server_side=True).recv(1)

        thread = threading.Thread(target=pretend, daemon=True)
        thread.start()
        machine = Machine(behind_s=500)
        with pytest.raises(PeerError, match="no coordinator but a board"):
            place.check_in(machine)
        assert machine.behind_s == 500
        thread.join(5)
