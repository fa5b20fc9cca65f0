"""What a receiver does with one frame of a fuzz test, and what may not come of it."""

from __future__ import annotations

import re
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from edgegossip import codecs, frame
from edgegossip.layout import Layout
from edgegossip.types import PeerError
from tests.conformance.pipeline import RUN_ID
from tests.fuzz.frames import Seed

SPARE_BYTES = 2**20  # a decoder may use 4 n bytes of a model of n values, and 1 MiB
TIMES_HONEST = 10  # a frame may take so many times as long as the slowest honest one for its model, and not a tick more


@dataclass(frozen=True)
class Outcome:
    """The codec that saw the body ("" when the frame was refused before), and how it ended."""

    codec: str
    refusal: str  # the first words, "" when the values were accepted


def attempt(data: bytes, layout: Layout, start: np.ndarray) -> Outcome:
    """Parse and decode as a weighted sum into a copy of `start`, and then as new values. Anything
    but a PeerError is let through; AssertionError when a refused sum was touched or a value is not
    finite."""
    codec_name = ""
    total, untouched = start.copy(), start.copy()
    try:
        message = frame.parse(data, frame.Limits.of(layout))
        frame.expect(message, run_id=RUN_ID, layout_hash=layout.hash)
        codec = codecs.from_wire(message.codec_id, message.codec_params)
        codec_name = codec.name
        codec.decode(message.body, layout, untouched, 0.25)
        codec.decode(message.body, layout, total, 0.0)
        values = codec.decode(message.body, layout)
    except PeerError as error:
        assert (untouched == start).all(), "a refused body has changed the sum"
        return Outcome(
            codec_name, " ".join(re.sub(r"[0-9a-f]*[0-9]+[0-9a-f]*", "#", str(error)).split()[:5]) or "nothing"
        )
    assert (total == start).all(), "something times 0 was added: it was not finite"
    assert values.shape == (layout.size,) and np.isfinite(values).all(), "a decoded value is not finite"
    return Outcome(codec_name, "")


def seconds(data: bytes, layout: Layout, start: np.ndarray, repeats: int) -> float:
    """The shortest of a few attempts: what other processes add to one is not the frame's."""
    took = []
    for _ in range(repeats):
        begin = time.perf_counter()
        attempt(data, layout, start)
        took.append(time.perf_counter() - begin)
    return min(took)


def honest_seconds(seeds: list[Seed], starts: dict[int, np.ndarray]) -> dict[int, float]:
    """Layout hash -> the time of the slowest honest frame for this model, of whatever codec."""
    slowest: dict[int, float] = {}
    for seed in seeds:
        took = seconds(seed.data, seed.layout, starts[seed.layout.hash], 5)
        slowest[seed.layout.hash] = max(slowest.get(seed.layout.hash, 0.0), took)
    return slowest


def peak_bytes(data: bytes, layout: Layout, start: np.ndarray) -> int:
    """The most memory that Python and numpy hold at once for it, beyond the vectors of `attempt`
    itself. What kernels and libraries allocate is not in it; `tests.fuzz.resident` measures
    that."""
    tracemalloc.start()
    try:
        attempt(data, layout, start)
        return max(0, tracemalloc.get_traced_memory()[1] - 3 * start.nbytes)
    finally:
        tracemalloc.stop()
