"""The way down: the model for the boards of a round, whole or as an encoded difference to the one that they hold. Knows
nothing of Flower.

Both ends keep a reference r, the model that boards train from. In round t the coordinator, whose own model is x_t, sends
Q(x_t - r_(t-1)) and both ends set r_t = r_(t-1) + Q(x_t - r_(t-1)). What Q loses is part of the next difference: that is error
feedback without a memory of its own (as DORE, Liu et al. 2020, and CHOCO's differences do it). A board that does not hold
r_(t-1) - a newcomer, one that came back, one that was left out of a round - gets r_t itself, exact. With the codec fp32 everybody
gets x_t exactly and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.flower.channel import Channel, frame_key
from edgegossip.frame import Frame, Kind
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, PeerError, Round, Vec

COORDINATOR = "coordinator"
FULL = "fp32"  # whole models are exact


@dataclass(frozen=True, slots=True)
class Down:
    """What a board gets. `difference` None: everybody gets the whole model. The whole one is encoded when asked for."""

    round: Round
    difference: Frame | None


class Downlink:
    """The coordinator's end. `codec` fp32: whole models only."""

    def __init__(self, layout: Layout, run_id: bytes, codec: Codec[Any]) -> None:
        check_downlink(codec)
        self._whole = Channel.of(layout, run_id, codecs.get(FULL))
        self._channel = Channel.of(layout, run_id, codec)
        self._state = codec.init(layout)
        self._sequence = 0
        self.compresses = codec.wire_id != self._whole.codec.wire_id
        self.reference: Vec | None = None  # float32[n], what boards train from in the round in progress
        self._round: Round | None = None

    def publish(self, x: Vec, round: Round, aux: Mapping[int, float] | None = None) -> Down:
        """Model number `round`, float32[n]. From now on `reference` is what boards have of it. A round that is asked for again
        has the same reference, and goes to everybody whole."""
        if self._round == round:
            return Down(round, None)
        if not self.compresses:
            self.reference, self._round = x, round
            return Down(round, None)
        if self.reference is None or self._round != round - 1:
            self.reference, self._round = x.copy(), round
            return Down(round, None)
        difference, self._state = self._channel.frame(
            Kind.DIFFERENCE, x - self.reference, self._state, self._ctx(round), self._next(), aux
        )
        self.reference = self.reference.copy()  # the one before may be on its way to a disk
        self._channel.codec.decode(difference.body, self._channel.layout, self.reference, 1.0)
        self._round = round
        return Down(round, difference)

    def replace(self, x: Vec, round: Round) -> None:
        """Another model, float32[n], in place of the one of this round: everybody has to get it whole."""
        self.reference, self._round = x.copy(), round

    def whole(self, round: Round, aux: Mapping[int, float] | None = None) -> Frame:
        """The reference itself."""
        assert self.reference is not None
        state = self._whole.codec.init(self._whole.layout)
        return self._whole.frame(Kind.MODEL, self.reference, state, self._ctx(round), self._next(), aux)[0]

    def resume(self, reference: Vec, round: Round) -> None:
        """Go on from a checkpoint: `reference` was what boards had in `round`."""
        if self.compresses:
            self.reference, self._round = reference.copy(), round

    def _ctx(self, round: Round) -> Ctx:
        return Ctx(key=frame_key(self._channel.run_id, COORDINATOR, round), round=round)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


class Replica:
    """A board's end: holds the reference where differences come."""

    def __init__(self, layout: Layout, run_id: bytes, codec: Codec[Any]) -> None:
        check_downlink(codec)
        self._whole = Channel.of(layout, run_id, codecs.get(FULL))
        self._channel = Channel.of(layout, run_id, codec)
        self._keeps = codec.wire_id != self._whole.codec.wire_id
        self._model: Vec | None = None
        self._round: Round | None = None

    @property
    def kept(self) -> tuple[Vec | None, Round | None]:
        """What has to outlive this process."""
        return self._model, self._round

    def restore(self, model: Vec, round: Round) -> None:
        """What `kept` gave. Raises LocalError when it is of another model."""
        self._channel.layout.check(model)
        self._model, self._round = model, round

    def held(self, round: Round) -> Vec:
        """The model of this round, which is there already. Raises PeerError when it is not."""
        if self._model is None or self._round != round:
            raise PeerError(f"the model of round {round} did not come, and this board does not hold it")
        return self._model

    def open(self, data: bytes) -> tuple[Frame, Vec]:
        """Check and decode what came down; the frame and the model to train from, float32[n], not to be written to. Raises
        PeerError; the replica is then as it was."""
        if kind_of(data) != Kind.DIFFERENCE:
            frame, x = self._whole.open(data, Kind.MODEL, None)
            if self._keeps:
                self._model, self._round = x, frame.round
            return frame, x
        frame = self._channel.check(data, Kind.DIFFERENCE, None)
        if self._model is None or self._round != frame.round - 1:
            held = "none" if self._round is None else f"that of round {self._round}"
            raise PeerError(f"the difference of round {frame.round} needs the model before it; this board has {held}")
        self._channel.codec.decode(frame.body, self._channel.layout, self._model, 1.0)
        if not np.isfinite(self._model).all():
            self._model = self._round = None
            raise PeerError("the model is not finite any more after the coordinator's difference")
        self._round = frame.round
        return frame, self._model


def kind_of(data: bytes) -> int:
    """The kind byte of a frame, unchecked; 0 when there is none."""
    return data[_KIND_AT] if len(data) > _KIND_AT else 0


_KIND_AT = 5  # after the magic (4 bytes) and the version


def check_downlink(codec: Codec[Any]) -> None:
    """Raises ConfigError for a codec with a memory: differences correct their errors themselves."""
    if hasattr(codec, "decay") or codec.name in ("dgc", "powersgd"):
        raise ConfigError(
            f"server.downlink = {codec.name}: differences make up for what was lost by themselves, so a codec with error "
            "feedback of its own would do it twice; take the codec without it"
        )
