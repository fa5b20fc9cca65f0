"""Normalisation layers by name.

    batchnorm, groupnorm    torch's own, followed by ReLU where `activated` is used
    evonorm-s0              Liu et al. 2020, "Evolving normalization-activation layers", table 1
    range-evonorm           Aketi, Kodge, Roy 2021, "Low precision decentralized distributed
                            training", section 3:
                            here in float32

The EvoNorms include their activation, so no ReLU may follow them.
"""

from __future__ import annotations

from torch import nn

from edgegossip.int8.norms import EvoNormS0, RangeEvoNorm, groups_of
from edgegossip.types import ConfigError

_EVONORMS = {"evonorm-s0": EvoNormS0, "range-evonorm": RangeEvoNorm}


def includes_activation(norm: str) -> bool:
    return norm in _EVONORMS


def plain(norm: str, channels: int) -> nn.Module:
    """The layer as it is: without activation for batchnorm and groupnorm, with its own for the
    EvoNorms."""
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
    """What follows the sum in a residual block: ReLU, or nothing when the branch already ends in an
    EvoNorm."""
    return nn.Identity() if includes_activation(norm) else nn.ReLU(inplace=True)


def projection(norm: str, inputs: int, outputs: int, stride: int) -> nn.Module:
    """A residual block's 1x1 projection shortcut. Linear, so an EvoNorm is left out and a bias
    stands in for it."""
    if includes_activation(norm):
        return nn.Conv2d(inputs, outputs, 1, stride, bias=True)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), plain(norm, outputs))


def initialise(model: nn.Module) -> nn.Module:
    """He initialisation (fan-out, ReLU) of the convolutions and zero biases for them; returns
    `model`."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
