"""`elasticl`: the uniform quantizer of QSGD over whole tensors, with a number of levels that
follows the training loss (ElastiCL, Sudharsan et al. 2021, equations 3 and 4).

s_k = max(1, round(s_0 (eta_k / eta_0) sqrt(f_0 / f_k))): few levels and few bits while the loss is
high, more as it falls; f is the smoothed loss and eta the learning rate that come with each message
(`Ctx.loss`, `Ctx.lr`), f_0 and eta_0 those of the first. s travels in the body, so a receiver needs
to know nothing of the rule. Unbiased; |Q(v_i) - v_i| <= N / s with N the L2 norm of v_i's tensor,
and a float32's rounding.

Who computes it: in the paper the server, for all; what it sends arrives as `Ctx.levels` and is
taken as it is. Without one (deviation) every sender follows its own losses, f <- smoothing f + (1 -
smoothing) loss. Deviation: the norm is taken over each tensor, not over the whole model, whose
tensors' gradients differ by orders of magnitude; a model of one tensor gives the paper's quantizer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.checks import flat
from edgegossip.codecs.levels import MAX_LEVELS, LevelRule, levels_for, smooth_loss
from edgegossip.codecs.quantised import STAGE, QuantisedBodies, Reader, Stage, encode_body, reader_of
from edgegossip.codecs.registry import Family, Param, check_fields, without_params
from edgegossip.layout import Layout
from edgegossip.native.quantise import Kind, Quantiser
from edgegossip.types import DecodeError, UsageError, Vec

_HEAD = struct.Struct("<H")  # s


@dataclass(frozen=True, slots=True)
class ElastiClState:
    """The rule as the first message fixed it, and the smoothed loss."""

    layout: Layout
    rule: LevelRule | None = None
    loss: float | None = None
    levels: int = 0  # of the last message that brought a loss; 0: none did


@dataclass(frozen=True, slots=True)
class ElastiCl(QuantisedBodies):
    """1 + ceil(log2(s + 1)) bits a value before the entropy stage, a float32 a tensor. `s0` levels
    at first."""

    s0: int = 127
    smoothing: float = 0.9
    stage: Stage = "auto"
    name: ClassVar[str] = "elasticl"
    wire_id: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_fields(self, self.name, _PARAMS)

    def wire_params(self) -> bytes:
        return b""

    def init(self, layout: Layout) -> ElastiClState:
        return ElastiClState(layout)

    def encode(self, x: Vec, state: ElastiClState, ctx: Ctx) -> tuple[Body, ElastiClState]:
        state = self._heard(state, ctx)
        s = ctx.levels or state.levels or self.s0
        if not 1 <= s <= MAX_LEVELS:
            raise UsageError(f"elasticl has 1 to {MAX_LEVELS} levels, not {s}")
        return encode_body(x, state.layout, _quantiser(s), ctx.key, self.stage, head=_HEAD.pack(s)), state

    def reader(self, body: Body, layout: Layout) -> Reader:
        return reader_of(body, layout, _quantiser_of(body), self.name, start=_HEAD.size)

    def _heard(self, state: ElastiClState, ctx: Ctx) -> ElastiClState:
        """The state with this message's loss and learning rate; the first one fixes the rule. One
        without leaves all as it was."""
        if ctx.loss is None or ctx.lr <= 0.0 or (state.rule is None and ctx.loss <= 0.0):
            return state
        loss = smooth_loss(state.loss, ctx.loss, self.smoothing)
        rule = state.rule or LevelRule(self.s0, ctx.lr, loss)
        return ElastiClState(state.layout, rule, loss, levels_for(rule, loss, ctx.lr))


def _quantiser_of(body: Body) -> Quantiser:
    """That of a body's head. Raises DecodeError."""
    data = flat(body)
    if len(data) < _HEAD.size:
        raise DecodeError("the elasticl body ends within its number of levels")
    s = _HEAD.unpack_from(data)[0]
    if not 1 <= s <= MAX_LEVELS:
        raise DecodeError(f"the elasticl body has {s} levels; 1 to {MAX_LEVELS} are possible")
    return _quantiser(s)


def _quantiser(s: int) -> Quantiser:
    return Quantiser(Kind.UNIFORM, 1 + s.bit_length(), s, 0)


_PARAMS = (
    Param("s0", 127, "levels at the start", low=1, high=MAX_LEVELS),
    Param("smoothing", 0.9, "share of the old smoothed loss in the new one", low=0.0, high=0.9999),
    STAGE,
)

FAMILIES = (
    Family(
        "elasticl",
        ElastiCl,
        "stochastic uniform levels, more of them as the loss falls",
        _PARAMS,
        ElastiCl.wire_id,
        without_params("elasticl", ElastiCl),
    ),
)
