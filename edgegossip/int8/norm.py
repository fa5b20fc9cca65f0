"""Range EvoNorm and range layer norm of int8 tensors.

Behind a convolution, an EvoNorm and the convolution make one step of the backward pass: the
gradient between them is computed, rounded and used up sample by sample, and never lies in memory as
a whole. The bits are the same as one by one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgegossip.int8 import memory
from edgegossip.int8.functional import (
    Convolution,
    Fresh,
    Origin,
    Way,
    conv_shape,
    draw_key,
    flat,
    fresh,
    fresh_in_one,
    maps,
    maps_of,
    output_sizes,
    parts_for,
    place_of,
    place_of_maps,
    quantise,
    quantise_maps,
)
from edgegossip.int8.norms import chunks_of
from edgegossip.int8.tensor import QuantisedTensor, dequantise, note, note_without_step
from edgegossip.native import int8 as native

Parameters: TypeAlias = tuple[Tensor, Tensor, Tensor]  # v, gamma, beta


@lru_cache(maxsize=1024)
def _norm_shape(maps: tuple[int, ...], groups: int) -> native.NormShape:
    batch, height, width, channels = maps
    return native.NormShape(batch, height * width, channels, groups, chunks_of(height * width))


def _places(v: Tensor, gamma: Tensor, beta: Tensor) -> native.NormParameters:
    return native.NormParameters(flat(v), flat(gamma), flat(beta))


def _normed(
    y: QuantisedTensor, by: native.NormParameters, shape: native.NormShape, into: Fresh = fresh
) -> QuantisedTensor:
    made = into(y.sizes)
    native.evonorm(shape, maps(y), by, made.places, threads=torch.get_num_threads())
    return made


def _both(
    x: QuantisedTensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: native.ConvShape,
    norm: native.NormShape,
    by: native.NormParameters,
) -> tuple[tuple[Tensor, ...], QuantisedTensor]:
    """The parts of the convolution, which is kept for the backward pass alone, and the norm of
    it."""
    sizes = output_sizes(shape)
    y, z = parts_for(sizes), fresh(sizes)
    native.conv_evonorm(
        shape,
        maps(x),
        flat(weight),
        flat(bias),
        maps_of(y, sizes),
        norm,
        by,
        z.places,
        threads=torch.get_num_threads(),
    )
    return y, z


class _RangeEvoNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: QuantisedTensor, v: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> QuantisedTensor:
        ctx.save_for_backward(v, gamma, beta, *y.parts)
        ctx.norm, ctx.y_sizes = _norm_shape(y.sizes, groups), y.sizes
        return _normed(y, _places(v, gamma, beta), ctx.norm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        parameters, y = saved[:3], saved[3:]
        dy, grads = memory.empty_nchw(ctx.y_sizes), [torch.empty(ctx.norm.channels) for _ in parameters]
        native.evonorm_backward(
            ctx.norm,
            maps_of(y, ctx.y_sizes),
            _places(*parameters),
            place_of_maps(g),
            place_of(dy),
            _places(*grads),
            threads=torch.get_num_threads(),
        )
        return dy, *grads, None


class Joint(NamedTuple):
    """How a convolution and its norm are done. In one piece, autograd does not see y: this step's
    gradient goes to the inputs of the convolution."""

    way: Way
    norm: native.NormShape
    y: QuantisedTensor | None  # what the convolution gave, where it was computed before


class _ConvRangeEvoNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: QuantisedTensor,
        weight: Tensor,
        bias: Tensor | None,
        v: Tensor,
        gamma: Tensor,
        beta: Tensor,
        joint: Joint,
    ) -> QuantisedTensor:
        way, norm, y = joint
        by = _places(v, gamma, beta)
        if y is None:
            parts, z = _both(x, weight, bias, way.shape, norm, by)
        else:
            parts, z = y.parts, _normed(y, by, norm)
        ctx.way, ctx.norm, ctx.sizes, ctx.y_sizes = way, norm, x.sizes, z.sizes
        ctx.has_bias, ctx.end_of_x = bias is not None, 4 + len(x.parts)
        ctx.save_for_backward(weight, v, gamma, beta, *x.parts, *parts)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        weight, parameters, x, y = saved[0], saved[1:4], saved[4 : ctx.end_of_x], saved[ctx.end_of_x :]
        shape, wide, key = ctx.way
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        dx = memory.empty_nchw(ctx.sizes) if of_x else None
        dw = memory.empty(tuple(weight.shape)) if of_weight else None
        db = torch.empty(shape.outputs) if of_bias and ctx.has_bias else None
        grads = [torch.empty(ctx.norm.channels) for _ in parameters]
        native.conv_evonorm_backward(
            native.ConvPass(shape, maps_of(x, ctx.sizes), flat(weight), key, wide),
            ctx.norm,
            maps_of(y, ctx.y_sizes),
            _places(*parameters),
            place_of_maps(g),
            None if dx is None else place_of(dx),
            flat(dw),
            flat(db),
            _places(*grads),
            threads=torch.get_num_threads(),
        )
        return dx, dw, db, *grads, None


def _is_watched(y: Tensor) -> bool:
    """Whether somebody wants the gradient of y itself; then the two steps stay apart. The result of
    a frozen convolution that was asked to have one is a leaf."""
    with torch._C.DisableTorchFunctionSubclass():
        return bool(y._backward_hooks) or y.retains_grad or (y.is_leaf and y.requires_grad)


def range_evonorm(y: Tensor, v: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> Tensor:
    """See `norms.RangeEvoNorm`; y [batch, channels, height, width]."""
    y = quantise_maps(y)
    if not torch.is_grad_enabled():
        shape = _norm_shape(y.sizes, groups)
        made = _normed(y, _places(v, gamma, beta), shape, fresh_in_one)
        note(made, "evonorm", (y,), shape, v, gamma, beta)
        return made
    origin: Origin | None = y.origin
    if origin is None or _is_watched(y):
        return _RangeEvoNorm.apply(y, v, gamma, beta, groups)
    y.taken = True
    x, weight, bias, way = origin
    return _ConvRangeEvoNorm.apply(x, weight, bias, v, gamma, beta, Joint(way, _norm_shape(y.sizes, groups), y))


def conv_range_evonorm(x: Tensor, conv: Convolution, by: Parameters, groups: int) -> Tensor:
    """range_evonorm(conv2d(x, *conv), *by, groups) in one step, with gradients on."""
    x = quantise_maps(x)
    shape = conv_shape(x.sizes, conv.weight.shape, conv.stride, conv.padding, conv.groups)
    joint = Joint(Way(shape, conv.dw == 16, draw_key()), _norm_shape(output_sizes(shape), groups), None)
    return _ConvRangeEvoNorm.apply(x, conv.weight, conv.bias, *by, joint)


class LayerRange(NamedTuple):
    """How a range layer norm estimates a token's deviation: see `norms.RangeLayerNorm`."""

    chunks: int
    factor: float
    epsilon: float


class _RangeLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: QuantisedTensor, gamma: Tensor, beta: Tensor, by: LayerRange) -> QuantisedTensor:
        tokens = y.sizes[1] if len(y.sizes) == 3 else 1
        ctx.shape = native.LayerNormShape(y.sizes[0], tokens, y.sizes[-1], by.chunks)
        ctx.by, ctx.sizes = by, y.sizes
        ctx.save_for_backward(gamma, *y.parts)
        made = fresh(y.sizes)
        given = (flat(gamma), flat(beta), by.factor, by.epsilon)
        native.layernorm(ctx.shape, maps(y), *given, made.places, threads=torch.get_num_threads())
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        gamma, *parts = ctx.saved_tensors
        dy, dgamma, dbeta = memory.empty(ctx.sizes), torch.empty(ctx.shape.features), torch.empty(ctx.shape.features)
        native.layernorm_backward(
            ctx.shape,
            maps_of(parts, ctx.sizes),
            flat(gamma),
            ctx.by.factor,
            ctx.by.epsilon,
            flat(g),
            place_of(dy),
            place_of(dgamma),
            place_of(dbeta),
            threads=torch.get_num_threads(),
        )
        return dy, dgamma, dbeta, None


def range_layernorm(y: Tensor, gamma: Tensor | None, beta: Tensor | None, by: LayerRange) -> Tensor:
    """Norm each token of y [batch, features] or [batch, length, features]; see
    `norms.RangeLayerNorm`. Of other shapes the middle dimensions count as one, and the result is
    float32. No gamma or beta: ones or zeros."""
    note_without_step("layer norm")
    features = y.shape[-1]
    gamma = torch.ones(features) if gamma is None else gamma
    beta = torch.zeros(features) if beta is None else beta
    if y.dim() in (2, 3):
        made: Tensor = _RangeLayerNorm.apply(quantise(y), gamma, beta, by)
        return made
    tokens = dequantise(y).reshape(len(y) if y.dim() > 1 else 1, -1, features)
    return dequantise(range_layernorm(tokens, gamma, beta, by)).reshape(y.shape)
