"""Max and average pooling of int8 tensors. Saved for the backward pass: two bytes a maximum, and
nothing for averages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgegossip.int8 import memory
from edgegossip.int8.functional import flat, maps, nhwc, place_of, quantise_maps
from edgegossip.int8.tensor import QuantisedTensor, note
from edgegossip.native import int8 as native

Pair = tuple[int, int]


def pooled_size(size: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> int:
    """Outputs along one dimension, as torch counts them: with `ceil_mode` no window starts behind
    the map and its padding."""
    out = (size + 2 * pad - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    return out - 1 if ceil_mode and (out - 1) * stride >= size + pad else out


def _shape(x: QuantisedTensor, kernel: Pair, stride: Pair, pad: Pair, ceil_mode: bool) -> native.PoolShape:
    batch, *size, channels = x.sizes
    out = [pooled_size(size[k], kernel[k], stride[k], pad[k], ceil_mode) for k in (0, 1)]
    return native.PoolShape(batch, size[0], size[1], channels, *kernel, *stride, *pad, out[0], out[1])


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor, shape: native.PoolShape) -> QuantisedTensor:
        q = memory.empty((shape.batch, shape.out_height, shape.out_width, shape.channels), torch.int8)
        tap = memory.empty((2, q.numel()), torch.uint8)
        native.max_pool(shape, flat(x.q), flat(q), flat(tap), threads=torch.get_num_threads())
        ctx.shape = shape
        ctx.save_for_backward(tap)
        return x.with_q(q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (tap,) = ctx.saved_tensors
        s = ctx.shape
        dx = memory.empty_nchw((s.batch, s.height, s.width, s.channels))
        native.max_pool_backward(s, flat(tap), flat(nhwc(g)), place_of(dx), threads=torch.get_num_threads())
        return dx, None


def max_pool2d(x: Tensor, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool = False) -> Tensor:
    """Largest value of every window; kernels of at most 256 places. Of several equal ones (nearly
    equal ones often are) the first and the last take half of the gradient each: on average that is
    nearer to float32's than all of it for one."""
    x = quantise_maps(x)
    shape = _shape(x, kernel, stride, padding, ceil_mode)
    made: Tensor = _MaxPool.apply(x, shape)
    note(made, "max_pool", (x,), shape)
    return made


class _AveragePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor, shape: native.PoolShape, count_padding: bool) -> Tensor:
        ctx.shape, ctx.count_padding = shape, count_padding
        out = memory.empty_nchw((shape.batch, shape.out_height, shape.out_width, shape.channels))
        native.average_pool(shape, maps(x), count_padding, place_of(out), threads=torch.get_num_threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        s = ctx.shape
        dx = memory.empty_nchw((s.batch, s.height, s.width, s.channels))
        native.average_pool_backward(s, flat(nhwc(g)), ctx.count_padding, place_of(dx), threads=torch.get_num_threads())
        return dx, None, None


def avg_pool2d(
    x: Tensor, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """Means over windows, from integer sums, as a plain float32 tensor."""
    x = quantise_maps(x)
    shape = _shape(x, kernel, stride, padding, ceil_mode)
    made: Tensor = _AveragePool.apply(x, shape, count_include_pad)
    note(made, "average_pool", (x,), shape, count_include_pad)
    return made
