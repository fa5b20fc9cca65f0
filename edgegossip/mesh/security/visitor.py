"""One connection at the door, from accept until it is refused or handed on. Never blocks; lives on the door's thread.

peeking --a ticket in the clear--> handed to our gRPC server, which speaks TLS with it
   |
shaking --knock--> knocking        everybody else speaks TLS with us, and so is told apart
   '------h2-----> refused: no ticket
"""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from edgegossip.mesh.security import client_hello, knock, tls
from edgegossip.mesh.security.names import Subject
from edgegossip.types import DecodeError, PeerError

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is at the other end of a connection, by its certificate."""

    subject: Subject
    serial: int
    address: str  # host:port


class Host(Protocol):
    """What a visitor needs of the door."""

    def admit(self, caller: Caller) -> None:
        """Raises PeerError when it may not even knock."""

    def redeem(self, server_name: str, visitor: Visitor) -> Caller | None:
        """Who was given the ticket in this name. Raises PeerError when it may not come in any more."""

    context: Callable[[], ssl.SSLContext]
    answer: Callable[[Caller, int], knock.Answer]  # to a caller whose list has this number
    # A list, from who was told the number of ours; raises PeerError when it is damaged, not newer or not our authority's.
    offered: Callable[[Caller, bytes, int], None]


class Left(Exception):
    """The visit is over and nothing is wrong."""


class Expected(Exception):
    """It has a ticket: `caller` is to be handed on."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller = caller


class Visitor:
    """`step` after every event, then `wants` tells what to wait for."""

    def __init__(self, connection: socket.socket, address: str, host: Host, deadline_s: float, fleet: str) -> None:
        self.socket, self.address, self._host, self._fleet = connection, address, host, fleet
        self.deadline_s = deadline_s
        self.caller: Caller | None = None
        self.doing = "the TLS handshake"
        self._tls: ssl.SSLSocket | None = None
        self._shaken = self._answered = self._tls_writes = False
        self._told = 0  # number of our revocation list
        self._needed = 0  # bytes of its ClientHello that we wait for
        self._read, self._written = b"", b""

    @property
    def who(self) -> str:
        return f"{self.caller.subject.name} at {self.address}" if self.caller else self.address

    @property
    def silent(self) -> bool:
        """Whether its ClientHello has not come yet, or not as a whole."""
        return self._tls is None

    @property
    def wants(self) -> int:
        """The event of its socket that would let us go on."""
        return _WRITE if self._tls_writes or self._written else _READ

    def step(self) -> None:
        """Do what can be done now. Raises Expected when it is to be handed on, Left at the end, PeerError with the reason when
        it is refused, OSError."""
        self._tls_writes = False
        try:
            if self._tls is None:
                self._tls = self.socket = self._peek()
            if not self._shaken:
                self._shake(self._tls)
            self._knock_on(self._tls)
        except (ssl.SSLWantReadError, BlockingIOError):
            pass
        except ssl.SSLWantWriteError:
            self._tls_writes = True
        except ssl.SSLError as error:
            if self._shaken and isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                raise Left from error
            raise PeerError(tls.words(error)) from error

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _peek(self) -> ssl.SSLSocket:
        """Look at its ClientHello without taking it. Raises BlockingIOError while it is not all there."""
        data = self.socket.recv(client_hello.MAX_BYTES, socket.MSG_PEEK)
        needed = client_hello.needed_bytes(data)
        if len(data) < needed and needed > self._needed:
            self._needed = needed  # if it is woken with less, the other side has ended: TLS will see that
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, needed)
            raise BlockingIOError
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        hello = client_hello.parse(data)
        # gRPC for Python cannot be told to refuse an older TLS, and its server takes the newest that a caller offers
        if hello is not None and hello.server_name and client_hello.TLS_1_3 in hello.versions:
            caller = self._host.redeem(hello.server_name, self)
            if caller is not None:
                raise Expected(caller)
        return self._host.context().wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def _shake(self, connection: ssl.SSLSocket) -> None:
        try:
            connection.do_handshake()
        except ConnectionError as error:
            raise PeerError(tls.words(error)) from error
        self._shaken = True
        self.caller = Caller(*tls.peer_of(connection.getpeercert(), self._fleet), self.address)
        self._host.admit(self.caller)
        protocol = connection.selected_alpn_protocol()
        if protocol == tls.H2:
            raise PeerError("it comes in without a knock, or too long after it")
        if protocol != tls.KNOCK:
            raise PeerError("it speaks another kind of TLS")
        self.doing = "its knock"

    def _knock_on(self, connection: ssl.SSLSocket) -> None:
        """Hello, answer, perhaps a list; see knock.py."""
        assert self.caller is not None
        while True:
            while self._written:
                self._written = self._written[connection.send(self._written) :]
            try:
                data = connection.recv(65_536)
            except ConnectionError as error:
                raise Left from error
            if not data:
                raise Left
            self._read += data
            try:
                self._hear(self.caller)
            except DecodeError as error:
                raise PeerError(str(error)) from error

    def _hear(self, caller: Caller) -> None:
        if self._answered:
            crl = knock.parse_blob(self._read)
            if crl is not None:
                if crl:
                    self._host.offered(caller, crl, self._told)
                raise Left
        elif len(self._read) >= knock.HELLO_BYTES:
            number = knock.parse_hello(self._read[: knock.HELLO_BYTES])
            self._read = self._read[knock.HELLO_BYTES :]
            answer = self._host.answer(caller, number)
            self._written, self._told = knock.answer(answer), answer.number
            self._answered = True
