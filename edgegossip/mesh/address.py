"""Addresses of the mesh: `host:port`, `[ipv6]:port`; checked, resolved and tried before gRPC sees
them.

Names are resolved with the system's own resolver at every attempt, so that `.local` names and
boards with a new lease work.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from edgegossip.security.limits import cannot_listen, endpoint
from edgegossip.types import ConfigError, HostError, PeerError, UsageError

_lock = threading.Lock()
_looking_up: dict[tuple[str, int], Future[list[Any]]] = {}  # names and ports that are being resolved


@dataclass(frozen=True, slots=True)
class Address:
    """Says where to listen or to connect."""

    host: str  # a name, an IPv4 or an IPv6 address without brackets
    port: int

    def __str__(self) -> str:
        return endpoint(self.host, self.port)

    @property
    def is_numeric(self) -> bool:
        """Whether the host is an IP address, and no name."""
        try:
            ipaddress.ip_address(self.host.partition("%")[0])
        except ValueError:
            return False
        return True

    @property
    def is_loopback(self) -> bool:
        """Whether it is an IP address that only this machine can reach."""
        return self.is_numeric and ipaddress.ip_address(self.host.partition("%")[0]).is_loopback

    @property
    def is_local(self) -> bool:
        """Whether it says so itself, without a resolver, that only this machine can reach it."""
        return self.host == "localhost" or self.is_loopback


def parse(text: str, what: str, *, any_port: bool = False) -> Address:
    """Read `text` as an Address; `any_port` allows port 0. Raises ConfigError that names `what`.

    >>> parse("[fd00::1]:7700", "--peer").host
    'fd00::1'
    """
    host, colon, port_text = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{what} {text!r} is not an address: write an IPv6 address in brackets, as [::1]:7700")
    lowest = 0 if any_port else 1
    if not colon or not host or any(c.isspace() or c == "/" for c in host):
        raise ConfigError(f"{what} {text!r} is not an address: write host:port, for example 127.0.0.1:7200")
    if not (port_text.isascii() and port_text.isdigit() and lowest <= int(port_text) <= 65_535):
        raise ConfigError(f"{what} {text!r} has no valid port: write host:port with a port from {lowest} to 65535")
    return Address(host, int(port_text))


def parse_host(text: str, what: str, port: int) -> Address:
    """Read the same where the port may be left out and is then `port`: host, host:port, ipv6,
    [ipv6], [ipv6]:port."""
    if (address := Address(text, port)).is_numeric:
        return address
    return parse(f"{text}:{port}" if ":" not in text or text.endswith("]") else text, what)


def listen_address(text: str, *, insecure: bool) -> Address:
    """Return the numeric address to listen on, known to be free a moment ago.

    Raises ConfigError for a malformed text, UsageError for an address that others can reach without
    `insecure`, and HostError when this machine cannot listen there.
    """
    wanted = parse(text, "listen address", any_port=True)
    try:
        found = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise HostError(
            f"cannot listen on {text}: the name {wanted.host!r} does not resolve ({_words(error)}); "
            "use this machine's IP address"
        ) from error
    family, _, _, _, sockaddr = found[0]
    address = Address(str(sockaddr[0]), wanted.port)
    if not insecure and not address.is_loopback:
        raise UsageError(
            f"refusing to listen on {address} without TLS, because anybody on that network could join the run: "
            "give the board an identity (`edgegossip fleet add NAME`, then --identity DIR), listen on 127.0.0.1, or say "
            "--insecure (insecure=True) on a network you trust"
        )
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: a closed connection must not count
        try:
            probe.bind(sockaddr)
            probe.listen(1)  # a second listener on the port is only noticed here
        except OSError as error:
            raise cannot_listen(address.host, address.port, error) from error
    return address


def is_here(address: Address) -> bool:
    """Return whether only this machine can mean itself by it: loopback, or a name for it. A name
    that does not resolve now is not."""
    if address.is_numeric:
        return address.is_loopback or ipaddress.ip_address(address.host.partition("%")[0]).is_unspecified
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(Address(str(sockaddr[0]), address.port).is_loopback for *_, sockaddr in found)


async def resolve(address: Address, attempt: int) -> Address:
    """Return a numeric address for `address`; attempts take turns when a name has several. Raises
    PeerError when it has none."""
    if address.is_numeric:
        return address
    try:
        found = await asyncio.wrap_future(_look_up(address.host, address.port))
    except (OSError, UnicodeError) as error:
        raise PeerError(f"the name {address.host!r} does not resolve ({_words(error)})") from error
    hosts = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    return Address(hosts[attempt % len(hosts)], address.port)


def _look_up(host: str, port: int) -> Future[list[Any]]:
    """`getaddrinfo` in a thread of its own, one for a name at a time. A name server that is out of
    reach takes half a minute: it must not fill an executor that others use, and nobody is to wait
    for it at the end, as for an executor's threads."""
    with _lock:
        if (under_way := _looking_up.get((host, port))) is not None:
            return under_way
        future = _looking_up[host, port] = Future[list[Any]]()
        future.set_running_or_notify_cancel()  # whoever asks may give up, and the next one still hears of it
    threading.Thread(target=_run_getaddrinfo, args=(future, host, port), daemon=True, name="name lookup").start()
    return future


def _run_getaddrinfo(future: Future[list[Any]], host: str, port: int) -> None:
    try:
        found: list[Any] | Exception = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except Exception as error:
        found = error
    with _lock:
        del _looking_up[host, port]
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)


def grpc_target(address: Address) -> str:
    """Return a numeric address as a gRPC target, which needs no further resolving."""
    scheme = "ipv6" if ":" in address.host else "ipv4"
    return f"{scheme}:{address}"


def of_caller(peer: str) -> str:
    """Return host:port of who called us without TLS, from gRPC's own name of it, such as
    ipv6:%5B::1%5D:7700."""
    return unquote(peer).partition(":")[2]


def _words(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return str(text).lower()
