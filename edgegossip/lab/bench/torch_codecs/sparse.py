"""topk, randk and dgc: values and int32 indices, not compressed further (as public implementations
send them)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgegossip.lab.bench.torch_codecs.base import Parts


def kept(share: float, n: int) -> int:
    """How many of n values are sent: at least one, as in the product (the slack against float64's
    rounding too)."""
    return min(n, max(1, math.ceil(share * n * (1 - 1e-12))))


class TopK:
    """torch.topk of the magnitudes, unsorted."""

    def __init__(self, share: float, dtype: str = "float32") -> None:
        self.share = share
        self.dtype: torch.dtype = getattr(torch, dtype)

    def encode(self, v: Tensor, k: int) -> Parts:
        flat = v.reshape(-1)
        index = torch.topk(flat.abs(), kept(self.share, flat.numel()), sorted=False).indices
        return flat[index].to(self.dtype), index.int()

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        values, index = parts
        return torch.zeros(shape.numel()).index_copy_(0, index.long(), values.float()).view(shape)


class RandK(TopK):
    """torch.randperm chooses; values times n / k, so that the mean is right, or as they are when
    not `unbiased`."""

    def __init__(self, share: float, dtype: str = "float32", *, unbiased: bool = True) -> None:
        super().__init__(share, dtype)
        self.unbiased = unbiased

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
