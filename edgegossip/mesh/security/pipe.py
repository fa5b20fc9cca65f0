"""One connection behind the door: bytes between a peer's TLS socket and our gRPC server's local one. Never blocks.

What one side cannot take yet is kept, at most one scratch buffer full, and the other side is not read meanwhile, so that TCP and
HTTP/2 hold the sender back.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

_WANT = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


@dataclass(slots=True)
class Way:
    """One direction."""

    kept: bytes = b""  # read, not written yet
    ended: bool = False  # the source has no more


class Pipe:
    """Both directions. After each `step` the door asks which events to wait for."""

    def __init__(self, tls: ssl.SSLSocket, local: socket.socket) -> None:
        self.tls, self.local = tls, local
        self.in_, self.out = Way(), Way()
        self.heard = False  # anything from the peer
        self.more = False  # OpenSSL holds bytes that no event will tell of

    @property
    def finished(self) -> bool:
        """Nothing can come of it any more: our server ended it and all that it said is written, or the peer is gone and
        our server has all of it."""
        return any(way.ended and not way.kept for way in (self.in_, self.out))

    def step(self, scratch: memoryview) -> None:
        """Move what can be moved. Raises OSError when a side broke."""
        self._move(self.tls, self.local, self.in_, scratch)
        self._move(self.local, self.tls, self.out, scratch)
        self.heard = self.heard or bool(self.in_.kept)
        self.more = not self.in_.kept and not self.in_.ended and self.tls.pending() > 0

    def _move(self, source: socket.socket, sink: socket.socket, way: Way, scratch: memoryview) -> None:
        if way.kept:
            way.kept = _send(sink, memoryview(way.kept))
            if way.kept:
                return
        if way.ended:
            return
        filled = self._fill(source, way, scratch)
        if filled:
            if source is self.tls:
                self.heard = True
            way.kept = _send(sink, scratch[:filled])

    def _fill(self, source: socket.socket, way: Way, scratch: memoryview) -> int:
        """Read as much as there is: OpenSSL hands out 16 KiB at most at a time."""
        filled = 0
        try:
            while filled < len(scratch):
                count = source.recv_into(scratch[filled:])
                if not count:
                    way.ended = True
                    break
                filled += count
        except _WANT:
            pass
        except (ssl.SSLError, ConnectionError):
            way.ended = True  # broken off; what came before still counts
        return filled

    @property
    def reads_tls(self) -> bool:
        return not self.in_.kept and not self.in_.ended

    @property
    def reads_local(self) -> bool:
        return not self.out.kept and not self.out.ended


def _send(sink: socket.socket, data: memoryview) -> bytes:
    """What could not be written."""
    sent = 0
    try:
        while sent < len(data):
            sent += sink.send(data[sent:])
    except _WANT:
        pass
    return bytes(data[sent:])
