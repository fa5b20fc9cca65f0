"""The int8 layers as modules. Each is its torch counterpart with another forward pass: same parameters, names, settings and
`state_dict`, so that checkpoints go back and forth between fp32 and int8."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip.int8 import embedding, functional, norm, norms, pooling

Pair = tuple[int, int]


def _pair(value: Any) -> Pair:
    """As torch's pooling takes sizes: a number, or one or two of them in a tuple or a list."""
    if type(value) is tuple and len(value) == 2 and type(value[0]) is type(value[1]) is int:
        return value
    values = value if isinstance(value, (tuple, list)) else (value,)
    first, second = values if len(values) > 1 else (values[0], values[0])
    return int(first), int(second)


def _stride(pool: nn.MaxPool2d | nn.AvgPool2d) -> Pair:
    """The kernel's size where there is none: None, or an empty tuple or list."""
    return _pair(pool.kernel_size if pool.stride in (None, (), []) else pool.stride)


def _own(module: nn.Module, name: str) -> Any:
    """A parameter: `module.name` first looks for an attribute and makes an error of its absence, a hundred times a prediction."""
    parameters = module._parameters
    return parameters[name] if name in parameters else getattr(module, name)


class Conv2d(nn.Conv2d):
    """See `native.int8.conv`. Takes int8 or float32, gives int8."""

    dw: int = 16  # bits of the gradient that weight gradients are made of

    def convolution(self) -> functional.Convolution:
        weight, bias = _own(self, "weight"), _own(self, "bias")
        return functional.Convolution(weight, bias, _pair(self.stride), _pair(self.padding), self.groups, self.dw)

    def forward(self, x: Tensor) -> Tensor:
        functional.keep_in_step(self.training)
        return functional.conv2d(x, *self.convolution())


class Linear(nn.Linear):
    """Takes int8 or float32, gives float32."""

    dw: int = 16

    def forward(self, x: Tensor) -> Tensor:
        functional.keep_in_step(self.training)
        return functional.linear(x, self.weight, self.bias, self.dw)


class Embedding(nn.Embedding):
    """Takes ids, gives int8: [batch, features] or [batch, length, features]."""

    dw: int = 16

    def forward(self, ids: Tensor) -> Tensor:
        functional.keep_in_step(self.training)
        return embedding.embedding(ids, self.weight, self.padding_idx, self.dw)


class RangeEvoNorm(norms.RangeEvoNorm):
    """Takes int8 or float32, gives int8."""

    def parameters_of(self) -> norm.Parameters:
        return _own(self, "v"), _own(self, "gamma"), _own(self, "beta")

    def forward(self, y: Tensor) -> Tensor:
        return norm.range_evonorm(y, *self.parameters_of(), self.groups)


class ReLU(nn.ReLU):
    """Takes int8 or float32, gives int8; of float32 that has no int8 form, torch's. Never in place."""

    def forward(self, x: Tensor) -> Tensor:
        if not 2 <= x.dim() <= 4:  # which only float32 has
            return F.relu(x)
        made: Tensor = functional.relu(x)
        return made


class MaxPool2d(nn.MaxPool2d):
    """Takes int8 or float32, gives int8."""

    def forward(self, x: Tensor) -> Tensor:
        return pooling.max_pool2d(x, _pair(self.kernel_size), _stride(self), _pair(self.padding), self.ceil_mode)


class AvgPool2d(nn.AvgPool2d):
    """Takes int8 or float32, gives float32."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, padding = _pair(self.kernel_size), _pair(self.padding)
        return pooling.avg_pool2d(x, kernel, _stride(self), padding, self.ceil_mode, self.count_include_pad)


class GlobalAvgPool2d(nn.AdaptiveAvgPool2d):
    """AdaptiveAvgPool2d(1). Takes int8 or float32, gives float32."""

    def forward(self, x: Tensor) -> Tensor:
        size = (int(x.shape[2]), int(x.shape[3]))
        return pooling.avg_pool2d(x, size, size, (0, 0))
