"""The int8 layers as functions with gradients, as `torch.nn.functional` has them.

Inputs may be plain float32 tensors, which are then quantised. Flattening, slicing and zero padding
change no value, so neither do scales and zero points.

Every gradient passes through quantisers as if they were not there (straight-through estimator).
Saved for the backward pass are int8 tensors, a scale and zero point a sample, and references to the
weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from edgegossip.int8 import memory
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
    implements,
    maps,
    maps_of,
    nchw,
    nhwc,
    quantise,
    quantise_float,
    quantise_maps,
    record,
    refuse_recording,
)
from edgegossip.native import int8 as native
from edgegossip.types import UsageError

Pair = tuple[int, int]
_KEY_BITS = 63


def draw_key() -> int:
    """Draw the key of one stochastic rounding from torch's random state."""
    return int(torch.randint(0, 2**_KEY_BITS - 1, ()))


def advance_rng(training: bool) -> None:
    """Draw a key that nobody uses, in a pass of training without gradients.

    torch's reentrant checkpoints make such a pass and then a second one with gradients, whose other
    draws (dropout) have to be the same."""
    if training and not torch.is_grad_enabled():
        draw_key()


class ConvConfig(NamedTuple):
    """Says how a convolution is done. In one piece: autograd looks at every argument."""

    shape: native.ConvShape
    wide: bool  # gradients of 16 bits for the weights'
    key: int  # of stochastic rounding


class Producer(NamedTuple):
    """Names the convolution that made an int8 tensor: what the norm behind it needs to do the
    backward pass of both in one step."""

    x: QuantisedTensor
    weight: Tensor
    bias: Tensor | None
    config: ConvConfig


@lru_cache(maxsize=1024)
def output_sizes(shape: native.ConvShape) -> tuple[int, int, int, int]:
    """Return the sizes of a convolution's result q."""
    return shape.batch, shape.out_height, shape.out_width, shape.outputs


def _convolved(
    x: QuantisedTensor, weight: Tensor, bias: Tensor | None, shape: native.ConvShape, into: Allocator = empty_quantised
) -> QuantisedTensor:
    made = into(output_sizes(shape))
    native.conv(shape, maps(x), buffer_of(weight), buffer_of(bias), made.kernel_maps, threads=torch.get_num_threads())
    return made


def _product(x: QuantisedTensor, weight: Tensor, bias: Tensor | None, shape: native.ConvShape) -> Tensor:
    values = memory.empty((*x.sizes[:-1], shape.outputs))
    native.conv(
        shape, maps(x), buffer_of(weight), buffer_of(bias), dense_buffer(values), threads=torch.get_num_threads()
    )
    return values


class _Conv(Function):
    """`as_values`: the result is plain float32 (linear layers), else an int8 tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        x: QuantisedTensor,
        weight: Tensor,
        bias: Tensor | None,
        config: ConvConfig,
        as_values: bool,
    ) -> Tensor:
        ctx.save_for_backward(*x.parts, weight)
        ctx.config, ctx.sizes, ctx.has_bias = config, x.sizes, bias is not None
        return (_product if as_values else _convolved)(x, weight, bias, config.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *parts, weight = ctx.saved_tensors
        shape, wide, key = ctx.config
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        dx = memory.empty_nchw(ctx.sizes) if of_x else None
        dw = memory.empty(tuple(weight.shape)) if of_weight else None
        db = torch.empty(shape.outputs) if of_bias and ctx.has_bias else None
        native.conv_backward(
            shape,
            maps_of(parts, ctx.sizes),
            buffer_of(weight),
            buffer_nhwc(g),
            key,
            wide,
            None if dx is None else dense_buffer(dx),
            buffer_of(dw),
            buffer_of(db),
            threads=torch.get_num_threads(),
        )
        return dx, dw, db, None, None


@lru_cache(maxsize=1024)
def conv_shape(
    maps: tuple[int, ...], weight: tuple[int, ...], stride: Pair, padding: Pair, groups: int
) -> native.ConvShape:
    """Return the shape of a convolution of q [*maps] by weight [out, in / groups, kernel_h,
    kernel_w]. Raises UsageError where the two do not fit."""
    batch, height, width, inputs = maps
    outputs, _, kernel_h, kernel_w = weight
    if inputs != weight[1] * groups:
        raise UsageError(f"this int8 convolution takes {weight[1] * groups} channels, not {inputs}")
    if height + 2 * padding[0] < kernel_h or width + 2 * padding[1] < kernel_w:
        raise UsageError(f"a map of {height} x {width} is smaller than the kernel of {kernel_h} x {kernel_w}")
    return native.ConvShape(batch, height, width, inputs, outputs, kernel_h, kernel_w, *stride, *padding, groups)


class Convolution(NamedTuple):
    """Holds what a convolutional layer has, in the order in which `conv2d` takes it."""

    weight: Tensor
    bias: Tensor | None
    stride: Pair
    padding: Pair
    groups: int
    dw: int


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, groups: int, dw: int = 16
) -> Tensor:
    """Convolve x [batch, in, height, width] with weight [out, in / groups, kernel_h, kernel_w], as
    `torch.nn.functional.conv2d` does; the result is int8 (`native.int8.conv`)."""
    x = quantise_maps(x)
    shape = conv_shape(x.sizes, weight.shape, stride, padding, groups)
    if not torch.is_grad_enabled():
        made = _convolved(x, weight, bias, shape, empty_in_block)
        record(made, "conv", (x,), shape, weight, bias, False)
        return made
    config = ConvConfig(shape, dw == 16, draw_key())
    y: QuantisedTensor = _Conv.apply(x, weight, bias, config, False)
    y.producer = Producer(x, weight, bias, config)
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dw: int = 16) -> Tensor:
    """Multiply x [..., in] by weight [out, in]; the result is a plain float32 tensor [..., out].

    A sample is x[0] of [batch, in] or [batch, length, in]; of other shapes each row is one."""
    rows = quantise(x if x.dim() in (2, 3) else dequantise(x).reshape(-1, x.shape[-1]))
    batch, length, features = rows.sizes if len(rows.sizes) == 3 else (rows.sizes[0], 1, rows.sizes[1])
    if features != weight.shape[1]:
        raise UsageError(f"this int8 layer takes {weight.shape[1]} features, not {features}")
    shape = native.ConvShape(batch, 1, length, features, weight.shape[0], 1, 1, 1, 1, 0, 0, 1)
    if torch.is_grad_enabled():
        y: Tensor = _Conv.apply(rows, weight, bias, ConvConfig(shape, dw == 16, draw_key()), True)
    else:
        y = _product(rows, weight, bias, shape)
        record(y, "conv", (rows,), shape, weight, bias, True)
    return y if x.dim() in (2, 3) else y.reshape(*x.shape[:-1], weight.shape[0])


def _sum(a: QuantisedTensor, b: QuantisedTensor, into: Allocator = empty_quantised) -> QuantisedTensor:
    made = into(a.sizes)
    native.add(maps(a), maps(b), made.kernel_maps, threads=torch.get_num_threads())
    return made


class _Add(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, a: QuantisedTensor, b: QuantisedTensor) -> QuantisedTensor:
        return _sum(a, b)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


@implements("add", "__add__", "__radd__", "__iadd__")
def add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """Add two int8 tensors of one shape; anything else is not for int8."""
    a, b = input, other
    both = isinstance(a, QuantisedTensor) and isinstance(b, QuantisedTensor)
    if not both or alpha != 1 or a.sizes != b.sizes:
        return NotImplemented
    if torch.is_grad_enabled():
        return _Add.apply(a, b)
    made = _sum(a, b, empty_in_block)
    record(made, "add", (a, b))
    return made


class _ReLU(Function):
    """Takes int8, or float32 that it quantises first: one step, as small layers take no longer than
    two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> QuantisedTensor:
        if isinstance(x, QuantisedTensor):
            made = x.with_q(memory.empty(x.sizes, torch.int8))
            q = x.q
        else:
            made = quantise_float(x)
            q = made.q
        native.relu(dense_buffer(q), dense_buffer(made.zero), dense_buffer(made.q), threads=torch.get_num_threads())
        ctx.save_for_backward(made.q, made.zero)
        ctx.sizes = made.sizes
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        q, zero = ctx.saved_tensors
        dx = memory.empty_nchw(ctx.sizes)
        native.relu_backward(
            buffer_of(q), buffer_of(zero), buffer_nhwc(g), dense_buffer(dx), threads=torch.get_num_threads()
        )
        return dx


@implements("relu")
def relu(input: Any, inplace: bool = False) -> Any:
    """Compute max(x, 0). Values that the quantiser made 0 count as not positive. `inplace` is taken
    and changes nothing."""
    if torch.is_grad_enabled():
        both: QuantisedTensor = _ReLU.apply(input)
        return both
    x = quantise(input)
    made = _ReLU.apply(x)
    record(made, "relu", (x,))
    return made


class _GELU(Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor) -> QuantisedTensor:
        ctx.save_for_backward(*x.parts)
        ctx.sizes = x.sizes
        made = empty_quantised(x.sizes)
        native.gelu(maps(x), made.kernel_maps, threads=torch.get_num_threads())
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        dx = memory.empty_nchw(ctx.sizes)
        x = maps_of(ctx.saved_tensors, ctx.sizes)
        native.gelu_backward(x, buffer_nhwc(g), dense_buffer(dx), threads=torch.get_num_threads())
        return dx


@implements("gelu")
def gelu(input: Any, *, approximate: str = "none") -> Any:
    """Compute x Phi(x) of int8, or of float32 that is quantised first, by a table of 256 entries a
    sample."""
    if approximate != "none":
        return NotImplemented
    refuse_recording("GELU")
    made: QuantisedTensor = _GELU.apply(quantise(input))
    return made


class _Flatten(Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor) -> QuantisedTensor:
        ctx.shape = tuple(x.shape)
        return x.with_q(nchw(x.q).reshape(len(x.q), -1).contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].reshape(ctx.shape)


@implements("flatten")
def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Flatten [batch, channels, height, width] or [batch, length, features] to [batch, everything
    else]."""
    x = input
    if not isinstance(x, QuantisedTensor) or x.dim() not in (3, 4):
        return NotImplemented
    if start_dim not in (1, 1 - x.dim()) or end_dim not in (-1, x.dim() - 1):
        return NotImplemented
    made = _Flatten.apply(x)
    record(made, "flatten", (x,), x.sizes[-1] if x.dim() == 4 else 1)
    return made


class _Taken(NamedTuple):
    """Says which slices of [batch, height, width, channels] are taken."""

    samples: slice
    shape: native.SliceShape  # of a sample

    @classmethod
    def of(cls, sizes: tuple[int, ...], index: Sequence[slice]) -> _Taken:
        ranges = [range(d)[s] for d, s in zip(sizes[1:], index[1:], strict=True)]
        parts = itertools.chain(*((r.start, r.step if len(r) > 1 else 1, len(r)) for r in ranges))
        return cls(index[0], native.SliceShape(*sizes[1:], *parts))

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.shape.rows, self.shape.columns, self.shape.taken

    def is_empty(self, batch: int) -> bool:
        return not (all(self.sizes) and range(batch)[self.samples])


def _sliced(x: QuantisedTensor, by: _Taken) -> QuantisedTensor:
    q = x.q[by.samples].contiguous()
    taken = memory.empty((len(q), *by.sizes), torch.int8)
    native.slice_maps(by.shape, len(q), dense_buffer(q), dense_buffer(taken), threads=torch.get_num_threads())
    return QuantisedTensor(taken, x.scale[by.samples].clone(), x.zero[by.samples].clone())


def _pitched(g: Tensor) -> tuple[int, Any]:
    """g [batch, height, width, channels] as a kernel takes it whose pixels may lie apart: how far,
    in floats, and where."""
    batch, height, width, channels = g.shape
    pitch = g.stride(2) if g.shape[2] > 1 else channels
    apart = (height * width * pitch, width * pitch, pitch, 1)
    if (
        g.dtype != torch.float32
        or pitch < channels
        or any(d > 1 and a != b for d, a, b in zip(g.shape, g.stride(), apart, strict=True))
    ):
        return channels, buffer_of(g)
    return pitch, (g.data_ptr(), (batch * height * width - 1) * pitch + channels, "f", g)


class _Slice(Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor, by: _Taken) -> QuantisedTensor:
        ctx.sizes, ctx.by = x.sizes, by
        return _sliced(x, by)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        dx, by = memory.empty_nchw(ctx.sizes), ctx.by
        whole = len(g) == len(dx)
        part = dx if whole else memory.empty_nchw((len(g), *ctx.sizes[1:]))
        pitch, place = _pitched(g.permute(0, 2, 3, 1))
        native.slice_backward(by.shape, len(g), pitch, place, dense_buffer(part), threads=torch.get_num_threads())
        if not whole:
            dx.zero_()[by.samples] = part
        return dx, None


@implements("__getitem__")
def getitem(x: Any, index: Any) -> Any:
    """Take x[:, :, ::2, ::2] and other slices of [batch, channels, height, width]; any other index
    is not for int8."""
    parts = index if isinstance(index, tuple) else (index,)
    if not isinstance(x, QuantisedTensor) or x.dim() != 4 or not all(isinstance(p, slice) for p in parts):
        return NotImplemented
    if len(parts) > 4 or any(p.step is not None and p.step < 1 for p in parts):
        return NotImplemented
    n, c, h, w = list(parts) + [slice(None)] * (4 - len(parts))
    taken = _Taken.of(x.sizes, (n, h, w, c))
    if taken.is_empty(len(x)):
        return NotImplemented
    if torch.is_grad_enabled():
        return _Slice.apply(x, taken)
    made = _sliced(x, taken)
    if n in (slice(None), slice(0, None)):  # else a sample is not what it was, or not for every batch
        record(made, "slice", (x,), list(taken.shape))
    return made


def _pad_shape(x: QuantisedTensor, pads: tuple[Pair, Pair, Pair]) -> native.PadShape:
    batch, height, width, channels = x.sizes
    return native.PadShape(batch, height, width, channels, *pads[0], *pads[1], *pads[2])


def _padded(x: QuantisedTensor, pads: tuple[Pair, Pair, Pair]) -> QuantisedTensor:
    size = [old + first + last for old, (first, last) in zip(x.sizes[1:], pads, strict=True)]
    q = torch.empty((x.sizes[0], *size), dtype=torch.int8)  # few and small: from the pool they made its peak larger
    native.pad(_pad_shape(x, pads), buffer_of(x.q), buffer_of(x.zero), buffer_of(q), threads=torch.get_num_threads())
    return x.with_q(q)


class _Pad(Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor, pads: tuple[Pair, Pair, Pair]) -> QuantisedTensor:
        ctx.index = (
            slice(None),
            *(slice(first, first + old) for old, (first, _) in zip(x.q.shape[1:], pads, strict=True)),
        )
        return _padded(x, pads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return nchw(grads[0].permute(0, 2, 3, 1)[ctx.index]), None


@implements("view", "reshape")
def reshape(input: Any, *shape: Any) -> Any:
    """Flatten, for x.view(batch, -1) and x.reshape(batch, -1); any other shape is not for int8."""
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not isinstance(input, QuantisedTensor) or len(sizes) != 2:
        return NotImplemented
    batch = len(input)
    if sizes[0] not in (batch, -1) or sizes[1] not in (input.numel() // max(batch, 1), -1) or sizes == (-1, -1):
        return NotImplemented
    return flatten(input, 1)


@implements("contiguous")
def contiguous(input: Any, *_: Any, **__: Any) -> Any:
    """Return the tensor as it is: every int8 tensor is contiguous."""
    return input if isinstance(input, QuantisedTensor) else NotImplemented


@implements("dropout", "dropout1d", "dropout2d")
def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Drop nothing in eval mode, or of a share of 0; else it is not for int8."""
    return NotImplemented if (training and p > 0) or not isinstance(input, QuantisedTensor) else input


@implements("pad")
def pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Pad channels, rows and columns with zeros, as `torch.nn.functional.pad` does; anything else
    is not for int8."""
    x, sizes = input, [*pad, *[0] * (6 - len(pad))]
    if mode != "constant" or value or not isinstance(x, QuantisedTensor) or x.dim() != 4 or len(sizes) > 6:
        return NotImplemented
    if min(sizes) < 0:
        return NotImplemented
    columns, rows, channels = ((sizes[k], sizes[k + 1]) for k in (0, 2, 4))
    pads = rows, columns, channels
    if torch.is_grad_enabled():
        return _Pad.apply(x, pads)
    made = _padded(x, pads)
    record(made, "pad", (x,), _pad_shape(x, pads))
    return made


def pooled_size(size: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> int:
    """Count the outputs along one dimension as torch does: with `ceil_mode` no window starts behind
    the map and its padding."""
    out = (size + 2 * pad - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    return out - 1 if ceil_mode and (out - 1) * stride >= size + pad else out


def _pool_shape(x: QuantisedTensor, kernel: Pair, stride: Pair, pad: Pair, ceil_mode: bool) -> native.PoolShape:
    batch, *size, channels = x.sizes
    out = [pooled_size(size[k], kernel[k], stride[k], pad[k], ceil_mode) for k in (0, 1)]
    return native.PoolShape(batch, size[0], size[1], channels, *kernel, *stride, *pad, out[0], out[1])


class _MaxPool(Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor, shape: native.PoolShape) -> QuantisedTensor:
        q = memory.empty((shape.batch, shape.out_height, shape.out_width, shape.channels), torch.int8)
        tap = memory.empty((2, q.numel()), torch.uint8)
        native.max_pool(shape, buffer_of(x.q), buffer_of(q), buffer_of(tap), threads=torch.get_num_threads())
        ctx.shape = shape
        ctx.save_for_backward(tap)
        return x.with_q(q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (tap,) = ctx.saved_tensors
        s = ctx.shape
        dx = memory.empty_nchw((s.batch, s.height, s.width, s.channels))
        native.max_pool_backward(
            s, buffer_of(tap), buffer_of(nhwc(g)), dense_buffer(dx), threads=torch.get_num_threads()
        )
        return dx, None


def max_pool2d(x: Tensor, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool = False) -> Tensor:
    """Take the largest value of every window, of at most 256 places; the result is int8.

    Of several equal ones (nearly equal ones often are) the first and the last take half of the
    gradient each: on average that is nearer to float32's than all of it for one. Saved for the
    backward pass are two bytes a maximum."""
    x = quantise_maps(x)
    shape = _pool_shape(x, kernel, stride, padding, ceil_mode)
    made: Tensor = _MaxPool.apply(x, shape)
    record(made, "max_pool", (x,), shape)
    return made


class _AveragePool(Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor, shape: native.PoolShape, count_padding: bool) -> Tensor:
        ctx.shape, ctx.count_padding = shape, count_padding
        out = memory.empty_nchw((shape.batch, shape.out_height, shape.out_width, shape.channels))
        native.average_pool(shape, maps(x), count_padding, dense_buffer(out), threads=torch.get_num_threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        s = ctx.shape
        dx = memory.empty_nchw((s.batch, s.height, s.width, s.channels))
        native.average_pool_backward(
            s, buffer_of(nhwc(g)), ctx.count_padding, dense_buffer(dx), threads=torch.get_num_threads()
        )
        return dx, None, None


def avg_pool2d(
    x: Tensor, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """Take means over windows, from integer sums, as a plain float32 tensor. Nothing is saved for
    the backward pass."""
    x = quantise_maps(x)
    shape = _pool_shape(x, kernel, stride, padding, ceil_mode)
    made: Tensor = _AveragePool.apply(x, shape, count_include_pad)
    record(made, "average_pool", (x,), shape, count_include_pad)
    return made


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None, wide: bool, key: int) -> QuantisedTensor:
        length = ids.shape[1] if ids.dim() == 2 else 1
        ctx.shape = native.EmbeddingShape(len(ids), length, *weight.shape)
        ctx.save_for_backward(ids)
        ctx.padding, ctx.wide, ctx.key = padding, wide, key
        made = empty_quantised((*ids.shape, weight.shape[1]))
        native.embedding(
            ctx.shape, buffer_of(ids), buffer_of(weight), made.kernel_maps, threads=torch.get_num_threads()
        )
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        dw = torch.empty(ctx.shape.rows, ctx.shape.width)
        native.embedding_backward(
            ctx.shape,
            buffer_of(ids),
            buffer_of(g),
            ctx.key,
            ctx.wide,
            ctx.padding,
            buffer_of(dw),
            threads=torch.get_num_threads(),
        )
        return None, dw, None, None, None


def embedding(ids: Tensor, weight: Tensor, padding: int | None = None, dw: int = 16) -> Tensor:
    """Look up rows of weight [rows, features] by ids int64.

    Ids [batch] or [batch, length] give int8 [*ids.shape, features] with one scale for each first
    index; other ids [...] give plain float32 [..., features]. A lookup has no products, so no
    weight is rounded before. The row `padding` gets no gradient. Raises UsageError for an id that
    is no row."""
    plain = ids.to(torch.int64)
    if plain.numel() == 0:
        return torch.nn.functional.embedding(plain, weight, padding)
    if int(plain.min()) < 0 or int(plain.max()) >= len(weight):
        raise UsageError(
            f"ids from {int(plain.min())} to {int(plain.max())}: the embedding has rows 0 to {len(weight) - 1}"
        )
    key = draw_key() if torch.is_grad_enabled() else 0
    if plain.dim() in (1, 2):
        made: Tensor = _Embedding.apply(plain.contiguous(), weight, padding, dw == 16, key)
        return made
    rows = _Embedding.apply(plain.reshape(len(plain) if plain.dim() else 1, -1), weight, padding, dw == 16, key)
    return dequantise(rows).reshape(*ids.shape, weight.shape[1])
