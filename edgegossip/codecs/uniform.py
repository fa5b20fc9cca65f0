"""`qsgd`, `qsgd-inf` and `elasticl`: stochastic rounding to s uniform levels of a norm.

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
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.codecs.base import Body, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat
from edgegossip.codecs.levels import MAX_LEVELS, LevelRule, levels_for, smooth_loss, uniform_levels
from edgegossip.codecs.quantised import (
    BUCKET,
    CODER,
    EntropyCoder,
    QuantisedBodies,
    Reader,
    bucket_error,
    encode_body,
)
from edgegossip.codecs.registry import Family, Param, check_fields, from_packed, preset
from edgegossip.layout import Layout
from edgegossip.native.quantise import LevelKind, Quantiser
from edgegossip.types import ConfigError, DecodeError, UsageError, Vec

_PARAMS = struct.Struct("<BI")  # bits, bucket


@dataclass(frozen=True, slots=True)
class Qsgd(QuantisedBodies[Layout], StatelessCodec):
    """`bits` a value (the sign included), 16 a bucket. Its state is the layout."""

    bits: int = 4
    bucket: int = 512
    stage: EntropyCoder = "auto"
    name: ClassVar[str] = "qsgd"
    wire_id: ClassVar[int] = 5
    norm: ClassVar[str] = "l2"

    def __post_init__(self) -> None:
        check_fields(self, self.name, _ALL)
        if fault := bucket_error(self.bucket):
            raise ConfigError(f"codec {self.name}: {fault}")

    @override
    def wire_params(self) -> bytes:
        return _PARAMS.pack(self.bits, self.bucket)

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, self._quantiser, ctx.key, self.stage, linf=self.norm == "linf"), state

    @override
    def reader(self, body: Body, layout: Layout) -> Reader:
        return Reader(flat(body), layout, self._quantiser, self.name)

    def grid(self) -> NDArray[np.float64]:
        """Return its levels, from 0 to 1."""
        return uniform_levels(2 ** (self.bits - 1) - 1)

    @property
    def _quantiser(self) -> Quantiser:
        return Quantiser(LevelKind.UNIFORM, self.bits, 2 ** (self.bits - 1) - 1, self.bucket)


@dataclass(frozen=True, slots=True)
class QsgdInf(Qsgd):
    """qsgd with the largest magnitude of a bucket as its norm."""

    name: ClassVar[str] = "qsgd-inf"
    wire_id: ClassVar[int] = 6
    norm: ClassVar[str] = "linf"


_ALL = (Param("bits", 4, "bits a value, sign included", low=2, high=16), BUCKET, CODER)


def _family(codec: type[Qsgd], help: str) -> Family:
    return Family(codec.name, codec, help, _ALL, codec.wire_id, from_packed(codec.name, _PARAMS, codec))


_QSGD = _family(Qsgd, "stochastic uniform levels of a bucket's L2 norm")
_QSGD_INF = _family(QsgdInf, "stochastic uniform levels of a bucket's largest magnitude")


_LEVELS_HEAD = struct.Struct("<H")  # s


@dataclass(frozen=True, slots=True)
class ElastiClState:
    """The rule as the first message fixed it, and the smoothed loss."""

    layout: Layout
    rule: LevelRule | None = None
    loss: float | None = None
    levels: int = 0  # of the interval; 0: no message has brought a loss
    sent_bits: int = 0  # in the interval


@dataclass(frozen=True, slots=True)
class ElastiCl(QuantisedBodies[ElastiClState]):
    """1 + ceil(log2(s + 1)) bits a value before the entropy coder, a float32 a tensor. `s0` levels
    at first.

    `elasticl`: the uniform quantizer of QSGD over whole tensors, with a number of levels that
    follows the training loss (ElastiCL, Sudharsan et al. 2021, equations 3 and 4).

    s_k = max(1, round(s_0 (eta_k / eta_0) sqrt(f_0 / f_k))): few levels and few bits while the
    loss is high, more as it falls; f is the smoothed loss and eta the learning rate that come
    with each message (`Ctx.loss`, `Ctx.lr`), f_0 and eta_0 those of the first. s travels in the
    body, so a receiver needs to know nothing of the rule. Unbiased; |Q(v_i) - v_i| <= N / s
    with N the L2 norm of v_i's tensor, and a float32's rounding.

    The levels stay for an interval in which `interval_bits` (the paper's B_0) are sent; with 0
    they are chosen anew each time.

    Who computes it: in the paper the server, for all; what it sends arrives as `Ctx.levels` and
    is taken as it is. Without one (deviation) every sender follows its own losses, f <-
    smoothing f + (1 - smoothing) loss. Deviation: the norm is taken over each tensor, not over
    the whole model, whose tensors' gradients differ by orders of magnitude; a model of one
    tensor gives the paper's quantizer.
    """

    s0: int = 127
    smoothing: float = 0.9
    interval_bits: float = 0.0
    stage: EntropyCoder = "auto"
    name: ClassVar[str] = "elasticl"
    wire_id: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_fields(self, self.name, _ELASTICL_PARAMS)

    @override
    def wire_params(self) -> bytes:
        return b""

    @override
    def init(self, layout: Layout) -> ElastiClState:
        return ElastiClState(layout)

    @override
    def encode(self, x: Vec, state: ElastiClState, ctx: Ctx) -> tuple[Body, ElastiClState]:
        state = self._updated(state, ctx)
        s = ctx.levels or state.levels or self.s0
        if not 1 <= s <= MAX_LEVELS:
            raise UsageError(f"elasticl has 1 to {MAX_LEVELS} levels, not {s}")
        body = encode_body(x, state.layout, _quantiser(s), ctx.key, self.stage, head=_LEVELS_HEAD.pack(s))
        return body, replace(state, sent_bits=state.sent_bits + 8 * len(body))

    @override
    def reader(self, body: Body, layout: Layout) -> Reader:
        return Reader(flat(body), layout, _quantiser_of(body), self.name, start=_LEVELS_HEAD.size)

    def _updated(self, state: ElastiClState, ctx: Ctx) -> ElastiClState:
        """The state with this message's loss and learning rate; the first one fixes the rule. One
        without leaves all as it was."""
        if ctx.loss is None or ctx.lr <= 0.0 or (state.rule is None and ctx.loss <= 0.0):
            return state
        loss = smooth_loss(state.loss, ctx.loss, self.smoothing)
        rule = state.rule or LevelRule(self.s0, ctx.lr, loss)
        if state.levels and state.sent_bits < self.interval_bits:
            return replace(state, rule=rule, loss=loss)
        return ElastiClState(state.layout, rule, loss, levels_for(rule, loss, ctx.lr))


def _quantiser_of(body: Body) -> Quantiser:
    """That of a body's head. Raises DecodeError."""
    data = flat(body)
    if len(data) < _LEVELS_HEAD.size:
        raise DecodeError("the elasticl body ends within its number of levels")
    s = _LEVELS_HEAD.unpack_from(data)[0]
    if not 1 <= s <= MAX_LEVELS:
        raise DecodeError(f"the elasticl body has {s} levels; 1 to {MAX_LEVELS} are possible")
    return _quantiser(s)


def _quantiser(s: int) -> Quantiser:
    return Quantiser(LevelKind.UNIFORM, 1 + s.bit_length(), s, 0)


_ELASTICL_PARAMS = (
    Param("s0", 127, "levels at the start", low=1, high=MAX_LEVELS),
    Param("smoothing", 0.9, "share of the old smoothed loss in the new one", low=0.0, high=0.9999),
    Param("interval_bits", 0.0, "bits that a board sends between two choices of levels; 0: none", low=0.0, high=1e15),
    CODER,
)

FAMILIES = (
    _QSGD,
    _QSGD_INF,
    preset("qsgd-v", _QSGD_INF, "QSGD-V: qsgd-inf, 4 bits a value as they are", bits=4, stage="raw"),
    preset("2-bit-qsgd", _QSGD, "qsgd, 2 bits a value as they are", bits=2, stage="raw"),
    preset("4-bit-qsgd", _QSGD, "qsgd, 4 bits a value as they are", bits=4, stage="raw"),
    preset("8-bit-qsgd", _QSGD, "qsgd, 8 bits a value as they are", bits=8, stage="raw"),
    Family(
        "elasticl",
        ElastiCl,
        "stochastic uniform levels, more of them as the loss falls",
        _ELASTICL_PARAMS,
        ElastiCl.wire_id,
    ),
)
