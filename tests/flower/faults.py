"""Boards that misbehave on the wire, for the tests of refusals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array

from edgegossip.flower import client, messages
from edgegossip.flower._private import link
from edgegossip.flower.messages import STYPE
from edgegossip.frame import Frame
from edgegossip.layout import Layout
from edgegossip.memory import Spool


@contextmanager
def faulty(fault: str) -> Iterator[None]:
    """Make every update of this process bad in one way: "garbage", "nan", "run", "round" or "" for
    not at all; "malformed": the SuperLink cannot read the answer of the second round, nor its
    repetition."""
    to_proto, pushed = link.message_to_proto, itertools.count(1)

    def malformed(message: Any) -> Any:
        proto = to_proto(message)
        if next(pushed) in (3, 4):  # after hello and the first round
            item = proto.content.items.add()
            item.key = "metrics"
            item.metric_record.items.add().key = "loss"  # without a value
        return proto

    def array(frame: Frame, layout: Layout, spool: Spool) -> Array:
        if fault == "run":
            frame = replace(frame, run_id=b"another run's id"[:16])
        if fault == "round":
            frame = replace(frame, round=frame.round + 7)
        if fault == "nan":  # a frame that is right in every way (CRC too) but holds a NaN
            y = np.frombuffer(frame.body, np.float32).copy()
            y[3] = np.nan
            frame = replace(frame, body=y.tobytes())
        made = messages.frame_array(frame, layout, spool)
        if fault == "garbage":
            made = Array(dtype="float32", shape=(layout.size,), stype=STYPE, data=bytes(len(made.data)))
        return made

    client.frame_array = array  # type: ignore[attr-defined]
    if fault == "malformed":
        link.message_to_proto = malformed  # type: ignore[assignment]
    try:
        yield
    finally:
        client.frame_array = messages.frame_array  # type: ignore[attr-defined]
        link.message_to_proto = to_proto  # type: ignore[assignment]
