"""The rate of a TCP connection between two machines, both ways, its round trip, and what the other
end says of its clock and software: `calibrate --serve` at one end, `calibrate --peer` or
`doctor --peer` at the other. For an operator's own network: nobody is asked who he is. After MAX_S
seconds a caller may ask for nothing more, and after LONGEST_S it is cut off, whatever it does: the
first transfer either way takes 128 s at 16 kbit/s.

A call is one letter and an 8-byte count: "S" sends that many bytes and gets a letter back, "R" gets
that many bytes, "P" has none and gets a letter back, "I" has none and gets a 4-byte length and a
JSON object: {"unix_s", "edgegossip", "python", "machine"}.
"""

from __future__ import annotations

import json
import platform
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from edgegossip.types import ConfigError, HostError, PeerError
from edgegossip.untrusted import whole_number
from edgegossip.version import VERSION

PORT = 7733
MAX_S, LONGEST_S = 20.0, 300.0
MAX_BYTES = 64 << 20
_CALL = struct.Struct("!cQ")
_BLOCK = bytes(1 << 16)
_LENGTH = struct.Struct("!I")
_MAX_INFO_BYTES = 4096
_IP_MTU = 14  # linux/in.h
_PINGS = 10
_AIM_S = 1.5  # that a measured transfer takes


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Holds what was measured of one connection, as TCP sees it."""

    up_bits_per_s: float
    down_bits_per_s: float
    round_trip_s: float
    ahead_s: float  # the other end's clock of ours, to half a round trip
    mtu: int | None  # of the path, as the kernel knows it; None where it does not tell
    versions: Mapping[str, str]  # of the other end: edgegossip, python, machine


def parse_address(text: str) -> tuple[str, int]:
    """Read HOST or HOST:PORT. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, PORT
    number = whole_number(port, 65_535)
    if not host or not number:
        raise ConfigError(f"--peer {text}: write it as HOST:PORT, such as 192.168.1.20:{PORT}")
    return host.strip("[]"), number


def measure(host: str, port: int) -> LinkRate:
    """Measure the link to a machine on which `edgegossip calibrate --serve` runs. Raises
    PeerError."""
    try:
        with socket.create_connection((host, port), timeout=5.0) as link:
            link.settimeout(MAX_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            round_trip = min(_timed(link, b"P", 0) for _ in range(_PINGS))
            ahead_s, versions = _info(link)
            up, down = _rate(link, b"S"), _rate(link, b"R")
            return LinkRate(up, down, round_trip, ahead_s, _mtu(link), versions)
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
        raise PeerError(
            f"cannot measure the link to {host}:{port}: {reason}; run `edgegossip calibrate --serve {port}` there first"
        ) from None


def serve(listener: socket.socket, until_s: float) -> int:
    """Answer calls one after the other until `until_s` (time.monotonic); how many callers there
    were."""
    callers = 0
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            listener.settimeout(left_s)
            link, _ = listener.accept()
        except OSError:  # the time is over, or the listener was closed
            break
        callers += 1
        end = threading.Timer(LONGEST_S, _cut, [link])
        end.daemon = True
        end.start()
        try:
            with link:
                link.settimeout(MAX_S)
                _answer(link, time.monotonic() + MAX_S)
        except (OSError, EOFError):
            continue  # that caller is gone; another one may come
        finally:
            end.cancel()
    return callers


def listen(port: int) -> socket.socket:
    """Listen on every address. Raises HostError for a port that is taken."""
    try:
        return socket.create_server(("", port), backlog=4)
    except OSError as error:
        raise HostError(
            f"cannot listen on port {port}: {(error.strerror or str(error)).lower()}; name another one"
        ) from None


def _cut(link: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        link.shutdown(socket.SHUT_RDWR)


def _answer(link: socket.socket, until_s: float) -> None:
    while time.monotonic() < until_s:
        letter, size = _CALL.unpack(_read(link, _CALL.size))
        size = min(size, MAX_BYTES)
        if letter == b"R":
            _send(link, size)
        elif letter == b"I":
            _tell(link, {"unix_s": time.time(), **own_versions()})
        elif letter in (b"S", b"P"):
            _drop(link, size if letter == b"S" else 0)
            link.sendall(letter)
        else:
            return


def _tell(link: socket.socket, about: Mapping[str, Any]) -> None:
    data = json.dumps(about).encode()[:_MAX_INFO_BYTES]
    link.sendall(_LENGTH.pack(len(data)) + data)


def _document(link: socket.socket) -> dict[str, Any]:
    (size,) = _LENGTH.unpack(_read(link, _LENGTH.size))
    if size > _MAX_INFO_BYTES:
        raise ValueError("it does not speak as `calibrate --serve` does")
    about = json.loads(_read(link, size))
    if not isinstance(about, dict):
        raise ValueError("it does not speak as `calibrate --serve` does")
    return about


def own_versions() -> dict[str, str]:
    """Return the versions of this machine, as the other end is told them."""
    return {"edgegossip": VERSION, "python": platform.python_version(), "machine": platform.machine()}


def _info(link: socket.socket) -> tuple[float, dict[str, str]]:
    """Return how far the other end's clock is ahead, and its versions."""
    before_s = time.time()
    link.sendall(_CALL.pack(b"I", 0))
    about = _document(link)
    middle_s = (before_s + time.time()) / 2
    return float(about["unix_s"]) - middle_s, {key: str(about[key])[:64] for key in ("edgegossip", "python", "machine")}


def _mtu(link: socket.socket) -> int | None:
    try:
        return link.getsockopt(socket.IPPROTO_IP, _IP_MTU) if link.family == socket.AF_INET else None
    except OSError:
        return None


def _rate(link: socket.socket, letter: bytes) -> float:
    """Return the bits/s of a transfer that is long enough to say something."""
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
