"""The interface between a node and its peers. Holds no gRPC, so that a simulator can stand in for
the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from edgegossip.types import NodeId
from edgegossip.untrusted import Refusal

Buffers: TypeAlias = Sequence[bytes | memoryview]  # one frame in pieces, sent one after the other without joining them


@dataclass(frozen=True, slots=True)
class Received:
    """A whole frame from a peer, not parsed yet. `sender` is the transport's word, not the
    frame's."""

    sender: NodeId
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """A frame that the peer's process has taken in. Times are monotonic seconds
    (`time.monotonic`)."""

    ticket: int
    to: NodeId
    frame_bytes: int  # bytes of the frame
    message_bytes: int  # bytes handed to the transport for it: the frame and the chunk headers around it
    start_s: float  # handed over
    first_byte_s: float  # first chunk written
    acknowledged_s: float


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A frame that is given up: the peer is down, refuses it, or has too much waiting already.
    Whether it arrived all the same is not known (its acknowledgement may be what was lost)."""

    ticket: int
    to: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class PeerUp:
    """We can send to this peer: the first time, or again after PeerDown."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class PeerDown:
    """A peer has been out of reach for longer than the grace time, was restarted (PeerUp follows at
    once), was closed by us, left on purpose, or does not agree with us. Its SendFailed events come
    first. May be followed by PeerUp."""

    peer: NodeId
    reason: str
    left: bool = False  # it said goodbye: no failure
    closed: bool = False  # by our own close_peer: it will not come back
    # What boards must have alike differs, as `reason` says: it is there, and is not tried again. It
    # comes back as another process that agrees.
    disagrees: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the event log; nothing has to be done about it."""

    peer: NodeId | None  # None when it is not about a known peer
    text: str  # one sentence
    refusal: Refusal | None = None  # which the sentence is about
    answered: bool = False  # the peer has, just now: it is there

    @classmethod
    def of(cls, peer: NodeId | None, said: str | Refusal) -> Notice:
        return cls(peer, str(said), said if isinstance(said, Refusal) else None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The members' common word on one of them, be it our neighbour or not (mesh.membership)."""

    peer: NodeId
    here: bool
    reason: str
    left: bool = False  # not here on purpose
    restarted: bool = False  # here, as another process than before


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a member can be reached, as it told the others."""

    peer: NodeId
    address: str


@dataclass(frozen=True, slots=True)
class Woken:
    """`wake` was called."""


TransportEvent: TypeAlias = Received | SendReceipt | SendFailed | PeerUp | PeerDown | Notice | Verdict | Moved | Woken


class Transport(Protocol):
    """Frames to and from named peers. Thread-safe; `send` never waits for the network."""

    def send(self, to: NodeId, frame: Buffers) -> int:
        """Queue one frame; the ticket comes back in its SendReceipt or SendFailed. Frames to one
        peer arrive in order, each at most once. The buffers must not change until then. Raises
        UsageError for an unknown peer, an empty or an oversize frame.
        """

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        """The next event, or None when none came in time."""

    def wake(self) -> None:
        """Let `incoming` give Woken. May be called from any thread."""

    def close_peer(self, peer: NodeId, reason: str) -> None:
        """Stop talking to a peer that sent something bad. Nobody else is affected."""

    def limit_frames(self, max_frame_bytes: int) -> None:
        """From now on refuse larger frames from peers, before anything is allocated for them; and
        let no more wait for a peer than a few of that size: further ones fail."""

    def arriving(self) -> tuple[int, int]:
        """Bytes of frames that have come so far, altogether; and how many more are to come of the
        frames that have begun to."""

    def close(self) -> None:
        """Flush what is queued, end every stream and free the port. Idempotent."""
