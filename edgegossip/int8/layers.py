"""The int8 layers as modules. Each is its torch counterpart with another forward pass: same
parameters, names, settings and `state_dict`, so that checkpoints go back and forth between fp32 and
int8."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from typing_extensions import override

from edgegossip.int8 import attention, exact_norms, functional, norms
from edgegossip.int8.tensor import quantise_maps, refuse_recording
from edgegossip.types import UsageError

Pair = tuple[int, int]
_has_any_global_hook: Callable[[], bool] = torch_module._has_any_global_hook


def _pair(value: Any) -> Pair:
    """As torch's pooling takes sizes: a number, or one or two of them in a tuple or a list."""
    if type(value) is tuple and len(value) == 2 and type(value[0]) is type(value[1]) is int:
        return value
    values = value if isinstance(value, (tuple, list)) else (value,)
    first, second = values if len(values) > 1 else (values[0], values[0])
    return int(first), int(second)


def _stride(pool: nn.MaxPool2d | nn.AvgPool2d) -> Pair:
    """The kernel's size where there is none: None, or an empty tuple or list."""
    stride: Any = pool.stride
    return _pair(pool.kernel_size if stride in (None, (), []) else stride)


def _own(module: nn.Module, name: str) -> Any:
    """A parameter: `module.name` first looks for an attribute and makes an error of its absence, a
    hundred times a prediction."""
    parameters = module._parameters
    return parameters[name] if name in parameters else getattr(module, name)


class Conv2d(nn.Conv2d):
    """Takes int8 or float32, gives int8 (`native.int8.conv`)."""

    dw: int = 16  # bits of the gradient that weight gradients are made of

    def convolution(self) -> functional.Convolution:
        """Return what this layer has, as `functional.conv2d` takes it."""
        weight, bias = _own(self, "weight"), _own(self, "bias")
        return functional.Convolution(weight, bias, _pair(self.stride), _pair(self.padding), self.groups, self.dw)

    @override
    def forward(self, x: Tensor) -> Tensor:
        functional.advance_rng(self.training)
        return functional.conv2d(x, *self.convolution())


class Linear(nn.Linear):
    """Takes int8 or float32, gives float32. A sample of [batch, length, features] has one scale."""

    dw: int = 16

    @override
    def forward(self, x: Tensor) -> Tensor:
        functional.advance_rng(self.training)
        return functional.linear(x, self.weight, self.bias, self.dw)


class Embedding(nn.Embedding):
    """Takes ids, gives int8: [batch, features] or [batch, length, features]."""

    dw: int = 16

    @override
    def forward(self, ids: Tensor) -> Tensor:
        functional.advance_rng(self.training)
        return functional.embedding(ids, self.weight, self.padding_idx, self.dw)


class RangeEvoNorm(norms.RangeEvoNorm):
    """Takes int8 or float32, gives int8."""

    def norm_parameters(self) -> norms.Parameters:
        """Return v, gamma and beta."""
        return _own(self, "v"), _own(self, "gamma"), _own(self, "beta")

    @override
    def forward(self, y: Tensor) -> Tensor:
        return norms.range_evonorm(y, *self.norm_parameters(), self.groups)


class BatchNorm2d(nn.BatchNorm2d):
    """Takes int8 or float32, gives int8."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(quantise_maps(input))


class GroupNorm(nn.GroupNorm):
    """Takes int8 or float32, gives int8; of float32 that are no maps, torch's."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(quantise_maps(input) if input.dim() == 4 else input)


class RangeLayerNorm(norms.RangeLayerNorm):
    """Takes int8 or float32, gives int8."""

    @override
    def forward(self, y: Tensor) -> Tensor:
        by = norms.LayerRange(*norms.layer_range(self.normalized_shape[-1]), self.eps)
        return norms.range_layernorm(y, self.weight, self.bias, by)


class DotProductAttention(attention.DotProductAttention):
    """Takes int8 or float32, gives float32."""

    @override
    def forward(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        dropped = self.dropout if self.training else 0.0
        if not dropped:  # else attention draws its key in any case
            functional.advance_rng(self.training)
        return attention.attention(q, k, v, self.heads, attn_mask, dropped)


class MultiheadAttention(nn.MultiheadAttention):
    """Takes int8 or float32, gives float32, and the probabilities to who wants them: these are
    computed once more, in float32."""

    dw: int = 16

    @override
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        refuse_recording("attention")
        alone, given = query.dim() == 2, (query, key, value)
        if is_causal and attn_mask is None:
            raise UsageError("MultiheadAttention takes is_causal = True with an attn_mask, as in torch")
        if alone:  # no batch
            query, key, value = self._as_batch(given, lambda x: x[None])
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = self._as_batch(given, lambda x: x.transpose(0, 1))
        mask = self._combined_mask(len(query), key_padding_mask, attn_mask)
        q, k, v = self._projected(query, key, value)
        dropped = self.dropout if self.training else 0.0
        if not dropped:  # else attention draws its key in any case
            functional.advance_rng(self.training)
        y = attention.attention(q, k, v, self.num_heads, mask, dropped)
        y = self._linear(y, self.out_proj.weight, self.out_proj.bias)
        weights = attention.weights_of(q, k, self.num_heads, mask) if need_weights else None
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights[0] if alone else weights
        return y[0] if alone else y if self.batch_first else y.transpose(0, 1), weights

    @staticmethod
    def _as_batch(given: tuple[Tensor, ...], change: Any) -> list[Tensor]:
        """Change each tensor once, so that what was one stays one."""
        once = {id(x): change(x) for x in given}
        return [once[id(x)] for x in given]

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if query is key is value:
            return self._linear(query, weight, bias).chunk(3, -1)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        rows = zip((query, key, value), weight.chunk(3), biases, strict=True)
        return tuple(self._linear(x, w, b) for x, w, b in rows)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        functional.advance_rng(self.training)
        return functional.linear(x, weight, bias, self.dw)

    def _combined_mask(self, batch: int, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """Both masks as one, True where a query sees a key."""
        keys = attention.invert_mask(padding, "key_padding_mask")
        pairs = attention.invert_mask(mask, "attn_mask")
        if pairs is not None:
            pairs = pairs[None, None] if pairs.dim() == 2 else torch.unflatten(pairs, 0, (batch, -1))
        if keys is None or pairs is None:
            return keys if pairs is None else pairs
        return pairs & attention.mask_of(keys)


class GELU(nn.GELU):
    """Takes int8 or float32, gives int8; of float32 that has no int8 form, torch's."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = functional.gelu(x) if 2 <= x.dim() <= 4 else F.gelu(x)
        return made


class ReLU(nn.ReLU):
    """Takes int8 or float32, gives int8; of float32 that has no int8 form, torch's. Never in
    place."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        if not 2 <= x.dim() <= 4:  # which only float32 has
            return F.relu(x)
        made: Tensor = functional.relu(x)
        return made


class MaxPool2d(nn.MaxPool2d):
    """Takes int8 or float32, gives int8."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(x, _pair(self.kernel_size), _stride(self), _pair(self.padding), self.ceil_mode)


class AvgPool2d(nn.AvgPool2d):
    """Takes int8 or float32, gives float32."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        kernel, padding = _pair(self.kernel_size), _pair(self.padding)
        return functional.avg_pool2d(x, kernel, _stride(self), padding, self.ceil_mode, self.count_include_pad)


class GlobalAvgPool2d(nn.AdaptiveAvgPool2d):
    """Averages each map, as AdaptiveAvgPool2d(1). Takes int8 or float32, gives float32."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        size = (int(x.shape[2]), int(x.shape[3]))
        return functional.avg_pool2d(x, size, size, (0, 0))


def conv_norm(conv: nn.Module, after: nn.Module, x: Tensor) -> Tensor:
    """Compute after(conv(x)), of any two modules.

    An int8 convolution and a Range EvoNorm that nobody looks between are computed in one step:
    sample by sample, while the convolution's result is in the cache, and with one step of the
    backward pass. The bits are those of the two layers. A batch norm in evaluation mode becomes
    part of the convolution's weights, which saves its result one rounding."""
    if type(conv) is Conv2d and _is_bare(conv) and _is_bare(after) and not _has_any_global_hook():
        with_gradients, own = torch.is_grad_enabled(), conv.convolution()
        if type(after) is RangeEvoNorm and with_gradients:
            return norms.conv_range_evonorm(x, own, after.norm_parameters(), after.groups)
        if type(after) is BatchNorm2d and not (with_gradients or after.training):
            weights = exact_norms.folded(own.weight, own.bias, after)
            if weights is not None:
                return functional.conv2d(x, *own._replace(weight=weights[0], bias=weights[1]))
    made: Tensor = after(conv(x))
    return made


def _is_bare(module: nn.Module) -> bool:
    """Whether a call of the module is a call of its class's `forward`, and nothing else."""
    return not (
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or module._compiled_call_impl
        or "forward" in module.__dict__
    )


class Sequential(nn.Sequential):
    """Does as nn.Sequential, with `conv_norm` for neighbours."""

    @override
    def forward(self, input: Any) -> Any:
        x, conv = input, None
        for module in self._modules.values():
            if type(module) is Conv2d:
                x, conv = x if conv is None else conv(x), module
            else:
                x, conv = module(x) if conv is None else conv_norm(conv, module, x), None
        return x if conv is None else conv(x)


def is_int8(module: nn.Module) -> bool:
    """Tell whether a module is one of the layers above."""
    return type(module).__module__ == __name__ and type(module) is not Sequential


def fuse_conv_norms(model: nn.Module) -> None:
    """Make a `Sequential` of every nn.Sequential that has a convolution before a Range EvoNorm or a
    batch norm."""
    for module in model.modules():
        if type(module) is nn.Sequential:
            parts = list(module._modules.values())
            pairs = itertools.pairwise(parts)
            if any(type(a) is Conv2d and type(b) in (RangeEvoNorm, BatchNorm2d) for a, b in pairs):
                module.__class__ = Sequential
