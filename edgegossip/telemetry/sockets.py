"""What the kernel says went over this process's TCP sockets: TCP_INFO of every one of them
(linux/tcp.h, struct tcp_info).

Counts are of TCP payload as sent, retransmissions included: everything above TCP is in them (TLS,
HTTP/2, gRPC), the headers of TCP, IP and Ethernet are not. `SocketTotals.sent_link_bytes` adds
those. Interfaces that leave the cutting into packets to the hardware (TSO, on by default between
network namespaces too) count their headers once for up to 64 KiB, so their counters lie between the
two. Works on Linux; elsewhere, and where something that poses as Linux says less, there is nothing
to read, and figures are None.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from functools import cache
from operator import add, attrgetter, sub

_TCP_INFO = getattr(socket, "TCP_INFO", 11)
_INFO_BYTES = 256  # more than any kernel's struct has; the kernel says how much it filled
_LISTEN = 10  # tcpi_state of a listening socket, whose numbers mean something else
_OPT_TIMESTAMPS = 1  # bit of tcpi_options
_ETHERNET_BYTES, _IPV4_BYTES, _IPV6_BYTES, _TCP_BYTES, _TIMESTAMP_BYTES = 14, 20, 40, 20, 12

# Offsets in struct tcp_info, which only ever grows at its end. Up to segs_out since Linux 4.2,
# bytes_sent since 4.19.
_STATE, _OPTIONS = 0, 5
_BYTES_RECEIVED, _SEGS_OUT = 128, 136
_BYTES_SENT = 200  # those sent again lie behind them


@dataclass(frozen=True, slots=True)
class SocketTotals:
    """Sums over sockets. Bytes are TCP payload."""

    sent_bytes: int = 0  # retransmissions included
    received_bytes: int = 0
    retransmitted_bytes: int = 0
    sent_segments: int = 0  # pure acknowledgements included
    sent_header_bytes: int = 0  # Ethernet, IP and TCP headers of the segments sent, by their standard sizes

    @property
    def sent_link_bytes(self) -> int:
        """Bytes on an Ethernet link, from the kernel's count of segments and the size of their
        headers."""
        return self.sent_bytes + self.sent_header_bytes

    def __add__(self, other: SocketTotals) -> SocketTotals:
        return SocketTotals(*map(add, _figures(self), _figures(other)))

    def __sub__(self, other: SocketTotals) -> SocketTotals:
        return SocketTotals(*map(sub, _figures(self), _figures(other)))


_figures = attrgetter(*(field.name for field in fields(SocketTotals)))


def parse_tcp_info(info: bytes, header_bytes: int = _IPV4_BYTES + _TCP_BYTES + _ETHERNET_BYTES) -> SocketTotals | None:
    """Return the totals of one socket from the kernel's struct; None for a listening socket or a
    kernel before 4.19, which does not count bytes sent."""
    if len(info) < _BYTES_SENT + 16 or info[_STATE] == _LISTEN:
        return None
    (received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED)
    (segments,) = struct.unpack_from("=I", info, _SEGS_OUT)
    sent, retransmitted = struct.unpack_from("=QQ", info, _BYTES_SENT)
    if info[_OPTIONS] & _OPT_TIMESTAMPS:
        header_bytes += _TIMESTAMP_BYTES
    return SocketTotals(sent, received, retransmitted, segments, segments * header_bytes)


@dataclass(frozen=True, slots=True)
class _Connection:
    header_bytes: int  # of a segment, without options
    peer: object  # (host, port)


class SocketReader:
    """Reads all sockets of this process again and again. What a descriptor is, which takes most of
    the time to find out, is kept by descriptor and inode. `skip`: addresses (host, port) of others
    whose connections do not count."""

    def __init__(self, skip: Container[object] = ()) -> None:
        self._skip = skip
        self._known: dict[tuple[int, int], _Connection | None] = {}  # None: a socket of another kind

    def read(self) -> dict[int, SocketTotals] | None:
        """Return the totals of every TCP socket that this process has open, by inode; None where
        the system does not tell."""
        if not sys.platform.startswith("linux") or not _is_told():
            return None
        try:
            descriptors = os.listdir("/proc/self/fd")
        except OSError:
            return None
        found: dict[int, SocketTotals] = {}
        before, self._known = self._known, {}
        for name in descriptors:
            descriptor = int(name)
            try:
                status = os.fstat(descriptor)
            except OSError:
                continue  # closed since it was listed
            if stat.S_ISSOCK(status.st_mode):
                totals = self._totals(descriptor, status.st_ino, before)
                if totals is not None:
                    found[status.st_ino] = totals
        return found

    def _totals(
        self, descriptor: int, inode: int, before: Mapping[tuple[int, int], _Connection | None]
    ) -> SocketTotals | None:
        """None when the descriptor is no connected TCP socket. A duplicate is read: another thread
        may close ours."""
        key = descriptor, inode
        if key in before and before[key] is None:
            self._known[key] = None
            return None
        try:
            duplicate = os.dup(descriptor)
        except OSError:
            return None
        try:
            if os.fstat(duplicate).st_ino != inode:  # closed, and the number used again
                return None
            connection = self._known[key] = before[key] if key in before else _connection(duplicate)
            if connection is None or connection.peer in self._skip:
                return None
            return parse_tcp_info(_tcp_info(duplicate), connection.header_bytes)
        except OSError:
            return None  # not connected
        finally:
            os.close(duplicate)


@cache
def _is_told() -> bool:
    """Whether the kernel says what went over a socket: one before 4.2 does not, and QEMU's user
    mode gives one number in place of the struct."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as fresh:
            return parse_tcp_info(_tcp_info(fresh.fileno())) is not None
    except OSError:
        return False


def _connection(descriptor: int) -> _Connection | None:
    """What a socket is connected to; None for one that is not TCP. Raises OSError when it is not
    connected."""
    handle = socket.socket(fileno=descriptor)
    try:
        if handle.type != socket.SOCK_STREAM or handle.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        peer = handle.getpeername()[:2]
        ipv6 = handle.family == socket.AF_INET6 and not handle.getsockname()[0].startswith("::ffff:")
    finally:
        handle.detach()  # the descriptor is the caller's
    return _Connection((_IPV6_BYTES if ipv6 else _IPV4_BYTES) + _TCP_BYTES + _ETHERNET_BYTES, peer)


def _tcp_info(descriptor: int) -> bytes:
    """What the kernel says of a TCP socket."""
    # its family and kind are named, so that nobody has to find them out; they matter for nothing
    # here
    handle = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
    try:
        return handle.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    finally:
        handle.detach()


class SocketMeter:
    """Counts on across sockets that open and close, from the moment it is made.

    Call `sample` once a round and before a transport is closed. What a socket carries between its
    last sample and its end is not counted: of a long-lived stream that is nothing but the goodbye,
    of a connection that opens and ends between two samples everything. One sample costs some
    microseconds a descriptor.
    """

    def __init__(self, skip: Container[object] = ()) -> None:
        self._reader = SocketReader(skip)
        self._last: Mapping[int, SocketTotals] | None = self._reader.read()
        self._ended = SocketTotals() - sum((self._last or {}).values(), SocketTotals())

    def sample(self) -> SocketTotals | None:
        """Return the totals since the meter was made; None where the system does not tell."""
        now = self._reader.read()
        if now is None or self._last is None:
            return None
        for inode, before in self._last.items():
            after = now.get(inode)
            if after is None or after.sent_segments < before.sent_segments:  # the kernel uses inode numbers again
                self._ended += before
        self._last = now
        return self._ended + sum(now.values(), SocketTotals())


class BoardSockets:
    """Counts what the connections of a server's clients have carried, without those from the
    addresses in `own`, which may grow. Looks by itself every EVERY_S, because clients of HTTP come
    and go. Thread-safe."""

    EVERY_S = 0.5

    def __init__(self, own: Container[object]) -> None:
        self._meter, self._lock = SocketMeter(own), threading.Lock()
        threading.Thread(target=self._look, daemon=True, name="sockets").start()

    def sample(self) -> list[int] | None:
        """Return bytes sent, received, and sent with the headers of the link; None where the system
        does not tell."""
        with self._lock:
            totals = self._meter.sample()
        return None if totals is None else [totals.sent_bytes, totals.received_bytes, totals.sent_link_bytes]

    def _look(self) -> None:
        while self.sample() is not None:
            time.sleep(self.EVERY_S)
