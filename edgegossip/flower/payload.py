"""A whole model in one opaque Flower Array whose bytes are a wire frame.

One Array, because Flower moves every Array as two objects and every object as a signed HTTP request. Its `stype` is not Flower's
own, so `Array.numpy()` refuses it: no strategy can average compressed bytes by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from edgegossip import frame as wire
from edgegossip.codecs.base import Body, Ctx
from edgegossip.flower import channel
from edgegossip.flower.channel import frame_key
from edgegossip.frame import Frame, Kind
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, Vec

__all__ = ["ARRAYS", "FRAME", "STYPE", "Channel", "Packed", "frame_array", "frame_bytes", "frame_content", "frame_key"]

STYPE = "edgegossip.frame.v1"
FRAME = "edgegossip"  # the Array's name in its ArrayRecord
ARRAYS = "arrays"  # the ArrayRecord's name in a message


@dataclass(frozen=True, slots=True)
class Packed:
    """An encoded vector, ready to send."""

    array: Array
    body: Body  # what the codec made


class Channel(channel.Channel):
    """A channel whose frames travel as Arrays."""

    __slots__ = ()

    def pack(
        self, kind: Kind, x: Vec, state: Any, ctx: Ctx, sequence: int, aux: Mapping[int, float] | None = None
    ) -> tuple[Packed, Any]:
        """Encode float32[n]; the Array and the codec's next state. Raises LocalError when x is not finite."""
        frame, state = self.frame(kind, x, state, ctx, sequence, aux)
        return Packed(frame_array(frame, self.layout), frame.body), state


def frame_array(frame: Frame, layout: Layout) -> Array:
    """The frame as an opaque Array of the model's size."""
    return Array(dtype="float32", shape=(layout.size,), stype=STYPE, data=b"".join(wire.build(frame)))


def frame_bytes(content: RecordDict) -> bytes:
    """The one frame in a message. Raises DecodeError when there is none, or more."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise DecodeError(f"the message has {len(records)} array records instead of one")
    if FRAME in records[0]:
        return records[0][FRAME].data
    if len(records[0]) != 1:
        raise DecodeError(f"the message has {len(records[0])} arrays and none of them is named {FRAME!r}")
    return next(iter(records[0].values())).data


def frame_content(array: Array) -> RecordDict:
    """A message's content that is this one frame and nothing else."""
    return RecordDict({ARRAYS: ArrayRecord({FRAME: array})})
