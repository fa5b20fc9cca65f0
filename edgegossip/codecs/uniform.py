"""`qsgd` and `qsgd-inf`: stochastic rounding to s uniform levels of a bucket's norm.

QSGD (Alistarh et al. 2017, section 3.1): Q(v_i) = N sign(v_i) floor(s |v_i| / N + u) / s with u
uniform in [0, 1), N the norm of v's bucket, s = 2^(bits - 1) - 1. qsgd takes the L2 norm, as the
paper's theory does; qsgd-inf the largest magnitude, as its experiments do (QSGD-V). Unbiased.
|Q(v_i) - v_i| <= N / s, and a float32's rounding. With the L2 norm E||Q(v) - v||^2 <= min(b / s^2,
sqrt(b) / s) N^2 in a bucket of b values (Lemma 3.1). Deviation: a bucket's N travels in 16 bits,
rounded up with 8 bits of mantissa and at most (2 - 2^-8) 2^127, so it is up to 2^-8 larger than the
norm (2^-134 below 2^-126), and values beyond that largest one are sent as it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.levels import uniform_levels
from edgegossip.codecs.quantised import (
    ANS_STAGE,
    BUCKET,
    QuantisedBodies,
    Reader,
    Stage,
    bucket_error,
    encode_body,
    reader_of,
    stage_error,
)
from edgegossip.codecs.registry import Family, Param, check_fields, preset
from edgegossip.layout import Layout
from edgegossip.native.quantise import Kind, Quantiser
from edgegossip.types import ConfigError, DecodeError, Vec

_PARAMS = struct.Struct("<BI")  # bits, bucket
_MIN_BITS, _MAX_BITS = 2, 16


@dataclass(frozen=True, slots=True)
class Qsgd(QuantisedBodies):
    """`bits` a value (the sign included), 16 a bucket. Its state is the layout."""

    bits: int = 4
    bucket: int = 512
    stage: Stage = "auto"
    name: ClassVar[str] = "qsgd"
    wire_id: ClassVar[int] = 5
    norm: ClassVar[str] = "l2"

    def __post_init__(self) -> None:
        check_fields(self, self.name, _ALL)
        if fault := bucket_error(self.bucket) or stage_error(self.stage, self.bits):
            raise ConfigError(f"codec {self.name}: {fault}")

    def wire_params(self) -> bytes:
        return _PARAMS.pack(self.bits, self.bucket)

    def init(self, layout: Layout) -> Layout:
        return layout

    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, self._quantiser, ctx.key, self.stage, linf=self.norm == "linf"), state

    def reader(self, body: Body, layout: Layout) -> Reader:
        return reader_of(body, layout, self._quantiser, self.name)

    def grid(self) -> NDArray[np.float64]:
        """Its levels, from 0 to 1."""
        return uniform_levels(2 ** (self.bits - 1) - 1)

    @property
    def _quantiser(self) -> Quantiser:
        return Quantiser(Kind.UNIFORM, self.bits, 2 ** (self.bits - 1) - 1, self.bucket)


@dataclass(frozen=True, slots=True)
class QsgdInf(Qsgd):
    """qsgd with the largest magnitude of a bucket as its norm."""

    name: ClassVar[str] = "qsgd-inf"
    wire_id: ClassVar[int] = 6
    norm: ClassVar[str] = "linf"


def _from_params(name: str, make: Callable[[int, int], Qsgd]) -> Callable[[bytes], Qsgd]:
    def from_params(params: bytes) -> Qsgd:
        if len(params) != _PARAMS.size:
            raise DecodeError(f"{name} has {_PARAMS.size} bytes of wire parameters, the frame carries {len(params)}")
        bits, bucket = _PARAMS.unpack(params)
        if not _MIN_BITS <= bits <= _MAX_BITS or bucket_error(bucket):
            raise DecodeError(f"{name} with {bits} bits and buckets of {bucket} does not exist")
        return make(bits, bucket)

    return from_params


_ALL = (Param("bits", 4, "bits a value, sign included", low=_MIN_BITS, high=_MAX_BITS), BUCKET, ANS_STAGE)

_QSGD = Family(
    "qsgd",
    Qsgd,
    "stochastic uniform levels of a bucket's L2 norm",
    _ALL,
    Qsgd.wire_id,
    _from_params("qsgd", Qsgd),
)
_QSGD_INF = Family(
    "qsgd-inf",
    QsgdInf,
    "stochastic uniform levels of a bucket's largest magnitude",
    _ALL,
    QsgdInf.wire_id,
    _from_params("qsgd-inf", QsgdInf),
)

FAMILIES = (
    _QSGD,
    _QSGD_INF,
    preset("qsgd-v", _QSGD_INF, "QSGD-V: qsgd-inf, 4 bits a value as they are", bits=4, stage="raw"),
    preset("2-bit-qsgd", _QSGD, "qsgd, 2 bits a value as they are", bits=2, stage="raw"),
    preset("4-bit-qsgd", _QSGD, "qsgd, 4 bits a value as they are", bits=4, stage="raw"),
    preset("8-bit-qsgd", _QSGD, "qsgd, 8 bits a value as they are", bits=8, stage="raw"),
)
