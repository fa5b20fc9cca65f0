"""`dgc`: Deep Gradient Compression (Lin, Han, Mao, Wang, Dally, ICLR 2018): top-k with momentum in
the sender's memory.

Per message, with g the gradient, momentum m and the memories u (momentum) and v (what has not been
sent), both zero at the start:

    g <- g min(1, clip / ||g||)          gradient clipping (section 3.3), before anything is accumulated; clip = 0: none
    u <- m u + g;  v <- v + u            momentum correction (section 3.2, eq 5)
    send the largest |v| of every tensor
    u <- 0, v <- 0 where v was sent      momentum factor masking (section 3.3, eq 6)

The share sent falls in the warm-up (section 3.3) from 25 % by a factor of 4 a step, as in the paper
(25 %, 6.25 %, 1.5625 %, ... then `ratio`), in steps of equal length over the first `warmup_rounds`
rounds of `ctx.round`.

The input is a gradient, or a model change with the learning rate inside (u and v then carry the
rates of their own rounds). The momentum is here: keep the local optimiser's and the server's
momentum at 0, or it is applied twice. With momentum masking the ratio must stay small: a large one
clears u nearly everywhere, and the momentum with it.

Deviations: the largest values are exact, the paper samples for a threshold. The norm of clipping is
that of the whole gradient and `clip` is the limit itself; the paper scales its threshold by
N^(-1/2) for N nodes, which is the user's to do. Heavy-ball momentum only. Values sent as fp16 or
bf16 leave their rounding error in v, where the paper, whose values are fp32, sets v to zero. The
bodies are those of `topk`, which decodes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.checks import require_finite
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.codecs.sparse import RATIO, VALUES, TopK, encode_topk
from edgegossip.layout import Layout
from edgegossip.native import half, sparse
from edgegossip.types import Vec

WARMUP_START = 0.25  # share sent in the first step; each step sends a quarter of the one before


@dataclass(frozen=True, slots=True)
class DgcState:
    """What a sender remembers: both float32[layout.size]."""

    layout: Layout
    u: Vec  # momentum
    v: Vec  # accumulated, not sent yet


@dataclass(frozen=True, slots=True)
class Dgc:
    """Deep Gradient Compression. Its body is that of `topk`; `decode` needs no memory."""

    ratio: float = 0.01
    values: half.Form = "fp32"
    momentum: float = 0.9
    clip: float = 0.0
    warmup_rounds: int = 0

    name: ClassVar[str] = "dgc"
    wire_id: ClassVar[int] = TopK.wire_id

    def __post_init__(self) -> None:
        check_fields(self, self.name, _PARAMS)

    def wire_params(self) -> bytes:
        return b""

    def init(self, layout: Layout) -> DgcState:
        return DgcState(layout, np.zeros(layout.size, np.float32), np.zeros(layout.size, np.float32))

    def ratio_at(self, round: int) -> float:
        """Share of the values that is sent in this round, counted from 0. Powers of 1/4 only, so
        the same anywhere."""
        if round >= self.warmup_rounds:
            return self.ratio
        steps = 0
        while steps < 32 and WARMUP_START * 0.25**steps > self.ratio:
            steps += 1
        return max(self.ratio, WARMUP_START * 0.25 ** (round * steps // self.warmup_rounds))

    def encode(self, x: Vec, state: DgcState, ctx: Ctx) -> tuple[Body, DgcState]:
        state.layout.check(x)
        factor = self._clipping(x, state.layout)
        u, v = np.empty_like(x), np.empty_like(x)
        sparse.accumulate_momentum(state.u, state.v, x, self.momentum, factor, u, v)
        body = encode_topk(v, state.layout, self.ratio_at(ctx.round), self.values, zero=u, rest=v)
        return body, DgcState(state.layout, u, v)

    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        return TopK().decode(body, layout, out, weight)

    def _clipping(self, x: Vec, layout: Layout) -> float:
        """min(1, clip / ||x||). Not finite x is refused here, for it would spread to all
        tensors."""
        if self.clip == 0.0:
            return 1.0
        squares = sparse.sum_of_squares(x)
        if not math.isfinite(squares):
            require_finite(x, layout)
        norm = math.sqrt(squares)
        return 1.0 if norm <= self.clip else self.clip / norm


_PARAMS = (
    RATIO,
    VALUES,
    Param("momentum", 0.9, "momentum of the sender's memory", low=0.0, high=1.0),
    Param("clip", 0.0, "largest L2 norm of the gradient, 0 for no clipping", low=0.0),
    Param("warmup_rounds", 0, "rounds in which the share sent falls from 25 % to the ratio", low=0),
)

FAMILIES = (
    Family(
        "dgc",
        Dgc,
        "top-k with momentum correction, masking, clipping and warm-up of the ratio",
        _PARAMS,
    ),
)
