"""Byte counts of one node's sends: what the codec made, and what it took to carry it. Counted when acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgegossip.mesh.base import SendReceipt


@dataclass(slots=True)
class Traffic:
    """Running sums; `take` hands out what came since the last call."""

    values: int  # n of the model
    payload_bytes: int = 0
    overhead_bytes: int = 0
    frames: int = 0  # that carried values
    in_flight: dict[int, int] = field(default_factory=dict)  # ticket -> payload bytes

    def sent(self, ticket: int, payload_bytes: int) -> None:
        self.in_flight[ticket] = payload_bytes

    def acknowledged(self, receipt: SendReceipt) -> None:
        payload = self.in_flight.pop(receipt.ticket, None)
        if payload is not None:
            self.payload_bytes += payload
            self.overhead_bytes += receipt.message_bytes - payload
            self.frames += payload > 0  # a greeting has no values

    def failed(self, ticket: int) -> None:
        self.in_flight.pop(ticket, None)

    def take(self) -> dict[str, float]:
        """Metrics since the last call, reset to zero."""
        metrics: dict[str, float] = {
            "net/payload_bytes": self.payload_bytes,
            "net/overhead_bytes": self.overhead_bytes,
        }
        if self.frames:
            metrics["codec/bits_per_value"] = 8 * self.payload_bytes / (self.frames * self.values)
        self.payload_bytes = self.overhead_bytes = self.frames = 0
        return metrics
