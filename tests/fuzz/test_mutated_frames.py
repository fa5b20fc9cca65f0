"""Seeded mutation fuzz of everything between the transport and the algorithm: only PeerError, and `out` untouched by it."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from edgegossip import codecs, frame
from edgegossip.types import PeerError
from tests.conformance.pipeline import LAYOUT, LIMITS, RUN_ID, receive, reseal

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0x7C00, 72, 512, 513)


def seeds() -> list[bytes]:
    """One honest frame or more of every codec on the wire."""
    rng = np.random.default_rng(5)
    frames = []
    for codec_id in codecs.REGISTRY.by_wire_id:
        for aux in ({}, {1: 0.25, 2: 1.5, 200: -3.0}):
            codec = codecs.get(codecs.REGISTRY.by_wire_id[codec_id].name)
            x = rng.standard_normal(LAYOUT.size).astype(np.float32)
            body, _ = codec.encode(x, codec.init(LAYOUT), codecs.Ctx(key=9, round=2))
            message = frame.Frame(
                frame.Kind.MODEL, codec_id, codec.wire_params(), LAYOUT.hash, RUN_ID, 2, 1, 9, body, aux
            )
            frames.append(b"".join(frame.build(message)))
    return frames


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to four changes; in two of three cases the CRCs are made right again, so that what lies behind them is tried."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(7):
            case 0 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[at] = rng.randrange(256)
            case 2:
                del changed[at : at + rng.choice((1, 2, 4, 9, 100))]
            case 3:
                changed[at:at] = rng.randbytes(rng.choice((1, 2, 4, 9, 100)))
            case 4:  # a length or an id
                offset, form = rng.choice(((5, "B"), (8, "H"), (10, "H"), (12, "H"), (44, "I"), (16, "Q"), (40, "I")))
                if len(changed) >= 72:
                    mask = (1 << 8 * struct.calcsize(form)) - 1
                    near = struct.unpack_from("<" + form, changed, offset)[0] + rng.choice((-9, -4, -1, 1, 4, 9))
                    struct.pack_into("<" + form, changed, offset, rng.choice((near, rng.choice(INTERESTING))) & mask)
            case 5:  # a number in the payload
                if len(changed) >= 76:
                    offset = rng.randrange(72, len(changed) - 3)
                    struct.pack_into("<I", changed, offset, rng.choice(INTERESTING) & 0xFFFFFFFF)
            case 6:
                other = rng.choice(others)
                changed[at:] = other[rng.randrange(len(other)) :]
    return reseal(bytes(changed)) if rng.randrange(3) else bytes(changed)


def campaign(mutants: int, seed: int) -> tuple[int, set[str]]:
    """How many mutants were accepted, and the first words of the refusals seen."""
    rng, frames, accepted = random.Random(seed), seeds(), 0
    refusals: set[str] = set()
    out = np.full(LAYOUT.size, 7, np.float32)
    for _ in range(mutants):
        data = mutate(rng.choice(frames), frames, rng)
        try:
            message, x = receive(data, out)
        except PeerError as error:
            refusals.add(" ".join(str(error).split()[:4]))
            assert (out == 7).all(), data.hex()
            continue
        accepted += 1
        assert np.isfinite(x).all(), data.hex()
        assert b"".join(frame.build(frame.parse(data, LIMITS))) == data, data.hex()
        out.fill(7)
    return accepted, refusals


def test_honest_frames_are_accepted() -> None:
    for data in seeds():
        assert np.isfinite(receive(data)[1]).all()


def test_mutated_frames() -> None:
    accepted, refusals = campaign(20_000, seed=1)
    assert accepted > 500  # mutations of values must get through, or nothing behind the checks was tried
    assert len(refusals) > 20, refusals


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_two_million_mutated_frames(seed: int) -> None:
    accepted, _ = campaign(500_000, seed=1000 + seed)
    assert accepted > 10_000
