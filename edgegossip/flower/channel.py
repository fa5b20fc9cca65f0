"""What both ends of a server run agree on, and the frames between them. Knows nothing of Flower, so that a study can run the
same rounds without it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from edgegossip import frame as wire
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.layout import Layout
from edgegossip.types import LocalUpdate, PeerError, Round, Vec


@dataclass(frozen=True, slots=True)
class Channel:
    """Model, run and how vectors are encoded."""

    layout: Layout
    run_id: bytes  # 16 bytes
    codec: Codec[Any]
    limits: wire.Limits = field(default_factory=wire.Limits)

    @classmethod
    def of(cls, layout: Layout, run_id: bytes, codec: Codec[Any]) -> Self:
        return cls(layout, run_id, codec, wire.Limits.of(layout))

    def frame(
        self, kind: Kind, x: Vec, state: Any, ctx: Ctx, sequence: int, aux: Mapping[int, float] | None = None
    ) -> tuple[Frame, Any]:
        """Encode float32[n]; the frame and the codec's next state. Raises LocalError when x is not finite."""
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
        return frame, state

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


def update_aux(update: LocalUpdate) -> dict[int, float]:
    """What travels beside a board's change of the model."""
    return {
        Aux.LOSS: update.loss,
        Aux.EXAMPLES: update.examples,
        Aux.LEARNING_RATE: update.lr,
        Aux.STEPS: update.steps,
    }


def finite_sum(x: Vec, delta: Vec) -> Vec:
    """x + delta, which may overflow although both are finite. Raises PeerError then."""
    with np.errstate(over="ignore"):
        total: Vec = x + delta
    if not np.isfinite(total).all():
        raise PeerError("the update is so large that the model would not be finite")
    return total
