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
from tests.verify.test_verify import Plain, decoding, encoding


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


def decoded(values: Any) -> type[Plain]:
    """A mutant that gives something else back: `values` of what is right, `out` and the weight."""
    return decoding(lambda decode, body, layout, out, weight: values(decode(body, layout, out, weight), out, weight))


def of_wrong_size(instead: Callable[..., Any]) -> type[Plain]:
    """A mutant that does something else with bodies of a wrong size: with `out` and the weight."""

    def change(decode: Any, body: Any, layout: Layout, out: Vec | None, weight: float | None) -> Any:
        if len(body) != 4 + layout.size and (made := instead(out, weight)) is not None:
            return made
        return decode(body, layout, out, weight)

    return decoding(change)


def fails(error: BaseException) -> Any:
    raise error


def crashes_on_codes(decode: Any, body: Any, layout: Layout, *rest: Any) -> Any:
    if len(body) == 4 + layout.size and np.frombuffer(body, np.int8, offset=interface.HEAD_BYTES + 4).max() > 3:
        raise IndexError("out of range")
    return decode(body, layout, *rest)


def adds_before_it_checks(out: Vec | None, weight: float | None) -> None:
    if weight is not None and out is not None:
        out += 1


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


def takes_infinity(encode: Any, x: Vec, *rest: Any) -> Any:
    return fails(UsageError("NaN")) if np.isnan(x).any() else encode(np.clip(x, -1e30, 1e30), *rest)


def names_no_tensor(encode: Any, x: Vec, *rest: Any) -> Any:
    """Nor are the filters finite, nor the bias."""
    return encode(x, *rest) if np.isfinite(x).all() else fails(UsageError("the matrix is not finite"))


GROWS = encoding(lambda encode, x, state, ctx: encode(x * np.float32(1 + ctx.round), state, ctx))


class ChangesItsState(Plain):
    """What it counts in the state that it was given, it gives back as another one."""

    def init(self, layout: Layout) -> Any:
        return [layout, 0]

    def encode(self, x: Vec, state: Any, ctx: codecs.Ctx) -> tuple[bytes, Any]:
        state[1] += 1
        key = ctx.key + state[1] * (ctx.round > 0)
        return super().encode(x, state[0], codecs.Ctx(key, ctx.round))[0], [*state]


class OtherParams(Plain):
    count = 0

    def wire_params(self) -> bytes:
        self.count += 1
        return bytes([self.count])


def with_parts(**parts: Any) -> type[Plain]:
    """A mutant with other attributes."""
    return type("Mutant", (Plain,), parts)


class ZeroMean(Plain):
    """A momentum: only the first message is held to claims, and the second is far from x."""

    def init(self, layout: Layout) -> Any:
        return layout, np.zeros(layout.size, np.float32)

    def encode(self, x: Vec, state: Any, ctx: codecs.Ctx) -> tuple[bytes, Any]:
        layout, memory = state
        interface.encode(codecs.get("fp32"), x, layout)  # refuses what is not finite
        total = memory + x
        return super().encode(total, layout, ctx)[0], (layout, total)


class Talks(Plain):
    """What it prints is not what it answers."""

    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        print("decoding", flush=True)
        return super().decode(body, layout, out, weight)


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
        (
            decoded(lambda y, out, weight: y if out is None else None),
            "same",
            "decoding with a weight does not return `out` but NoneType",
        ),
        (
            decoded(lambda y, out, weight: y if weight is not None else y.copy()),
            "same",
            "decoding into `out` does not return it but another vector",
        ),
        (decoded(lambda y, out, weight: list(y)), "same", "decoding gave list, not a vector"),
        (
            encoding(lambda encode, *arguments: (encode(*arguments)[0], None)),
            "same",
            "message 2 of a row cannot be encoded: AttributeError",
        ),
        (ChangesItsState, "same", "equal input, state and key gave other bytes (message 2)"),
        (GROWS, "same", "gain is 1.998"),
        (with_parts(wire_params=lambda self: bytes(513)), "same", "wire_params() gave 513 bytes; a frame carries at"),
        (with_parts(wire_params=lambda self: "bits=3"), "same", "wire_params() gave str, not bytes"),
        (OtherParams, "same", "wire_params() gave other bytes the second time"),
        (with_parts(wire_id=7), "same", "wire id 7 is that of elastiquant, which does not decode these bodies"),
        (with_parts(wire_id=0), "same", "wire_id = 0 is not a number from 1 to 65535"),
        (of_wrong_size(adds_before_it_checks), "refuses", "a refused body changed the sum"),
        (
            of_wrong_size(lambda out, weight: None if weight is None else out),
            "refuses",
            "a body that is refused alone was added",
        ),
        (
            of_wrong_size(lambda out, weight: None if weight is None else fails(KeyError("no"))),
            "refuses",
            "a wrong body ended in KeyError, not in DecodeError, when it was added",
        ),
        (of_wrong_size(lambda out, weight: fails(SystemExit(0))), "refuses", "a wrong body ended in SystemExit"),
        (BelievesLength, "refuses", "bytes of memory to decode"),
        (decoding(crashes_on_codes), "refuses", "a wrong body ended in IndexError, not in DecodeError: out of range"),
        (encoding(takes_infinity), "refuses", "an infinity (inf) in the input was encoded"),
        (encoding(names_no_tensor), "refuses", "the error for -inf in tensor 'bias' does not name it: the matrix is"),
        (
            encoding(lambda *_: fails(SystemExit(0))),
            "encodes",
            "SystemExit: 0: a codec must not end the process",
        ),
        (with_parts(claims=lambda self, x, layout: fails(SystemExit(3))), "claims", "SystemExit: 3"),
    ],
)
def test_every_mutant_is_told_what_is_wrong(mutant: Callable[[], Any], check: str, said: str) -> None:
    found = faults(mutant())
    assert said in found[check] and set(found) <= {check, "refuses"}


@pytest.mark.parametrize("codec", [Talks, ZeroMean, Inside])
def test_correct_ones_pass(codec: Callable[[], Any]) -> None:
    assert faults(codec()) == {} == faults(codec(), build=codec)


def exits() -> Any:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("build", "said"),
    [(exits, "a receiver in another process fails with no values"), (lambda: Plain(), "PicklingError")],
)
def test_receivers_that_cannot_be_built(build: Callable[[], Any], said: str) -> None:
    assert said in faults(Plain(), build=build)["same"]


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
