"""Normalisation layers by name.

    batchnorm, groupnorm    torch's own, followed by ReLU where `activated` is used
    evonorm-s0              Liu et al. 2020, "Evolving normalization-activation layers", table 1
    range-evonorm           Aketi, Kodge, Roy 2021, "Low precision decentralized distributed training", section 3:
    EvoNorm-S0
                            with a scaled range in the place of the deviation and a hard sigmoid; here in float32

The EvoNorms include their activation, so no ReLU may follow them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip.types import ConfigError

_GROUPS = 8
_EPSILON = 1e-5
_CHUNKS = 16
_MIN_CHUNK_PIXELS = 4
# A normal sample deviates by about its range times C(n) = this / sqrt(2 ln n) (range batch norm, Banner et al. 2018).
_RANGE_FACTOR = 0.35 * 0.5 * (1.0 + math.sqrt(math.pi * math.log(4.0)))


def groups_of(channels: int) -> int:
    """Eight groups, or the largest smaller number that divides the channels."""
    return next(g for g in range(_GROUPS, 0, -1) if channels % g == 0)


class EvoNormS0(nn.Module):
    """z = y sigmoid(v y) / sqrt(var + 1e-5) * gamma + beta, var the biased variance of a (sample, group)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = groups_of(channels)
        self.v = nn.Parameter(torch.ones(channels))
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, y: Tensor) -> Tensor:
        """y: float[batch, channels, height, width]."""
        grouped = y.unflatten(1, (self.groups, -1))
        inverse = torch.rsqrt(grouped.var((2, 3, 4), unbiased=False) + _EPSILON)
        return torch.addcmul(_wide(self.beta), y * torch.sigmoid(_wide(self.v) * y), self._scale(inverse))

    def _scale(self, inverse: Tensor) -> Tensor:
        """[batch, groups] -> [batch, channels, 1, 1], gamma included."""
        return (inverse.repeat_interleave(len(self.gamma) // self.groups, 1) * self.gamma)[:, :, None, None]


class RangeEvoNorm(EvoNormS0):
    """z = gamma y hardsigmoid(v y) / (C R + 1e-5) + beta, hardsigmoid(t) = clamp(t / 6 + 1/2, 0, 1).

    Per (sample, group): the pixels are cut, in row-major order, into 16 chunks of equal size (of at least 4 pixels,
    so fewer in a map of under 64 pixels, and as many as divide the map); R is the mean over the chunks of max - min
    over the group's channels, C = 0.175 (1 + sqrt(pi ln 4)) / sqrt(2 ln n), n the values in a chunk. The gradient of
    the range goes to each chunk's maximum and minimum, in equal parts where several values tie."""

    def forward(self, y: Tensor) -> Tensor:
        pixels = y.shape[2] * y.shape[3]
        most = max(1, min(_CHUNKS, pixels // _MIN_CHUNK_PIXELS))
        chunks = next(c for c in range(most, 0, -1) if pixels % c == 0)
        grouped = y.unflatten(1, (self.groups, -1)).flatten(3).unflatten(3, (chunks, -1))
        spread = (grouped.amax((2, 4)) - grouped.amin((2, 4))).mean(2)
        n = max(2, grouped.shape[2] * grouped.shape[4])  # a single value has no range; any finite C will do
        scale = self._scale(1.0 / (spread * (_RANGE_FACTOR / math.sqrt(2.0 * math.log(n))) + _EPSILON))
        return torch.addcmul(_wide(self.beta), y * F.hardsigmoid(_wide(self.v) * y), scale)


def _wide(values: Tensor) -> Tensor:
    return values[None, :, None, None]


_EVONORMS = {"evonorm-s0": EvoNormS0, "range-evonorm": RangeEvoNorm}


def includes_activation(norm: str) -> bool:
    return norm in _EVONORMS


def plain(norm: str, channels: int) -> nn.Module:
    """The layer as it is: without activation for batchnorm and groupnorm, with its own for the EvoNorms."""
    if norm in _EVONORMS:
        return _EVONORMS[norm](channels)
    if norm == "batchnorm":
        return nn.BatchNorm2d(channels)
    if norm == "groupnorm":
        return nn.GroupNorm(groups_of(channels), channels)
    raise ConfigError(f"model.norm = {norm!r} is not known (choices: batchnorm, groupnorm, {', '.join(_EVONORMS)})")


def activated(norm: str, channels: int) -> nn.Module:
    """The layer with its activation: ReLU for batchnorm and groupnorm."""
    layer = plain(norm, channels)
    return layer if includes_activation(norm) else nn.Sequential(layer, nn.ReLU(inplace=True))


def after_addition(norm: str) -> nn.Module:
    """What follows the sum in a residual block: ReLU, or nothing when the branch already ends in an EvoNorm."""
    return nn.Identity() if includes_activation(norm) else nn.ReLU(inplace=True)


def projection(norm: str, inputs: int, outputs: int, stride: int) -> nn.Module:
    """A residual block's 1x1 projection shortcut. Linear, so an EvoNorm is left out and a bias stands in for it."""
    if includes_activation(norm):
        return nn.Conv2d(inputs, outputs, 1, stride, bias=True)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), plain(norm, outputs))


def initialise(model: nn.Module) -> nn.Module:
    """He initialisation (fan-out, ReLU) of the convolutions and zero biases for them; returns `model`."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
