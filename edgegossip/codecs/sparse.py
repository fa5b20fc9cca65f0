"""`topk` and `randk`: a few values of every tensor, and zero for the rest.

Of a tensor of n values, k = max(1, ceil(ratio n)) travel, as fp32 (exact), fp16 or bf16 (nearest,
saturating); the product is taken 1e-12 short, so that 7 % of 100 is 7 in spite of float64.

`topk` (Aji and Heafield, "Sparse communication for distributed gradient descent", 2017; Stich et
al., "Sparsified SGD with memory", 2018) sends the k largest magnitudes, of equal ones those that
come first. Exact, where many implementations sample for a threshold. Positions are the gaps between
them in Golomb-Rice codes that follow the data, or a bitmap: on random positions within 2 % of the
entropy of a set (8.1 bits each at 1 %), below it where the large values cluster. The error is 0
where a value is sent (or that of its form) and |x| elsewhere: ||x' - x||^2 <= (1 - k/n) ||x||^2 a
tensor. Biased, so it wants error feedback.

`randk` (Stich et al. 2018; Konecny et al., "Federated learning: strategies for improving
communication efficiency", 2016, the random mask) sends k positions drawn anew for every message,
times n/k, so that E[x'] = x and E||x' - x||^2 = (n/k - 1) ||x||^2; with unbiased = false as they
are, for use under error feedback. No position travels: the body names the 64-bit seed, which is the
message's key, and both ends rank the tensor's elements by the counter-based generator's 31-bit
numbers and take the k largest. Any k positions are as likely as any others, up to the generator and
to equal numbers, of which the first element's counts as larger (a chance of n / 2^31 that it
matters at all). It costs one pass of hashing, and memory for the drawn positions only. A scaled
value beyond the form's largest becomes that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body, Codec, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat, nonfinite, require_finite, require_out
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.layout import Layout
from edgegossip.native import half, sparse
from edgegossip.types import DecodeError, Vec

_KEY_MASK = 2**64 - 1
_SLACK = 1 - 1e-12


def counts(layout: Layout, ratio: float) -> sparse.Counts:
    """Return int64[tensors]: k = max(1, ceil(ratio n)) of every tensor, 0 of an empty one; `ratio`
    from 0 to 1."""
    sizes = np.diff(layout.offsets)
    wanted = np.ceil(sizes * ratio * _SLACK).astype(np.int64)
    return np.minimum(np.maximum(wanted, 1), sizes)


def encode_topk(
    x: Vec, layout: Layout, ratio: float, values: half.Form, zero: Vec | None = None, rest: Vec | None = None
) -> Body:
    """Return the body of the largest values of every tensor; `zero` and `rest` as in
    `native.sparse.topk_encode`."""
    k = counts(layout, ratio)
    body = np.empty(sparse.capacity(layout.offsets, k, values), np.uint8)
    return _finished(body, sparse.topk_encode(x, layout.offsets, k, values, body, zero, rest), layout)


@dataclass(frozen=True, slots=True)
class TopK(StatelessCodec):
    """The largest values of every tensor. Decodes the bodies of `dgc` too, of any ratio and form of
    values. Its state is the layout."""

    ratio: float = 0.01
    values: half.Form = "fp32"

    name: ClassVar[str] = "topk"
    wire_id: ClassVar[int] = 12

    def __post_init__(self) -> None:
        check_fields(self, self.name, (RATIO, VALUES))

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        state.check(x)
        return encode_topk(x, state, self.ratio, self.values), state

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        target = np.empty(layout.size, np.float32) if out is None else out
        _require_sound(sparse.topk_decode(flat(body), layout.offsets, target, weight), layout, self.name)
        return target


@dataclass(frozen=True, slots=True)
class RandK(StatelessCodec):
    """Random values of every tensor, scaled so that their expectation is the tensor. Its state is
    the layout."""

    ratio: float = 0.01
    values: half.Form = "fp32"
    unbiased: bool = True

    name: ClassVar[str] = "randk"
    wire_id: ClassVar[int] = 13

    def __post_init__(self) -> None:
        check_fields(self, self.name, (RATIO, VALUES, _UNBIASED))

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        state.check(x)
        k = counts(state, self.ratio)
        body = np.empty(sparse.capacity(state.offsets, k, self.values), np.uint8)
        size = sparse.randk_encode(x, state.offsets, k, self.values, self.unbiased, ctx.key & _KEY_MASK, body)
        return _finished(body, size, state), state

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        target = np.empty(layout.size, np.float32) if out is None else out
        _require_sound(sparse.randk_decode(flat(body), layout.offsets, target, weight), layout, self.name)
        return target


def _finished(body: np.ndarray, size: int, layout: Layout) -> Body:
    if size < 0:
        raise nonfinite(layout, -1 - size)
    return body.data[:size].toreadonly()


def _require_sound(verdict: tuple[int, int], layout: Layout, name: str) -> None:
    tensor, fault = verdict
    if fault == 0:
        return
    where = f"at tensor {layout.tensors[tensor].name}" if tensor < len(layout.tensors) else "as a whole"
    raise DecodeError(f"the {name} body {sparse.FAULTS[fault]}, seen {where}")


RATIO = Param("ratio", 0.01, "share of every tensor's values that is sent, at least one value", low=1e-9, high=1.0)
VALUES = Param("values", "fp32", "form in which values travel", choices=tuple(half.BYTES))
_UNBIASED = Param("unbiased", True, "scale values by n/k; false under error feedback")


WARMUP_START = 0.25  # share sent in the first step; each step sends a quarter of the one before


@dataclass(frozen=True, slots=True)
class DgcState:
    """What a sender remembers: both float32[layout.size]."""

    layout: Layout
    u: Vec  # momentum
    v: Vec  # accumulated, not sent yet


@dataclass(frozen=True, slots=True)
class Dgc(Codec[DgcState]):
    """Deep Gradient Compression. Its body is that of `topk`; `decode` needs no memory.

    `dgc`: Deep Gradient Compression (Lin, Han, Mao, Wang, Dally, ICLR 2018): top-k with
    momentum in the sender's memory.

    Per message, with g the gradient, momentum m and the memories u (momentum) and v (what has
    not been sent), both zero at the start:

        g <- g min(1, clip / ||g||)      gradient clipping (section 3.3), first; clip = 0: none
        u <- m u + g;  v <- v + u        momentum correction (section 3.2, eq 5)
        send the largest |v| of every tensor
        u <- 0, v <- 0 where v was sent  momentum factor masking (section 3.3, eq 6)

    The share sent falls in the warm-up (section 3.3) from 25 % by a factor of 4 a step, as in
    the paper (25 %, 6.25 %, 1.5625 %, ... then `ratio`), in steps of equal length over the
    first `warmup_rounds` rounds of `ctx.round`.

    The input is a gradient, or a model change with the learning rate inside (u and v then carry
    the rates of their own rounds). The momentum is here: keep the local optimiser's and the
    server's momentum at 0, or it is applied twice. With momentum masking the ratio must stay
    small: a large one clears u nearly everywhere, and the momentum with it.

    Deviations: the largest values are exact, the paper samples for a threshold. The norm of
    clipping is that of the whole gradient and `clip` is the limit itself; the paper scales its
    threshold by N^(-1/2) for N nodes, which is the user's to do. Heavy-ball momentum only.
    Values sent as fp16 or bf16 leave their rounding error in v, where the paper, whose values
    are fp32, sets v to zero. The bodies are those of `topk`, which decodes them.
    """

    ratio: float = 0.01
    values: half.Form = "fp32"
    momentum: float = 0.9
    clip: float = 0.0
    warmup_rounds: int = 0

    name: ClassVar[str] = "dgc"
    has_memory: ClassVar[bool] = True
    wire_id: ClassVar[int] = TopK.wire_id

    def __post_init__(self) -> None:
        check_fields(self, self.name, _DGC_PARAMS)

    @override
    def wire_params(self) -> bytes:
        return b""

    @override
    def init(self, layout: Layout) -> DgcState:
        return DgcState(layout, np.zeros(layout.size, np.float32), np.zeros(layout.size, np.float32))

    def ratio_at(self, round: int) -> float:
        """Return the share of the values that is sent in this round, counted from 0. Powers of 1/4
        only, so the same anywhere."""
        if round >= self.warmup_rounds:
            return self.ratio
        steps = 0
        while steps < 32 and WARMUP_START * 0.25**steps > self.ratio:
            steps += 1
        return max(self.ratio, WARMUP_START * 0.25 ** (round * steps // self.warmup_rounds))

    @override
    def encode(self, x: Vec, state: DgcState, ctx: Ctx) -> tuple[Body, DgcState]:
        state.layout.check(x)
        factor = self._clipping(x, state.layout)
        u, v = np.empty_like(x), np.empty_like(x)
        sparse.accumulate_momentum(state.u, state.v, x, self.momentum, factor, u, v)
        body = encode_topk(v, state.layout, self.ratio_at(ctx.round), self.values, zero=u, rest=v)
        return body, DgcState(state.layout, u, v)

    @override
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


_DGC_PARAMS = (
    RATIO,
    VALUES,
    Param("momentum", 0.9, "momentum of the sender's memory", low=0.0, high=1.0),
    Param("clip", 0.0, "largest L2 norm of the gradient, 0 for no clipping", low=0.0),
    Param("warmup_rounds", 0, "rounds in which the share sent falls from 25 % to the ratio", low=0),
)

FAMILIES = (
    Family("topk", TopK, "the largest values of every tensor, exact", (RATIO, VALUES), wire_id=TopK.wire_id),
    Family(
        "randk",
        RandK,
        "random values of every tensor, unbiased, without positions",
        (RATIO, VALUES, _UNBIASED),
        wire_id=RandK.wire_id,
    ),
    Family("dgc", Dgc, "top-k with momentum correction, masking, clipping and warm-up of the ratio", _DGC_PARAMS),
)
