"""Frames for the fuzz tests: honest ones of every codec, entropy coder and set of parameters, and
seeded mutations of them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

import numpy as np

from edgegossip import codecs, frame
from edgegossip.layout import Layout, TensorSpec
from tests.codecs.cases import CASES
from tests.conformance.pipeline import RUN_ID, reseal

# Models: one in which every byte of a frame is soon hit, one with whole buckets, matrices and long
# streams of codes, and one with a tensor that is large enough for columns to be sorted, where a
# codec does that.
SMALL = Layout.of([TensorSpec("fc.weight", (2, 3)), TensorSpec("fc.bias", (3,)), TensorSpec("bn.mean", (1,), False)])
LARGE = Layout.of(
    [TensorSpec("a", (24, 50)), TensorSpec("b", (0, 4)), TensorSpec("c", (1100,)), TensorSpec("d", (3, 2, 3))]
)
LONG = Layout.of([TensorSpec("a", (3,)), TensorSpec("b", (91, 91)), TensorSpec("c", (1100,))])
LAYOUTS = (SMALL, LARGE, LONG)
LOUD = np.concatenate([np.ones(3), np.where(np.arange(91 * 91) % 91 % 3, 1, 64), np.ones(1100)])  # LONG's columns
SORTS_COLUMNS = ("dither", "deadzone", "sparseloco")

INTERESTING = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x7F800000,
    0x7C00,
    72,
    512,
    513,
)
HEADER_FIELDS = ((5, "B"), (8, "H"), (10, "H"), (12, "H"), (44, "I"), (16, "Q"), (40, "I"))
STEPS = (-9, -4, -1, 1, 4, 9)


@dataclass(frozen=True)
class Seed:
    """An honest frame, the line of the conformance list that it comes from, the decoder that it
    names, and its model."""

    name: str
    decoder: str
    layout: Layout
    data: bytes


def seeds() -> list[Seed]:
    """Two honest frames of every line of the conformance list for each of its models: dense values,
    and mostly zeros."""
    rng, made = np.random.default_rng(5), []
    for case in CASES:
        long = case.codec().name in SORTS_COLUMNS
        for layout in LAYOUTS if long else (SMALL, LARGE):
            for share, aux in ((1.0, {}), (0.03, {1: 0.25, 2: 1.5, 200: -3.0})):
                x = rng.standard_normal(layout.size) ** 3 * (rng.random(layout.size) < share)
                x *= LOUD if layout is LONG else 1
                codec = case.codec()
                body, _ = codec.encode(x.astype(np.float32), codec.init(layout), codecs.Ctx(9, 2, 0.5, 0.1))
                message = frame.Frame(
                    frame.Kind.MODEL, codec.wire_id, codec.wire_params(), layout.hash, RUN_ID, 2, 1, 9, body, aux
                )
                decoder = codecs.from_wire(codec.wire_id, codec.wire_params()).name
                made.append(Seed(str(case), decoder, layout, b"".join(frame.build(message))))
    return made


def mutate(data: bytes, others: list[Seed], rng: random.Random) -> bytes:
    """One to four changes; in three of four cases the CRCs are made right again, so that what lies
    behind is tried."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        _change(changed, others, rng)
    if rng.randrange(4) == 0:
        return bytes(changed)
    if len(changed) >= 72 and rng.randrange(8):
        params, aux = struct.unpack_from("<HH", changed, 10)
        struct.pack_into("<I", changed, 44, max(0, len(changed) - 72 - params - aux))
    return reseal(bytes(changed))


def _change(changed: bytearray, others: list[Seed], rng: random.Random) -> None:
    at = rng.randrange(len(changed)) if changed else 0
    if len(changed) > 76 and rng.randrange(8):
        at = rng.randrange(72, len(changed))  # what the codec sees
        if rng.randrange(4) == 0:
            at = rng.randrange(72, min(len(changed), 72 + 40))  # parameters, heads and scales
    match rng.randrange(9):
        case 0 | 1 if changed:
            changed[at] ^= 1 << rng.randrange(8)
        case 2 if changed:
            changed[at] = rng.randrange(256)
        case 3:
            del changed[at : at + rng.choice((1, 2, 4, 9, 100))]
        case 4:
            changed[at:at] = rng.randbytes(rng.choice((1, 2, 4, 9, 100)))
        case 5 if len(changed) >= 72:  # a field of the header
            offset, form = rng.choice(HEADER_FIELDS)
            _nudge(changed, offset, form, rng)
        case 6 | 7 if len(changed) >= 76:  # a number behind it
            form = rng.choice("BHI")
            _nudge(changed, min(at, len(changed) - struct.calcsize(form)), form, rng)
        case 8:
            other = rng.choice(others).data
            start = rng.randrange(len(other))
            changed[at:] = other[start:] if rng.randrange(2) else other[start : start + rng.choice((4, 16, 64))]


def _nudge(changed: bytearray, offset: int, form: str, rng: random.Random) -> None:
    mask = (1 << 8 * struct.calcsize(form)) - 1
    near = struct.unpack_from("<" + form, changed, offset)[0] + rng.choice(STEPS)
    struct.pack_into("<" + form, changed, offset, rng.choice((near, near, rng.choice(INTERESTING))) & mask)
