"""TCP relays between boards: one delivers answers late, one breaks a connection."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress

from tests.mesh.support import PATIENCE_S


class Relay:
    """Relays connections to `address` as `_accept` of a subclass says."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._target = (host, int(port))
        self._closing = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        self._closing.set()
        for s in [self._server, *self._sockets]:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for s in [self._server, *self._sockets]:
            s.close()

    def _start(self, task, *arguments: object) -> None:
        self._threads.append(threading.Thread(target=task, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        raise AssertionError("a relay says what it does with connections")


class SlowAnswers(Relay):
    """Relays connections to `address`; what comes back arrives `delay_s` later, in order, the end
    of the stream included."""

    def __init__(self, address: str, delay_s: float) -> None:
        self._delay_s = delay_s
        super().__init__(address)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self._sockets.append(near)
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.shutdown(socket.SHUT_RDWR)
                    continue
                self._sockets.append(far)
                due: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                self._start(self._read, near, lambda data, far=far: self._deliver(far, data))
                self._start(self._read, far, lambda data, due=due: due.put((time.monotonic() + self._delay_s, data)))
                self._start(self._deliver_late, due, near)

    def _read(self, source: socket.socket, sink) -> None:
        data = b"?"
        while data:
            try:
                data = source.recv(65_536)
            except OSError:
                data = b""
            sink(data)

    def _deliver_late(self, due: queue.SimpleQueue[tuple[float, bytes]], sink: socket.socket) -> None:
        data = b"?"
        while data:
            due_s, data = due.get()
            self._closing.wait(max(0.0, due_s - time.monotonic()))
            self._deliver(sink, data)

    def _deliver(self, sink: socket.socket, data: bytes) -> None:
        with suppress(OSError):
            if data:
                sink.sendall(data)
            else:
                sink.shutdown(socket.SHUT_WR)


class Cut(Relay):
    """Relays connections to `address`, and breaks the one that brings `after_bytes` there; after as
    many more the next one, `times` in all."""

    def __init__(self, address: str, after_bytes: int, times: int = 1) -> None:
        self._after = self._left = after_bytes
        self._times, self.cuts = times, 0
        super().__init__(address)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                self._start(self._copy, near, far, True)
                self._start(self._copy, far, near, False)

    def _copy(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
                if counted and self.cuts < self._times:
                    self._left -= len(data)
                    if self._left <= 0:
                        self._left, self.cuts = self._after, self.cuts + 1
                        break
        for s in (source, sink):
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
