"""Codec bodies computed the slow, plain way: what the golden vectors are made from. Shares no code
with the product."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from tests.conformance import reference_quantised as quantised
from tests.conformance.reference_common import Shapes, pack, split
from tests.conformance.reference_eden import eden, eden_values
from tests.conformance.reference_lowrank import atomo, atomo_values, powersgd, powersgd_values
from tests.conformance.reference_sparse import randk, randk_values, topk, topk_values
from tests.conformance.reference_sparseloco import sparseloco, sparseloco_values
from tests.conformance.reference_stepped import deadzoned, deadzoned_values, dithered, dithered_values

Body = Callable[..., bytes]  # x, shapes and the parameters of PARAMS
Values = Callable[..., list[float]]  # body, shapes and the same parameters

FLOAT32_MIN_NORMAL = 2.0**-126


def fp32(x: np.ndarray, shapes: Shapes) -> bytes:
    return pack(x.tolist(), "fp32")


def fp32_values(body: bytes, shapes: Shapes) -> list[float]:
    return list(struct.unpack(f"<{len(body) // 4}f", body))


def fp16(x: np.ndarray, shapes: Shapes) -> bytes:
    return pack(x.tolist(), "fp16")


def fp16_values(body: bytes, shapes: Shapes) -> list[float]:
    return list(struct.unpack(f"<{len(body) // 2}e", body))


def bf16(x: np.ndarray, shapes: Shapes) -> bytes:
    body = b""
    for v in x:
        bits = struct.unpack("<I", struct.pack("<f", v))[0]
        upper, lower = bits >> 16, bits & 0xFFFF
        up = lower > 0x8000 or (lower == 0x8000 and upper & 1)
        body += struct.pack("<H", upper + 1 if up and upper & 0x7FFF < 0x7F7F else upper)
    return body


def bf16_values(body: bytes, shapes: Shapes) -> list[float]:
    return [struct.unpack("<f", b"\0\0" + body[i : i + 2])[0] for i in range(0, len(body), 2)]


def minmax8(x: np.ndarray, shapes: Shapes) -> bytes:
    heads, codes = b"", b""
    for t in split(x, shapes):
        low, high = (t.min() + np.float32(0), t.max() + np.float32(0)) if t.size else (np.float32(0), np.float32(0))
        heads += struct.pack("<ff", low, high)
        if low == high:
            codes += bytes(t.size)
            continue
        kind, scale, lower = _grid(low, high)
        codes += (np.clip(np.rint(t.astype(kind) * scale), lower, lower + 255) - lower).astype(np.uint8).tobytes()
    return heads + codes


def minmax8_values(body: bytes, shapes: Shapes) -> list[float]:
    codes = np.frombuffer(body, np.uint8)[8 * len(shapes) :]
    values: list[float] = []
    for k, q in enumerate(split(codes, shapes)):
        low, high = np.frombuffer(body, "<f4", 2, 8 * k)
        if low == high:
            values += [float(low)] * q.size
            continue
        kind, scale, lower = _grid(low, high)
        with np.errstate(over="ignore"):  # an infinity becomes high or low
            values += np.clip((q.astype(kind) + lower) / scale, kind(low), kind(high)).astype(np.float32).tolist()
    return values


def per_tensor(x: np.ndarray, shapes: Shapes, codec: str, tensors: str, other: str) -> bytes:
    """fp32 and fp16 by the number of the tensor: `tensors` is one name. Neighbours of one choice go
    together."""
    choices = [int(f"t{k}" == tensors) for k in range(len(shapes))]
    body, parts = bytes(choices), list(split(x, shapes))
    for choice, group in groupby(range(len(shapes)), key=lambda k: choices[k]):
        run = np.concatenate([parts[k] for k in group])
        piece = (fp16 if (codec, other)[choice] == "fp16" else fp32)(run, ())
        body += struct.pack("<I", len(piece)) + piece
    return body


def per_tensor_values(body: bytes, shapes: Shapes, codec: str, tensors: str, other: str) -> list[float]:
    values: list[float] = []
    choices, at = body[: len(shapes)], len(shapes)
    for choice, _ in groupby(choices):
        size = struct.unpack_from("<I", body, at)[0]
        piece = body[at + 4 : at + 4 + size]
        values += (fp16_values if (codec, other)[choice] == "fp16" else fp32_values)(piece, ())
        at += 4 + size
    return values


def _grid(low: np.float32, high: np.float32) -> tuple[Any, Any, Any]:
    """Arithmetic, scale and lowest level of one tensor: float32, or double where float32 would lose
    too much."""
    exact = 255.0 / ((float(high) - float(low)) * (1.0 + 1e-7))
    with np.errstate(over="ignore", under="ignore"):
        scale = np.float32(exact)
    largest = max(abs(float(low)), abs(float(high)))
    if np.isfinite(scale) and scale >= FLOAT32_MIN_NORMAL and largest * float(scale) <= 2.0**18:
        return np.float32, scale, np.rint(high * scale) - np.float32(255)
    return np.float64, exact, np.rint(np.float64(high) * exact) - 255


REFERENCES: Mapping[str, tuple[Body, Values]] = {
    "fp32": (fp32, fp32_values),
    "fp16": (fp16, fp16_values),
    "bf16": (bf16, bf16_values),
    "minmax8": (minmax8, minmax8_values),
    "topk": (topk, topk_values),
    "randk": (randk, randk_values),
    "per-tensor": (per_tensor, per_tensor_values),
    "atomo": (atomo, atomo_values),
    "powersgd": (powersgd, powersgd_values),
    "eden": (eden, eden_values),
    "qsgd": (quantised.QSGD.body, quantised.QSGD.values),
    "qsgd-inf": (quantised.QSGD_INF.body, quantised.QSGD_INF.values),
    "elastiquant": (quantised.elastiquant, quantised.elastiquant_values),
    "elasticl": (quantised.elasticl, quantised.elasticl_values),
    "terngrad": (quantised.terngrad, quantised.terngrad_values),
    "co3": (quantised.co3, quantised.co3_values),
    "signsgd": (quantised.signsgd, quantised.signsgd_values),
    "dither": (dithered, dithered_values),
    "deadzone": (deadzoned, deadzoned_values),
    "sparseloco": (sparseloco, sparseloco_values),
}

# Sets of parameters that golden vectors are made with, where the defaults are not enough.
_SPARSE: tuple[dict[str, Any], ...] = ({}, {"ratio": 0.2, "values": "fp16"}, {"ratio": 0.6})
# The codes of a section can be sent in many ways, all of which a receiver must read: those are for
# decoding only.
_HUFFMAN: dict[str, Any] = {"stage": "huffman", "decode_only": True}
_RUNS: dict[str, Any] = {"stage": "runs", "decode_only": True}
_UNIFORM: tuple[dict[str, Any], ...] = (
    {"stage": "raw"},
    {"stage": "elias"},
    {"stage": "raw", "bits": 5, "bucket": 8},
    {"stage": "raw", "bits": 12, "bucket": 0},
    _HUFFMAN,
    {**_HUFFMAN, "bits": 3, "bucket": 8},
    {**_RUNS, "bits": 6},
)
PARAMS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "topk": _SPARSE,
    "randk": (*_SPARSE, {"ratio": 0.5, "unbiased": False}),
    "atomo": ({}, {"rank": 1}),
    "powersgd": ({}, {"rank": 1, "values": "fp16"}),
    "per-tensor": (
        {"codec": "fp32", "tensors": "t1", "other": "fp16"},
        {"codec": "fp16", "tensors": "t0", "other": "fp32"},
    ),
    "eden": ({}, *({"bits": bits} for bits in (1, 3, 4))),
    "qsgd": _UNIFORM,
    "qsgd-inf": _UNIFORM,
    "elastiquant": (
        {"stage": "raw"},
        {"stage": "elias", "bits": 3, "bucket": 8},
        {"stage": "raw", "bits": 8, "bucket": 32},
        _HUFFMAN,
        _RUNS,
        {"stage": "raw", "levels": (0.0, 0.1, 0.3, 1.0), "norm": "linf"},
    ),
    "elasticl": ({"stage": "raw"}, {"stage": "elias", "s0": 1}, {"stage": "raw", "s0": 1000}),
    "terngrad": ({"stage": "raw"}, {"stage": "elias", "clip": 0.0}, _HUFFMAN, _RUNS),
    "co3": (_HUFFMAN, _RUNS, {"stage": "raw", "decode_only": True}),
    "signsgd": ({"stage": "raw"},),
    "dither": ({}, {"error": 4.0}, {"step": 2.0}, {"step": 0.00005, "allocation": 0.5}),
    "sparseloco": ({}, {"ratio": 0.25, "chunk": 8}),
    "deadzone": ({"step": 0.3}, {"step": 0.00005, "allocation": 1.0}),
}
