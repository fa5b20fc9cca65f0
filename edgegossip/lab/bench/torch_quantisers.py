"""What all codecs in torch have in common, and the quantisers: norms by bucket, torch.rand for the
rounding, codes packed to nibbles (or bits, pairs, bytes).

The first versions reuse temporaries (operations in place) and keep integers narrow. Of qsgd,
elastiquant, elasticl and terngrad there are plain versions below.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from edgegossip.codecs.co3 import EDGES, GRID, scale_for
from edgegossip.layout import Layout

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
    bits; int32 codes of more than 8 bits -> int16."""
    w = width(bits)
    if w == 16:
        return codes.to(torch.int16)
    if w == 8:
        return codes
    a_byte = 8 // w
    codes = torch.nn.functional.pad(codes, (0, -codes.numel() % a_byte)).view(-1, a_byte)
    packed = codes[:, 0].clone()
    for k in range(1, a_byte):
        packed |= codes[:, k] << (k * w)
    return packed


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """Undo `pack`: return n codes, uint8 (int32 of more than 8 bits)."""
    w = width(bits)
    if w == 16:
        return packed.to(torch.int32) & 0xFFFF
    if w == 8:
        return packed
    mask = (1 << w) - 1
    return torch.stack([(packed >> shift) & mask for shift in range(0, 8, w)], dim=1).view(-1)[:n]


class _Signed(TorchCodec):
    """Codes sign << (bits - 1) | level, levels as fractions of the bucket's norm."""

    bits: int
    bucket: int
    norm: str

    def _rows(self, v: Tensor) -> Tensor:
        """[buckets, bucket], zeros after the end; one row without buckets."""
        flat = v.reshape(-1)
        return (
            flat.view(1, -1) if not self.bucket else pad(flat, (0, -flat.numel() % self.bucket)).view(-1, self.bucket)
        )

    def _norms(self, magnitudes: Tensor) -> Tensor:
        largest = self.norm == "linf"
        return (
            magnitudes.amax(1, keepdim=True) if largest else torch.linalg.vector_norm(magnitudes, dim=1, keepdim=True)
        )

    def _codes(self, rows: Tensor, levels: Tensor, n: int) -> Tensor:
        wide = torch.int32 if self.bits > 8 else torch.uint8
        codes = levels.to(wide)
        codes |= ((rows < 0) & (levels > 0)).to(wide) << (self.bits - 1)
        return pack(codes.view(-1)[:n], self.bits)

    def _levels(self, packed: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """(level, sign as 1 or -1), each [buckets, bucket]."""
        codes = unpack(packed, self.bits, n)
        codes = codes.view(1, -1) if not self.bucket else pad(codes, (0, -n % self.bucket)).view(-1, self.bucket)
        sign = 1.0 - 2.0 * (codes >> (self.bits - 1)).float()
        return codes & ((1 << (self.bits - 1)) - 1), sign


class Uniform(_Signed):
    """QSGD with s levels, bucket norms L2 or L-infinity: floor(s |v| / N + rand). bucket 0: one
    norm a tensor."""

    def __init__(self, s: int, bits: int, bucket: int, norm: str) -> None:
        self.s, self.bits, self.bucket, self.norm = s, bits, bucket, norm

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = self._rows(v)
        magnitudes = rows.abs()
        norms = self._norms(magnitudes)
        levels = magnitudes.mul_(self.s / norms.clamp_min(TINY)).add_(torch.rand_like(rows)).floor_()
        return self._codes(rows, levels.clamp_(max=self.s), v.numel()), norms

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, norms = parts
        levels, sign = self._levels(packed, n := shape.numel())
        return sign.mul_(levels).mul_(norms / self.s).view(-1)[:n].view(shape)


class Levels(_Signed):
    """ElastiQuant (NUQSGD) for any list of levels: bucketize finds the interval, rand chooses its
    end."""

    def __init__(self, levels: tuple[float, ...], bits: int, bucket: int, norm: str) -> None:
        self.list = torch.tensor(levels)
        self.bits, self.bucket, self.norm = bits, bucket, norm

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = self._rows(v)
        magnitudes = rows.abs()
        norms = self._norms(magnitudes)
        r = (magnitudes / norms.clamp_min(TINY)).clamp_(max=1.0)
        below = (torch.bucketize(r, self.list, right=True) - 1).clamp_(max=len(self.list) - 2)
        low, high = self.list[below], self.list[below + 1]
        levels = below + (torch.rand_like(r) * (high - low) < r - low)
        return self._codes(rows, levels, v.numel()), norms

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, norms = parts
        levels, sign = self._levels(packed, n := shape.numel())
        return sign.mul_(self.list[levels.int()]).mul_(norms).view(-1)[:n].view(shape)


class Ternary(_Signed):
    """TernGrad: clip at `clip` deviations (about zero), sign times Bernoulli(|g| / scale), 2 bits a
    value."""

    bits, bucket, norm = 2, 0, "linf"

    def __init__(self, clip: float) -> None:
        self.clip = clip

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = v.reshape(1, -1)
        magnitudes = rows.abs()
        if self.clip:
            magnitudes.clamp_(max=float(self.clip * torch.sqrt(torch.mean(rows * rows))))
        scale = magnitudes.max()
        return self._codes(rows, torch.rand_like(rows) * scale < magnitudes, v.numel()), scale

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale = parts
        levels, sign = self._levels(packed, shape.numel())
        return sign.mul_(levels).mul_(scale).view(shape)


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

    bits, bucket, norm = 4, 0, ""

    def __init__(self) -> None:
        self.edges, self.grid = torch.tensor(EDGES), torch.tensor(GRID)

    @override
    def encode(self, v: Tensor, k: int) -> Parts:
        rows = v.reshape(1, -1)
        magnitudes = rows.abs()
        largest, squares = float(magnitudes.max()), float((rows.double() ** 2).sum())
        scale = torch.tensor(scale_for(float(magnitudes.double().sum()), squares, largest, v.numel()))
        levels = torch.bucketize(magnitudes.mul_(scale), self.edges)
        return self._codes(rows, levels, v.numel()), scale

    @override
    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale = parts
        levels, sign = self._levels(packed, shape.numel())
        return sign.mul_(self.grid[levels.int()]).div_(scale.clamp_min(TINY)).view(shape)


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
