"""Normalisation without batch statistics: EvoNorm-S0 and its low-precision form, here in float32.

    EvoNorm-S0       Liu et al. 2020, "Evolving normalization-activation layers", table 1
    Range EvoNorm    Aketi, Kodge, Roy 2021, "Low precision decentralized distributed training",
                     section 3: EvoNorm-S0
                     with a scaled range in the place of the deviation and a hard sigmoid

The EvoNorms include their activation, so no ReLU may follow them.

    Range layer norm Ba et al. 2016, "Layer normalization", with a scaled range in the place of the deviation, as in
                     range batch norm (Banner et al. 2018)
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 8
EPSILON = 1e-5
_CHUNKS = 16
_MIN_CHUNK_PIXELS = 4
# A normal sample deviates by about its range times C(n) = this / sqrt(2 ln n) (range batch norm,
# Banner et al. 2018).
_RANGE_FACTOR = 0.35 * 0.5 * (1.0 + math.sqrt(math.pi * math.log(4.0)))


def range_factor(values: int) -> float:
    """C of a chunk of so many values. A single value has no range; any finite C will do."""
    return _RANGE_FACTOR / math.sqrt(2.0 * math.log(max(2, values)))


def groups_of(channels: int) -> int:
    """Eight groups, or the largest smaller number that divides the channels."""
    return next(g for g in range(GROUPS, 0, -1) if channels % g == 0)


def chunks_of(pixels: int) -> int:
    """Sixteen chunks of equal size, or the largest smaller number that divides the map into chunks
    of at least 4 pixels."""
    most = max(1, min(_CHUNKS, pixels // _MIN_CHUNK_PIXELS))
    return next(c for c in range(most, 0, -1) if pixels % c == 0)


class EvoNormS0(nn.Module):
    """z = y sigmoid(v y) / sqrt(var + 1e-5) * gamma + beta, var the biased variance of a (sample,
    group)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = groups_of(channels)
        self.v = nn.Parameter(torch.ones(channels))
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, y: Tensor) -> Tensor:
        """y: float[batch, channels, height, width]."""
        grouped = y.unflatten(1, (self.groups, -1))
        inverse = torch.rsqrt(grouped.var((2, 3, 4), unbiased=False) + EPSILON)
        return torch.addcmul(_wide(self.beta), y * torch.sigmoid(_wide(self.v) * y), self._scale(inverse))

    def _scale(self, inverse: Tensor) -> Tensor:
        """[batch, groups] -> [batch, channels, 1, 1], gamma included."""
        return (inverse.repeat_interleave(len(self.gamma) // self.groups, 1) * self.gamma)[:, :, None, None]


class RangeEvoNorm(EvoNormS0):
    """z = gamma y hardsigmoid(v y) / (C R + 1e-5) + beta, hardsigmoid(t) = clamp(t / 6 + 1/2, 0,
    1).

    Per (sample, group): the pixels are cut, in row-major order, into 16 chunks of equal size (of at
    least 4 pixels, so fewer in a map of under 64 pixels, and as many as divide the map); R is the
    mean over the chunks of max - min over the group's channels, C = 0.175 (1 + sqrt(pi ln 4)) /
    sqrt(2 ln n), n the values in a chunk. The gradient of the range goes to each chunk's maximum
    and minimum, in equal parts where several values tie."""

    def forward(self, y: Tensor) -> Tensor:
        chunks = chunks_of(y.shape[2] * y.shape[3])
        grouped = y.unflatten(1, (self.groups, -1)).flatten(3).unflatten(3, (chunks, -1))
        spread = (grouped.amax((2, 4)) - grouped.amin((2, 4))).mean(2)
        scale = self._scale(1.0 / (spread * range_factor(grouped.shape[2] * grouped.shape[4]) + EPSILON))
        return torch.addcmul(_wide(self.beta), y * F.hardsigmoid(_wide(self.v) * y), scale)


def _wide(values: Tensor) -> Tensor:
    return values[None, :, None, None]


@lru_cache(maxsize=256)
def mean_range(values: int) -> float:
    """Compute the mean of the range of so many independent standard normal values (1 of a single
    one, which has no range)."""
    if values < 2:
        return 1.0
    steps, width = 4000, 20.0
    total = 0.0
    for k in range(steps):  # the integral over x of 1 - P(all below x) - P(all above x)
        below = 0.5 * math.erfc(-((k + 0.5) * width / steps - width / 2) / math.sqrt(2.0))
        total += 1.0 - below**values - (1.0 - below) ** values
    return total * width / steps


def layer_range(features: int) -> tuple[int, float]:
    """Give the chunks of a token, and C / chunks: the sum of their ranges times that estimates the
    deviation."""
    chunks = chunks_of(features)
    return chunks, 1.0 / (mean_range(features // chunks) * chunks)


class RangeLayerNorm(nn.LayerNorm):
    """z = gamma (y - mean) / (C R + eps) + beta over the last dimension, float[..., features].

    The features are cut in order into 16 chunks of equal size (of at least 4 features, and as many
    as divide them: `chunks_of`); R is the mean over the chunks of max - min, C = 1 /
    `mean_range`(features in a chunk), so that C R estimates the deviation of normal values without
    bias, and a trained nn.LayerNorm keeps its scale. eps is the layer's own. The gradient of the
    range goes to each chunk's maximum and minimum, in equal parts where several values tie."""

    def forward(self, y: Tensor) -> Tensor:
        chunks, factor = layer_range(y.shape[-1])
        parts = y.unflatten(-1, (chunks, -1))
        spread = (parts.amax(-1) - parts.amin(-1)).sum(-1, keepdim=True)
        normed = (y - y.mean(-1, keepdim=True)) / (spread * factor + self.eps)
        scaled = normed if self.weight is None else normed * self.weight
        return scaled if self.bias is None else scaled + self.bias
