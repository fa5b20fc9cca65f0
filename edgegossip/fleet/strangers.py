"""Who stands at the port where boards check in and has not shown a certificate yet. Thread-safe.

They have a bound of their own, so that connections that say nothing take no place of a board's; and where it is reached, one of
those goes, and not the newcomer (`Crowd`, as at the mesh's door)."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.security.entrance import Crowd

HANDSHAKE_S = 10.0
MAX_STRANGERS, MAX_OF_ONE = 64, 32  # of one address: many boards may be behind one


class Stranger:
    """A connection before its handshake is done."""

    def __init__(self, connection: socket.socket, host: str, port: int) -> None:
        self.address, self.silent = f"[{host}]:{port}", True
        self.deadline_s = time.monotonic() + HANDSHAKE_S
        self._connection = connection.dup()  # TLS takes the other one

    def listen(self, connection: socket.socket) -> None:
        """Until it says something. Raises OSError."""
        connection.settimeout(HANDSHAKE_S)
        if not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError
        self.silent = False

    def leave(self) -> None:
        """Its thread finds the connection closed."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


class Strangers:
    """All of them."""

    def __init__(self) -> None:
        limits = MeshLimits(handshake_s=HANDSHAKE_S, max_strangers=MAX_STRANGERS, max_strangers_per_address=MAX_OF_ONE)
        self._crowd, self._lock, self._there = Crowd(limits), threading.Lock(), list[Stranger]()

    def come(self, connection: socket.socket, host: str, port: int) -> Stranger | None:
        """A newcomer, for whom another may have to go; None when its address asks too often."""
        with self._lock:
            now_s = time.monotonic()
            if self._crowd.why_not(host, now_s):
                return None
            found = self._crowd.who_makes_way(host, self._there, now_s)
            if found is not None:
                found[0].leave()
                self._there.remove(found[0])
            stranger = Stranger(connection, host, port)
            self._there.append(stranger)
            return stranger

    def done(self, stranger: Stranger) -> None:
        """It has shown its certificate, or is gone."""
        with self._lock:
            if stranger in self._there:  # or it had to go
                self._there.remove(stranger)
            stranger.close()
