"""Seeded mutation fuzz of everything between the transport and the algorithm: only PeerError, and
sums untouched by it.

A short one in the suite; `python -m tests.fuzz.campaign` runs millions.
"""

from __future__ import annotations

from collections import Counter

import pytest

from edgegossip import codecs, frame
from tests.codecs.cases import CASES
from tests.fuzz.campaign import main, run_chunk, starts
from tests.fuzz.frames import LONG, seeds
from tests.fuzz.trial import SPARE_BYTES, attempt, peak_bytes


def test_honest_frames_are_accepted() -> None:
    begin = starts()
    for seed in seeds():
        assert attempt(seed.data, seed.layout, begin[seed.layout.hash]).refusal == "", seed.name


def test_seeds_have_every_decoder_and_every_line_of_the_list() -> None:
    assert {seed.name for seed in seeds()} == {str(case) for case in CASES}
    assert {case.codec().wire_id for case in CASES} == set(codecs.REGISTRY.by_wire_id)


def test_seeds_have_sorted_columns() -> None:
    for name, flags in (("dither", 12), ("deadzone", 4), ("sparseloco", 8 * len(LONG.tensors) + 4)):
        frames = [s.data for s in seeds() if s.decoder == name and s.layout is LONG]
        bodies = [frame.parse(data, frame.Limits.of(LONG)).body for data in frames]
        assert any(bytes(body)[flags] & 2 for body in bodies), name


def test_memory_of_honest_frames() -> None:
    begin = starts()
    for seed in seeds():
        peak = peak_bytes(seed.data, seed.layout, begin[seed.layout.hash])
        assert peak <= 4 * seed.layout.size + SPARE_BYTES, (seed.name, peak)


def test_mutated_frames() -> None:
    """Few mutations of values are caught, and nearly all of lengths: both must be tried."""
    report = run_chunk(seed=1, chunk=0, frames=6_000, timed=False)
    assert report.failures == []
    accepted = Counter(report.accepted)
    decoders = {family.name for family in codecs.REGISTRY.by_wire_id.values()}
    assert sum(accepted.values()) > 500
    assert decoders <= set(report.decoded), decoders - set(report.decoded)
    assert len(report.refusals) > 20, report.refusals


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_million_mutated_frames() -> None:
    assert main(["--frames", "2000000", "--seed", "1000"]) == 0
