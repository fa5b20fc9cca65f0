"""Servers for a browser or a scraper, which anybody who reaches them may ask: they read only, and
nothing in a request names a file.

A page of another site that a user has open could make its name point here (DNS rebinding) and read
what is served; so requests that ask for another host than this one are refused."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from typing_extensions import override

from edgegossip.security.https import MemberHandler, MemberServer
from edgegossip.security.limits import ProcessorShare
from edgegossip.untrusted import request_target

REQUEST_S = 30.0  # a client has so long to say what it wants, and to take it


class OpenServer(MemberServer):
    """Listens at `host`:`port`, without TLS; port 0 takes a free one. Connections have the places
    and the times of every server of ours; all of them together take `share` of one core. Raises
    HostError."""

    def __init__(self, host: str, port: int, handler: Callable[..., Any], share: float = 1.0) -> None:
        self.host = host
        self._share, self._paying, self._paid = ProcessorShare(share), threading.Lock(), threading.local()
        self._over = threading.Event()
        super().__init__(host, port, handler, None, REQUEST_S)

    def pay(self) -> None:
        """Count what this thread has taken of the processor since it last did, and rest until all
        threads together may go on."""
        used_s = time.thread_time()
        with self._paying:
            rest_s = self._share.rest_s(used_s - getattr(self._paid, "s", 0.0), time.monotonic())
        self._paid.s = used_s
        self._over.wait(rest_s)

    @override
    def shutdown(self) -> None:
        self._over.set()  # nobody rests any more
        super().shutdown()

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not hasattr(self._paid, "s"):
            self._paid.s = time.thread_time()  # what its thread did before is another's
        super().process_request(request, client_address)
        self.pay()  # who connects again and again waits in the kernel's queue

    @override
    def close_request(self, request: Any) -> None:
        super().close_request(request)
        self.pay()

    @property
    def is_on_loopback(self) -> bool:
        """Whether this machine alone reaches it."""
        return ipaddress.ip_address(str(self.server_address[0])).is_loopback

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.server_address[1]}/"

    def may_ask(self, host: str | None) -> bool:
        """Tell whether a Host header names this server: by an address, as localhost, by the name it
        was given or the machine's own."""
        if host is None:
            return False
        asked = request_target(f"//{host}")
        name = (asked.hostname if asked else None) or ""
        if name in ("localhost", self.host.lower(), *self._own_names()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _own_names(self) -> list[str]:
        """The machine's own, and on its network the one that mDNS gives it: a Pi is
        raspberrypi.local to everybody. Not on loopback, where nobody comes by that name and another
        machine of the network could claim it."""
        name = socket.gethostname().lower()
        label = name.partition(".")[0]
        return [name, f"{label}.local"] if not self.is_on_loopback and label not in ("", "localhost") else [name]


class OpenHandler(MemberHandler, ABC):
    """Answers GET and HEAD; a subclass has `look`."""

    server: OpenServer
    server_version, sys_version = "edgegossip", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer if the host that was asked for is this one."""
        if self.server.may_ask(self.headers.get("Host")):
            self.look()
        else:
            self.send(HTTPStatus.FORBIDDEN, b"this server is not the host that was asked for\n")

    do_HEAD = do_GET

    @override
    def handle_one_request(self) -> None:
        self.server.pay()  # before another request is read: a client may send them without an end
        super().handle_one_request()

    @abstractmethod
    def look(self) -> None:
        """Answer one request, by `send`."""

    def send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        """Send a whole answer, or its head alone where that is asked for."""
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
