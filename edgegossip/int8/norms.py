"""Normalisation without batch statistics: as float32 modules, and as functions of int8 tensors.

    EvoNorm-S0       Liu et al. 2020, "Evolving normalization-activation layers", table 1
    Range EvoNorm    Aketi, Kodge, Roy 2021, "Low precision decentralized distributed training",
                     section 3: EvoNorm-S0 with a scaled range in the place of the deviation, and a
                     hard sigmoid
    Range layer norm Ba et al. 2016, "Layer normalization", with a scaled range in the place of the
                     deviation, as in range batch norm (Banner et al. 2018)

The EvoNorms include their activation, so no ReLU may follow them.

In int8, a convolution and the EvoNorm behind it make one step of the backward pass: the gradient
between them is computed, rounded and used up sample by sample, and never lies in memory as a whole.
The bits are the same as one by one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from typing_extensions import override

from edgegossip.int8 import memory
from edgegossip.int8.functional import (
    ConvConfig,
    Convolution,
    conv_shape,
    draw_key,
    output_sizes,
)
from edgegossip.int8.tensor import (
    Allocator,
    Function,
    QuantisedTensor,
    buffer_nhwc,
    buffer_of,
    dense_buffer,
    dequantise,
    empty_in_block,
    empty_quantised,
    maps,
    maps_of,
    parts_for,
    quantise,
    quantise_maps,
    record,
    refuse_recording,
)
from edgegossip.native import int8 as native

GROUPS = 8
EPSILON = 1e-5
_CHUNKS = 16
_MIN_CHUNK_PIXELS = 4
# A normal sample deviates by about its range times C(n) = this / sqrt(2 ln n) (range batch norm,
# Banner et al. 2018).
_RANGE_FACTOR = 0.35 * 0.5 * (1.0 + math.sqrt(math.pi * math.log(4.0)))


def range_factor(values: int) -> float:
    """Return C of a chunk of so many values. A single value has no range; any finite C will do."""
    return _RANGE_FACTOR / math.sqrt(2.0 * math.log(max(2, values)))


def groups_of(channels: int) -> int:
    """Return eight groups, or the largest smaller number that divides the channels."""
    return next(g for g in range(GROUPS, 0, -1) if channels % g == 0)


def chunks_of(pixels: int) -> int:
    """Return sixteen chunks, or the largest smaller number that divides the map into equal chunks
    of at least 4 pixels."""
    most = max(1, min(_CHUNKS, pixels // _MIN_CHUNK_PIXELS))
    return next(c for c in range(most, 0, -1) if pixels % c == 0)


class EvoNormS0(nn.Module):
    """Gives z = y sigmoid(v y) / sqrt(var + 1e-5) * gamma + beta of y float[batch, channels,
    height, width], var the biased variance of a (sample, group).

    float32 on a CPU goes through kernels, several times as fast as torch's operations one by one;
    their gradient has no gradient of its own. Everything else goes through torch's."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = groups_of(channels)
        self.v = nn.Parameter(torch.ones(channels))
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    @override
    def forward(self, y: Tensor) -> Tensor:
        if _suits_kernels(y, self.v):
            made: Tensor = _EvoNormS0.apply(y, self.v, self.gamma, self.beta, self.groups)
            return made
        grouped = torch.unflatten(y, 1, (self.groups, -1))
        inverse = torch.rsqrt(grouped.var((2, 3, 4), unbiased=False) + EPSILON)
        return torch.addcmul(_wide(self.beta), y * torch.sigmoid(_wide(self.v) * y), self._scale(inverse))

    def _scale(self, inverse: Tensor) -> Tensor:
        """[batch, groups] -> [batch, channels, 1, 1], gamma included."""
        return (inverse.repeat_interleave(len(self.gamma) // self.groups, 1) * self.gamma)[:, :, None, None]


class RangeEvoNorm(EvoNormS0):
    """Gives z = gamma y hardsigmoid(v y) / (C R + 1e-5) + beta, with hardsigmoid(t) = clamp(t / 6 +
    1/2, 0, 1).

    Per (sample, group): the pixels are cut, in row-major order, into 16 chunks of equal size (of at
    least 4 pixels, so fewer in a map of under 64 pixels, and as many as divide the map); R is the
    mean over the chunks of max - min over the group's channels, C = 0.175 (1 + sqrt(pi ln 4)) /
    sqrt(2 ln n), n the values in a chunk. The gradient of the range goes to each chunk's maximum
    and minimum, in equal parts where several values tie."""

    @override
    def forward(self, y: Tensor) -> Tensor:
        chunks = chunks_of(y.shape[2] * y.shape[3])
        grouped = torch.unflatten(torch.unflatten(y, 1, (self.groups, -1)).flatten(3), 3, (chunks, -1))
        spread = (grouped.amax((2, 4)) - grouped.amin((2, 4))).mean(2)
        scale = self._scale(1.0 / (spread * range_factor(grouped.shape[2] * grouped.shape[4]) + EPSILON))
        return torch.addcmul(_wide(self.beta), y * F.hardsigmoid(_wide(self.v) * y), scale)


def _wide(values: Tensor) -> Tensor:
    return values[None, :, None, None]


def _suits_kernels(y: Tensor, v: Tensor) -> bool:
    """Whether y lies there as plain numbers: not while an exporter or a compiler follows what
    becomes of it, nor under torch.func."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    return type(y) is Tensor and y.is_cpu and y.dtype == v.dtype == torch.float32 and y.dim() == 4 and y.numel() > 0


class _EvoNormS0(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> Tensor:
        y = y.contiguous(memory_format=torch.channels_last)
        batch, channels, height, width = y.shape
        ctx.norm = _norm_shape((batch, height, width, channels), groups)
        z, moments = torch.empty_like(y), torch.empty(batch * 2 * groups)
        native.evonorm_s0(
            ctx.norm,
            dense_buffer(y),
            _norm_parameters(v, gamma, beta),
            dense_buffer(z),
            dense_buffer(moments),
            threads=torch.get_num_threads(),
        )
        ctx.save_for_backward(y, v, gamma, beta, moments)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        y, *parameters, moments = ctx.saved_tensors
        dy, grads = torch.empty_like(y), [torch.empty(ctx.norm.channels) for _ in parameters]
        native.evonorm_s0_backward(
            ctx.norm,
            dense_buffer(y),
            _norm_parameters(*parameters),
            dense_buffer(moments),
            buffer_nhwc(g),
            dense_buffer(dy),
            _norm_parameters(*grads),
            threads=torch.get_num_threads(),
        )
        return dy, *grads, None


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
    """Gives z = gamma (y - mean) / (C R + eps) + beta over the last dimension of y float[...,
    features].

    The features are cut in order into 16 chunks of equal size (of at least 4 features, and as many
    as divide them: `chunks_of`); R is the mean over the chunks of max - min, C = 1 /
    `mean_range`(features in a chunk), so that C R estimates the deviation of normal values without
    bias, and a trained nn.LayerNorm keeps its scale. eps is the layer's own. The gradient of the
    range goes to each chunk's maximum and minimum, in equal parts where several values tie."""

    @override
    def forward(self, y: Tensor) -> Tensor:
        chunks, factor = layer_range(y.shape[-1])
        parts = torch.unflatten(y, -1, (chunks, -1))
        spread = (parts.amax(-1) - parts.amin(-1)).sum(-1, keepdim=True)
        normed = (y - y.mean(-1, keepdim=True)) / (spread * factor + self.eps)
        scaled = normed if self.weight is None else normed * self.weight
        made: Tensor = scaled if self.bias is None else scaled + self.bias
        return made


Parameters: TypeAlias = tuple[Tensor, Tensor, Tensor]  # v, gamma, beta


@lru_cache(maxsize=1024)
def _norm_shape(maps: tuple[int, ...], groups: int) -> native.NormShape:
    batch, height, width, channels = maps
    return native.NormShape(batch, height * width, channels, groups, chunks_of(height * width))


def _norm_parameters(v: Tensor, gamma: Tensor, beta: Tensor) -> native.NormParameters:
    return native.NormParameters(buffer_of(v), buffer_of(gamma), buffer_of(beta))


def _evonorm(
    y: QuantisedTensor, by: native.NormParameters, shape: native.NormShape, into: Allocator = empty_quantised
) -> QuantisedTensor:
    made = into(y.sizes)
    native.evonorm(shape, maps(y), by, made.kernel_maps, threads=torch.get_num_threads())
    return made


def _conv_and_norm(
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
    y, z = parts_for(sizes), empty_quantised(sizes)
    native.conv_evonorm(
        shape,
        maps(x),
        buffer_of(weight),
        buffer_of(bias),
        maps_of(y, sizes),
        norm,
        by,
        z.kernel_maps,
        threads=torch.get_num_threads(),
    )
    return y, z


class _RangeEvoNorm(Function):
    @staticmethod
    def forward(ctx: Any, y: QuantisedTensor, v: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> QuantisedTensor:
        ctx.save_for_backward(v, gamma, beta, *y.parts)
        ctx.norm, ctx.y_sizes = _norm_shape(y.sizes, groups), y.sizes
        return _evonorm(y, _norm_parameters(v, gamma, beta), ctx.norm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        parameters, y = saved[:3], saved[3:]
        dy, grads = memory.empty_nchw(ctx.y_sizes), [torch.empty(ctx.norm.channels) for _ in parameters]
        native.evonorm_backward(
            ctx.norm,
            maps_of(y, ctx.y_sizes),
            _norm_parameters(*parameters),
            buffer_nhwc(g),
            dense_buffer(dy),
            _norm_parameters(*grads),
            threads=torch.get_num_threads(),
        )
        return dy, *grads, None


class _Fused(NamedTuple):
    """Says how a convolution and its norm are done. In one piece, autograd does not see y: this
    step's gradient goes to the inputs of the convolution."""

    config: ConvConfig
    norm: native.NormShape
    y: QuantisedTensor | None  # what the convolution gave, where it was computed before


class _ConvRangeEvoNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: QuantisedTensor,
        weight: Tensor,
        bias: Tensor | None,
        v: Tensor,
        gamma: Tensor,
        beta: Tensor,
        fused: _Fused,
    ) -> QuantisedTensor:
        config, norm, y = fused
        by = _norm_parameters(v, gamma, beta)
        if y is None:
            parts, z = _conv_and_norm(x, weight, bias, config.shape, norm, by)
        else:
            parts, z = y.parts, _evonorm(y, by, norm)
        ctx.config, ctx.norm, ctx.sizes, ctx.y_sizes = config, norm, x.sizes, z.sizes
        ctx.has_bias, ctx.end_of_x = bias is not None, 4 + len(x.parts)
        ctx.save_for_backward(weight, v, gamma, beta, *x.parts, *parts)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        weight, parameters, x, y = saved[0], saved[1:4], saved[4 : ctx.end_of_x], saved[ctx.end_of_x :]
        shape, wide, key = ctx.config
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        dx = memory.empty_nchw(ctx.sizes) if of_x else None
        dw = memory.empty(tuple(weight.shape)) if of_weight else None
        db = torch.empty(shape.outputs) if of_bias and ctx.has_bias else None
        grads = [torch.empty(ctx.norm.channels) for _ in parameters]
        native.conv_evonorm_backward(
            native.ConvPass(shape, maps_of(x, ctx.sizes), buffer_of(weight), key, wide),
            ctx.norm,
            maps_of(y, ctx.y_sizes),
            _norm_parameters(*parameters),
            buffer_nhwc(g),
            None if dx is None else dense_buffer(dx),
            buffer_of(dw),
            buffer_of(db),
            _norm_parameters(*grads),
            threads=torch.get_num_threads(),
        )
        return dx, dw, db, *grads, None


def _is_watched(y: Tensor) -> bool:
    """Whether somebody wants the gradient of y itself; then the two steps stay apart. The result of
    a frozen convolution that was asked to have one is a leaf."""
    with torch._C.DisableTorchFunctionSubclass():
        return bool(y._backward_hooks) or y.retains_grad or (y.is_leaf and y.requires_grad)


def range_evonorm(y: Tensor, v: Tensor, gamma: Tensor, beta: Tensor, groups: int) -> Tensor:
    """Compute `RangeEvoNorm` of y [batch, channels, height, width], int8 or float32, as int8."""
    y = quantise_maps(y)
    shape, producer = _norm_shape(y.sizes, groups), y.producer
    made: Tensor
    if not torch.is_grad_enabled():
        made = _evonorm(y, _norm_parameters(v, gamma, beta), shape, empty_in_block)
        record(made, "evonorm", (y,), shape, v, gamma, beta)
    elif producer is None or _is_watched(y):
        made = _RangeEvoNorm.apply(y, v, gamma, beta, groups)
    else:
        y.fused = True
        x, weight, bias, config = producer
        made = _ConvRangeEvoNorm.apply(x, weight, bias, v, gamma, beta, _Fused(config, shape, y))
    return made


def conv_range_evonorm(x: Tensor, conv: Convolution, by: Parameters, groups: int) -> Tensor:
    """Compute range_evonorm(conv2d(x, *conv), *by, groups) in one step, with gradients on."""
    x = quantise_maps(x)
    shape = conv_shape(x.sizes, conv.weight.shape, conv.stride, conv.padding, conv.groups)
    config = ConvConfig(shape, conv.dw == 16, draw_key())
    fused = _Fused(config, _norm_shape(output_sizes(shape), groups), None)
    made: Tensor = _ConvRangeEvoNorm.apply(x, conv.weight, conv.bias, *by, fused)
    return made


class LayerRange(NamedTuple):
    """Says how a range layer norm estimates a token's deviation: see `RangeLayerNorm`."""

    chunks: int
    factor: float
    epsilon: float


class _RangeLayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, y: QuantisedTensor, gamma: Tensor, beta: Tensor, by: LayerRange) -> QuantisedTensor:
        tokens = y.sizes[1] if len(y.sizes) == 3 else 1
        ctx.shape = native.LayerNormShape(y.sizes[0], tokens, y.sizes[-1], by.chunks)
        ctx.by, ctx.sizes = by, y.sizes
        ctx.save_for_backward(gamma, *y.parts)
        made = empty_quantised(y.sizes)
        given = (buffer_of(gamma), buffer_of(beta), by.factor, by.epsilon)
        native.layernorm(ctx.shape, maps(y), *given, made.kernel_maps, threads=torch.get_num_threads())
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        gamma, *parts = ctx.saved_tensors
        dy, dgamma, dbeta = memory.empty(ctx.sizes), torch.empty(ctx.shape.features), torch.empty(ctx.shape.features)
        native.layernorm_backward(
            ctx.shape,
            maps_of(parts, ctx.sizes),
            buffer_of(gamma),
            ctx.by.factor,
            ctx.by.epsilon,
            buffer_of(g),
            dense_buffer(dy),
            dense_buffer(dgamma),
            dense_buffer(dbeta),
            threads=torch.get_num_threads(),
        )
        return dy, dgamma, dbeta, None


def range_layernorm(y: Tensor, gamma: Tensor | None, beta: Tensor | None, by: LayerRange) -> Tensor:
    """Normalise each token of y [batch, features] or [batch, length, features]; see
    `RangeLayerNorm`. Of other shapes the middle dimensions count as one, and the result is
    float32. No gamma or beta: ones or zeros."""
    refuse_recording("layer norm")
    features = y.shape[-1]
    gamma = torch.ones(features) if gamma is None else gamma
    beta = torch.zeros(features) if beta is None else beta
    if y.dim() in (2, 3):
        made: Tensor = _RangeLayerNorm.apply(quantise(y), gamma, beta, by)
        return made
    tokens = dequantise(y).reshape(len(y) if y.dim() > 1 else 1, -1, features)
    return dequantise(range_layernorm(tokens, gamma, beta, by)).reshape(y.shape)
