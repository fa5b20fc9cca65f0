"""What a gossip board reports of its rounds: the bytes of its sends, and when a round's record is put down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from edgegossip.mesh.base import SendReceipt
from edgegossip.profiling.records import LINK_BYTES, LINK_PREFIX, LINK_SECONDS, Sink, Value
from edgegossip.types import NodeId, Round

PROMPT_S = 1.0  # of a round that takes so long the record is put down at once
LINKS_EVERY_S = 1.0  # links are reported in rounds so far apart: with many neighbours they are half of a record


@dataclass(slots=True)
class Link:
    """What went to one neighbour."""

    message_bytes: int = 0
    seconds: float = 0.0  # in which something was under way
    until_s: float = 0.0  # when the last of it had arrived

    def take(self, receipt: SendReceipt) -> None:
        self.message_bytes += receipt.message_bytes
        self.seconds += max(0.0, receipt.acknowledged_s - max(receipt.start_s, self.until_s))
        self.until_s = max(self.until_s, receipt.acknowledged_s)


@dataclass(slots=True)
class Traffic:
    """Byte counts of one node's sends: what the codec made, and what it took to carry it; what went to each neighbour, and for
    how long it was under way. Counted when acknowledged. `take` hands out what came since the last call."""

    values: int = 0  # n of the model
    payload_bytes: int = 0
    overhead_bytes: int = 0
    frames: int = 0  # that carried values
    in_flight: dict[int, int] = field(default_factory=dict)  # ticket -> payload bytes
    links: dict[NodeId, Link] = field(default_factory=dict)
    links_told_s: float = 0.0  # when they were reported last

    def sent(self, ticket: int, payload_bytes: int) -> None:
        self.in_flight[ticket] = payload_bytes

    def acknowledged(self, receipt: SendReceipt) -> None:
        payload = self.in_flight.pop(receipt.ticket, None)
        if payload is not None:
            link = self.links.get(receipt.to)
            if link is None:
                link = self.links[receipt.to] = Link()
            link.take(receipt)
            self.payload_bytes += payload
            self.overhead_bytes += receipt.message_bytes - payload
            self.frames += payload > 0  # a greeting has no values

    def failed(self, ticket: int) -> None:
        self.in_flight.pop(ticket, None)

    def take(self, now_s: float | None = None) -> dict[str, float]:
        """Metrics since the last call, reset to zero. Links are among them when LINKS_EVERY_S have passed since the last
        time at `now_s` (`time.monotonic`), or without it."""
        metrics: dict[str, float] = {
            "net/payload_bytes": self.payload_bytes,
            "net/overhead_bytes": self.overhead_bytes,
        }
        if self.frames:
            metrics["codec/bits_per_value"] = 8 * self.payload_bytes / (self.frames * self.values)
        self.payload_bytes = self.overhead_bytes = self.frames = 0
        if now_s is None or now_s - self.links_told_s >= LINKS_EVERY_S:
            self.links_told_s = self.links_told_s if now_s is None else now_s
            metrics |= self._take_links()
        return metrics

    def _take_links(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for peer, link in self.links.items():
            if link.message_bytes:
                metrics[f"{LINK_PREFIX}{peer}{LINK_BYTES}"] = link.message_bytes
                metrics[f"{LINK_PREFIX}{peer}{LINK_SECONDS}"] = link.seconds
                link.message_bytes, link.seconds = 0, 0.0
        return metrics


class Records:
    """Where a board's metrics go. That of a short round is put down while the board waits for the messages of the next one, which
    is soon: training need not wait for it."""

    def __init__(self, name: NodeId, sink: Sink) -> None:
        self._name, self._sink = name, sink
        self._pending: tuple[Round, Callable[[], dict[str, Value]], float] | None = None  # the last: when it came

    def add(self, round: Round, values: Callable[[], dict[str, Value]], round_s: float) -> None:
        """`values`: puts them together when the time has come. `round_s`: what the round took, and so the next one may take."""
        self.flush()
        self._pending = round, values, time.monotonic()
        if round_s >= PROMPT_S:
            self.flush()

    def flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            round, values, ended_s = pending
            self._sink.metrics(self._name, round, values(), time.monotonic() - ended_s)
