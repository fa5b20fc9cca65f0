"""What systemd hears of a board's process (sd_notify(3)): that it is ready, what it does, and, as
its watchdog, that its loop still turns. Elsewhere nobody listens and nothing is sent. No package:
it is one datagram.

A run in progress is a file in the service's runtime directory, touched while the run goes on: the
board's security updates wait for its end (deploy/rootfs/usr/lib/edgegossip/upgrades.py)."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from typing_extensions import override

from edgegossip.telemetry.records import EventRecord, Record
from edgegossip.telemetry.sinks import RecordSink

TRAINING = "training"  # in the runtime directory
EVERY_S = 2.0  # between two signs of life; the shortest watchdog that makes sense is some times longer


class Service:
    """Tells systemd of this process. Thread-safe; `alive` is cheap enough for every turn of a
    loop."""

    def __init__(self, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # @: Linux's abstract sockets
        self._clock, self._next_s, self._lock = clock, clock(), threading.Lock()
        runtime = environ.get("RUNTIME_DIRECTORY", "")
        self._mark, self._mark_s = Path(runtime) / TRAINING if runtime else None, clock()

    @property
    def listens(self) -> bool:
        """Whether systemd wants to hear of this process."""
        return bool(self._address)

    def ready(self) -> None:
        """Say that the process is up."""
        self._send("READY=1\nWATCHDOG=1")

    def alive(self) -> None:
        """Say that the loop turns; sent now and then."""
        if self._address and self._clock() >= self._next_s:
            with self._lock:
                self._next_s = self._clock() + EVERY_S
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Show one line, as `systemctl status` shows it."""
        self._send("STATUS=" + " ".join(text.split()))

    def training(self) -> None:
        """Say that a run goes on, for the programs of the image; kept fresh now and then."""
        if self._mark is not None and self._clock() >= self._mark_s:
            self._mark_s = self._clock() + EVERY_S
            with suppress(OSError):
                self._mark.touch()

    def rests(self) -> None:
        """Say that no run goes on."""
        if self._mark is not None:
            with suppress(OSError):
                self._mark.unlink(missing_ok=True)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
                s.setblocking(False)
                s.sendto(text.encode(), self._address)
        except OSError:
            pass  # its queue is full or it is being restarted: the next sign of life is seconds away


@functools.cache
def service() -> Service:
    """Return the service of this process."""
    return Service()


class ServiceSink(RecordSink):
    """Takes every record of the board's loop for a sign of life: a round, or every 5 s for whom it
    waits. From its making to its closing a run goes on."""

    def __init__(self, to: Service) -> None:
        super().__init__()
        self._service = to
        to.training()

    @override
    def write(self, record: Record) -> None:
        self._service.alive()
        self._service.training()
        if isinstance(record, EventRecord):
            self._service.status(record.text)

    @override
    def close(self) -> None:
        self._service.rests()
