"""What the models share: normalisation layers by name, and checks of a recipe's parameters.

    batchnorm, groupnorm    torch's own, followed by ReLU where `activated` is used
    evonorm-s0              Liu et al. 2020, "Evolving normalization-activation layers", table 1
    range-evonorm           Aketi, Kodge, Roy 2021, "Low precision decentralized distributed
                            training", section 3: here in float32

The EvoNorms include their activation, so no ReLU may follow them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from edgegossip.int8.norms import EvoNormS0, RangeEvoNorm, groups_of
from edgegossip.types import ConfigError

_EVONORMS = {"evonorm-s0": EvoNormS0, "range-evonorm": RangeEvoNorm}


class _Unfilled(TorchFunctionMode):
    """Draws no values for tensors without any: torch would load its compiler for that, seconds and
    80 MB."""

    def __torch_function__(  # type: ignore[no-untyped-def]
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs=None
    ) -> Any:
        named = kwargs or {}
        if function in (torch.Tensor.normal_, nn.init.normal_):
            return (*args, *named.values())[0]
        return function(*args, **named)


@contextmanager
def without_values() -> Iterator[None]:
    """Modules are made on torch's meta device: their tensors have shapes and no values."""
    with torch.device("meta"), _Unfilled():
        yield


def includes_activation(norm: str) -> bool:
    """Tell whether a norm of this name ends in an activation of its own."""
    return norm in _EVONORMS


def plain(norm: str, channels: int) -> nn.Module:
    """Make the layer as it is: without activation for batchnorm and groupnorm, with its own for the
    EvoNorms. Raises ConfigError for an unknown name."""
    if norm in _EVONORMS:
        return _EVONORMS[norm](channels)
    if norm == "batchnorm":
        return nn.BatchNorm2d(channels)
    if norm == "groupnorm":
        return nn.GroupNorm(groups_of(channels), channels)
    raise ConfigError(f"model.norm = {norm!r} is not known (choices: batchnorm, groupnorm, {', '.join(_EVONORMS)})")


def activated(norm: str, channels: int) -> nn.Module:
    """Make the layer with its activation: ReLU for batchnorm and groupnorm."""
    layer = plain(norm, channels)
    return layer if includes_activation(norm) else nn.Sequential(layer, nn.ReLU(inplace=True))


def after_addition(norm: str) -> nn.Module:
    """Make what follows the sum in a residual block: ReLU, or nothing when the branch already ends
    in an EvoNorm."""
    return nn.Identity() if includes_activation(norm) else nn.ReLU(inplace=True)


def projection(norm: str, inputs: int, outputs: int, stride: int) -> nn.Module:
    """Make a residual block's 1x1 projection shortcut. It is linear, so an EvoNorm is left out and
    a bias stands in for it."""
    if includes_activation(norm):
        return nn.Conv2d(inputs, outputs, 1, stride, bias=True)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), plain(norm, outputs))


def initialise(model: nn.Module) -> nn.Module:
    """Initialise the convolutions as He et al. do (fan-out, ReLU), with zero biases; return
    `model`."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def image_shape(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (channels, height, width). Raises ConfigError when inputs are not images."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"model.name = {model!r} needs images (channels, height, width); this data set's inputs have shape "
            f"{input_shape}: use mlp or a model of your own"
        )
    return input_shape


def widths(key: str, value: Any) -> tuple[int, ...]:
    """Return a list of layer widths as a tuple. Raises ConfigError unless all are integers of at
    least 1."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(type(w) is int and w >= 1 for w in value):
        raise ConfigError(f"{key} = {value!r} must be a list of whole numbers of at least 1, such as [128, 64]")
    return tuple(value)


def width(key: str, value: Any) -> int:
    """Return one layer width. Raises ConfigError unless it is an integer of at least 1."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"{key} = {value!r} must be a whole number of at least 1, such as 128")
    return value
