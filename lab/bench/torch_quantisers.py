"""What all codecs in torch have in common, and the quantisers: norms by bucket, torch.rand for the
rounding, codes packed to nibbles (or bits, pairs, bytes).

The first versions are tuned: what torch.compile can fuse is one pass, random numbers have 16 bits,
codes are packed in lanes. Of qsgd, elastiquant, elasticl and terngrad there are plain versions
below.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from edgegossip.codecs.co3 import EDGES, GRID, scale_for
from edgegossip.layout import Layout

_log = logging.getLogger(__name__)
TINY = torch.finfo(torch.float32).tiny
Parts: TypeAlias = tuple[Tensor, ...]  # what would be sent of one tensor


class TorchCodec(Protocol):
    """Runs one codec on single tensors. What it remembers of tensor k (its index in the model) it
    keeps itself."""

    def encode(self, v: Tensor, k: int) -> Parts:
        """Encode float32 v of any shape."""

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        """Decode to float32 of this shape."""


def encode_model(codec: TorchCodec, x: Tensor, layout: Layout) -> list[Parts]:
    """Encode every tensor of float32[layout.size]."""
    return [codec.encode(v, k) for k, v in enumerate(views(x, layout))]


def decode_model(codec: TorchCodec, parts: list[Parts], out: Tensor, layout: Layout) -> Tensor:
    """Decode into float32[layout.size]."""
    for one, view in zip(parts, views(out, layout), strict=True):
        view.copy_(codec.decode(one, view.shape))
    return out


def size_bytes(parts: list[Parts]) -> int:
    """Return how many bytes a message would have."""
    return sum(t.numel() * t.element_size() for one in parts for t in one)


def views(x: Tensor, layout: Layout) -> list[Tensor]:
    """Return shaped views of the layout's tensors, empty ones included."""
    pieces = torch.split(x, [t.size for t in layout.tensors])
    return [piece.view(t.shape) for piece, t in zip(pieces, layout.tensors, strict=True)]


def width(bits: int) -> int:
    """Return how many bits a code takes in memory: the next of 1, 2, 4, 8 and 16."""
    return next(w for w in (1, 2, 4, 8, 16) if w >= bits)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack uint8 codes below 2^bits into uint8, 8 / width(bits) of them a byte, first in the low
    bits; int32 codes of more than 8 bits -> int16. Two neighbours are folded in lanes of 16 bits,
    which torch vectorises, as it does not a stride of two bytes."""
    w = width(bits)
    if w == 16:
        return codes.to(torch.int16)
    codes = _padded(codes, 8 // w)
    while w < 8:
        lanes = codes.view(torch.int16)
        codes = (lanes >> (8 - w)).bitwise_or_(lanes).to(torch.uint8)
        w *= 2
    return codes


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """Undo `pack`: return n codes, uint8 (int32 of more than 8 bits)."""
    w = width(bits)
    if w == 16:
        return packed.to(torch.int32) & 0xFFFF
    half = 8
    while half > w:
        half //= 2
        lanes = packed.to(torch.int16)
        packed = (lanes << (8 - half)).bitwise_or_(lanes).bitwise_and_(((1 << half) - 1) * 0x0101).view(torch.uint8)
    return packed[:n]


def _padded(flat: Tensor, unit: int) -> Tensor:
    """Zeros after the end up to a multiple of `unit`; the same tensor where none are missing."""
    return pad(flat, (0, missing)) if (missing := -flat.numel() % unit) else flat


def random_bits(rows: Tensor) -> Tensor:
    """Return whole numbers from -2^15 to 2^15 - 1 for `_fractions`: four from a draw of 64 bits,
    which takes torch a third of the time of `torch.rand`."""
    n = rows.numel()
    drawn = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None)
    return drawn.view(torch.int16)[:n].view(rows.shape).float()


def _fractions(bits: Tensor) -> Tensor:
    """Return them as numbers in (0, 1) with mean 1/2."""
    return (bits + 32768.5) * 2.0**-16


# What torch.compile makes one pass of. It vectorises float32 and int32, and neither int16 nor
# comparisons that are kept as uint8.


def _signed(rows: Tensor, levels: Tensor, bits: int) -> Tensor:
    codes = torch.where((rows < 0) & (levels > 0), levels + (1 << (bits - 1)), levels)
    return codes if bits > 8 else codes.to(torch.uint8)


def _uniform(rows: Tensor, norms: Tensor, draws: Tensor, s: int, bits: int) -> Tensor:
    """floor(s |v| / N + rand)."""
    levels = rows.abs() * (s / norms.clamp_min(TINY)) + _fractions(draws)
    return _signed(rows, levels.clamp(max=float(s)).to(torch.int32), bits)


def _between(rows: Tensor, norms: Tensor, draws: Tensor, low: list[float], steps: list[float], bits: int) -> Tensor:
    """How many of the thresholds lie below |v| / N, one in each interval, at the same fraction of
    it: all of those below the value's own interval, none above."""
    r, fractions = rows.abs() / norms.clamp_min(TINY), _fractions(draws)
    levels = torch.zeros_like(r, dtype=torch.int32)
    for start, step in zip(low, steps, strict=True):
        levels = levels + (r > start + fractions * step).to(torch.int32)
    return _signed(rows, levels, bits)


def _ternary(rows: Tensor, limit: Tensor, scale: Tensor, draws: Tensor) -> Tensor:
    magnitudes = torch.minimum(rows.abs(), limit)
    return _signed(rows, (_fractions(draws) * scale < magnitudes).to(torch.int32), 2)


_Function = TypeVar("_Function", bound=Callable[..., Tensor])


def _pass(function: _Function, compiled: bool) -> _Function:
    return cast("_Function", torch.compile(function, dynamic=True)) if compiled else function


@cache
def can_compile() -> bool:
    """Say whether torch.compile works here: it needs a C++ compiler."""
    try:
        torch.compile(torch.neg)(torch.ones(8))
    except Exception as error:  # whatever keeps it from working; the rivals then run uncompiled
        _log.warning("torch.compile does not work here, tuned rivals run without it: %s", error)
        return False
    return True


class _Signed(TorchCodec):
    """Codes sign << (bits - 1) | level. `levels` are what they stand for, as fractions of the
    bucket's norm."""

    def __init__(self, levels: Tensor, bits: int, bucket: int, norm: str) -> None:
        self.bits, self.bucket, self.norm = bits, bucket, norm
        half = 1 << (bits - 1)
        self._values = torch.zeros(2 * half)
        self._values[: len(levels)] = levels
        self._values[half : half + len(levels)] = -levels

    def _rows(self, v: Tensor) -> Tensor:
        """[buckets, bucket], zeros after the end; one row without buckets."""
        flat = v.reshape(-1)
        return _padded(flat, self.bucket).view(-1, self.bucket) if self.bucket else flat.view(1, -1)

    def _norms(self, rows: Tensor) -> Tensor:
        largest = self.norm == "linf"
        return rows.abs().amax(1, keepdim=True) if largest else torch.linalg.vector_norm(rows, dim=1, keepdim=True)

    def _packed(self, codes: Tensor, n: int) -> Tensor:
        return pack(codes.view(-1)[:n], self.bits)

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale = parts
        codes = unpack(packed, self.bits, n := shape.numel())
        rows = self._rows(self._values.index_select(0, codes.int()))
        return rows.mul_(scale).view(-1)[:n].view(shape)


class Uniform(_Signed):
    """QSGD with s levels, bucket norms L2 or L-infinity. bucket 0: one norm a tensor."""

    def __init__(self, s: int, bits: int, bucket: int, norm: str, *, compiled: bool = False) -> None:
        super().__init__(torch.arange(s + 1) / s, bits, bucket, norm)
        self.s, self._codes = s, _pass(_uniform, compiled)

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = self._rows(v)
        norms = self._norms(rows)
        return self._packed(self._codes(rows, norms, random_bits(rows), self.s, self.bits), v.numel()), norms


_FEW = 16  # levels; comparisons with each take less time than a search


class Levels(_Signed):
    """ElastiQuant (NUQSGD) for any list of levels. Of few, each interval is compared with; of many,
    bucketize finds the value's own."""

    def __init__(self, levels: tuple[float, ...], bits: int, bucket: int, norm: str, *, compiled: bool = False) -> None:
        self.list = torch.tensor(levels)
        super().__init__(self.list, bits, bucket, norm)
        self._low, self._steps = self.list[:-1].tolist(), self.list.diff().tolist()
        self._between = _pass(_between, compiled)

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = self._rows(v)
        norms, draws = self._norms(rows), random_bits(rows)
        if len(self.list) > _FEW:
            return self._packed(self._found(rows, norms, draws), v.numel()), norms
        return self._packed(self._between(rows, norms, draws, self._low, self._steps, self.bits), v.numel()), norms

    def _found(self, rows: Tensor, norms: Tensor, draws: Tensor) -> Tensor:
        r = (rows.abs() / norms.clamp_min(TINY)).clamp_(max=1.0).view(-1)
        below = torch.bucketize(r, self.list, right=True, out_int32=True).sub_(1).clamp_(max=len(self.list) - 2)
        low = self.list.index_select(0, below)
        step = self.list.index_select(0, below + 1).sub_(low)
        up = _fractions(draws.view(-1)) * step < r.sub_(low)
        return _signed(rows.view(-1), below + up, self.bits)


class Ternary(_Signed):
    """TernGrad: clip at `clip` deviations (about zero), sign times Bernoulli(|g| / scale), 2 bits a
    value."""

    def __init__(self, clip: float, *, compiled: bool = False) -> None:
        super().__init__(torch.tensor([0.0, 1.0]), 2, 0, "linf")
        self.clip, self._codes = clip, _pass(_ternary, compiled)

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = v.reshape(1, -1)
        scale = self._norms(rows)[0, 0]
        deviation = torch.linalg.vector_norm(rows) / v.numel() ** 0.5
        limit = torch.minimum(scale, self.clip * deviation) if self.clip else scale
        return self._packed(self._codes(rows, limit, limit, random_bits(rows)), v.numel()), limit


class Sign(TorchCodec):
    """signSGD scaled by the mean magnitude, eight signs a byte."""

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        return pack((v.reshape(-1) < 0).to(torch.uint8), 1), v.abs().mean()

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale = parts
        return (1.0 - 2.0 * unpack(packed, 1, shape.numel()).float()).mul_(scale).view(shape)


class Co3(_Signed):
    """CO3's 4-bit grid: k from the product's own table by torch's moments, bucketize with the
    grid's edges."""

    def __init__(self) -> None:
        super().__init__(torch.tensor(GRID), 4, 0, "")
        self.edges = torch.tensor(EDGES)

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = v.reshape(1, -1)
        magnitudes = rows.abs()
        largest, squares = float(magnitudes.max()), float((rows.double() ** 2).sum())
        scale = torch.tensor(scale_for(float(magnitudes.double().sum()), squares, largest, v.numel()))
        levels = torch.bucketize(magnitudes.mul_(scale), self.edges, out_int32=True)
        return self._packed(_signed(rows, levels, self.bits), v.numel()), scale

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale = parts
        return super().decode((packed, 1.0 / scale.clamp_min(TINY)), shape)


# The stochastic quantisers as a user or a paper's code writes them: one torch function after the
# other, each with a new tensor as its result. All buckets at once, float32, whole bytes of codes at
# the end; nothing is saved, nothing is wasted.


def in_buckets(v: Tensor, bucket: int) -> Tensor:
    """Return [buckets, bucket], zeros after the end; one row without buckets."""
    flat = v.flatten()
    return pad(flat, (0, -flat.numel() % bucket)).view(-1, bucket) if bucket else flat.view(1, -1)


def norms_of(rows: Tensor, norm: str) -> Tensor:
    """Return the L2 or L-infinity norm of each row, [buckets, 1], never zero."""
    order = 2 if norm == "l2" else float("inf")
    return torch.clamp(torch.norm(rows, p=order, dim=1, keepdim=True), min=TINY)


def packed(levels: Tensor, sign: Tensor, bits: int, n: int) -> Tensor:
    """Pack codes sign << (bits - 1) | level, as many a byte as fit."""
    codes = torch.where(sign < 0, levels + 2 ** (bits - 1), levels).flatten()[:n]
    w = width(bits)
    if w == 16:
        return codes.to(torch.int32).to(torch.int16)
    codes = codes.to(torch.uint8)
    if w == 8:
        return codes
    codes = pad(codes, (0, -n % (8 // w))).view(-1, 8 // w)
    result = codes[:, 0]
    for k in range(1, 8 // w):
        result = result + codes[:, k] * 2 ** (k * w)
    return result


def unpacked(codes: Tensor, bits: int, n: int) -> tuple[Tensor, Tensor]:
    """Return (level, sign as 1 or -1), each [n]."""
    w = width(bits)
    if w == 16:
        codes = codes.to(torch.int32) & 0xFFFF
    elif w < 8:
        codes = torch.stack([(codes >> shift) & (2**w - 1) for shift in range(0, 8, w)], dim=1).flatten()[:n]
    half = 2 ** (bits - 1)
    return codes % half, torch.where(codes < half, 1.0, -1.0)


class PlainUniform(TorchCodec):
    """QSGD with s levels of a bucket's norm."""

    def __init__(self, s: int, bits: int, bucket: int, norm: str) -> None:
        self.s, self.bits, self.bucket, self.norm = s, bits, bucket, norm

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = in_buckets(v, self.bucket)
        norms = norms_of(rows, self.norm)
        scaled = rows.abs() / norms * self.s
        lower = torch.floor(scaled)
        up = torch.rand_like(scaled) < scaled - lower
        levels = torch.clamp(lower + up, max=self.s)
        return packed(levels, torch.sign(rows) * levels, self.bits, v.numel()), norms

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        codes, norms = parts
        levels, sign = unpacked(codes, self.bits, shape.numel())
        return _scaled(sign * levels / self.s, norms, self.bucket, shape)


class PlainLevels(TorchCodec):
    """ElastiQuant (NUQSGD): one of the two levels around |v| / N."""

    def __init__(self, levels: tuple[float, ...], bits: int, bucket: int, norm: str) -> None:
        self.list = torch.tensor(levels)
        self.bits, self.bucket, self.norm = bits, bucket, norm

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = in_buckets(v, self.bucket)
        norms = norms_of(rows, self.norm)
        r = torch.clamp(rows.abs() / norms, max=1.0)
        above = torch.clamp(torch.bucketize(r, self.list, right=True), max=len(self.list) - 1)
        low, high = self.list[above - 1], self.list[above]
        up = torch.rand_like(r) < (r - low) / (high - low)
        levels = torch.where(up, above, above - 1)
        return packed(levels, torch.sign(rows) * levels, self.bits, v.numel()), norms

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        codes, norms = parts
        levels, sign = unpacked(codes, self.bits, shape.numel())
        return _scaled(sign * self.list[levels.long()], norms, self.bucket, shape)


class PlainTernary(TorchCodec):
    """TernGrad: clip at `clip` deviations (about zero), sign times Bernoulli(|g| / scale), 2 bits a
    value."""

    def __init__(self, clip: float) -> None:
        self.clip = clip

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        magnitudes = v.abs()
        if self.clip:
            magnitudes = torch.clamp(magnitudes, max=float(self.clip * torch.sqrt(torch.mean(v**2))))
        scale = torch.clamp(magnitudes.max(), min=TINY)
        levels = torch.bernoulli(magnitudes / scale)
        return packed(levels, torch.sign(v) * levels, 2, v.numel()), scale

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        codes, scale = parts
        levels, sign = unpacked(codes, 2, shape.numel())
        return (sign * levels * scale).view(shape)


def _scaled(units: Tensor, norms: Tensor, bucket: int, shape: torch.Size) -> Tensor:
    rows = in_buckets(units, bucket) * norms
    return rows.flatten()[: shape.numel()].view(shape)
