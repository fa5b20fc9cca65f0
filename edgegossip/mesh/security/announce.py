"""Bringing a revocation list to a board from outside the mesh: an operator's laptop knocks, as boards do (knock.py). Blocking."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from typing import TypeAlias

from edgegossip.mesh import address as addresses
from edgegossip.mesh.security import knock, tls
from edgegossip.mesh.security.identity import Identity
from edgegossip.types import NodeId, PeerError

# Gives a revocation list (DER) to who is at the other end of a connection; the number of the list that it has then.
Give: TypeAlias = Callable[[ssl.SSLSocket, bytes], int]


def announce(
    identity: Identity, where: str, timeout_s: float = 10.0, *, to_coordinator: Give | None = None
) -> tuple[NodeId, int]:
    """Give the identity's revocation list to whatever board of the fleet listens at `where` (host:port), which tells the others,
    or with `to_coordinator` to a coordinator. Its name and the number of the list that it has now.

    Raises ConfigError for a bad address, PeerError when nobody of the fleet answers there."""
    address = addresses.parse(where, "address")
    context = tls.client_context(identity)
    context.check_hostname = False  # any board of the fleet will do; `peer_of` sees that it is one
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as plain:
            with context.wrap_socket(plain) as s:
                return _give(s, identity, to_coordinator)
    except ssl.SSLError as error:
        raise PeerError(f"{where}: {tls.words(error)}") from error
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else "it does not answer"
        raise PeerError(f"{where}: {reason}") from error
    except PeerError as error:
        raise PeerError(f"{where}: {error}") from error


def _give(s: ssl.SSLSocket, identity: Identity, to_coordinator: Give | None) -> tuple[NodeId, int]:
    subject, _ = tls.peer_of(s.getpeercert(), identity.fleet)
    present = identity.revocations.present
    if subject.role == "coordinator" and to_coordinator is not None:
        return subject.name, to_coordinator(s, present.der)
    if subject.role != "board" or s.selected_alpn_protocol() != tls.KNOCK:
        raise PeerError("what listens there is no board")
    s.sendall(knock.hello(present.number))
    data = b""
    while (answer := knock.parse_answer(data)) is None:
        more = s.recv(65_536)
        if not more:
            raise PeerError("it ended the connection without a word")
        data += more
    newer = present.number > answer.number
    s.sendall(knock.blob(present.der if newer else b""))
    s.recv(1)  # until it has closed: it has the list then
    return subject.name, max(present.number, answer.number)
