"""A plain TCP socket a pair of processes: blocking, TCP_NODELAY, into one buffer again and
again."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from edgegossip.lab.bench.mesh.peers import PATIENCE_S
from edgegossip.types import PeerError

_BUFFER_BYTES = 1 << 20


class TcpPeer:
    """The one whose name comes first in the alphabet connects to the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(PATIENCE_S)
        self._sockets: dict[str, socket.socket] = {}
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"

    def connect(self, peers: Mapping[str, str]) -> None:
        for peer, address in sorted(peers.items()):
            if self._name < peer:
                host, port = address.split(":")
                connected = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
            else:
                connected, _ = self._server.accept()
                connected.settimeout(PATIENCE_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[peer] = connected

    def send_frames(self, to: str, frames: int, size: int) -> float:
        data, link = bytes(size), self._sockets[to]
        began_s = time.perf_counter()
        for _ in range(frames):
            link.sendall(data)
        self._read(link, frames)  # one byte a frame
        return time.perf_counter() - began_s

    def take_frames(self, sender: str, frames: int, size: int) -> None:
        link = self._sockets[sender]
        for _ in range(frames):
            self._read(link, size)
            link.sendall(b"\0")

    def ping(self, to: str, times: int, size: int) -> list[float]:
        data, link, took_s = bytes(size), self._sockets[to], []
        for _ in range(times):
            began_s = time.perf_counter()
            link.sendall(data)
            self._read(link, size)
            took_s.append(time.perf_counter() - began_s)
        return took_s

    def pong(self, sender: str, times: int, size: int) -> None:
        data, link = bytes(size), self._sockets[sender]
        for _ in range(times):
            self._read(link, size)
            link.sendall(data)

    def close(self) -> None:
        for link in (*self._sockets.values(), self._server):
            link.close()

    def _read(self, link: socket.socket, size: int) -> None:
        while size:
            got = link.recv_into(self._buffer, min(size, len(self._buffer)))
            if not got:
                raise PeerError("the connection was closed")
            size -= got
