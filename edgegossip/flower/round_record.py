"""What the coordinator's record of a round says of its frames: down, up, and each board's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgegossip.frame import AUX_BYTES, HEADER_BYTES, Aux, Frame
from edgegossip.layout import Layout
from edgegossip.profiling.records import Value


@dataclass(slots=True)
class Sent:
    """What went down in a round."""

    frames: int = 0
    payload_bytes: int = 0
    overhead_bytes: int = 0

    def add(self, frame: Frame) -> None:
        self.frames += 1
        self.payload_bytes += len(frame.body)
        self.overhead_bytes += HEADER_BYTES + len(frame.codec_params) + AUX_BYTES * len(frame.aux)

    def metrics(self, layout: Layout) -> dict[str, Value]:
        values: dict[str, Value] = {
            "net/payload_bytes": self.payload_bytes,
            "net/overhead_bytes": self.overhead_bytes,
        }
        if self.frames:
            values["codec/bits_per_value"] = 8 * self.payload_bytes / (self.frames * layout.size)
        return values


def used_values(frames: Sequence[Frame], believed: Sequence[bool]) -> dict[str, Value]:
    """Of the updates that were used: how many, their examples, and the mean by examples of those losses that are believed."""
    values: dict[str, Value] = {"server/used": len(frames)}
    if examples := sum(f.aux[Aux.EXAMPLES] for f in frames):
        values["train/examples"] = int(examples)
    some = [f for f, good in zip(frames, believed, strict=True) if good]
    if examples := sum(f.aux[Aux.EXAMPLES] for f in some):
        values["train/loss"] = sum(f.aux[Aux.LOSS] * f.aux[Aux.EXAMPLES] for f in some) / examples
    return values


def board_values(frame: Frame, layout: Layout) -> dict[str, Value]:
    """What an update says of its board's round."""
    return {
        "train/loss": frame.aux[Aux.LOSS],
        "train/examples": int(frame.aux[Aux.EXAMPLES]),
        "net/payload_bytes": len(frame.body),
        "codec/bits_per_value": 8 * len(frame.body) / layout.size,
    }
