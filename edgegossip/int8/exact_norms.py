"""Batch norm and group norm of int8 maps with the statistics that they have in float32: how a
converted model keeps the norms that its user chose.

    Batch norm  Ioffe, Szegedy 2015, "Batch normalization"
    Group norm  Wu, He 2018, "Group normalization"

What is normed are the int8 values, exactly: mean and variance are of them, and the result is
rounded to int8 once. Kept for the backward pass are the int8 values and the statistics, a quarter
of what float32 keeps; the gradient is that of the norm, with the rounding left out as everywhere
(straight-through estimator). torch computes both passes in float32.

The functions are int8 forms of `torch.nn.functional.batch_norm` and `group_norm`, so a model that
calls these itself keeps its values in int8, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgegossip.int8.tensor import (
    Function,
    QuantisedTensor,
    implements,
    quantise_float,
    refuse_recording,
)


class _BatchBy(NamedTuple):
    """Says which statistics a batch norm goes by. With `training` those of the batch, which are
    also mixed into the running ones."""

    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool
    momentum: float
    eps: float


class _BatchNorm(Function):
    @staticmethod
    def forward(ctx: Any, y: QuantisedTensor, weight: Tensor | None, bias: Tensor | None, by: _BatchBy) -> Tensor:
        z, mean, inverse = torch.native_batch_norm(y.values(), weight, bias, *by)
        running = [s.clone() if s is not None and not by.training else None for s in by[:2]]
        ctx.save_for_backward(*y.parts, weight, mean, inverse, *running)
        ctx.sizes, ctx.by = y.sizes, by
        return quantise_float(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *parts, weight, mean, inverse, running_mean, running_var = ctx.saved_tensors
        y = QuantisedTensor.of_parts(tuple(parts), ctx.sizes).values()
        asked = list(ctx.needs_input_grad[:3])
        given = (running_mean, running_var, mean, inverse, ctx.by.training, ctx.by.eps, asked)
        dy, dweight, dbias = torch.ops.aten.native_batch_norm_backward(g, y, weight, *given)
        return dy if asked[0] else None, dweight if asked[1] else None, dbias if asked[2] else None, None


@implements("batch_norm")
def batch_norm(
    y: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Compute `torch.nn.functional.batch_norm` of int8 maps, as int8; arguments as there."""
    if not isinstance(y, QuantisedTensor) or len(y.sizes) != 4:
        return NotImplemented
    refuse_recording("a batch norm that does not follow its convolution in an nn.Sequential")
    by = _BatchBy(running_mean, running_var, training, momentum, eps)
    return _BatchNorm.apply(y, weight, bias, by)


class _GroupBy(NamedTuple):
    """Says how the sizes of maps [batch, channels, height, width] go into groups."""

    batch: int
    channels: int
    pixels: int
    groups: int
    eps: float


class _GroupNorm(Function):
    @staticmethod
    def forward(ctx: Any, y: QuantisedTensor, weight: Tensor | None, bias: Tensor | None, by: _GroupBy) -> Tensor:
        sizes = by[:4]
        z, mean, inverse = torch.native_group_norm(y.values(), weight, bias, *sizes, by.eps)
        ctx.save_for_backward(*y.parts, weight, mean, inverse)
        ctx.sizes, ctx.by = y.sizes, by
        return quantise_float(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *parts, weight, mean, inverse = ctx.saved_tensors
        y = QuantisedTensor.of_parts(tuple(parts), ctx.sizes).values()
        asked = list(ctx.needs_input_grad[:3])
        like = g.contiguous(memory_format=torch.channels_last)
        made = torch.ops.aten.native_group_norm_backward(like, y, mean, inverse, weight, *ctx.by[:4], asked)
        return (*(d if a else None for d, a in zip(made, asked, strict=True)), None)


@implements("group_norm")
def group_norm(
    y: Any, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    """Compute `torch.nn.functional.group_norm` of int8 maps, as int8; arguments as there."""
    if not isinstance(y, QuantisedTensor) or len(y.sizes) != 4:
        return NotImplemented
    refuse_recording("group norm")
    batch, height, width, channels = y.sizes
    return _GroupNorm.apply(y, weight, bias, _GroupBy(batch, channels, height * width, num_groups, eps))


def folded(weight: Tensor, bias: Tensor | None, norm: torch.nn.BatchNorm2d) -> tuple[Tensor, Tensor] | None:
    """Return weight and bias of the convolution that does as one with these and a batch norm behind
    it, by its running statistics; None where it has none."""
    if norm.running_mean is None or norm.running_var is None:
        return None
    factor = torch.rsqrt(norm.running_var + norm.eps)
    factor = factor if norm.weight is None else factor * norm.weight
    shift = -norm.running_mean if bias is None else bias - norm.running_mean
    after = shift * factor if norm.bias is None else shift * factor + norm.bias
    return weight * factor[:, None, None, None], after
