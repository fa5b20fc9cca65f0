"""One process's end of a transport under measurement, and the mesh's.

Every kind does the same work for the same orders: `send_frames` against `take_frames`, `ping`
against `pong`, `ring` on all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from edgegossip.mesh import GrpcTransport, MeshLimits
from edgegossip.mesh.base import PeerUp, Received, SendFailed, SendReceipt, TransportEvent
from edgegossip.types import PeerError

PATIENCE_S = 60.0  # longest silence; bounds a measurement that hangs
RUN_ID = bytes(16)
_SAY_S = 5.0  # a node that waits wakes up this often, to say for whom


class Peer(Protocol):
    """Seconds are wall seconds of this process; sizes are bytes."""

    address: str  # host:port where the others reach it

    def connect(self, peers: Mapping[str, str]) -> None:
        """Be ready to send to each of `peers` (name -> address). Both ends are asked to connect."""

    def send_frames(self, to: str, frames: int, size: int) -> float:
        """All of them one after the other, until the other end is known to have the last; seconds
        for all."""

    def take_frames(self, sender: str, frames: int, size: int) -> None:
        """The other end of `send_frames`."""

    def ping(self, to: str, times: int, size: int) -> list[float]:
        """A frame there and one of the same size back, one pair after the other; seconds for each
        pair."""

    def pong(self, sender: str, times: int, size: int) -> None:
        """The other end of `ping`."""

    def close(self) -> None: ...


class RingPeer(Peer, Protocol):
    """The mesh, and the rival that its rings are measured against."""

    def ring(self, neighbours: Sequence[str], rounds: int, size: int) -> list[float]:
        """Each round a frame to each neighbour and one from each, no computing; seconds at the end
        of each round."""


class MeshPeer:
    """GrpcTransport as a node uses it: from another thread than its own. A RingPeer, which also
    idles."""

    def __init__(self, name: str, transport: GrpcTransport | None = None) -> None:
        self._transport = transport or GrpcTransport(name, RUN_ID, limits=MeshLimits(grace_s=30.0))
        self.address = self._transport.address
        self._frames: Counter[str] = Counter()  # taken from `incoming` and not asked for yet
        self._under_way: set[int] = set()  # tickets of frames whose receipts have not come

    def connect(self, peers: Mapping[str, str]) -> None:
        self._transport.connect(peers)
        waiting = set(peers)
        while waiting:
            event = self._next()
            if isinstance(event, PeerUp):
                waiting.discard(event.peer)

    def send_frames(self, to: str, frames: int, size: int) -> float:
        data = bytes(size)
        while self._under_way:  # receipts of an earlier order may come late
            self._take()
        began_s = time.perf_counter()
        for _ in range(frames):
            self._send(to, data)
        while self._under_way:
            self._take()
        return time.perf_counter() - began_s

    def take_frames(self, sender: str, frames: int, size: int) -> None:
        for _ in range(frames):
            self._frame(sender)

    def ping(self, to: str, times: int, size: int) -> list[float]:
        data, took_s = bytes(size), []
        for _ in range(times):
            began_s = time.perf_counter()
            self._send(to, data)
            self._frame(to)
            took_s.append(time.perf_counter() - began_s)
        return took_s

    def pong(self, sender: str, times: int, size: int) -> None:
        data = bytes(size)
        for _ in range(times):
            self._frame(sender)
            self._send(sender, data)

    def ring(self, neighbours: Sequence[str], rounds: int, size: int) -> list[float]:
        data, ends_s = bytes(size), []
        for _ in range(rounds):
            for peer in neighbours:
                self._send(peer, data)
            for peer in neighbours:
                self._frame(peer)
            ends_s.append(time.perf_counter())
        return ends_s

    def idle(self, seconds: float) -> float:
        """Wait for peers as a node does; CPU seconds of this process."""
        began_s, end_s = time.process_time(), time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self._note(self._transport.incoming(min(left_s, _SAY_S)))
        return time.process_time() - began_s

    def close(self) -> None:
        self._transport.close()

    def _send(self, to: str, data: bytes) -> None:
        self._under_way.add(self._transport.send(to, [data]))

    def _frame(self, sender: str) -> None:
        while not self._frames[sender]:
            self._take()
        self._frames[sender] -= 1

    def _take(self) -> None:
        self._note(self._next())

    def _note(self, event: TransportEvent | None) -> None:
        if isinstance(event, Received):
            self._frames[event.sender] += 1
        elif isinstance(event, SendReceipt):
            self._under_way.discard(event.ticket)
        elif isinstance(event, SendFailed):
            raise PeerError(f"a frame to {event.to} failed: {event.reason}")

    def _next(self) -> TransportEvent:
        event = self._transport.incoming(PATIENCE_S)
        if event is None:
            raise PeerError(f"nothing happened for {PATIENCE_S:g} s")
        return event
