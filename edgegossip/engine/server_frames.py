"""Makes and opens frames between a coordinator and its boards: what both ends agree on, the model's
way down, updates on their way up.

Down: both ends keep a reference r, the model that boards train from. In round t the coordinator,
whose own model is x_t, sends Q(x_t - r_(t-1)) and both ends set r_t = r_(t-1) + Q(x_t - r_(t-1)).
What Q loses is part of the next difference: that is error feedback without a memory of its own (as
DORE, Liu et al. 2020, and CHOCO's differences do it). A board that does not hold r_(t-1) - a
newcomer, one that came back, one that was left out of a round - gets r_t itself, exact. With the
codec fp32 everybody gets x_t exactly and nothing is kept.

With SCAFFOLD (`scaffold.py`) each of these frames has a second body: the correction of the board
that it goes to. Of that both ends keep a reference as well, which moves when the board is asked.

Up: the change that a board's training made, as its codec encodes it, with its loss and examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.codecs.base import Body, Codec, Ctx, remembers
from edgegossip.codecs.floats import Fp32
from edgegossip.engine.rates import rates_for
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.base import Says
from edgegossip.gossip.messages import bodies
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, LocalUpdate, NodeId, PeerError, Round, UsageError, Vec

COORDINATOR = "coordinator"
FULL = "fp32"  # whole models are exact


@dataclass(frozen=True, slots=True)
class Channel:
    """Holds the model, the run and the codec that frames of one direction have."""

    layout: Layout
    run_id: bytes  # 16 bytes
    codec: Codec[Any]
    limits: wire.Limits = field(default_factory=wire.Limits)

    @classmethod
    def of(cls, layout: Layout, run_id: bytes, codec: Codec[Any], bodies: int = 1) -> Self:
        """Return the channel of a run, whose frames have so many bodies at most. Statistics of
        batch norm are coded as all values: training sets them anew, so an error in them does not
        last. In sums over boards it would."""
        codec = codecs.for_layout(codec, layout) if layout.has_sums else codec
        return cls(layout, run_id, codec, wire.Limits.of(layout, bodies))

    def frame(
        self, kind: Kind, x: Vec, state: Any, ctx: Ctx, sequence: int, aux: Mapping[int, float] | None = None
    ) -> tuple[Frame, Any]:
        """Encode float32[n], which must not change any more; return the frame and the codec's next
        state.

        Raises UsageError when x is not finite."""
        if isinstance(self.codec, Fp32):
            body: Body = self.codec.lend(x, self.layout)
        else:
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

    def check(self, data: bytes | memoryview, kind: Kind, round: Round | None) -> Frame:
        """Parse a frame of this run, model and codec, without its body.

        Raises PeerError on anything else."""
        frame = wire.parse(data, self.limits)
        wire.expect(frame, run_id=self.run_id, layout_hash=self.layout.hash, codec=self.codec)
        if frame.kind != kind:
            raise PeerError(f"expected a frame of kind {kind.name}, got {frame.kind.name}")
        if round is not None and frame.round != round:
            raise PeerError(f"the frame is of round {frame.round}, this is round {round}")
        return frame


def frame_key(run_id: bytes, sender: str, round: Round) -> int:
    """Return a 64-bit key for the codec's generator: another one for every sender and round of a
    run."""
    digest = hashlib.blake2b(f"{sender}\0{round}".encode(), digest_size=8, key=run_id).digest()
    return int.from_bytes(digest, "little")


def finite_sum(x: Vec, delta: Vec) -> Vec:
    """Return x + delta, which may overflow although both are finite. Raises PeerError then."""
    with np.errstate(over="ignore"):
        total: Vec = x + delta
    if not np.isfinite(total).all():
        raise PeerError("the update is so large that the model would not be finite")
    return total


class Downlink:
    """Makes the frames that go down: the coordinator's end. `codec` fp32: whole models only.

    `reference` float32[n] is what boards train from in the round in progress. Raises ConfigError
    for a codec with a memory of its own."""

    def __init__(self, layout: Layout, run_id: bytes, codec: Codec[Any]) -> None:
        check_downlink(codec)
        self._whole = Channel.of(layout, run_id, codecs.get(FULL))
        self._channel = Channel.of(layout, run_id, codec)
        self._state = self._channel.codec.init(layout)
        self._sequence = 0
        self.compresses = codec.wire_id != self._whole.codec.wire_id
        self.reference: Vec | None = None
        self._corrections: dict[NodeId, tuple[Round, Vec]] = {}  # likewise, where the codec loses something
        self._round: Round | None = None

    def publish(self, x: Vec, round: Round, aux: Mapping[int, float] | None = None) -> Frame | None:
        """Take float32[n] as the model of this round.

        Return the difference for boards that hold the one before, or None where everybody gets the
        whole model. A round that is asked for again has the same reference, and goes to everybody
        whole."""
        if self._round == round:
            return None
        if not self.compresses:
            self.reference, self._round = x, round
            return None
        if self.reference is None or self._round != round - 1:
            self.reference, self._round = x.copy(), round
            return None
        channel = self._channel
        difference, self._state = channel.frame(
            Kind.DIFFERENCE, x - self.reference, self._state, self._ctx(round), self._next(), aux
        )
        self.reference = self.reference.copy()  # the one before may be on its way to a disk
        channel.codec.decode(difference.body, channel.layout, self.reference, 1.0)
        self._round = round
        return difference

    def replace(self, x: Vec, round: Round) -> None:
        """Take another model, float32[n], in place of the one of this round: everybody has to get
        it whole."""
        self.reference, self._round = x.copy(), round

    def whole(self, round: Round, aux: Mapping[int, float] | None = None) -> Frame:
        """Return the references themselves as a frame."""
        assert self.reference is not None
        state = self._whole.codec.init(self._whole.layout)
        frame, _ = self._whole.frame(Kind.MODEL, self.reference, state, self._ctx(round), self._next(), aux)
        return frame

    def with_correction(self, frame: Frame, board: NodeId, wanted: Vec) -> Frame:
        """Return a frame of the round with this board's correction, float32[n], as a second body: a
        difference beside a difference, else whole. A board that is asked again gets the same."""
        round, channel, whole = frame.round, self._channel, self._whole
        ctx = Ctx(key=frame_key(channel.run_id, f"{COORDINATOR} to {board}", round), round=round)
        since, held = self._corrections.get(board, (round, wanted))
        second: Body = b""
        if since != round:
            second, _ = channel.codec.encode(wanted - held, channel.codec.init(channel.layout), ctx)
            held = held + channel.codec.decode(second, channel.layout)
        if self.compresses:
            self._corrections[board] = (round, held)
        if frame.kind == Kind.MODEL:
            second, _ = whole.codec.encode(held, whole.codec.init(whole.layout), ctx)
        first, second = (memoryview(body).cast("B") for body in (frame.body, second))
        return replace(frame, body=b"".join((first, second)), aux={**frame.aux, Aux.CORRECTION: len(first)})

    @property
    def corrections(self) -> dict[NodeId, Vec]:
        """The corrections that boards were sent last, float32[n], where that is not what was
        meant."""
        return {board: held for board, (_, held) in self._corrections.items()}

    def resume(self, reference: Vec, round: Round, corrections: Mapping[NodeId, Vec] | None = None) -> None:
        """Go on from a checkpoint: `reference` float32[n] was what boards had in `round`, and they
        had been sent these corrections last."""
        if self.compresses:
            self.reference, self._round = reference.copy(), round
            self._corrections = {board: (round, held) for board, held in (corrections or {}).items()}

    def _ctx(self, round: Round) -> Ctx:
        return Ctx(key=frame_key(self._channel.run_id, COORDINATOR, round), round=round)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


class Replica:
    """Opens the frames that come down: a board's end.

    It holds the reference where differences come. `correction` is what each step of the round is to
    add to its gradient, float32[n], as it came with the last model; None where none did."""

    def __init__(self, layout: Layout, run_id: bytes, codec: Codec[Any]) -> None:
        check_downlink(codec)
        self._whole = Channel.of(layout, run_id, codecs.get(FULL), bodies=2)
        self._channel = Channel.of(layout, run_id, codec, bodies=2)
        self._keeps = codec.wire_id != self._whole.codec.wire_id
        self.correction: Vec | None = None
        self._model: Vec | None = None
        self._round: Round | None = None

    @property
    def kept(self) -> tuple[Vec | None, Round | None]:
        """The model and its round, which have to outlive this process."""
        return self._model, self._round

    def restore(self, model: Vec, round: Round) -> None:
        """Go on from what `kept` gave. Raises UsageError when it is of another model."""
        self._channel.layout.check(model)
        self._model, self._round = model, round

    def held(self, round: Round) -> Vec:
        """Return the model of this round, which is there already.

        Raises PeerError when it is not."""
        if self._model is None or self._round != round:
            raise PeerError(f"the model of round {round} did not come, and this board does not hold it")
        return self._model

    def open(self, data: bytes | memoryview) -> tuple[Frame, Vec]:
        """Check and decode what came down; return the frame and the model to train from.

        The model is float32[n], not to be written to. Raises PeerError; the replica is then as it
        was."""
        if kind_of(data) != Kind.DIFFERENCE:
            frame = self._whole.check(data, Kind.MODEL, None)
            x, *correction = (self._whole.codec.decode(body, self._whole.layout) for body in bodies_of(frame))
            self.correction = correction[0] if correction else None
            if self._keeps:
                self._model, self._round = x, frame.round
            return frame, x
        frame = self._channel.check(data, Kind.DIFFERENCE, None)
        body, *second = bodies_of(frame)
        if self._model is None or self._round != frame.round - 1 or (second and self.correction is None):
            held = "none" if self._round is None else f"that of round {self._round}"
            raise PeerError(f"the difference of round {frame.round} needs the model before it; this board has {held}")
        changes = [self._channel.codec.decode(part, self._channel.layout) for part in second]
        self._channel.codec.decode(body, self._channel.layout, self._model, 1.0)
        self.correction = self.correction + changes[0] if changes and self.correction is not None else None
        if not np.isfinite(self._model).all():
            self._model = self._round = None
            raise PeerError("the model is not finite any more after the coordinator's difference")
        self._round = frame.round
        return frame, self._model


def bodies_of(frame: Frame) -> tuple[Body, ...]:
    """Return the body of a frame that came down, or both. Raises PeerError."""
    return bodies(frame, 2 if Aux.CORRECTION in frame.aux else 1, Aux.CORRECTION)


def kind_of(data: bytes | memoryview) -> int:
    """Return the kind byte of a frame, unchecked; 0 when there is none."""
    return data[_KIND_AT] if len(data) > _KIND_AT else 0


_KIND_AT = 5  # after the magic (4 bytes) and the version


def check_downlink(codec: Codec[Any]) -> None:
    """Raise ConfigError for a codec with a memory: differences correct their errors themselves."""
    if remembers(codec):
        raise ConfigError(
            f"server.downlink = {codec.name}: differences make up for what was lost by themselves, so a codec with error "
            "feedback of its own would do it twice; take the codec without it"
        )


class Uplink:
    """Makes the frames of one board's updates.

    `state` is the codec's memory, `sequence` counts frames from 1."""

    def __init__(self, channel: Channel, board: NodeId) -> None:
        self.channel, self._board = channel, board
        self.state = channel.codec.init(channel.layout)
        self.sequence = 0
        self.rates = rates_for(channel.codec, channel.layout, Says.UPDATES)

    def with_rate(self, update: LocalUpdate, compute_s: float) -> LocalUpdate:
        """Return the update with the bytes that its frame may take, where the codec leaves them to
        us. `compute_s`: what the round took so far."""
        if self.rates is None:
            return update
        return replace(update, allowed=self.rates.plan([COORDINATOR], compute_s))

    def arrived(self, size_bytes: int, error: float, start_s: float, end_s: float) -> None:
        """Take note of a frame with so many bytes that arrived, and of what its codec lost."""
        if self.rates is not None:
            self.rates.told(size_bytes, error)
            self.rates.arrived(COORDINATOR, size_bytes, start_s, end_s)

    def frame(self, update: LocalUpdate, round: Round, down: Mapping[int, float]) -> Frame:
        """Encode a board's change of the model of this round.

        Raises UsageError when it is not finite, or was to be corrected and is not.

        `down`: what came beside the model; the coordinator may ask for a number of levels there."""
        if Aux.CORRECTION in down and not update.corrected:
            raise UsageError(
                "server.strategy = scaffold corrects each step, and this board's training does not let it: use server.strategy "
                "= fedavg"
            )
        self.sequence += 1
        levels = down.get(Aux.LEVELS)
        ctx = Ctx(
            key=frame_key(self.channel.run_id, self._board, round),
            round=round,
            loss=update.loss,
            lr=update.lr,
            levels=None if levels is None else int(levels),
            bytes=update.allowed.get(COORDINATOR),
        )
        aux: dict[int, float] = {
            Aux.LOSS: update.loss,
            Aux.EXAMPLES: update.weight,
            Aux.LEARNING_RATE: update.lr,
            Aux.STEPS: update.steps,
        }
        frame, self.state = self.channel.frame(Kind.UPDATE, update.delta, self.state, ctx, self.sequence, aux)
        return frame
