"""Bringing a revocation list to a board from outside the mesh: an operator's laptop knocks, as boards do (knock.py). Blocking."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from edgegossip.mesh import address as addresses
from edgegossip.mesh.security import knock, tls
from edgegossip.mesh.security.identity import Identity
from edgegossip.types import NodeId, PeerError
from edgegossip.untrusted import printable

# Gives a revocation list (DER) to who is at the other end of a connection; the number of the list that it has then.
Give: TypeAlias = Callable[[ssl.SSLSocket, bytes], int]


@dataclass(frozen=True, slots=True)
class Told:
    """What came of it, by the other side's own words afterwards."""

    name: NodeId
    number: int  # of the list that it goes by
    has_ours: bool  # whether that is ours, byte for byte; of a coordinator, which tells no more, by its number
    refusal: str = ""  # why a board would not have let us in, if so


def announce(identity: Identity, where: str, timeout_s: float = 10.0, *, to_coordinator: Give | None = None) -> Told:
    """Give the identity's revocation list to whatever board of the fleet listens at `where` (host:port), which tells the others,
    or with `to_coordinator` to a coordinator. A board that was given it is asked again: a knock has no answer to a list. Each of
    the two visits takes `timeout_s` at most, however slowly the other side speaks.

    Raises ConfigError for a bad address, PeerError when nobody of the fleet answers there."""
    address = addresses.parse(where, "address")
    context = tls.client_context(identity)
    context.check_hostname = False  # any board of the fleet will do; `peer_of` sees that it is one
    try:
        told, given = _visit(context, address, timeout_s, identity, to_coordinator)
        return _visit(context, address, timeout_s, identity, None)[0] if given else told
    except ssl.SSLError as error:
        raise PeerError(f"{where}: {tls.words(error)}") from error
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else "it does not answer"
        raise PeerError(f"{where}: {reason}") from error
    except PeerError as error:
        raise PeerError(f"{where}: {error}") from error


def _visit(
    context: ssl.SSLContext, where: addresses.Address, timeout_s: float, identity: Identity, give: Give | None
) -> tuple[Told, bool]:
    """What it goes by when we come, and whether we gave it ours."""
    with (
        socket.create_connection((where.host, where.port), timeout_s) as plain,
        until(plain, timeout_s),
        context.wrap_socket(plain) as s,
    ):
        subject, _ = tls.peer_of(s.getpeercert(), identity.fleet)
        present = identity.revocations.present
        if subject.role == "coordinator" and give is not None:
            has = give(s, present.der)
            return Told(subject.name, has, has == present.number), False
        if subject.role != "board" or s.selected_alpn_protocol() != tls.KNOCK:
            raise PeerError("what listens there is no board")
        with suppress(ssl.SSLEOFError, ConnectionError):  # it refused our certificate: why is there to be read
            s.sendall(knock.hello(0))  # as if we knew no list, so that it shows its own
        answer = _answer(s)
        newer = present.number > answer.number
        s.sendall(knock.blob(present.der if newer else b""))
        with suppress(OSError):
            s.recv(1)  # until it has closed: it has looked at the list then
        refusal = "" if answer.welcome else printable(answer.text)
        return Told(subject.name, answer.number, answer.crl == present.der, refusal), newer


@contextmanager
def until(connection: socket.socket, timeout_s: float) -> Iterator[None]:
    """Ends a connection that takes longer: the limit of a socket is one of each read and write, and who sends a byte every few
    seconds never meets it. Through a second descriptor, since TLS takes the first one over. Raises TimeoutError."""
    ended = threading.Event()
    with connection.dup() as same:

        def end() -> None:
            ended.set()
            with suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, PeerError) as error:
            if ended.is_set():
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()
            timer.join()


def _answer(s: ssl.SSLSocket) -> knock.Answer:
    data = b""
    while (answer := knock.parse_answer(data)) is None:
        more = s.recv(65_536)
        if not more:
            raise PeerError("it ended the connection without a word")
        data += more
    return answer
