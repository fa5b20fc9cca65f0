"""The quantised codecs: parameters, coders, what each one's rule says, and bodies that are
refused."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs import zstd
from edgegossip.codecs.elastiquant import ElastiQuant
from edgegossip.layout import Layout, TensorSpec
from edgegossip.native.quantise import LevelKind
from edgegossip.types import ConfigError, DecodeError, Vec

RAW, HUFFMAN, RUNS, ELIAS, ZSTD = range(5)
CTX = codecs.Ctx(key=7, round=0)


def layout_of(*sizes: int) -> Layout:
    return Layout.of([TensorSpec(f"t{k}", (n,)) for k, n in enumerate(sizes)])


def body_of(codec: codecs.Codec[Any], x: Vec, ctx: codecs.Ctx = CTX) -> bytes:
    layout = layout_of(x.size)
    return bytes(codec.encode(x, codec.init(layout), ctx)[0])


def normal(n: int, seed: int = 1) -> Vec:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def sparse(n: int, share: float) -> Vec:
    rng = np.random.default_rng(2)
    return np.where(rng.random(n) < share, rng.standard_normal(n), 0).astype(np.float32)


# Parameters.

MANY = tuple(k / 127 for k in range(128))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("qsgd", {"bucket": 100}, "codec qsgd: bucket = 100 is not a power of two from 8 to 65536, or 0; the nearest is 128"),
        ("qsgd", {"stage": "zsdt"}, "codec qsgd: stage = 'zsdt' is not one of raw, huffman, elias, zstd, auto"),
        ("elastiquant", {"bits": 8, "ratio": 1e-9}, "codec elastiquant: 126 levels of ratio 1e-09 cannot be told apart"),
        ("elastiquant", {"levels": (0.0, 0.5)}, "codec elastiquant: levels must increase from 0 to 1"),
        ("elastiquant", {"levels": (0.0, 0.5, 0.5, 1.0)}, "codec elastiquant: levels must increase from 0 to 1"),
        ("elastiquant", {"levels": (0.0, 0.2, 0.4, 1.0), "bits": 2}, "codec elastiquant: 4 levels do not fit 2 bits"),
        ("elastiquant", {"levels": MANY, "bits": 8}, "codec elastiquant: 128 levels do not fit 8 bits, which hold 127"),
    ],
)  # fmt: skip
def test_parameters_that_cannot_be(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        codecs.get(name, **params)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "params", "wire"),
    [
        ("qsgd", {"bits": 5, "bucket": 64}, struct.pack("<BI", 5, 64)),
        ("qsgd-inf", {"bits": 16, "bucket": 0}, struct.pack("<BI", 16, 0)),
        ("elastiquant", {}, struct.pack("<BBId", 4, 0, 512, 0.5)),
        ("elastiquant", {"bits": 8}, struct.pack("<BBId", 8, 0, 512, 0.9)),
        ("elastiquant", {"levels": (0, 0.25, 1), "bucket": 8}, struct.pack("<BBIf", 4, 1, 8, 0.25)),
        ("elastiquant", {"levels": (0, 1), "bits": 2}, struct.pack("<BBI", 2, 1, 512)),
        ("elasticl", {"s0": 9}, b""),
        ("co3", {}, b""),
    ],
)
def test_the_wire_says_what_a_receiver_needs(name: str, params: dict[str, Any], wire: bytes) -> None:
    codec = codecs.get(name, **params)
    assert codec.wire_params() == wire
    twin = codecs.from_wire(codec.wire_id, wire)
    assert twin.wire_params() == wire
    x = normal(900)
    body = body_of(codec, x)
    np.testing.assert_array_equal(twin.decode(body, layout_of(900)), codec.decode(body, layout_of(900)))
    if name.startswith("qsgd"):
        with pytest.raises(DecodeError, match=f"^codec {name}: bits = 1 is outside"):
            codecs.from_wire(codec.wire_id, struct.pack("<BI", 1, 512))
        for extra in (wire[:-1], wire + b"\0"):
            with pytest.raises(DecodeError, match="bytes of wire parameters"):
                codecs.from_wire(codec.wire_id, extra)


@pytest.mark.parametrize(
    "params",
    [
        b"\x04\x00\x00\x02\x00",
        struct.pack("<BBId", 9, 0, 512, 0.5),
        struct.pack("<BBId", 1, 0, 512, 0.5),
        struct.pack("<BBId", 4, 0, 500, 0.5),
        struct.pack("<BBId", 4, 2, 512, 0.5),
        struct.pack("<BBIf", 4, 0, 512, 0.5),
        struct.pack("<BBId", 4, 0, 512, 0.0),
        struct.pack("<BBId", 4, 0, 512, 1.0),
        struct.pack("<BBId", 8, 0, 512, 1e-9),
        struct.pack("<BBI", 4, 1, 512) + b"\0\0",
        struct.pack("<BBIff", 3, 1, 512, 0.9, 0.1),
        struct.pack("<BBIf", 2, 1, 512, 0.5),
    ],
)
def test_elastiquant_parameters_that_are_refused(params: bytes) -> None:
    with pytest.raises(DecodeError, match="elastiquant"):
        codecs.from_wire(ElastiQuant.wire_id, params)


def test_elastiquant_quantisers() -> None:
    kinds = {
        (b, p): ElastiQuant(b, p).quantiser().kind
        for b, p in ((2, 0.3), (4, 0.0), (6, 0.5), (7, 0.5), (4, 0.4), (8, 0))
    }
    assert kinds[2, 0.3] is kinds[4, 0.0] is kinds[6, 0.5] is LevelKind.LOG2
    assert kinds[7, 0.5] is kinds[4, 0.4] is kinds[8, 0] is LevelKind.LEVELS
    for grid in (codecs.get(name, bits=bits).grid() for name in ("elastiquant", "qsgd") for bits in range(2, 9)):
        assert grid[0] == 0.0 and grid[-1] == 1.0 and (np.diff(grid) > 0.0).all()


# Stages.


@pytest.mark.parametrize(
    ("name", "params", "x", "stages"),
    [
        ("qsgd", {"bits": 8, "bucket": 0}, sparse(30_000, 0.01), {RUNS, ELIAS, ZSTD}),
        ("qsgd", {"bits": 8, "bucket": 0, "stage": "huffman"}, sparse(30_000, 0.01), {RUNS}),
        ("qsgd", {"bits": 8, "stage": "zstd"}, sparse(30_000, 0.01), {ZSTD}),
        ("qsgd", {"bits": 4, "bucket": 0}, np.zeros(30_000, np.float32), {RUNS, ELIAS, ZSTD}),
        ("qsgd", {"bits": 4}, normal(30_000), {HUFFMAN, RUNS}),
        ("qsgd-inf", {"bits": 8}, np.random.default_rng(1).uniform(-1, 1, 30_000).astype(np.float32), {RAW}),
        ("qsgd-inf", {"bits": 8, "stage": "zstd"}, np.random.default_rng(1).uniform(-1, 1, 30_000).astype(np.float32), {RAW}),
        ("qsgd", {"bits": 4, "stage": "elias"}, normal(3000), {ELIAS}),
        ("elastiquant", {"stage": "auto"}, np.tile(normal(1), 20_000), {ZSTD, HUFFMAN, RUNS}),
        ("elastiquant", {"stage": "raw"}, np.zeros(3000, np.float32), {RAW}),
        ("terngrad", {}, np.zeros(30_000, np.float32), {RUNS, ELIAS, ZSTD}),
        ("signsgd", {}, np.ones(30_000, np.float32), {RAW}),
        ("signsgd", {"stage": "auto"}, np.ones(30_000, np.float32), {ZSTD}),
        ("signsgd", {"stage": "auto"}, normal(30_000), {RAW}),
        ("co3", {}, normal(30_000), {HUFFMAN}),
    ],
)  # fmt: skip
def test_the_coder_that_is_chosen(name: str, params: dict[str, Any], x: Vec, stages: set[int]) -> None:
    codec = codecs.get(name, **params)
    body = body_of(codec, x)
    assert body[0] in stages
    values = codec.decode(body, layout_of(x.size))
    raw = codecs.get(name, **{**params, "stage": "raw"})
    plain = body_of(raw, x)
    np.testing.assert_array_equal(values, raw.decode(plain, layout_of(x.size)))
    assert params.get("stage") == "elias" or len(body) <= len(plain)


CODERS = ("raw", "huffman", "elias", "zstd")


@pytest.mark.parametrize(
    ("name", "bits"),
    [*itertools.product(("qsgd", "qsgd-inf"), (2, 4, 7, 8, 12)), ("elastiquant", 4), ("elastiquant", 8)],
)
def test_auto_is_as_small_as_the_smallest(name: str, bits: int) -> None:
    repeated = np.tile(normal(500), 200)
    for x in (
        *(sparse(20_000, share) for share in (0.003, 0.1, 0.5)),
        *(normal(n) for n in (64, 128, 700, 1100, 20_000)),
        np.maximum(normal(100_000), 0),
        repeated,
        np.zeros(500, np.float32),
    ):
        sizes = {s: len(body_of(codecs.get(name, bits=bits, stage=s), x)) for s in CODERS}
        auto = len(body_of(codecs.get(name, bits=bits, stage="auto"), x))
        assert auto <= min(sizes.values()) * 1.005 + 2, (bits, x.size, auto, sizes)


def test_a_section_each_and_none_for_what_is_empty() -> None:
    layout = layout_of(0, 5, 0, 7)
    codec = codecs.get("qsgd", bits=4, stage="raw")
    body = codec.encode(normal(12), codec.init(layout), CTX)[0]
    assert len(body) == 1 + 2 + 3 + 1 + 2 + 4
    assert len(codec.encode(normal(0), codec.init(layout_of(0)), CTX)[0]) == 0
    with pytest.raises(DecodeError, match="^the qsgd body is followed by 2 bytes that do not belong to it$"):
        codec.decode(bytes(body) + b"\0\0", layout)
    with pytest.raises(DecodeError, match="^the qsgd section of tensor t3 is invalid: it ends early$"):
        codec.decode(body[:-1], layout)


# zstd sections that are damaged.


def symbols_in(frame: list[bytes], scale: float = 1.0) -> bytes:
    packed = zstd.compress([memoryview(part) for part in frame])
    return bytes([ZSTD]) + struct.pack("<fI", scale, len(packed)) + packed


CODE, SCALE = "a code is none of this codec's", "a scale is not finite, below zero, or has values beyond float32"


@pytest.mark.parametrize(
    ("name", "n", "body", "message"),
    [
        ("terngrad", 1023, symbols_in([bytes(256)]), "1023 values have no zstd frame"),
        ("terngrad", 1025, b"\4" + bytes(7), "it ends early"),
        ("terngrad", 1025, b"\4" + bytes(4) + b"\1\0\0\0", "it ends early"),
        ("terngrad", 1025, symbols_in([bytes(257)], math.nan), SCALE),
        ("co3", 1025, symbols_in([bytes(513)], 1e-39), SCALE),
        ("qsgd", 1025, b"\4\0\xff\0\0\0\0" + symbols_in([bytes(513)])[5:], SCALE),
        ("qsgd", 1025, b"\4\0\x7f\0\0\0\0" + symbols_in([b"\x08" + bytes(512)])[5:], CODE),
        ("terngrad", 1025, symbols_in([b"\2" + bytes(256)]), CODE),
        ("co3", 1025, symbols_in([b"\6" + bytes(512)]), CODE),
        ("terngrad", 1025, symbols_in([bytes(256) + b"\4"]), "unused bits are set"),
        ("co3", 1025, symbols_in([bytes(512) + b"\x10"]), "unused bits are set"),
    ],
)
@pytest.mark.parametrize("weight", [None, 0.5])
def test_damaged_zstd_sections(name: str, n: int, body: bytes, message: str, weight: float | None) -> None:
    out = np.full(n, 3, np.float32)
    with pytest.raises(DecodeError) as error:
        codecs.get(name).decode(body, layout_of(n), out, weight)
    assert str(error.value) == f"the {name} section of tensor t0 is invalid: {message}"
    assert weight is None or (out == 3).all()


@pytest.mark.parametrize(("size", "wrong"), [(256, "ends 1 bytes early"), (258, "holds more than its tensor's codes")])
def test_zstd_frames_of_another_size(size: int, wrong: str) -> None:
    with pytest.raises(DecodeError, match=wrong):
        codecs.get("terngrad").decode(symbols_in([bytes(size)]), layout_of(1025))


def test_zstd_over_several_pieces_and_buckets() -> None:
    n = 2 * zstd._PIECE + 777
    x = np.repeat(normal(n // 64 + 1), 64)[:n].copy()
    for params in ({"bits": 3, "bucket": 64}, {"bits": 9, "bucket": 65536}):
        raw, packed = (codecs.get("qsgd-inf", **params, stage=stage) for stage in ("raw", "zstd"))
        body, plain = body_of(packed, x), body_of(raw, x)
        assert body[0] == ZSTD and len(body) < len(plain)
        np.testing.assert_array_equal(packed.decode(body, layout_of(n)), raw.decode(plain, layout_of(n)))
