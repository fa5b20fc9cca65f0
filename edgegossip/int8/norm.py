"""Range EvoNorm of int8 tensors. Behind a convolution, both make one step of the backward pass: the gradient between them is
computed, rounded and used up sample by sample, and never lies in memory as a whole. The bits are the same as one by one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgegossip.int8 import memory
from edgegossip.int8.functional import (
    Fresh,
    Origin,
    flat,
    fresh,
    fresh_in_one,
    maps,
    maps_of,
    nhwc,
    place_of,
    quantise_maps,
)
from edgegossip.int8.norms import chunks_of
from edgegossip.int8.recording import note
from edgegossip.int8.tensor import QuantisedTensor
from edgegossip.native import int8 as native


@lru_cache(maxsize=1024)
def _norm_shape(maps: tuple[int, ...], groups: int) -> native.NormShape:
    batch, height, width, channels = maps
    return native.NormShape(batch, height * width, channels, groups, chunks_of(height * width))


def _normed(
    y: QuantisedTensor, parameters: tuple[Tensor, ...], shape: native.NormShape, into: Fresh
) -> QuantisedTensor:
    made = into(y.sizes)
    by = native.NormParameters(*map(flat, parameters))
    native.evonorm(shape, maps(y), by, made.places, threads=torch.get_num_threads())
    return made


def _forward(ctx: Any, y: QuantisedTensor, parameters: tuple[Tensor, ...], groups: int) -> QuantisedTensor:
    ctx.norm = _norm_shape(y.sizes, groups)
    return _normed(y, parameters, ctx.norm, fresh)


class _RangeEvoNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: QuantisedTensor, v: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> QuantisedTensor:
        ctx.save_for_backward(y.q, y.scale, y.zero, v, gamma, beta)
        return _forward(ctx, y, (v, gamma, beta), groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, scale, zero, *parameters = ctx.saved_tensors
        dy, grads = memory.empty_nchw(q.shape), [torch.empty(p.shape) for p in parameters]
        native.evonorm_backward(
            ctx.norm,
            maps_of(q, scale, zero),
            native.NormParameters(*map(flat, parameters)),
            flat(nhwc(g)),
            place_of(dy),
            native.NormParameters(*map(flat, grads)),
            threads=torch.get_num_threads(),
        )
        return dy, *grads, None


class _ConvRangeEvoNorm(torch.autograd.Function):
    """The norm of `made[0]`, which the convolution `made[1]` gave. In a tuple, autograd does not see it: this step's gradient
    goes to the inputs of the convolution."""

    @staticmethod
    def forward(
        ctx: Any,
        x: QuantisedTensor,
        weight: Tensor,
        bias: Tensor | None,
        v: Tensor,
        gamma: Tensor,
        beta: Tensor,
        made: tuple[QuantisedTensor, Origin],
        groups: int,
    ) -> QuantisedTensor:
        y, ctx.origin = made[0], made[1][3:]
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x.q, x.scale, x.zero, weight, y.q, y.scale, y.zero, v, gamma, beta)
        return _forward(ctx, y, (v, gamma, beta), groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, scale, zero, weight, y_q, y_scale, y_zero, *parameters = ctx.saved_tensors
        shape, wide, key = ctx.origin
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        dx = memory.empty_nchw(q.shape) if of_x else None
        dw = memory.empty(tuple(weight.shape)) if of_weight else None
        db = torch.empty(shape.outputs) if of_bias and ctx.has_bias else None
        grads = [torch.empty(p.shape) for p in parameters]
        native.conv_evonorm_backward(
            native.ConvPass(shape, maps_of(q, scale, zero), flat(weight), key, wide),
            ctx.norm,
            maps_of(y_q, y_scale, y_zero),
            native.NormParameters(*map(flat, parameters)),
            flat(nhwc(g)),
            None if dx is None else place_of(dx),
            flat(dw),
            flat(db),
            native.NormParameters(*map(flat, grads)),
            threads=torch.get_num_threads(),
        )
        return dx, dw, db, *grads, None, None


def _is_watched(y: Tensor) -> bool:
    """Whether somebody wants the gradient of y itself; then the two steps stay apart."""
    with torch._C.DisableTorchFunctionSubclass():
        return bool(y._backward_hooks) or y.retains_grad


def range_evonorm(y: Tensor, v: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> Tensor:
    """See `norms.RangeEvoNorm`; y [batch, channels, height, width]."""
    y = quantise_maps(y)
    if not torch.is_grad_enabled():
        shape = _norm_shape(y.sizes, groups)
        made = _normed(y, (v, gamma, beta), shape, fresh_in_one)
        note(made, "evonorm", (y,), shape, v, gamma, beta)
        return made
    origin: Origin | None = y.origin
    if origin is None or _is_watched(y):
        return _RangeEvoNorm.apply(y, v, gamma, beta, groups)
    y.taken = True
    return _ConvRangeEvoNorm.apply(*origin[:3], v, gamma, beta, (y, origin), groups)
