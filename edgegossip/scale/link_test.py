"""The rate of a TCP connection between two machines, both ways, and its round trip: `calibrate --serve` at one end, a caller at
the other. For an operator's own network: nobody is asked who he is, and a call gets at most MAX_S seconds.

A call is one letter and an 8-byte count: "S" sends that many bytes and gets a letter back, "R" gets that many bytes, "P" has none
and gets a letter back.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

from edgegossip.types import HostError, PeerError

PORT = 7733
MAX_S = 20.0
MAX_BYTES = 64 << 20
_CALL = struct.Struct("!cQ")
_BLOCK = bytes(1 << 16)
_PINGS = 10
_AIM_S = 1.5  # that a measured transfer takes


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Of one connection, as TCP sees it."""

    up_bits_per_s: float
    down_bits_per_s: float
    round_trip_s: float


def measure(host: str, port: int) -> LinkRate:
    """To a machine on which `edgegossip calibrate --serve` runs. Raises PeerError."""
    try:
        with socket.create_connection((host, port), timeout=5.0) as link:
            link.settimeout(MAX_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            round_trip = min(_timed(link, b"P", 0) for _ in range(_PINGS))
            return LinkRate(_rate(link, b"S"), _rate(link, b"R"), round_trip)
    except (OSError, EOFError) as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
        raise PeerError(
            f"cannot measure the link to {host}:{port}: {reason}; run `edgegossip calibrate --serve {port}` there first"
        ) from None


def serve(listener: socket.socket, until_s: float) -> int:
    """Answer calls one after the other until `until_s` (time.monotonic); how many callers there were."""
    callers = 0
    while (left_s := until_s - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            link, _ = listener.accept()
        except TimeoutError:
            break
        callers += 1
        with link:
            try:
                link.settimeout(MAX_S)
                _answer(link, time.monotonic() + MAX_S)
            except (OSError, EOFError):
                continue  # that caller is gone; another one may come
    return callers


def listen(port: int) -> socket.socket:
    """On every address. Raises HostError for a port that is taken."""
    try:
        return socket.create_server(("", port), backlog=4)
    except OSError as error:
        raise HostError(
            f"cannot listen on port {port}: {(error.strerror or str(error)).lower()}; name another one"
        ) from None


def _answer(link: socket.socket, until_s: float) -> None:
    while time.monotonic() < until_s:
        letter, size = _CALL.unpack(_read(link, _CALL.size))
        size = min(size, MAX_BYTES)
        if letter == b"R":
            _send(link, size)
        elif letter in (b"S", b"P"):
            _drop(link, size if letter == b"S" else 0)
            link.sendall(letter)
        else:
            return


def _rate(link: socket.socket, letter: bytes) -> float:
    """Bits/s, of a transfer that is long enough to say something."""
    size = 1 << 18
    while True:
        seconds = max(_timed(link, letter, size), 1e-6)
        if seconds >= _AIM_S / 3 or size >= MAX_BYTES:
            return 8 * size / seconds
        size = min(MAX_BYTES, max(2 * size, int(size * _AIM_S / seconds)))


def _timed(link: socket.socket, letter: bytes, size: int) -> float:
    start = time.perf_counter()
    link.sendall(_CALL.pack(letter, size))
    if letter == b"R":
        _drop(link, size)
    else:
        if letter == b"S":
            _send(link, size)
        _read(link, 1)
    return time.perf_counter() - start


def _send(link: socket.socket, size: int) -> None:
    while size > 0:
        link.sendall(_BLOCK[: min(size, len(_BLOCK))])
        size -= len(_BLOCK)


def _drop(link: socket.socket, size: int) -> None:
    room = bytearray(1 << 16)
    while size > 0:
        got = link.recv_into(room, min(size, len(room)))
        if not got:
            raise EOFError("the other end closed the connection")
        size -= got


def _read(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise EOFError("the other end closed the connection")
        data += piece
    return data
