"""The quantisers: norms by bucket, torch.rand for the rounding, codes packed to nibbles (or bits,
pairs, bytes).

Temporaries are reused (operations in place) and integers narrow. Of qsgd, elastiquant, elasticl and
terngrad plain.py has the plain versions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from edgegossip.codecs.gennorm import EDGES, GRID, scale_for
from edgegossip.lab.bench.torch_codecs.base import Parts, pack, unpack

_TINY = torch.finfo(torch.float32).tiny


class _Signed:
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

    def encode(self, v: Tensor, k: int) -> Parts:
        rows = self._rows(v)
        magnitudes = rows.abs()
        norms = self._norms(magnitudes)
        levels = magnitudes.mul_(self.s / norms.clamp_min(_TINY)).add_(torch.rand_like(rows)).floor_()
        return self._codes(rows, levels.clamp_(max=self.s), v.numel()), norms

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

    def encode(self, v: Tensor, k: int) -> Parts:
        rows = self._rows(v)
        magnitudes = rows.abs()
        norms = self._norms(magnitudes)
        r = (magnitudes / norms.clamp_min(_TINY)).clamp_(max=1.0)
        below = (torch.bucketize(r, self.list, right=True) - 1).clamp_(max=len(self.list) - 2)
        low, high = self.list[below], self.list[below + 1]
        levels = below + (torch.rand_like(r) * (high - low) < r - low)
        return self._codes(rows, levels, v.numel()), norms

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

    def encode(self, v: Tensor, k: int) -> Parts:
        rows = v.reshape(1, -1)
        magnitudes = rows.abs()
        if self.clip:
            magnitudes.clamp_(max=float(self.clip * torch.sqrt(torch.mean(rows * rows))))
        scale = magnitudes.max()
        return self._codes(rows, torch.rand_like(rows) * scale < magnitudes, v.numel()), scale

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale = parts
        levels, sign = self._levels(packed, shape.numel())
        return sign.mul_(levels).mul_(scale).view(shape)


class Sign:
    """signSGD scaled by the mean magnitude, eight signs a byte."""

    def encode(self, v: Tensor, k: int) -> Parts:
        return pack((v.reshape(-1) < 0).to(torch.uint8), 1), v.abs().mean()

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale = parts
        return (1.0 - 2.0 * unpack(packed, 1, shape.numel()).float()).mul_(scale).view(shape)


class Co3(_Signed):
    """CO3's 4-bit grid: k from the product's own table by torch's moments, bucketize with the
    grid's edges."""

    bits, bucket, norm = 4, 0, ""

    def __init__(self) -> None:
        self.edges, self.grid = torch.tensor(EDGES), torch.tensor(GRID)

    def encode(self, v: Tensor, k: int) -> Parts:
        rows = v.reshape(1, -1)
        magnitudes = rows.abs()
        largest, squares = float(magnitudes.max()), float((rows.double() ** 2).sum())
        scale = torch.tensor(scale_for(float(magnitudes.double().sum()), squares, largest, v.numel()))
        levels = torch.bucketize(magnitudes.mul_(scale), self.edges)
        return self._codes(rows, levels, v.numel()), scale

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        packed, scale = parts
        levels, sign = self._levels(packed, shape.numel())
        return sign.mul_(self.grid[levels.int()]).div_(scale.clamp_min(_TINY)).view(shape)
