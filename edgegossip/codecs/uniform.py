"""`qsgd` and `qsgd-inf`: stochastic rounding to s uniform levels of a bucket's norm.

QSGD (Alistarh et al. 2017, section 3.1): Q(v_i) = N sign(v_i) floor(s |v_i| / N + u) / s with u uniform in [0, 1), N the
norm of v's bucket, s = 2^(bits - 1) - 1. qsgd takes the L2 norm, as the paper's theory does; qsgd-inf the largest
magnitude, as its experiments do (QSGD-V). Unbiased. |Q(v_i) - v_i| <= N / s, and a float32's rounding. With the L2 norm
E||Q(v) - v||^2 <= min(b / s^2, sqrt(b) / s) ||v||^2 in a bucket of b values (Lemma 3.1).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.quantised import BUCKET, STAGE, Stage, check_bucket, decode_body, encode_body
from edgegossip.codecs.registry import Family, Param
from edgegossip.layout import Layout
from edgegossip.native.section import UNIFORM, Quantiser
from edgegossip.types import DecodeError, Vec

_PARAMS = struct.Struct("<BI")  # bits, bucket


@dataclass(frozen=True, slots=True)
class Qsgd:
    """`bits` a value (the sign included), a float32 a bucket. Its state is the layout."""

    bits: int = 4
    bucket: int = 512
    stage: Stage = "auto"
    name: ClassVar[str] = "qsgd"
    wire_id: ClassVar[int] = 5
    norm: ClassVar[str] = "l2"

    def __post_init__(self) -> None:
        check_bucket(self.name, self.bucket)

    def wire_params(self) -> bytes:
        return _PARAMS.pack(self.bits, self.bucket)

    def init(self, layout: Layout) -> Layout:
        return layout

    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, self._quantiser, ctx.key, self.stage, norm=self.norm), state

    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        return decode_body(body, layout, self._quantiser, self.name, out, weight)

    @property
    def _quantiser(self) -> Quantiser:
        return Quantiser(UNIFORM, self.bits, 2 ** (self.bits - 1) - 1, self.bucket)


@dataclass(frozen=True, slots=True)
class QsgdInf(Qsgd):
    """qsgd with the largest magnitude of a bucket as its norm."""

    name: ClassVar[str] = "qsgd-inf"
    wire_id: ClassVar[int] = 6
    norm: ClassVar[str] = "linf"


def _from_params(make: Callable[[int, int], Qsgd]) -> Callable[[bytes], Qsgd]:
    name = make.name

    def from_params(params: bytes) -> Qsgd:
        if len(params) != _PARAMS.size:
            raise DecodeError(f"{name} has {_PARAMS.size} bytes of wire parameters, the frame carries {len(params)}")
        bits, bucket = _PARAMS.unpack(params)
        if not _BITS.low <= bits <= _BITS.high:
            raise DecodeError(f"{name} with {bits} bits does not exist")
        check_bucket(name, bucket, DecodeError)
        return make(bits, bucket)

    return from_params


_BITS = Param("bits", 4, "bits a value, sign included", low=2, high=16)
_ALL = (_BITS, BUCKET, STAGE)

FAMILIES = tuple(
    Family(make.name, make, help, _ALL, make.wire_id, _from_params(make))
    for make, help in (
        (Qsgd, "stochastic uniform levels of a bucket's L2 norm"),
        (QsgdInf, "stochastic uniform levels of a bucket's largest magnitude"),
    )
)
