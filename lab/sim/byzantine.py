"""A peer that lies: it runs the algorithm as everybody does, and what it sends is tampered with on
the way out. Frames keep a valid checksum, so that it is the algorithm that must see through
them."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

import numpy as np

from edgegossip import frame as wire
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.parallel import MOST_MESSAGES
from edgegossip.layout import Layout
from edgegossip.types import EdgegossipError
from lab.sim.faults import FLOOD
from lab.sim.node import Packet, Tampered

Lies: TypeAlias = Sequence[tuple[str, float]]  # kinds of fault, and in what share of the messages
Chance: TypeAlias = Callable[[], float]
SILENT = "byzantine-silent"
OTHER_ROUNDS = -3, -2, -1, 1, 2
MESSAGES = 32  # of a flood at a time
MOST_HUGE = 3  # frames a schedule: a million to the power of more than that leaves float32
HUGE = np.float32(1e6)
FAR = 20, 2000  # rounds ahead
HEAVY = 1e6
COUNTS = Aux.EXAMPLES, Aux.STEPS  # of the messages in a full state of parallel-sgd
MIXED = 0.1  # share of the parts of full states that `byzantine-state` takes out of their places
GAPS = 0.5  # share of the messages that `byzantine-state` may change


class Byzantine:
    """Makes of a frame what one kind of liar would."""

    def __init__(self, rng: Random, codec: Codec[object], layout: Layout, limits: wire.Limits) -> None:
        self._random, self._codec, self._layout, self._limits = rng.random, codec, layout, limits
        self._huge = 0
        self._led: set[object] = set()  # whom a round far ahead was named to: once each, twice may be believed

    def tamper(self, kind: str, frame: Frame, to: object = None) -> bytes | None:
        """Return the whole frame as it goes out to somebody; None where this kind has nothing to
        change."""
        if kind == "byzantine-far":
            return self._far(frame, to)
        if kind == "byzantine-round":
            round = frame.round + OTHER_ROUNDS[int(self._random() * len(OTHER_ROUNDS))]
            return self._built(replace(frame, round=max(0, round)))
        if kind == "byzantine-state":
            return self._heavier(frame)
        if kind == "byzantine-tags":
            return self._without_tags(frame)
        if kind == "byzantine-nan":
            if not len(frame.body):
                return None
            nan = struct.pack("<f", float("nan"))
            return self._built(replace(frame, body=(nan * (len(frame.body) // 4 + 1))[: len(frame.body)]))
        if kind == "byzantine-weight":
            weight = -1.0 if self._random() < 0.5 else 0.0
            return self._built(replace(frame, aux={**frame.aux, Aux.PUSH_SUM_WEIGHT: weight}))
        if kind == "byzantine-run":
            other = bytes(int(self._random() * 256) for _ in range(wire.RUN_ID_BYTES))
            return self._built(replace(frame, run_id=other))
        return self._enlarge(frame) if kind == "byzantine-huge" else self._mutate(frame)

    def _enlarge(self, frame: Frame) -> bytes | None:
        if self._huge >= MOST_HUGE or not len(frame.body):
            return None
        try:
            values = self._codec.decode(frame.body, self._layout)
            with np.errstate(over="ignore"):
                body, _ = self._codec.encode(values * HUGE, self._codec.init(self._layout), Ctx(frame.key, frame.round))
        except EdgegossipError:  # a body of another form than the codec's, as STATE has
            return None
        self._huge += 1
        return self._built(replace(frame, body=body))

    def _far(self, frame: Frame, to: object) -> bytes | None:
        if frame.kind not in (Kind.MODEL, Kind.DIFFERENCE, Kind.GRADIENT) or to in self._led:
            return None
        self._led.add(to)
        ahead = FAR[0] + int((FAR[1] - FAR[0]) * self._random())
        return self._built(replace(frame, round=frame.round + ahead))

    def _heavier(self, frame: Frame) -> bytes | None:
        """Of a full state the weights, and now and then which part it is of one with or without a
        model; of a stream's message now and then the number, so that full states are asked for."""
        if frame.kind != Kind.STATE:
            counts = frame.kind != Kind.HELLO and Aux.SESSION in frame.aux and self._random() < GAPS
            return self._built(replace(frame, sequence=frame.sequence + 1)) if counts else None
        tags = [t for t in (Aux.PUSH_SUM_WEIGHT, Aux.EXAMPLES, Aux.STEPS) if t in frame.aux]
        aux: dict[int, float] = {t: self._more(t, frame.aux[t]) for t in tags}
        if aux and Aux.PART in frame.aux and self._random() < MIXED:
            without = frame.aux[Aux.PARTS] - (Aux.MODEL in frame.aux)
            model = self._random() < 0.5
            aux |= {Aux.PARTS: without + model, Aux.PART: float(int(self._random() * (without + model)))}
            frame = replace(frame, aux={t: v for t, v in frame.aux.items() if t != Aux.MODEL})
            aux |= {Aux.MODEL: 1.0} if model else {}
        return self._built(replace(frame, aux={**frame.aux, **aux})) if aux else None

    def _more(self, tag: int, honest: float) -> float:
        """Far too much; of a count half the time the most that is believed, or one message less or
        more."""
        which, near = divmod(int(self._random() * 6), 2)
        if near and tag in COUNTS:
            return float(MOST_MESSAGES - 1 + which)
        return (honest + 1.0) * HEAVY ** (1 + which)

    def _without_tags(self, frame: Frame) -> bytes | None:
        tags = sorted(frame.aux)
        if not tags:
            return None
        left = [] if self._random() < 0.2 else [t for t in tags if t != tags[int(self._random() * len(tags))]]
        return self._built(replace(frame, aux={t: frame.aux[t] for t in left}))

    def _mutate(self, frame: Frame) -> bytes:
        """One field or some bytes of the body, with the checksum made right; now and then the
        checksum is wrong."""
        which = int(self._random() * 9)
        if which == 0:
            frame = replace(frame, round=int(self._random() * 2**32) if self._random() < 0.3 else frame.round + 3)
        elif which == 1:
            frame = replace(frame, sequence=1 + int(self._random() * (2**40 if self._random() < 0.5 else 8)))
        elif which == 2:
            frame = replace(frame, kind=list(Kind)[int(self._random() * len(Kind))])
        elif which == 3:
            frame = replace(frame, layout_hash=int(self._random() * 2**64))
        elif which == 4 and frame.aux:
            tag = sorted(frame.aux)[int(self._random() * len(frame.aux))]
            value = float(int(self._random() * 2**50)) if self._random() < 0.5 else self._random() * 4 - 2
            frame = replace(frame, aux={**frame.aux, tag: value})
        elif which == 5 and len(frame.body):
            frame = replace(frame, body=bytes(frame.body)[: int(self._random() * len(frame.body))])
        elif which == 6:
            frame = replace(frame, codec_id=1 + int(self._random() * 40))
        elif which == 7 and len(frame.body):
            body = bytearray(frame.body)
            for _ in range(1 + int(self._random() * 4)):
                body[int(self._random() * len(body))] = int(self._random() * 256)
            frame = replace(frame, body=bytes(body))
        data = bytearray(self._built(frame))
        if which == 8:
            data[int(self._random() * len(data))] ^= 1 + int(self._random() * 255)
        return bytes(data)

    def packet(self, packet: Packet, to: object, lies: Lies, chance: Chance, seen: Counter[str]) -> Packet | None:
        """Return a message as it goes over a wire, and as one who tells these lies changes it; None
        where it keeps silent."""
        frame = packet.data
        assert isinstance(frame, Frame)
        data = self._built(frame)
        for kind, share in lies:
            if kind != FLOOD and chance() < share:
                if kind == SILENT:
                    seen[kind] += 1
                    return None
                changed = self.tamper(kind, frame, to)
                if changed is not None and changed != data:
                    if kind != "byzantine-state" or frame.kind is Kind.STATE:  # else it only has one asked for
                        seen[kind] += 1
                    return _lie(packet, changed, kind)
        return packet._replace(data=data)

    def flooded(
        self, packet: Packet, frame: Frame, lies: Lies, chance: Chance, period: int, seen: Counter[str]
    ) -> list[Packet]:
        """Return what comes after a message of one who floods others."""
        more: list[Packet] = []
        for kind, share in lies:
            if kind == FLOOD and chance() < share:
                more += [_lie(packet, data, kind) for data in flood(frame, period, self._limits)]
        if more:
            seen[FLOOD] += 1
        return more

    @staticmethod
    def _built(frame: Frame) -> bytes:
        return b"".join(wire.build(frame))


def _lie(packet: Packet, data: bytes, kind: str) -> Packet:
    changed = Tampered(data)
    changed.lie = kind
    return Packet(packet.sender, changed, kind, zlib.crc32(data))


def flood(frame: Frame, period: int, limits: wire.Limits) -> Iterator[bytes]:
    """Yield what a peer that floods its neighbours sends after a frame.

    These are messages of many later rounds, which must wait there for their round, the next ones
    of the frame's stream, with as large a body as a receiver accepts. Nobody can decode them:
    they lead nobody on into another round, and only take memory. Their rounds, of which this
    sender has something to say to the same receiver, are so late that none comes in a short run,
    in which its message would be looked at and refused; and others after each frame. There are
    none after Hellos and full states."""
    if frame.kind not in (Kind.MODEL, Kind.DIFFERENCE, Kind.GRADIENT):
        return
    body = b"\xff" * limits.max_body_bytes
    for k in range(MESSAGES):
        later = frame.round + period * (MESSAGES * (frame.round + 2) + k)
        yield b"".join(wire.build(replace(frame, round=later, sequence=frame.sequence + k + 1, body=body)))
