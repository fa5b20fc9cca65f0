"""The stochastic quantisers as a user or a paper's code writes them: one torch function after the
other, each with a new tensor as its result. All buckets at once, float32, whole bytes of codes at
the end; nothing is saved, nothing is wasted. quantised.py has the same with temporaries reused."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from edgegossip.lab.bench.torch_codecs.base import Parts, width

_TINY = torch.finfo(torch.float32).tiny


def in_buckets(v: Tensor, bucket: int) -> Tensor:
    """[buckets, bucket], zeros after the end; one row without buckets."""
    flat = v.flatten()
    return pad(flat, (0, -flat.numel() % bucket)).view(-1, bucket) if bucket else flat.view(1, -1)


def norms_of(rows: Tensor, norm: str) -> Tensor:
    order = 2 if norm == "l2" else float("inf")
    return torch.clamp(torch.norm(rows, p=order, dim=1, keepdim=True), min=_TINY)


def packed(levels: Tensor, sign: Tensor, bits: int, n: int) -> Tensor:
    """Codes sign << (bits - 1) | level, as many a byte as fit."""
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
    """(level, sign as 1 or -1), each [n]."""
    w = width(bits)
    if w == 16:
        codes = codes.to(torch.int32) & 0xFFFF
    elif w < 8:
        codes = torch.stack([(codes >> shift) & (2**w - 1) for shift in range(0, 8, w)], dim=1).flatten()[:n]
    half = 2 ** (bits - 1)
    return codes % half, torch.where(codes < half, 1.0, -1.0)


class PlainUniform:
    """QSGD with s levels of a bucket's norm."""

    def __init__(self, s: int, bits: int, bucket: int, norm: str) -> None:
        self.s, self.bits, self.bucket, self.norm = s, bits, bucket, norm

    def encode(self, v: Tensor, k: int) -> Parts:
        rows = in_buckets(v, self.bucket)
        norms = norms_of(rows, self.norm)
        scaled = rows.abs() / norms * self.s
        lower = torch.floor(scaled)
        up = torch.rand_like(scaled) < scaled - lower
        levels = torch.clamp(lower + up, max=self.s)
        return packed(levels, torch.sign(rows) * levels, self.bits, v.numel()), norms

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        codes, norms = parts
        levels, sign = unpacked(codes, self.bits, shape.numel())
        return _scaled(sign * levels / self.s, norms, self.bucket, shape)


class PlainLevels:
    """ElastiQuant (NUQSGD): one of the two levels around |v| / N."""

    def __init__(self, levels: tuple[float, ...], bits: int, bucket: int, norm: str) -> None:
        self.list = torch.tensor(levels)
        self.bits, self.bucket, self.norm = bits, bucket, norm

    def encode(self, v: Tensor, k: int) -> Parts:
        rows = in_buckets(v, self.bucket)
        norms = norms_of(rows, self.norm)
        r = torch.clamp(rows.abs() / norms, max=1.0)
        above = torch.clamp(torch.bucketize(r, self.list, right=True), max=len(self.list) - 1)
        low, high = self.list[above - 1], self.list[above]
        up = torch.rand_like(r) < (r - low) / (high - low)
        levels = torch.where(up, above, above - 1)
        return packed(levels, torch.sign(rows) * levels, self.bits, v.numel()), norms

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        codes, norms = parts
        levels, sign = unpacked(codes, self.bits, shape.numel())
        return _scaled(sign * self.list[levels.long()], norms, self.bucket, shape)


class PlainTernary:
    """TernGrad: clip at `clip` deviations (about zero), sign times Bernoulli(|g| / scale), 2 bits a
    value."""

    def __init__(self, clip: float) -> None:
        self.clip = clip

    def encode(self, v: Tensor, k: int) -> Parts:
        magnitudes = v.abs()
        if self.clip:
            magnitudes = torch.clamp(magnitudes, max=float(self.clip * torch.sqrt(torch.mean(v**2))))
        scale = torch.clamp(magnitudes.max(), min=_TINY)
        levels = torch.bernoulli(magnitudes / scale)
        return packed(levels, torch.sign(v) * levels, 2, v.numel()), scale

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        codes, scale = parts
        levels, sign = unpacked(codes, 2, shape.numel())
        return (sign * levels * scale).view(shape)


def _scaled(units: Tensor, norms: Tensor, bucket: int, shape: torch.Size) -> Tensor:
    rows = in_buckets(units, bucket) * norms
    return rows.flatten()[: shape.numel()].view(shape)
