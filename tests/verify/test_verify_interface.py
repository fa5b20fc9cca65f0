"""`verify` holds codecs to the interface: mutants of a correct one that each break one rule of it,
and what is said about them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, verify
from edgegossip.codecs.claims import Claims
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, UsageError, Vec
from edgegossip.verify import interface
from tests.verify.test_verify import Plain


class RemembersScale(Plain):
    """The scale stays in the object."""

    scale = struct.pack("<f", 1)

    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> tuple[bytes, Layout]:
        body, state = super().encode(x, state, ctx)
        self.scale = body[:4]
        return bytes(4) + body[4:], state

    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        return super().decode(self.scale + bytes(body[4:]) if not any(body[:4]) else body, layout, out, weight)


class Unprepared(RemembersScale):
    """As RemembersScale, and a receiver has nothing to begin with."""

    scale = b""


class ReturnsNothing(Plain):
    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Any:
        values = super().decode(body, layout, out, weight)
        return values if out is None else None


class ReturnsCopy(Plain):
    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        return super().decode(body, layout, out, weight).copy()


class OverwritesElsewhere(Plain):
    """Right with a weight, another vector without."""

    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        values = super().decode(body, layout, out, weight)
        return values if weight is not None else values.copy()


class GivesList(Plain):
    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Any:
        values = super().decode(body, layout, out, weight)
        return list(values) if out is None else values


class AddsBeforeItChecks(Plain):
    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        if weight is not None and out is not None and len(body) != 4 + layout.size:
            out += 1
        return super().decode(body, layout, out, weight)


class AddsWhatItRefuses(Plain):
    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        if weight is not None and out is not None and len(body) != 4 + layout.size:
            return out
        return super().decode(body, layout, out, weight)


class CrashesInSums(Plain):
    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        if weight is not None and len(body) != 4 + layout.size:
            raise KeyError("no")
        return super().decode(body, layout, out, weight)


class BelievesLength(Plain):
    """A length goes first, and memory is taken before it is checked."""

    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> tuple[bytes, Layout]:
        body, state = super().encode(x, state, ctx)
        return struct.pack("<I", len(body)) + body, state

    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        if len(body) < 4:
            raise DecodeError("short")
        length = struct.unpack_from("<I", body)[0]
        room = np.empty(length, np.uint8)
        if length != len(body) - 4:
            raise DecodeError("wrong length")
        room[:] = np.frombuffer(body, np.uint8, offset=4)
        return super().decode(room.tobytes(), layout, out, weight)


class CrashesOnCodes(Plain):
    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        if len(body) == 4 + layout.size and np.frombuffer(body, np.int8, offset=4).max() > 3:
            raise IndexError("out of range")
        return super().decode(body, layout, out, weight)


class TakesInfinity(Plain):
    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> tuple[bytes, Layout]:
        if np.isnan(x).any():
            raise UsageError("NaN")
        return super().encode(np.clip(x, -1e30, 1e30), state, ctx)


class NamesNoTensor(Plain):
    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> tuple[bytes, Layout]:
        if not np.isfinite(x).all():
            raise UsageError("the matrix is not finite")  # nor are the filters, nor the bias
        return super().encode(x, state, ctx)


class GrowsWithRounds(Plain):
    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> tuple[bytes, Layout]:
        return super().encode(x * np.float32(1 + ctx.round), state, ctx)


class BiasedAndGrows(GrowsWithRounds):
    def claims(self, x: Vec, layout: Layout) -> Claims:
        return Claims(False, 0.9)


class LosesState(Plain):
    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> tuple[bytes, Any]:
        return super().encode(x, state, ctx)[0], None


class ChangesItsState(Plain):
    """What it counts in the state that it was given, it gives back as another one."""

    def init(self, layout: Layout) -> Any:
        return [layout, 0]

    def encode(self, x: Vec, state: Any, ctx: codecs.Ctx) -> tuple[bytes, Any]:
        state[1] += 1
        key = ctx.key + state[1] * (ctx.round > 0)
        return super().encode(x, state[0], codecs.Ctx(key, ctx.round))[0], [*state]


class Exits(Plain):
    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> tuple[bytes, Layout]:
        raise SystemExit(0)


class ExitsOnDamage(Plain):
    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        if len(body) != 4 + layout.size:
            raise SystemExit(0)
        return super().decode(body, layout, out, weight)


class ExitsInClaims(Plain):
    def claims(self, x: Vec, layout: Layout) -> Claims:
        raise SystemExit(3)


class LongParams(Plain):
    def wire_params(self) -> bytes:
        return bytes(513)


class TextParams(Plain):
    def wire_params(self) -> Any:
        return "bits=3"


class OtherParams(Plain):
    count = 0

    def wire_params(self) -> bytes:
        self.count += 1
        return bytes([self.count])


class AnothersId(Plain):
    wire_id = codecs.get("elastiquant").wire_id


class NoId(Plain):
    wire_id = 0


class ZeroMean(Plain):
    """A momentum: only the first message is held to claims, and the second is far from x."""

    def init(self, layout: Layout) -> Any:
        return layout, np.zeros(layout.size, np.float32)

    def encode(self, x: Vec, state: Any, ctx: codecs.Ctx) -> tuple[bytes, Any]:
        layout, memory = state
        interface.encode(codecs.get("fp32"), x, layout)  # refuses what is not finite
        total = memory + x
        return super().encode(total, layout, ctx)[0], (layout, total)


class Inside(Plain):
    """Bodies of a codec of the package, under its wire id: its decoder reads them."""

    codec = codecs.get("fp16")
    wire_id = codec.wire_id

    def claims(self, x: Vec, layout: Layout) -> Claims:
        return Claims()

    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> Any:
        return self.codec.encode(x, self.codec.init(state), ctx)[0], state

    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        return self.codec.decode(body, layout, out, weight)


def faults(codec: Any, **options: Any) -> dict[str, str]:
    report = verify.verify(codec, "x", size=2048, draws=8, **options)
    return {check.name: check.note for check in report.checks if check.passed is False}


@pytest.mark.parametrize(
    ("mutant", "check", "said"),
    [
        (RemembersScale, "same", "a receiver decodes other values; all that it needs must travel"),
        (Unprepared, "same", "a receiver fails with DecodeError: wrong size; all that it needs must travel"),
        (ReturnsNothing, "same", "decoding with a weight does not return `out` but NoneType"),
        (ReturnsCopy, "same", "decoding with a weight does not return `out` but another vector"),
        (OverwritesElsewhere, "same", "decoding into `out` does not return it but another vector"),
        (GivesList, "same", "decoding gave list, not a vector"),
        (LosesState, "same", "message 2 of a row cannot be encoded: AttributeError"),
        (ChangesItsState, "same", "equal input, state and key gave other bytes (message 2)"),
        (GrowsWithRounds, "same", "gain is 1.998"),
        (BiasedAndGrows, "same", "variance is "),
        (LongParams, "same", "wire_params() gave 513 bytes; a frame carries at most 512"),
        (TextParams, "same", "wire_params() gave str, not bytes"),
        (OtherParams, "same", "wire_params() gave other bytes the second time"),
        (AnothersId, "same", "wire id 7 is that of elastiquant, which does not decode these bodies"),
        (NoId, "same", "wire_id = 0 is not a number from 1 to 65535"),
        (AddsBeforeItChecks, "refuses", "a refused body changed the sum"),
        (AddsWhatItRefuses, "refuses", "a body that is refused alone was added"),
        (CrashesInSums, "refuses", "a wrong body ended in KeyError, not in DecodeError, when it was added"),
        (BelievesLength, "refuses", "bytes of memory to decode"),
        (CrashesOnCodes, "refuses", "a wrong body ended in IndexError, not in DecodeError: out of range"),
        (TakesInfinity, "refuses", "an infinity (inf) in the input was encoded"),
        (NamesNoTensor, "refuses", "the error for -inf in tensor 'bias' does not name it: the matrix is"),
        (Exits, "encodes", "SystemExit: 0: a codec must not end the process"),
        (ExitsOnDamage, "refuses", "a wrong body ended in SystemExit"),
        (ExitsInClaims, "claims", "SystemExit: 3"),
    ],
)
def test_every_mutant_is_told_what_is_wrong(mutant: Callable[[], Any], check: str, said: str) -> None:
    found = faults(mutant())
    assert said in found[check] and set(found) <= {check, "refuses"}


@pytest.mark.parametrize("codec", [Plain, ZeroMean, Inside])
def test_correct_ones_pass(codec: Callable[[], Any]) -> None:
    assert faults(codec()) == {} == faults(codec(), rebuild=lambda wire_id, params: codec())


def test_a_codec_that_cannot_be_copied_is_its_own_receiver() -> None:
    class Uncopied(Plain):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    assert faults(Uncopied()) == {}


def test_memory_is_held_to_the_layout_also_while_somebody_traces_it() -> None:
    import tracemalloc

    assert interface.peak_bytes(lambda: bytearray(10**6)) == pytest.approx(10**6, rel=0.01)
    tracemalloc.start()
    try:
        assert interface.peak_bytes(lambda: bytearray(10**6)) == pytest.approx(10**6, rel=0.01)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_bodies_without_bytes_are_neither_cut_nor_flipped() -> None:
    assert list(interface._flipped(b"")) == [] == list(interface._with_lengths(b"", 100))
