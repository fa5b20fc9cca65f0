"""Boards that misbehave on the wire, for the tests of refusals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array

from edgegossip.flower._private import fleet
from edgegossip.flower.payload import STYPE, Channel, Packed


@contextmanager
def faulty(fault: str) -> Iterator[None]:
    """Make every update of this process bad in one way: "garbage", "nan", "run", "round" or "" for not at all; "malformed": the
    SuperLink cannot read the answer of the second round, nor its repetition."""
    honest, to_proto, pushed = Channel.pack, fleet.message_to_proto, itertools.count(1)

    def malformed(message: Any) -> Any:
        proto = to_proto(message)
        if next(pushed) in (3, 4):  # after the greeting and the first round
            item = proto.content.items.add()
            item.key = "metrics"
            item.metric_record.items.add().key = "loss"  # without a value
        return proto

    def pack(self: Channel, kind: Any, x: Any, state: Any, ctx: Any, sequence: int, aux: Any = None) -> Any:
        if fault == "run":
            self = replace(self, run_id=b"another run's id"[:16])
        if fault == "round":
            ctx = replace(ctx, round=ctx.round + 7)
        packed, state = honest(self, kind, x, state, ctx, sequence, aux)
        data = packed.array.data
        if fault == "garbage":
            data = bytes(len(data))
        if fault == "nan":
            data = _with_nan(self, kind, x, ctx, sequence, aux)
        return Packed(Array(dtype="float32", shape=(len(x),), stype=STYPE, data=data), packed.body), state

    Channel.pack = pack  # type: ignore[method-assign]
    if fault == "malformed":
        fleet.message_to_proto = malformed  # type: ignore[assignment]
    try:
        yield
    finally:
        Channel.pack = honest  # type: ignore[method-assign]
        fleet.message_to_proto = to_proto  # type: ignore[assignment]


def _with_nan(channel: Channel, kind: Any, x: Any, ctx: Any, sequence: int, aux: Any) -> bytes:
    """A frame that is right in every way (CRC too) but holds a NaN."""
    from edgegossip import frame as wire

    y = x.copy()
    y[3] = np.nan
    return b"".join(
        wire.build(
            wire.Frame(
                kind, 1, b"", channel.layout.hash, channel.run_id, ctx.round, sequence, ctx.key, y.tobytes(), aux or {}
            )
        )
    )
