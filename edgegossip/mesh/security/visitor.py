"""One connection at the door, from accept to end: TLS handshake, then a knock or gRPC. Never blocks; lives on the door's thread.

shaking --h2--> piped
   \\--knock--> knocking
"""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edgegossip.mesh.security import knock, tls
from edgegossip.mesh.security.names import Subject
from edgegossip.mesh.security.pipe import Pipe
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

    scratch: memoryview

    def admit(self, caller: Caller) -> None:
        """Raises PeerError when it may not come in."""

    def connect(self, caller: Caller) -> tuple[socket.socket, str]:
        """A connection to our gRPC server, and what that calls it. Raises OSError."""

    answer: Callable[[Caller, int], knock.Answer]  # to a caller whose list has this number
    offered: Callable[[Caller, bytes], None]  # a list; raises PeerError when it is damaged or not our authority's


class Left(Exception):
    """The visit is over and nothing is wrong."""


class Visitor:
    """`step` after every event, then `wants` tells the sockets and events to wait for."""

    def __init__(self, connection: ssl.SSLSocket, address: str, host: Host, deadline_s: float, fleet: str) -> None:
        self.tls, self.address, self._host, self._fleet = connection, address, host, fleet
        self.deadline_s: float | None = deadline_s  # None: gRPC's own limits hold
        self.caller: Caller | None = None
        self.doing = "the TLS handshake"
        self.local: socket.socket | None = None
        self.key = ""  # what our gRPC server calls it
        self._pipe: Pipe | None = None
        self._shaken = self._answered = self._tls_writes = False
        self._read, self._written = b"", b""

    @property
    def who(self) -> str:
        return f"{self.caller.subject.name} at {self.address}" if self.caller else self.address

    @property
    def more(self) -> bool:
        return self._pipe is not None and self._pipe.more

    def wants(self) -> dict[socket.socket, int]:
        """Sockets and the events that would let us go on."""
        if self._pipe is None or self.local is None:
            events = _WRITE if self._tls_writes or self._written else _READ
            return {self.tls: events}
        pipe = self._pipe
        return {
            self.tls: _READ * pipe.reads_tls | _WRITE * bool(pipe.out.kept),
            self.local: _READ * pipe.reads_local | _WRITE * bool(pipe.in_.kept),
        }

    def step(self) -> None:
        """Do what can be done now. Raises Left at the end, PeerError with the reason when it is refused, OSError."""
        self._tls_writes = False
        try:
            if not self._shaken:
                self._shake()
            if self._pipe is not None:
                self._pipe_on()
            else:
                self._knock_on()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._tls_writes = True
        except ssl.SSLError as error:
            if self._shaken and isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
                raise Left from error
            raise PeerError(tls.words(error)) from error

    def close(self) -> None:
        for connection in (self.tls, self.local):
            if connection is not None:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                connection.close()

    def _shake(self) -> None:
        try:
            self.tls.do_handshake()
        except ConnectionError as error:
            raise PeerError(tls.words(error)) from error
        self._shaken = True
        protocol = self.tls.selected_alpn_protocol()
        caller = Caller(*tls.peer_of(self.tls.getpeercert(), self._fleet), self.address)
        self.caller = caller
        self._host.admit(caller)
        if protocol == tls.KNOCK:
            self.doing = "its knock"
        elif protocol == tls.H2:
            self.local, self.key = self._host.connect(caller)
            self._pipe = Pipe(self.tls, self.local)
            self.deadline_s = None
        else:
            raise PeerError("it speaks another kind of TLS")

    def _pipe_on(self) -> None:
        assert self._pipe is not None
        self._pipe.step(self._host.scratch)
        if self._pipe.finished:
            if self._pipe.out.ended and not self._pipe.heard:
                raise PeerError("it said nothing after the TLS handshake")
            raise Left

    def _knock_on(self) -> None:
        """Hello, answer, perhaps a list; see knock.py."""
        assert self.caller is not None
        while True:
            while self._written:
                self._written = self._written[self.tls.send(self._written) :]
            try:
                data = self.tls.recv(65_536)
            except ConnectionError as error:
                raise Left from error
            if not data:
                raise Left
            self._read += data
            try:
                self._hear()
            except DecodeError as error:
                raise PeerError(str(error)) from error

    def _hear(self) -> None:
        assert self.caller is not None
        if self._answered:
            crl = knock.parse_blob(self._read)
            if crl is not None:
                if crl:
                    self._host.offered(self.caller, crl)
                raise Left
        elif len(self._read) >= knock.HELLO_BYTES:
            number = knock.parse_hello(self._read[: knock.HELLO_BYTES])
            self._read = self._read[knock.HELLO_BYTES :]
            self._written = knock.answer(self._host.answer(self.caller, number))
            self._answered = True
