"""Before the door: the port itself, and how many strangers may stand there at a time."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterable

from edgegossip.mesh.address import Address
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.security.rates import Buckets
from edgegossip.types import HostError


def listen(where: Address) -> socket.socket:
    """A listening socket that does not block. Raises HostError."""
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where.host, where.port))
        listener.listen(256)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno or 0).lower()
        raise HostError(f"cannot listen on {where}: {reason}; choose another port (0 takes any free one)") from error
    return listener


class Crowd:
    """The limits of who may be listened to at all."""

    def __init__(self, limits: MeshLimits) -> None:
        self._limits = limits
        self._rates = Buckets(limits.connections_per_s, limits.connection_burst)

    def why_not(self, host: str, strangers: Iterable[str]) -> str:
        """Why a newcomer from this host is not even listened to, empty when it is; `strangers` are the addresses, host:port,
        of those that have not finished the TLS handshake."""
        if not self._rates.take(host, time.monotonic()):
            return f"more than {self._limits.connections_per_s:g} connections a second"
        hosts = Counter(address.rpartition(":")[0] for address in strangers)
        of_host = hosts[str(Address(host, 0)).rpartition(":")[0]]
        if of_host >= self._limits.max_strangers_per_address:
            return f"{of_host} of its connections have not finished the TLS handshake"
        if hosts.total() >= self._limits.max_strangers:
            return f"{hosts.total()} connections have not finished the TLS handshake"
        return ""
