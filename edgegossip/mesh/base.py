"""The interface between a node and its peers: the transport, its events and its limits. Holds no
gRPC, so that a simulator can stand in for the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias

from edgegossip.security.limits import ConnectionLimits
from edgegossip.types import ConfigError, NodeId, PeerError
from edgegossip.untrusted import Refusal

MAX_CHUNK_BYTES = 4 << 20  # a receiver takes chunks up to this size, whatever it sends itself
# HTTP/2's own windows must not be what holds a stream back: congestion.py does, and the inbox. gRPC
# would measure the link with pings among the frames and answer nearly every small frame with a new
# window; it announces one of fixed size instead.
_HTTP2_WINDOW_BYTES = MAX_CHUNK_BYTES


def loop_s() -> float:
    """Return the time of the loop that runs here: monotonic seconds."""
    return asyncio.get_running_loop().time()


Buffers: TypeAlias = Sequence[bytes | memoryview]  # one frame in pieces, sent one after the other without joining them


# Whom a line for the log is about, and the line.
Tell: TypeAlias = Callable[[NodeId | None, str | Refusal], None]


class CallerGone(PeerError):
    """Raised when whoever called is out: its connection has ended, or is about to, because its
    certificate was revoked. That is no reason to keep its name out, under which it may come again
    with another certificate."""


class Unreachable(PeerError):
    """Raised when nobody answers there now: worth trying again."""


@dataclass(frozen=True, slots=True)
class Received:
    """Brings a whole frame from a peer, not parsed yet. `sender` is the transport's word, not the
    frame's."""

    sender: NodeId
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Says that the peer's process has taken a frame in. Times are monotonic seconds
    (`time.monotonic`)."""

    frame_id: int
    to: NodeId
    frame_bytes: int  # bytes of the frame
    message_bytes: int  # bytes handed to the transport for it: the frame and the chunk headers around it
    start_s: float  # handed over
    first_byte_s: float  # first chunk written
    acknowledged_s: float


@dataclass(frozen=True, slots=True)
class SendFailed:
    """Says that a frame is given up: the peer is down, refuses it, or has too much waiting already.
    Whether it arrived all the same is not known (its acknowledgement may be what was lost)."""

    frame_id: int
    to: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerUp:
    """Says that we can send to this peer: the first time, or again after PeerDown."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class PeerDown:
    """Says that a peer has been out of reach for longer than the grace time, was restarted (PeerUp
    follows at once), was closed by us, left on purpose, or does not agree with us. Its SendFailed
    events come first. May be followed by PeerUp."""

    peer: NodeId
    reason: str
    left: bool = False  # it said goodbye: no failure
    closed: bool = False  # by our own close_peer: it will not come back
    # What boards must have alike differs, as `reason` says: it is there, and is not tried again. It
    # comes back as another process that agrees.
    disagrees: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Brings a line for the event log; nothing has to be done about it."""

    peer: NodeId | None  # None when it is not about a known peer
    text: str  # one sentence
    refusal: Refusal | None = None  # which the sentence is about
    answered: bool = False  # the peer has, just now: it is there

    @classmethod
    def of(cls, peer: NodeId | None, said: str | Refusal) -> Notice:
        """Return the notice of a sentence or a refusal."""
        return cls(peer, str(said), said if isinstance(said, Refusal) else None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Brings the members' common word on one of them, be it our neighbour or not
    (mesh.membership)."""

    peer: NodeId
    here: bool
    reason: str
    left: bool = False  # not here on purpose
    restarted: bool = False  # here, as another process than before


@dataclass(frozen=True, slots=True)
class Moved:
    """Says where a member can be reached, as it told the others."""

    peer: NodeId
    address: str


@dataclass(frozen=True, slots=True)
class Woken:
    """Says that `Transport.wake` was called."""


TransportEvent: TypeAlias = Received | SendReceipt | SendFailed | PeerUp | PeerDown | Notice | Verdict | Moved | Woken


class Transport(Protocol):
    """Moves frames to and from named peers. Thread-safe; `send` never waits for the network."""

    def send(self, to: NodeId, frame: Buffers) -> int:
        """Queue one frame; the frame_id comes back in its SendReceipt or SendFailed. Frames to one
        peer arrive in order, each at most once. The buffers must not change until then. Raises
        UsageError for an unknown peer, an empty or an oversize frame.
        """

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        """Return the next event, or None when none came in time."""

    def wake(self) -> None:
        """Let `incoming` give Woken. May be called from any thread."""

    def close_peer(self, peer: NodeId, reason: str, *, disagrees: bool = False) -> None:
        """Stop talking to a peer that sent something bad, or that ended because it `disagrees` with
        us. Nobody else is affected."""

    def limit_frames(self, max_frame_bytes: int) -> None:
        """From now on refuse larger frames from peers, before anything is allocated for them; and
        let no more wait for a peer than a few of that size: further ones fail."""

    def arriving(self) -> tuple[int, int]:
        """Return how many bytes of frames have come so far, altogether; and how many more are to
        come of the frames that have begun to."""

    def close(self) -> None:
        """Flush what is queued, end every stream and free the port. Idempotent."""


@dataclass(frozen=True, slots=True)
class MeshLimits(ConnectionLimits):
    """Holds the bounds of one transport. Times are seconds, sizes bytes.

    A stopped board is noticed after at most keepalive_s + keepalive_timeout_s (by one that it only
    sends to: with server_keepalive_factor times as much in place of keepalive_s), a dead process at
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
    # chunks, see congestion.py.
    chunk_bytes: int = 1 << 21
    grace_s: float = 3.0
    first_contact_s: float = 60.0  # a peer that was never reached counts as down after this
    hello_s: float = 5.0  # bound of each step of opening a stream
    # Calls at a time on one connection; more wait at the caller. gRPC keeps what has come of a
    # message, up to MAX_CHUNK_BYTES, for as long as a call lives, and tells us nothing of it.
    max_streams: int = 8
    hellos_per_s: float = 5.0  # of one peer, in the long run
    hello_burst: int = 60
    # Either end of a connection asks whether the other is there after a silence. After the same
    # time they would ask each other at the same moment; so the listening end waits so many times
    # longer, and as a rule it never asks.
    server_keepalive_factor: float = 1.375
    # A process that owes an acknowledgement is asked after a quarter of that whether it is there,
    # and given up when it does not answer for so long, though its connection lives.
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

    def channel_options(self) -> list[tuple[str, int]]:
        """Return gRPC options of a connection that we open."""
        return [
            *self._common(self.keepalive_s),
            ("grpc.enable_http_proxy", 0),  # peers are neighbours; a proxy variable is meant for the web
            ("grpc.use_local_subchannel_pool", 1),  # every attempt is a fresh one: the back-off is ours
            ("grpc.enable_retries", 0),
        ]

    def server_options(self, *, secured: bool) -> list[tuple[str, int]]:
        """Return gRPC options of the listening side, with or without a TLS front end before it."""
        return [
            *self._common(self.server_keepalive_factor * self.keepalive_s),
            ("grpc.so_reuseport", 0),  # a second process on this port must fail, not share it
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.server_handshake_timeout_ms", round(1000 * self.silence_s(secured))),
            ("grpc.max_concurrent_streams", self.max_streams),
        ]

    def silence_s(self, secured: bool) -> float:
        """Return how long a caller may say nothing where it has to speak first."""
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
