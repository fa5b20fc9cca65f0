"""`elastiquant`: stochastic rounding to levels that lie closer together near zero (ElastiQuant,
Sudharsan et al. 2022, equation 1; NUQSGD, Ramezani-Kebrya et al. 2021).

Q(v_i) = N sign(v_i) h_i, N the norm of v's bucket, r = |v_i| / N; between two levels l_j <= r <
l_(j+1), h_i is the upper one with probability (r - l_j) / (l_(j+1) - l_j). Unbiased. The levels are
0, p^s, ..., p^2, p, 1 with s = 2^(bits-1) - 2, or any increasing list from 0 to 1 (section 3.6.1).
With p = 1/2 and the L2 norm, E||Q(v) - v||^2 <= eps_Q ||v||^2 (equation 2;
`levels.variance_bound`). |Q(v_i) - v_i| is at most N times the width of the interval that r lies
in.

p = 1/2 gains nothing from 8 bits over 4 (most of the 126 levels lie where there is nothing), so
`ratio` defaults to 0.5 up to 4 bits and to 0.9 beyond; lab/papers/bounds.py has the p with the
smallest worst-case variance. Deviations: the paper encodes by Elias codes only; here that is
`stage = "elias"`, and E-ElastiQuant's Huffman codes are `stage = "huffman"`. A bucket's norm
travels in 16 bits, rounded up, as in uniform.py; that of a tensor (bucket 0) as float32.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat
from edgegossip.codecs.levels import geometric_levels, increases_from_0_to_1
from edgegossip.codecs.quantised import (
    BUCKET,
    CODER,
    EntropyCoder,
    QuantisedBodies,
    Reader,
    bucket_error,
    encode_body,
)
from edgegossip.codecs.registry import Family, Param, check_fields, preset
from edgegossip.layout import Layout
from edgegossip.native.quantise import LevelKind, Quantiser
from edgegossip.types import ConfigError, DecodeError, UsageError, Vec

_HEAD = struct.Struct("<BBI")  # bits, kind of levels, bucket
_GEOMETRIC, _LIST = 0, 1
_MAX_LIST = 2 + 125  # its inner levels fit the frame's parameters


@dataclass(frozen=True, slots=True)
class ElastiQuant(QuantisedBodies[Layout], StatelessCodec):
    """`bits` a value (the sign included), 16 a bucket. `levels` empty: geometric ones with `ratio`;
    ratio 0: the default for these bits. Its state is the layout."""

    bits: int = 4
    ratio: float = 0.0
    levels: tuple[float, ...] = ()
    norm: str = "l2"
    bucket: int = 512
    stage: EntropyCoder = "auto"
    name: ClassVar[str] = "elastiquant"
    wire_id: ClassVar[int] = 7

    def __post_init__(self) -> None:
        check_fields(self, self.name, _ALL)
        fault = bucket_error(self.bucket) or _levels_error(self.levels, self.bits)
        if fault:
            raise ConfigError(f"codec elastiquant: {fault}")
        try:
            self.quantiser()
        except UsageError as error:
            raise ConfigError(f"codec elastiquant: {error}") from None

    def wire_params(self) -> bytes:
        """Return bits, kind, bucket; then the ratio as float64, or the inner levels as float32."""
        if self.levels:
            inner = np.array(self.levels[1:-1], "<f4").tobytes()
            return _HEAD.pack(self.bits, _LIST, self.bucket) + inner
        return _HEAD.pack(self.bits, _GEOMETRIC, self.bucket) + struct.pack("<d", self.p)

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, self.quantiser(), ctx.key, self.stage, linf=self.norm == "linf"), state

    @override
    def reader(self, body: Body, layout: Layout) -> Reader:
        return Reader(flat(body), layout, self.quantiser(), self.name)

    @property
    def p(self) -> float:
        """Return the ratio of neighbouring geometric levels."""
        return self.ratio or (0.5 if self.bits <= 4 else 0.9)

    def grid(self) -> Sequence[float] | Vec:
        """Return its levels, from 0 to 1."""
        inner = 2 ** (self.bits - 1) - 2
        return self.levels or (geometric_levels(inner, self.p) if inner else (0.0, 1.0))

    def quantiser(self) -> Quantiser:
        """Return the kernels' description of it: powers of two have a quicker one than lists."""
        inner = 2 ** (self.bits - 1) - 2  # s: geometric levels below 1, 0 not counted
        if self.levels:
            return Quantiser(LevelKind.LEVELS, self.bits, 0, self.bucket, self.levels)
        if inner == 0 or (self.p == 0.5 and inner <= 30):
            return Quantiser(LevelKind.LOG2, self.bits, inner, self.bucket)
        return Quantiser(LevelKind.LEVELS, self.bits, 0, self.bucket, _geometric(inner, self.p))


@lru_cache(maxsize=16)
def _geometric(s: int, p: float) -> tuple[float, ...]:
    """`geometric_levels`, which every message asks for; few, because peers choose p."""
    return tuple(geometric_levels(s, p).tolist())


def _levels_error(levels: tuple[float, ...], bits: int) -> str:
    """What is wrong with a list of levels; empty when nothing is."""
    if not levels:
        return ""
    if not increases_from_0_to_1(np.array(levels, np.float32)):
        return "levels must increase from 0 to 1 (as float32)"
    if len(levels) > (most := min(2 ** (bits - 1), _MAX_LIST)):
        return f"{len(levels)} levels do not fit {bits} bits, which hold {most}"
    return ""


def _from_params(params: bytes) -> ElastiQuant:
    if len(params) < _HEAD.size:
        raise DecodeError(
            f"elastiquant has at least {_HEAD.size} bytes of wire parameters, the frame carries {len(params)}"
        )
    bits, kind, bucket = _HEAD.unpack_from(params)
    rest = params[_HEAD.size :]
    try:
        if kind == _GEOMETRIC and len(rest) == 8 and (ratio := struct.unpack("<d", rest)[0]):
            return ElastiQuant(bits, ratio, bucket=bucket)
        if kind == _LIST and len(rest) % 4 == 0:
            return ElastiQuant(bits, levels=(0.0, *np.frombuffer(rest, "<f4").tolist(), 1.0), bucket=bucket)
    except ConfigError as error:
        raise DecodeError(str(error)) from None
    raise DecodeError("the elastiquant parameters describe no increasing levels from 0 to 1")


_ALL = (
    Param("bits", 4, "bits a value, sign included", low=2, high=8),
    Param("ratio", 0.0, "ratio p of neighbouring levels; 0: 0.5 up to 4 bits, else 0.9", low=0.0, high=0.9999),
    Param("levels", (), "increasing levels from 0 to 1 instead of a ratio", low=0.0, high=1.0),
    Param("norm", "l2", "norm of a bucket", choices=("l2", "linf")),
    BUCKET,
    CODER,
)

_FAMILY = Family(
    "elastiquant",
    ElastiQuant,
    "stochastic levels that lie closer together near zero",
    _ALL,
    ElastiQuant.wire_id,
    _from_params,
)

FAMILIES = (
    _FAMILY,
    preset("4-bit-elastiquant", _FAMILY, "elastiquant, 4 bits a value as they are", bits=4, stage="raw"),
    preset("8-bit-elastiquant", _FAMILY, "elastiquant, 8 bits a value as they are", bits=8, stage="raw"),
    preset("e-elastiquant", _FAMILY, "elastiquant, 4 bits, Huffman coded", bits=4, stage="huffman"),
)
