"""Sizes and times of the mesh in one place; and how the bytes of a chunk are laid out, which sender
and receiver share.

Two facts of the protobuf encoding let both do without the copies that its runtime would make of the
data: a message's fields may be laid one after the other, so a chunk is a head and the data; and the
head's numbers are fixed-width, so their bytes sit at known places.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields, replace
from typing import Any

from edgegossip.types import ConfigError

PROTOCOL_VERSION = 1  # of `Hello`
CHUNK = 0x12  # ExchangeRequest.chunk = 2, length-delimited
# Within it: transfer, offset and total (fixed64 fields 1, 2, 3), acknowledge (bool field 4), and
# data = 5, length-delimited. Each number stands behind its tag; the tag of the data ends them.
CHUNK_TAGS = (0x09, 0x11, 0x19, 0x20, 0x2A)
CHUNK_NUMBERS = struct.Struct("<BQBQBQBBB")

_MEMBERS_PATIENCE = 10.0
MAX_CHUNK_BYTES = 4 << 20  # a receiver takes chunks up to this size, whatever it sends itself
# HTTP/2's own windows must not be what holds a stream back: pacing.py does, and the inbox. gRPC
# would measure the link with pings among the frames and answer nearly every small frame with a new
# window; it announces one of fixed size instead.
_HTTP2_WINDOW_BYTES = MAX_CHUNK_BYTES


def around_numbers(data_bytes: int) -> tuple[bytes, bytes]:
    """What stands before and behind CHUNK_NUMBERS in a chunk with so much data: the chunk's tag and
    length, and the data's length."""
    data_length = _varint(data_bytes)
    chunk_bytes = CHUNK_NUMBERS.size + len(data_length) + data_bytes
    return bytes((CHUNK,)) + _varint(chunk_bytes), data_length


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass(frozen=True, slots=True)
class MeshLimits:
    """Bounds of one transport. Times are seconds, sizes bytes.

    A stopped board is noticed after at most keepalive_s + keepalive_timeout_s (by one that it only
    sends to: with listeners_patience times as much in place of keepalive_s), a dead process at
    once; either counts as down grace_s later.
    """

    # A larger frame is refused, here and from a peer: what the wire format can tell, and its head.
    # `limit_frames` makes it what the model needs.
    max_frame_bytes: int = (1 << 32) + (1 << 16)
    # Frames that wait for one peer (they are the caller's buffers, not copies), or two of any size.
    # `limit_frames` makes it a few of the run's.
    max_queue_bytes: int = 1 << 30
    # Frames that arrived or are arriving and were not taken by `incoming`; then senders wait.
    max_inbox_bytes: int = 1 << 30
    # The same until `limit_frames` has told how large they may be, when nobody may be there to take
    # them: a larger one waits.
    max_unmeasured_bytes: int = 1 << 30
    # Measured: 256 KiB halves the rate of 8 MB frames, 4 MiB gains nothing. Slow links get smaller
    # chunks, see pacing.py.
    chunk_bytes: int = 1 << 21
    grace_s: float = 3.0
    first_contact_s: float = 60.0  # a peer that was never reached counts as down after this
    hello_s: float = 5.0  # bound of each step of opening a stream
    handshake_s: float = 1.8  # with TLS: bound of a caller's handshake, and of its silence before Hello
    connections_per_s: float = 50.0  # with TLS: from one address, in the long run
    connection_burst: int = 200  # and at once: a fleet on one machine starts with two a pair of boards
    max_strangers: int = 256  # connections that have not finished the TLS handshake
    max_strangers_per_address: int = 64
    max_connections_per_peer: int = 8  # with one certificate
    max_streams: int = 64  # calls at a time on one connection
    knocks_per_s: float = 10.0  # admission handshakes with one certificate, from all its addresses, in the long run
    knock_burst: int = 100
    hellos_per_s: float = 5.0  # of one peer, in the long run
    hello_burst: int = 60
    keepalive_s: float = 3.0
    keepalive_timeout_s: float = 4.0
    # Either end of a connection asks whether the other is there after a silence. After the same
    # time they would ask each other at the same moment; so the listening end waits so many times
    # longer, and as a rule it never asks.
    listeners_patience: float = 1.5
    stall_s: float = 2.0  # least silence after which a peer that owes an acknowledgement is asked whether it is there
    # A process that owes one and does not answer for so long is given up, though its connection
    # lives.
    hung_s: float = 30.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 1.0
    flush_s: float = 2.0  # `close` waits this long for acknowledgements of what we sent
    # Then for peers to end their streams; they wait as long for acknowledgements of what they sent.
    linger_s: float = 2.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value: Any = getattr(self, f.name)
            if not value > 0:
                raise ConfigError(f"mesh limit {f.name} = {value} must be greater than 0, for example {f.default}")
        if self.chunk_bytes > MAX_CHUNK_BYTES:
            raise ConfigError(f"mesh limit chunk_bytes = {self.chunk_bytes} must be at most {MAX_CHUNK_BYTES}")
        if self.backoff_min_s > self.backoff_max_s:
            raise ConfigError(
                f"mesh limit backoff_min_s = {self.backoff_min_s} must be at most backoff_max_s = {self.backoff_max_s}"
            )

    def among_members(self) -> MeshLimits:
        """The same where the peers are members, who probe each other and say who is gone: the
        listening end hardly asks. Its timer alone, which gRPC starts anew whatever arrives, takes a
        fifth of what boards that wait need."""
        return replace(self, listeners_patience=_MEMBERS_PATIENCE)

    def channel_options(self) -> list[tuple[str, int]]:
        """gRPC options of a connection that we open."""
        return [
            *self._common(self.keepalive_s),
            ("grpc.enable_http_proxy", 0),  # peers are neighbours; a proxy variable is meant for the web
            ("grpc.use_local_subchannel_pool", 1),  # every attempt is a fresh one: the back-off is ours
            ("grpc.enable_retries", 0),
        ]

    def server_options(self, *, secured: bool = False) -> list[tuple[str, int]]:
        """gRPC options of the listening side, with or without a TLS front end before it."""
        return [
            *self._common(self.listeners_patience * self.keepalive_s),
            ("grpc.so_reuseport", 0),  # a second process on this port must fail, not share it
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.server_handshake_timeout_ms", round(1000 * self.silence_s(secured))),
            ("grpc.max_concurrent_streams", self.max_streams),
        ]

    def silence_s(self, secured: bool) -> float:
        """How long a caller may say nothing where it has to speak first."""
        return min(self.hello_s, self.handshake_s) if secured else self.hello_s

    def _common(self, keepalive_s: float) -> list[tuple[str, int]]:
        return [
            ("grpc.keepalive_time_ms", round(keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.keepalive_timeout_s * 1000)),
            # Else a ping of another kind waits 60 s.
            ("grpc.http2.ping_timeout_ms", round(self.keepalive_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _HTTP2_WINDOW_BYTES),
            ("grpc.max_receive_message_length", MAX_CHUNK_BYTES + 4096),
            ("grpc.max_send_message_length", -1),
        ]
