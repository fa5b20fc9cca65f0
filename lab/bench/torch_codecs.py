"""The rivals: every codec in torch, vectorised, down to bytes.

They work tensor by tensor, as the product does, take torch's global random state, check nothing and
know no entropy coder (torch has none): beside a Huffman or zstd row stands quantise-and-pack alone,
which flatters the rival. `rival` finds the one for a codec and gives it that codec's parameters:
the plain version, as a user or a paper's code writes it. `tuned_rival` finds a version that is as
fast as torch makes it, where there is one. With parameters that a rival cannot
follow (`_LACKS`) there is none: it would do something else, and be compared with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from edgegossip.codecs.levels import geometric_levels
from lab.bench.torch_quantisers import (
    TINY,
    Co3,
    Levels,
    Parts,
    PlainLevels,
    PlainTernary,
    PlainUniform,
    Sign,
    Ternary,
    TorchCodec,
    Uniform,
    pack,
    unpack,
)


class ErrorFeedback(TorchCodec):
    """a = v + decay * memory; send Q(a); memory = a - Q(a)."""

    def __init__(self, codec: TorchCodec, decay: float) -> None:
        self.codec, self.decay = codec, decay
        self._memory: dict[int, Tensor] = {}

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        memory = self._memory.get(k)
        a = v.clone() if memory is None else v.add(memory, alpha=self.decay)
        parts = self.codec.encode(a, k)
        self._memory[k] = a.sub_(self.codec.decode(parts, v.shape))
        return parts

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        return self.codec.decode(parts, shape)


class Float(TorchCodec):
    """`v.to(dtype)`; float32 is a copy. Overflow becomes infinity, which the product does not
    allow."""

    def __init__(self, dtype: str) -> None:
        self._dtype: torch.dtype = getattr(torch, dtype)

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        return (v.to(self._dtype, copy=True),)

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        return parts[0].float().view(shape)


class MinMax8(TorchCodec):
    """Bagua's MinMaxUInt8 in torch, with epsilon relative to max - min as in the product."""

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        low, high = torch.aminmax(v)
        scale = 255.0 / ((high - low) * (1 + 1e-7)).clamp_min(1e-30)
        upper = torch.round(high * scale)
        codes = torch.clamp_max(torch.round(v * scale), upper) - (upper - 255.0)
        return codes.to(torch.uint8), torch.stack((low, high))

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        codes, (low, high) = parts
        scale = 255.0 / ((high - low) * (1 + 1e-7)).clamp_min(1e-30)
        lower = torch.round(high * scale) - 255.0
        values: Tensor = (codes.float() + lower) / scale
        return values.view(shape)


# topk, randk and dgc: values and int32 indices, not compressed further (as public implementations
# send them).


def kept(share: float, n: int) -> int:
    """Return how many of n values are sent: at least one, as in the product (the slack against
    float64's rounding too)."""
    return min(n, max(1, math.ceil(share * n * (1 - 1e-12))))


class TopK(TorchCodec):
    """torch.topk of the magnitudes, unsorted."""

    def __init__(self, share: float, dtype: str = "float32") -> None:
        self.share = share
        self.dtype: torch.dtype = getattr(torch, dtype)

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        flat = v.reshape(-1)
        index = torch.topk(flat.abs(), kept(self.share, flat.numel()), sorted=False).indices
        return flat[index].to(self.dtype), index.int()

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        values, index = parts
        return torch.zeros(shape.numel()).index_copy_(0, index.long(), values.float()).view(shape)


class SparseLoCo(TorchCodec):
    """torch.topk in each chunk; a value is a sign and one of the tensor's two mean magnitudes."""

    def __init__(self, share: float, chunk: int) -> None:
        self.share, self.chunk = share, chunk

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        flat = v.reshape(-1)
        parts = [
            torch.topk(part.abs(), kept(self.share, part.numel()), sorted=False).indices + at * self.chunk
            for at, part in enumerate(torch.split(flat, self.chunk))
        ]
        index = torch.cat(parts)
        sent = flat[index]
        size = sent.abs()
        large = size > size.mean()
        levels = torch.stack(
            [size[~large].sum() / (~large).sum().clamp(min=1), size[large].sum() / large.sum().clamp(min=1)]
        )
        return levels, index.int(), ((1 + large.to(torch.int8)) * sent.sign()).to(torch.int8)

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        levels, index, q = parts
        values = torch.cat([torch.zeros(1), levels])[q.abs().long()] * q.sign()
        return torch.zeros(shape.numel()).index_copy_(0, index.long(), values).view(shape)


class Steps(TorchCodec):
    """Whole steps of a tensor for a relative error, as int16: with subtractive dither, which the
    tensor's number gives both ends, or with a dead zone and the mean of what becomes 1, 2, 3 or
    more steps."""

    def __init__(self, error: float, dithered: bool) -> None:
        self.error, self.dithered = error, dithered

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        step = v.square().mean().mul(12).sqrt().mul(self.error).clamp(min=1e-30)
        t = v / step
        if self.dithered:
            return step.view(1), torch.tensor([k]), (t + _dither(k, v.shape)).round().short()
        size = (t.abs() + 1 / 3).floor()
        rest = t.abs() - size
        cells = [size == 1, size == 2, size > 2]
        shifts = torch.stack([rest[cell].sum() / cell.sum().clamp(min=1) for cell in cells])
        return step.view(1), shifts, (size * t.sign()).short()

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        step, more, q = parts
        if self.dithered:
            return (q.float() - _dither(int(more), shape)) * step
        size = q.abs().float()
        shifts = torch.cat([torch.zeros(1), more])[size.clamp(max=3).long()]
        return (size + shifts) * q.sign() * step


def _dither(k: int, shape: torch.Size) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(k)) - 0.5


class RandK(TopK):
    """torch.randperm chooses; values times n / k, so that the mean is right, or as they are when
    not `unbiased`."""

    def __init__(self, share: float, dtype: str = "float32", *, unbiased: bool = True) -> None:
        super().__init__(share, dtype)
        self.unbiased = unbiased

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        flat = v.reshape(-1)
        count = kept(self.share, flat.numel())
        index = torch.randperm(flat.numel())[:count]
        values = flat[index] * (flat.numel() / count) if self.unbiased else flat[index]
        return values.to(self.dtype), index.int()


class Dgc(TopK):
    """Momentum correction u = m u + g, v += u; the top k of v are sent and zeroed in u and v."""

    def __init__(self, share: float, momentum: float, dtype: str = "float32") -> None:
        super().__init__(share, dtype)
        self.momentum = momentum
        self._state: dict[int, tuple[Tensor, Tensor]] = {}

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        flat = v.reshape(-1)
        if k not in self._state:
            self._state[k] = (torch.zeros_like(flat), torch.zeros_like(flat))
        u, total = self._state[k]
        u.mul_(self.momentum).add_(flat)
        total.add_(u)
        parts = super().encode(total, k)
        index = parts[1].long()
        u[index] = 0.0
        total[index] = 0.0
        return parts


# atomo by torch.linalg.svd, powersgd by matmul and torch.linalg.qr; float32 factors. Vectors go as
# they are.


def unfolded(v: Tensor) -> Tensor:
    """Return [first dimension, all others]."""
    return v.reshape(v.shape[0], -1)


def _is_matrix(shape: torch.Size, rank: int) -> bool:
    return len(shape) > 1 and rank * (shape[0] + shape.numel() // shape[0]) < shape.numel()


class Atomo(TorchCodec):
    """Spectral ATOMO: atoms are kept with p_i = min(1, r s_i / sum s), renormalised until all are
    at most 1, and sent as (s_i / p_i, vectors)."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        if not _is_matrix(v.shape, self.rank):
            return (v.clone(),)
        u, s, vh = torch.linalg.svd(unfolded(v), full_matrices=False)
        p = probabilities(s, self.rank)
        chosen = torch.rand_like(p) < p
        return u[:, chosen], s[chosen] / p[chosen], vh[chosen]

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        u, s, vh = parts
        return ((u * s) @ vh).view(shape)


def probabilities(s: Tensor, rank: int) -> Tensor:
    """Return min(1, c s_i) with c such that they sum to `rank`, or to the number of atoms when
    there are fewer."""
    p = torch.zeros_like(s)
    open_ = s > 0
    budget = float(rank)
    while bool(open_.any()) and budget > 0:
        scaled = s * (budget / float(s[open_].sum()))
        full = open_ & (scaled >= 1.0)
        if not bool(full.any()):
            return torch.where(open_, scaled, p)
        p[full] = 1.0
        budget -= int(full.sum())
        open_ &= ~full
    return p


class PowerSgd(TorchCodec):
    """PowerSGD (Vogels et al. 2019, Algorithm 1): P = M Q, P orthogonalised, Q = M' P, with warm
    start and error feedback, of which `decay` is kept."""

    def __init__(self, rank: int, decay: float = 1.0) -> None:
        self.rank, self.decay = rank, decay
        self._state: dict[int, tuple[Tensor, Tensor]] = {}

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        if not _is_matrix(v.shape, self.rank):
            return (v.clone(),)
        matrix = unfolded(v)
        if k not in self._state:
            self._state[k] = (torch.zeros_like(matrix), torch.randn(matrix.shape[1], self.rank))
        error, q = self._state[k]
        m = matrix.add(error, alpha=self.decay)
        p = torch.linalg.qr(m @ q).Q
        q = m.T @ p
        self._state[k] = (m.sub_(p @ q.T), q)
        return p, q

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        return parts[0] if len(parts) == 1 else (parts[0] @ parts[1].T).view(shape)


# eden: signs by torch's generator, levels by torch.bucketize, codes packed to 1, 2 or 4 bits.


class PlainEden(TorchCodec):
    """EDEN as its authors' code has it: the tensor, with zeros up to a power of two, rotated once
    by random signs, of which the seed is sent, and a Walsh-Hadamard transform of log2(n) passes."""

    rotations = 1

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._levels, self._limits = (torch.tensor(t, dtype=torch.float32) for t in lloyd_max(bits))

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        flat = v.reshape(-1)
        rows = self._rows(flat)
        seed = torch.randint(2**62, (1,))
        signs = self._signs(seed, rows.shape)
        y = self._turned(rows, signs)
        squares = rows.square().sum(1, keepdim=True)
        codes = torch.bucketize(y * (rows.shape[1] / squares.clamp_min(TINY)).sqrt(), self._limits)
        scale = squares / (y * self._levels[codes]).sum(1, keepdim=True).clamp_min(TINY)
        return pack(codes.to(torch.uint8).view(-1), self.bits), scale, seed

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale, seed = parts
        rows = self._rows(torch.empty(shape.numel()))
        levels = self._levels[unpack(packed, self.bits, rows.numel()).int()].view(rows.shape)
        values = self._turned_back(levels, self._signs(seed, rows.shape)) * scale
        return values.view(-1)[: shape.numel()].view(shape)

    def _rows(self, flat: Tensor) -> Tensor:
        size = 1 << max(flat.numel() - 1, 1).bit_length()
        return torch.nn.functional.pad(flat, (0, size - flat.numel())).view(1, -1)

    def _signs(self, seed: Tensor, shape: torch.Size) -> list[Tensor]:
        drawn = torch.Generator().manual_seed(int(seed))
        return [torch.empty(shape).bernoulli_(0.5, generator=drawn).mul_(2).sub_(1) for _ in range(self.rotations)]

    def _turned(self, rows: Tensor, signs: list[Tensor]) -> Tensor:
        for sign in signs:
            rows = self._hadamard(rows * sign)
        return rows

    def _turned_back(self, rows: Tensor, signs: list[Tensor]) -> Tensor:
        for sign in reversed(signs):
            rows = self._hadamard(rows) * sign
        return rows

    def _hadamard(self, rows: Tensor) -> Tensor:
        v, half, n = rows, 1, rows.shape[1]
        while half < n:
            pairs = v.view(-1, 2, half)
            v = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1)
            half *= 2
        return v.view(rows.shape) / math.sqrt(n)


class BlockedEden(PlainEden):
    """The product's rotation, as fast as torch makes it: blocks of 4096 values, twice, each by two
    products with a matrix of 64 x 64; 64 signs from a draw of 64 bits, by a table of the bytes'.
    Tensors below that are padded to a block."""

    rotations = 2

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        h = torch.ones(1, 1)
        while len(h) < 64:
            h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
        self._matrix = h / 8
        self._of_byte = 1.0 - 2.0 * (torch.arange(256).view(-1, 1) >> torch.arange(8) & 1)

    @override
    def _rows(self, flat: Tensor) -> Tensor:
        return torch.nn.functional.pad(flat, (0, -flat.numel() % 4096)).view(-1, 4096)

    @override
    def _signs(self, seed: Tensor, shape: torch.Size) -> list[Tensor]:
        drawn = torch.Generator().manual_seed(int(seed))
        words = torch.empty(2 * shape.numel() // 64, dtype=torch.int64).random_(-(2**63), None, generator=drawn)
        return list(self._of_byte.index_select(0, words.view(torch.uint8).int()).view(2, *shape))

    @override
    def _hadamard(self, rows: Tensor) -> Tensor:
        return (self._matrix @ rows.view(-1, 64, 64) @ self._matrix).view(rows.shape)


def lloyd_max(bits: int) -> tuple[list[float], list[float]]:
    """Return the 2^bits levels of the best quantiser of a normal law, and the limits between them:
    each level the mean of its interval, each limit halfway between two levels, in 1000 rounds."""
    from statistics import NormalDist

    law, count = NormalDist(), 1 << bits
    levels = [law.inv_cdf((k + 0.5) / count) for k in range(count)]
    for _ in range(1000):
        limits = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
        edges = [-math.inf, *limits, math.inf]
        density = [0.0, *(law.pdf(t) for t in limits), 0.0]
        share = [law.cdf(b) - law.cdf(a) for a, b in itertools.pairwise(edges)]
        levels = [(density[k] - density[k + 1]) / share[k] for k in range(count)]
    return levels, limits


Params = Mapping[str, Any]


_Maker = Callable[..., TorchCodec]  # a class, or one that is told whether to compile


def _uniform(make: _Maker, norm: str) -> Callable[[Params], TorchCodec]:
    return lambda p: make(2 ** (p["bits"] - 1) - 1, p["bits"], p["bucket"], norm)


def _whole_tensors(make: _Maker) -> Callable[[Params], TorchCodec]:
    return lambda p: make(p["s0"], 1 + p["s0"].bit_length(), 0, "l2")


def default_levels(bits: int, ratio: float) -> tuple[float, ...]:
    """Return elastiquant's levels, with ratio 0 for the default one."""
    inner = 2 ** (bits - 1) - 2
    return tuple(geometric_levels(inner, ratio or (0.5 if bits <= 4 else 0.9)).tolist()) if inner else (0.0, 1.0)


def _elastiquant(make: _Maker) -> Callable[[Params], TorchCodec]:
    def rival_of(p: Params) -> TorchCodec:
        levels = p.get("levels") or default_levels(p["bits"], p.get("ratio", 0.0))
        return make(levels, p["bits"], p["bucket"], p.get("norm", "l2"))

    return rival_of


def _tuned(compiled: bool) -> dict[str, Callable[[Params], TorchCodec]]:
    uniform, levels = partial(Uniform, compiled=compiled), partial(Levels, compiled=compiled)
    return {
        "qsgd": _uniform(uniform, "l2"),
        "qsgd-inf": _uniform(uniform, "linf"),
        "elastiquant": _elastiquant(levels),
        "elasticl": _whole_tensors(uniform),
        "terngrad": lambda p: Ternary(p["clip"], compiled=compiled),
        "eden": lambda p: BlockedEden(p["bits"]),
    }


_RIVALS: dict[str, Callable[[Params], TorchCodec]] = {
    "fp32": lambda p: Float("float32"),
    "fp16": lambda p: Float("float16"),
    "bf16": lambda p: Float("bfloat16"),
    "minmax8": lambda p: MinMax8(),
    "qsgd": _uniform(PlainUniform, "l2"),
    "qsgd-inf": _uniform(PlainUniform, "linf"),
    "elastiquant": _elastiquant(PlainLevels),
    "elasticl": _whole_tensors(PlainUniform),
    "co3": lambda p: Co3(),
    "terngrad": lambda p: PlainTernary(p["clip"]),
    "signsgd": lambda p: Sign(),
    "eden": lambda p: PlainEden(p["bits"]),
    "topk": lambda p: TopK(p["ratio"], _dtype(p)),
    "randk": lambda p: RandK(p["ratio"], _dtype(p), unbiased=p.get("unbiased", True)),
    "dgc": lambda p: Dgc(p["ratio"], p["momentum"], _dtype(p)),
    "sparseloco": lambda p: SparseLoCo(p["ratio"], p["chunk"]),
    "dither": lambda p: Steps(p["error"], dithered=True),
    "deadzone": lambda p: Steps(p["error"], dithered=False),
    "atomo": lambda p: Atomo(p.get("rank", 3)),
    "powersgd": lambda p: PowerSgd(p.get("rank", 2), p.get("decay", 1.0)),
}
# The only value with which the rival does what the codec does. Clipping is by the norm of the whole
# model, the share of a warm-up changes from message to message, and powersgd's fp16 factors have a
# scale for each column. Steps follow an error, tensor by tensor.
_LACKS: dict[str, dict[str, Any]] = {
    "dgc": {"clip": 0.0, "warmup_rounds": 0},
    "powersgd": {"values": "fp32"},
    "dither": {"bytes": 0, "step": 0.0, "allocation": 0.0},
    "deadzone": {"bytes": 0, "step": 0.0, "allocation": 0.0},
    "elasticl": {"interval_bits": 0.0},
}


def rival(name: str, params: Params) -> TorchCodec | None:
    """Return the plain rival of a codec by `cases.description`: the family's name and all
    parameters, `feedback` for a memory around it. None when it has none, or none with these
    parameters."""
    if any(params.get(key, value) != value for key, value in _LACKS.get(name, {}).items()):
        return None
    return _made(_RIVALS.get(name), params)


def tuned_rival(name: str, params: Params, *, compiled: bool = False) -> TorchCodec | None:
    """Return the tuned rival of the same codec, its passes made by torch.compile if `compiled`;
    None where the plain one has nothing to tune."""
    return _made(_tuned(compiled).get(name), params)


def _made(make: Callable[[Params], TorchCodec] | None, params: Params) -> TorchCodec | None:
    if make is None:
        return None
    return ErrorFeedback(make(params), params["feedback"]) if params.get("feedback") else make(params)


def _dtype(p: Params) -> str:
    return {"fp16": "float16", "bf16": "bfloat16"}.get(p.get("values", "fp32"), "float32")
