"""A whole model in one opaque Flower Array whose bytes are a wire frame.

One Array, because Flower moves every Array as two objects and every object as a signed HTTP request. Its `stype` is not Flower's
own, so `Array.numpy()` refuses it: no strategy can average compressed bytes by mistake.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from edgegossip import frame as wire
from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.frame import Frame, Kind
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, PeerError, Round, Vec

STYPE = "edgegossip.frame.v1"
FRAME = "edgegossip"  # the Array's name in its ArrayRecord
ARRAYS = "arrays"  # the ArrayRecord's name in a message


@dataclass(frozen=True, slots=True)
class Packed:
    """An encoded vector, ready to send."""

    array: Array
    body: Body  # what the codec made


@dataclass(frozen=True, slots=True)
class Channel:
    """What both ends of a run agree on: model, run and how vectors are encoded."""

    layout: Layout
    run_id: bytes  # 16 bytes
    codec: Codec[Any]
    limits: wire.Limits = field(default_factory=wire.Limits)

    @classmethod
    def of(cls, layout: Layout, run_id: bytes, codec: Codec[Any]) -> Channel:
        return cls(layout, run_id, codec, wire.Limits.of(layout))

    def pack(
        self, kind: Kind, x: Vec, state: Any, ctx: Ctx, sequence: int, aux: Mapping[int, float] | None = None
    ) -> tuple[Packed, Any]:
        """Encode float32[n]; the Array and the codec's next state. Raises LocalError when x is not finite."""
        body, state = self.codec.encode(x, state, ctx)
        frame = Frame(
            kind=kind,
            codec_id=self.codec.wire_id,
            codec_params=self.codec.wire_params(),
            layout_hash=self.layout.hash,
            run_id=self.run_id,
            round=ctx.round,
            sequence=sequence,
            key=ctx.key,
            body=body,
            aux=aux or {},
        )
        data = b"".join(wire.build(frame))
        return Packed(Array(dtype="float32", shape=(self.layout.size,), stype=STYPE, data=data), body), state

    def check(self, data: bytes, kind: Kind, round: Round | None) -> Frame:
        """A frame of this run, model and codec. Raises PeerError on anything else. The body is not decoded."""
        frame = wire.parse(data, self.limits)
        wire.expect(frame, run_id=self.run_id, layout_hash=self.layout.hash, codec=self.codec)
        if frame.kind != kind:
            raise PeerError(f"expected a frame of kind {kind.name}, got {frame.kind.name}")
        if round is not None and frame.round != round:
            raise PeerError(f"the frame is of round {frame.round}, this is round {round}")
        return frame

    def open(self, data: bytes, kind: Kind, round: Round | None) -> tuple[Frame, Vec]:
        """Check and decode a frame: finite float32[n]. Raises PeerError."""
        frame = self.check(data, kind, round)
        return frame, self.codec.decode(frame.body, self.layout)


def frame_key(run_id: bytes, sender: str, round: Round) -> int:
    """A 64-bit key for the codec's generator: another one for every sender and round of a run."""
    digest = hashlib.blake2b(f"{sender}\0{round}".encode(), digest_size=8, key=run_id).digest()
    return int.from_bytes(digest, "little")


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
