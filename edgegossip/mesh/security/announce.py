"""Bringing a revocation list to a board from outside the mesh: an operator's laptop knocks, as boards do (knock.py). Blocking."""

from __future__ import annotations

import os
import socket
import ssl

from edgegossip.mesh import address as addresses
from edgegossip.mesh.security import knock, tls
from edgegossip.mesh.security.identity import Identity
from edgegossip.types import NodeId, PeerError


def announce(identity: Identity, where: str, timeout_s: float = 10.0) -> tuple[NodeId, int]:
    """Give the identity's revocation list to whatever board of the fleet listens at `where` (host:port); it tells the others.
    The board's name and the number of the list that it has now.

    Raises ConfigError for a bad address, PeerError when no board of the fleet answers there."""
    address = addresses.parse(where, "address")
    context = tls.client_context(identity)
    context.check_hostname = False  # any board of the fleet will do; `peer_of` sees that it is one
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as plain:
            with context.wrap_socket(plain) as s:
                return _give(s, identity)
    except ssl.SSLError as error:
        raise PeerError(f"{where}: {tls.words(error)}") from error
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else "it does not answer"
        raise PeerError(f"{where}: {reason}") from error
    except PeerError as error:
        raise PeerError(f"{where}: {error}") from error


def _give(s: ssl.SSLSocket, identity: Identity) -> tuple[NodeId, int]:
    subject, _ = tls.peer_of(s.getpeercert(), identity.fleet)
    if subject.role != "board" or s.selected_alpn_protocol() != tls.KNOCK:
        raise PeerError("what listens there is no board")
    present = identity.revocations.present
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
