"""Our own address, where nobody told it: what others reach us at, from the worst guess to the surest.

A board that listens on all addresses of its machine does not know which of them the others can use. Who joins through it says
which one it reached. A board on the same machine says 127.0.0.1, which is of no use to anybody else; a tunnel or a forwarded
port has an address that this machine does not have. So a better guess replaces a worse one, and never the other way round.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from edgegossip.mesh import address as addresses
from edgegossip.mesh.address import Address
from edgegossip.types import ConfigError

_UNKNOWN, _LOOPBACK, _SAID, _OURS = range(4)


class Whereabouts:
    """`address` is what we have so far, empty for nothing. `port`: we listen there on all addresses of this machine; None: our
    address is certain. `is_own` tells whether a numeric host is an address of this machine."""

    def __init__(self, address: str, port: int | None = None, is_own: Callable[[str], bool] | None = None) -> None:
        self.address, self._port, self._is_own = address, port, is_own or has_address

    def reached(self, at: str, caller: str) -> bool:
        """Somebody at the host `caller` reached us, it says, at `at`. Whether that is our address from now on."""
        where = _parse(at)
        if where is None or (_is_loopback(where) and not _is_loopback(Address(caller, 1))):
            return False
        return self._take(where)

    def beside(self, others: Iterable[str]) -> bool:
        """The addresses of other members: one on this machine has a host that is ours, too. Whether it is from now on."""
        if self._port is None or self._rank(_parse(self.address)) > _LOOPBACK:
            return False
        found = (Address(where.host, self._port) for text in others if (where := _parse(text)) is not None)
        return any(self._rank(where) == _OURS and self._take(where) for where in found)

    def _take(self, where: Address) -> bool:
        if self._port is None or self._rank(where) <= self._rank(_parse(self.address)):
            return False
        self.address = str(where)
        return True

    def _rank(self, where: Address | None) -> int:
        if where is None:
            return _UNKNOWN
        if _is_loopback(where):
            return _LOOPBACK
        return _OURS if where.is_numeric and where.port == self._port and self._is_own(where.host) else _SAID


def has_address(host: str) -> bool:
    """Whether a numeric address is one of this machine's: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _is_loopback(where: Address) -> bool:
    return where.host == "localhost" or where.is_loopback


def _parse(text: str) -> Address | None:
    try:
        return addresses.parse(text, "address") if text else None
    except ConfigError:
        return None
