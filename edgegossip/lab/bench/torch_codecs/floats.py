"""fp32, fp16, bf16 by torch's own conversion; minmax8 as Bagua's reference computes it."""

from __future__ import annotations

import torch
from torch import Tensor

from edgegossip.lab.bench.torch_codecs.base import Parts


class Float:
    """`v.to(dtype)`; float32 is a copy. Overflow becomes infinity, which the product does not
    allow."""

    def __init__(self, dtype: str) -> None:
        self._dtype: torch.dtype = getattr(torch, dtype)

    def encode(self, v: Tensor, k: int) -> Parts:
        return (v.to(self._dtype, copy=True),)

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        return parts[0].float().view(shape)


class MinMax8:
    """Bagua's MinMaxUInt8 in torch, with epsilon relative to max - min as in the product."""

    def encode(self, v: Tensor, k: int) -> Parts:
        low, high = torch.aminmax(v)
        scale = 255.0 / ((high - low) * (1 + 1e-7)).clamp_min(1e-30)
        upper = torch.round(high * scale)
        codes = torch.clamp_max(torch.round(v * scale), upper) - (upper - 255.0)
        return codes.to(torch.uint8), torch.stack((low, high))

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        codes, (low, high) = parts
        scale = 255.0 / ((high - low) * (1 + 1e-7)).clamp_min(1e-30)
        lower = torch.round(high * scale) - 255.0
        return ((codes.float() + lower) / scale).view(shape)
