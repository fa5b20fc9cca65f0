"""`verify` passes a correct codec and fails each of its mutants, in the check that is meant for
it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, verify
from edgegossip.codecs import levels
from edgegossip.codecs.checks import require_input, require_out, write
from edgegossip.codecs.claims import Claims
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, UsageError, Vec

S = 3


@dataclass
class Plain:
    """QSGD with 3 levels of the whole vector's largest magnitude, an int8 a value: what a user
    might write."""

    name = "plain"
    wire_id = 999

    def wire_params(self) -> bytes:
        return b""

    def init(self, layout: Layout) -> Layout:
        return layout

    def claims(self, x: Vec, layout: Layout) -> Claims:
        return Claims(True, levels.worst_case_variance(levels.uniform_levels(S), layout.size), 8 + 32 / layout.size)

    def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> tuple[bytes, Layout]:
        require_input(x, state)
        scale = float(np.abs(x).max())
        return struct.pack("<f", scale) + self.round(x / scale * S, ctx).astype(np.int8).tobytes(), state

    def round(self, a: np.ndarray, ctx: codecs.Ctx) -> np.ndarray:
        return np.floor(a + np.random.default_rng(ctx.key).random(a.size))

    def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight)
        if len(body) != 4 + layout.size:
            raise DecodeError("wrong size")
        scale = struct.unpack_from("<f", body)[0]
        codes = np.frombuffer(body, np.int8, offset=4)
        if not 0 <= scale < 1e38 or np.abs(codes.astype(int)).max() > S:
            raise DecodeError("bad scale or code")
        out = np.zeros(layout.size, np.float32) if out is None else out
        write(codes * np.float32(scale / S), out, weight)
        return out


def rounding(change: Callable[[np.ndarray, codecs.Ctx], np.ndarray]) -> type[Plain]:
    """A mutant that rounds in another way."""

    class Mutant(Plain):
        def round(self, a: np.ndarray, ctx: codecs.Ctx) -> np.ndarray:
            return change(a, ctx)

    return Mutant


def encoding(change: Callable[..., Any]) -> type[Plain]:
    """A mutant whose encode is `change`, which gets the right one and its arguments."""

    class Mutant(Plain):
        def encode(self, x: Vec, state: Any, ctx: codecs.Ctx) -> Any:
            return change(super().encode, x, state, ctx)

    return Mutant


def decoding(change: Callable[..., Any]) -> type[Plain]:
    """A mutant whose decode is `change`, which gets the right one and its arguments."""

    class Mutant(Plain):
        def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Any:
            return change(super().decode, body, layout, out, weight)

    return Mutant


def claiming(**less: float) -> type[Plain]:
    """A mutant that claims more than it keeps."""

    class Mutant(Plain):
        def claims(self, x: Vec, layout: Layout) -> Claims:
            return replace(super().claims(x, layout), **less)

    return Mutant


def given(values: Vec, out: Vec | None, weight: float | None) -> Vec:
    if out is None:
        return values
    write(values, out, weight)
    return out


def leaks(a: np.ndarray, ctx: codecs.Ctx) -> np.ndarray:
    """A tenth of each value's neighbour comes along, less what of it lies along x: a bias that
    leaves the gain at 1."""
    other = np.roll(a, 1).astype(np.float64)
    other -= (other @ a) / (a.astype(np.float64) @ a) * a
    return np.clip(Plain().round(a + 0.1 * other, ctx), -S, S)


def scribbles(encode: Any, x: Vec, state: Layout, ctx: codecs.Ctx) -> Any:
    made = encode(x, state, ctx)
    x[0] = -x[0]
    return made


def trusts_scales(decode: Any, body: Any, layout: Layout, out: Vec | None, weight: float | None) -> Vec:
    if len(body) != 4 + layout.size:
        raise DecodeError("wrong size")
    with np.errstate(all="ignore"):
        scale = np.frombuffer(body, "<f4", 1)[0] / np.float32(S)
        return given(np.frombuffer(body, np.int8, offset=4) * scale, out, weight)


def crashes(decode: Any, body: Any, *rest: Any) -> Any:
    if len(body) < 5:
        raise IndexError("out of range")
    return decode(body, *rest)


def drawn(a: np.ndarray, seed: int) -> np.ndarray:
    return np.floor(a + np.random.default_rng(seed).random(a.size))


CALLS = itertools.count()
TOO_LARGE = decoding(
    lambda decode, body, layout, out, weight: given(decode(body, layout) * np.float32(1.03), out, weight)
)
# Each with the checks that it fails, and what is said.
MUTANTS: dict[str, tuple[type[Plain], dict[str, str]]] = {
    "towards zero": (rounding(lambda a, ctx: np.trunc(a)), {"gain": "", "bias": ""}),
    "the same error for all keys": (rounding(lambda a, ctx: drawn(a, 1)), {"gain": "", "bias": ""}),
    "slightly too large": (TOO_LARGE, {"gain": ""}),
    "leaks": (rounding(leaks), {"bias": ""}),
    "claims less variance": (claiming(variance=0.7), {"variance": ""}),
    "claims less entropy": (claiming(entropy_bits=6.5), {"size": "entropy 6.500"}),
    "forgetful": (
        rounding(lambda a, ctx: drawn(a, next(CALLS))),
        {"same": "equal input, state and key gave other bytes"},
    ),
    "scribbles": (encoding(scribbles), {"encodes": "ValueError: assignment destination is read-only"}),
    "ignores the weight": (
        decoding(lambda decode, body, layout, out, weight: decode(body, layout, out)),
        {"same": "decoding with a weight is not out + weight * values"},
    ),
    "adds where it should overwrite": (
        decoding(lambda decode, body, layout, out, w: decode(body, layout, out, w if out is None else w or 1.0)),
        {"same": "equal bytes decoded to other values"},
    ),
    "doubles": (
        decoding(lambda decode, *arguments: decode(*arguments).astype(np.float64)),
        {"same": "decoding gave float64[4096], or values that are not finite"},
    ),
    "takes NaN": (
        encoding(lambda encode, x, *rest: encode(np.nan_to_num(x), *rest)),
        {"refuses": "a NaN in the input was encoded"},
    ),
    "takes any length": (
        decoding(lambda decode, body, layout, *rest: decode(bytes(body)[: 4 + layout.size], layout, *rest)),
        {"refuses": "a body of 4100 bytes was also decoded with 4101"},
    ),
    "fills up": (
        decoding(lambda decode, body, layout, *rest: decode(bytes(body).ljust(4 + layout.size, b"\0"), layout, *rest)),
        {"refuses": "a body of 4100 bytes was also decoded with 0"},
    ),
    "trusts scales": (decoding(trusts_scales), {"refuses": "a damaged body decoded to values that are not finite"}),
    "crashes": (
        decoding(crashes),
        {"refuses": "a wrong body ended in IndexError, not in DecodeError: out of range"},
    ),
}


def failed(codec: Any, **options: Any) -> set[str]:
    report = verify.verify(codec, "x", size=4096, **options)
    names = {check.name for check in report.checks if check.passed is False}
    assert report.passed == (not names)
    return names


def test_a_correct_codec_passes() -> None:
    report = verify.verify(Plain(), "mine", size=4096)
    assert report.passed and report.codec == "mine"
    assert [check.name for check in report.checks] == ["gain", "bias", "variance", "size", "same", "refuses"]
    assert all(check.passed for check in report.checks)
    assert report.bits_per_value == 8 + 32 / 4096
    by_name = {check.name: check for check in report.checks}
    assert report.relative_error == pytest.approx(by_name["variance"].value ** 0.5)


@pytest.mark.parametrize(("mutant", "expected"), MUTANTS.values(), ids=list(MUTANTS))
def test_every_mutant_fails_where_it_should(mutant: Callable[[], Any], expected: dict[str, str]) -> None:
    """In these checks and no other, by these words: every check is seen to fail alone, and every
    reason that it can have."""
    report = verify.verify(mutant(), "x", size=4096, draws=64)
    assert {check.name: check.note for check in report.checks if check.passed is False} == expected
    assert not report.passed


def test_a_receiver_that_decodes_otherwise_fails() -> None:
    assert failed(Plain(), rebuild=lambda wire_id, params: TOO_LARGE()) == {"same"}
    assert failed(Plain(), rebuild=lambda wire_id, params: Plain()) == set()


def test_a_codec_that_cannot_encode_decode_or_claim_is_told_so() -> None:
    class NoEncode(Plain):
        def encode(self, x: Vec, state: Layout, ctx: codecs.Ctx) -> Any:
            raise ValueError("no way")

    class Infinite(Plain):
        def decode(self, body: Any, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
            return np.full(layout.size, np.inf, np.float32)

    class WrongClaims(Plain):
        def claims(self, x: Vec, layout: Layout) -> Any:
            return True

    for codec, said in ((NoEncode(), "ValueError: no way"), (Infinite(), "infinity"), (WrongClaims(), "claims() must")):
        report = verify.verify(codec, "x", size=64)
        assert not report.passed and said in report.checks[0].note


def test_sizes_and_draws_out_of_range() -> None:
    for options in ({"size": 63}, {"draws": 3}, {"size": 2**26, "draws": 32}):
        with pytest.raises(UsageError):
            verify.verify(Plain(), "x", **options)


@pytest.mark.parametrize("size", [64, 100, 4097, 65536])
def test_the_trial_has_exactly_the_size(size: int) -> None:
    layout, x = verify.trial(size)
    assert layout.size == x.size == size and x.dtype == np.float32 and np.isfinite(x).all() and x.any()
