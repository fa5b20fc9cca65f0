"""A peer that floods its neighbours: beside what it has to say it sends messages of many later rounds, which must wait there for
their round. Nobody can decode them: they lead nobody on into another round, and only take memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgegossip import frame as wire
from edgegossip.frame import Frame, Kind

MESSAGES = 32  # at a time


def flood(frame: Frame, period: int, limits: wire.Limits) -> Iterator[bytes]:
    """Whole frames that go out after this one, the next ones of its stream, with as large a body as a receiver accepts. Their
    rounds, of which this sender has something to say to the same receiver, are so late that none comes in a short run, in
    which its message would be looked at and refused; and others after each frame. None after greetings and full states."""
    if frame.kind not in (Kind.MODEL, Kind.DIFFERENCE, Kind.GRADIENT):
        return
    body = b"\xff" * limits.max_body_bytes
    for k in range(MESSAGES):
        later = frame.round + period * (MESSAGES * (frame.round + 2) + k)
        yield b"".join(wire.build(replace(frame, round=later, sequence=frame.sequence + k + 1, body=body)))
