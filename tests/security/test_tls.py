"""A client that knows its server by its role: whom it talks to, and what it says of anybody
else."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.security import tls
from edgegossip.security.certificates import parse_certificate
from edgegossip.security.identity import CRL, Identity
from edgegossip.types import PeerError
from tests.mesh.fleet import TestFleet


@pytest.fixture
def fleet(tmp_path: Path) -> TestFleet:
    return TestFleet.make(tmp_path)


@contextmanager
def answered_by(context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    """Our end of a connection to somebody; None: who answers in plain text."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    theirs.settimeout(5)

    def serve() -> None:
        with theirs, suppress(OSError):
            if context is None:
                theirs.recv(1 << 14)
                theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            with context.wrap_socket(theirs, server_side=True) as s:
                s.sendall(b"!")
                s.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with ours:
        yield ours
    thread.join(5)


def why_not(fleet: TestFleet, context: ssl.SSLContext | None) -> str:
    client = tls.caller_context(Identity.load(fleet.folder("a")), "coordinator")
    with answered_by(context) as s, pytest.raises(PeerError) as caught:
        client.wrap_socket(s)
    return str(caught.value)


def coordinator(fleet: TestFleet) -> Identity:
    return Identity.load(coordinator_of(fleet.fleet.folder))


def test_the_coordinator_is_who_it_is_whatever_its_address(fleet: TestFleet) -> None:
    server = tls.server_context(coordinator(fleet))
    client = tls.caller_context(Identity.load(fleet.folder("a")), "coordinator")
    with answered_by(server) as s, client.wrap_socket(s, server_hostname="10.0.0.9") as connection:
        assert connection.recv(1) == b"!" and connection.version() == "TLSv1.3"


def test_a_board_that_answers_is_no_coordinator(fleet: TestFleet) -> None:
    server = tls.server_context(Identity.load(fleet.folder("b")))
    assert why_not(fleet, server) == "its certificate is that of b, which is no coordinator but a board"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("other fleet", "of another fleet|is forged"),
        ("expired", "has expired by the clock here, which says "),  # it may be that one which is wrong
        ("not yet valid", "is not valid yet by the clock here, which says "),
        ("wrong usage", "use"),
    ],
)
def test_a_certificate_that_is_not_good(fleet: TestFleet, what: str, words: str) -> None:
    why = why_not(fleet, fleet.server_context(fleet.files(what)))
    assert any(w in why for w in words.split("|")), why


def test_a_board_that_does_not_know_the_time_leaves_out_dates_and_nothing_else(fleet: TestFleet) -> None:
    client = tls.caller_context(Identity.load(fleet.folder("a")), "board", dated=False)
    expired = fleet.server_context(fleet.files("expired"))
    for what in ("other fleet", "wrong usage"):
        server = fleet.server_context(fleet.files(what))
        with answered_by(server) as s, pytest.raises(PeerError, match="of another fleet|is forged|for another use"):
            client.wrap_socket(s)
    with answered_by(expired) as s, client.wrap_socket(s) as connection:
        found = parse_certificate(connection.getpeercert(True) or b"")
    client.check_dates(found, found.valid[1])
    with answered_by(expired) as s, pytest.raises(PeerError, match="expired"):
        client.wrap_socket(s)  # from now on they look themselves
    with pytest.raises(PeerError, match="expired"):
        client.check_dates(found, found.valid[1] + 1)
    with pytest.raises(PeerError, match="not valid yet"):
        client.check_dates(found, found.valid[0] - 1)


def test_plain_text(fleet: TestFleet) -> None:
    assert why_not(fleet, None) == "it does not speak TLS: start it with an identity of coordinators too"


def test_a_server_that_hangs_up_may_be_asked_again(fleet: TestFleet) -> None:
    client = tls.caller_context(Identity.load(fleet.folder("a")), "coordinator")
    older = fleet.server_context(fleet.of("b"), maximum_version=ssl.TLSVersion.TLSv1_2)
    with answered_by(older) as s, pytest.raises(ssl.SSLError):
        client.wrap_socket(s)


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN X509 CRL-----\n"])
def test_a_coordinator_revoked_by_a_list_that_came_later(fleet: TestFleet, damage: bytes) -> None:
    """The context was made before it; half a list changes nothing, and the whole one counts at
    once."""
    serves = coordinator(fleet)
    mine = Identity.load(fleet.folder("a"))
    client, server = tls.caller_context(mine, "coordinator"), tls.server_context(serves)
    if damage:
        (mine.folder / CRL).write_bytes(damage)
        with answered_by(server) as s, client.wrap_socket(s) as connection:
            assert connection.recv(1) == b"!"
    Fleet.open(fleet.fleet.folder).revoke(serves.name)
    (mine.folder / CRL).write_bytes((fleet.fleet.folder / CRL).read_bytes())
    with answered_by(server) as s, pytest.raises(PeerError, match="its certificate was revoked"):
        client.wrap_socket(s)
